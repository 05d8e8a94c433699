"""The commands of `docs/cli.md`, from the parser of the command line."""

# ruff: noqa: SLF001 - argparse has no public way to list the arguments of a parser

import argparse
import re
from collections.abc import Iterator
from typing import Any

from incoming_payments.server import command
from reference.markdown import sentence, table

PROGRAM = "incoming-payments"


def _subcommands() -> Any:
    [found] = [one for one in command.parser()._actions if isinstance(one, argparse._SubParsersAction)]
    return found


def command_list() -> str:
    """Return the name and the purpose of each command."""
    rows = ((f"[`{one.dest}`](#{one.dest})", sentence(one.help or "")) for one in _subcommands()._choices_actions)
    return table(["command", "does"], rows)


def commands() -> str:
    """Return a section for each command, with its arguments and options."""
    subcommands = _subcommands()
    helps = {one.dest: one.help or "" for one in subcommands._choices_actions}
    return "\n\n".join(_section(name, helps[name], one) for name, one in subcommands.choices.items())


def _section(name: str, purpose: str, parser: argparse.ArgumentParser) -> str:
    shown = [one for one in parser._actions if not isinstance(one, argparse._HelpAction)]
    shown.sort(key=lambda one: bool(one.option_strings))  # arguments first
    usage = " ".join([PROGRAM, name, *(_placeholder(one) for one in shown if not one.option_strings)])
    parts = [f"### {name}", f"```text\n{usage}{' [OPTIONS]' if any(one.option_strings for one in shown) else ''}\n```"]
    parts += [re.sub(r"\s+", " ", one) for one in (parser.description or sentence(purpose)).strip().split("\n\n")]
    if shown:
        parts.append(table(["argument or option", "meaning"], ((_name(one), _meaning(one)) for one in shown)))
    return "\n\n".join([*parts, *_choices(parser)])


def _placeholder(one: argparse.Action) -> str:
    name = str(one.metavar or one.dest.upper())
    return f"[{name}]" if one.nargs == "?" else name


def _name(one: argparse.Action) -> str:
    if not one.option_strings:
        return f"`{_placeholder(one)}`"
    value = "" if one.nargs == 0 else f" {one.metavar or ('NAME' if one.choices else one.dest.upper())}"
    return f"`{', '.join(one.option_strings)}{value}`"


def _meaning(one: argparse.Action) -> str:
    """Return the help of an argument, with its values."""
    values = f": {', '.join(f'`{value}`' for value in one.choices)}" if one.choices else ""
    return f"{one.help}{values}"


def _choices(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a sentence for each group of arguments of which only one can be given."""
    for group in parser._mutually_exclusive_groups:
        names = [_name(one) for one in group._group_actions]
        yield f"Give {'exactly' if group.required else 'at most'} one of {' and '.join(names)}."

"""The results of the commands, in docs/evidence.json, and the tables of docs/evidence.md that show them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from attrs import asdict, field, frozen

from campaigns.evidence.promises import Form, Part, Promise

FILE: Final = Path(__file__).parents[3] / "docs" / "evidence.json"

HEADINGS: Final[Mapping[Form, str]] = {Form.SHORT: "The short form", Form.LONG: "The long form"}


class State(StrEnum):
    """How a command ended. A command is `missing` when it was not run, because the machine lacks something."""

    PASSED = "passed"
    FAILED = "failed"
    MISSING = "missing"


def _texts(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(given)


@frozen
class Result:
    """The result of a command. `printed` has the lines that tell it, or the reason why there are none."""

    command: str
    state: State = field(converter=State)
    seconds: float
    printed: tuple[str, ...] = field(converter=_texts)
    date: str
    commit: str
    machine: str


Results = dict[Form, dict[str, Result]]  # by the form and the name of the row


def load(file: Path) -> Results:
    """Read the results."""
    stored = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return {form: {name: Result(**one) for name, one in stored.get(form, {}).items()} for form in Form}


def save(results: Results, file: Path) -> None:
    """Write the results."""
    rows = {form: {name: asdict(one) for name, one in results[form].items()} for form in Form}
    file.write_text(json.dumps(rows, indent=2, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")


def tables(promises: Sequence[Promise], results: Results) -> str:
    """Return the results of both forms in Markdown."""
    return "\n".join(line for form in Form for line in _section(form, promises, results[form])).strip()


def _section(form: Form, promises: Sequence[Promise], results: Mapping[str, Result]) -> Iterator[str]:
    rows = [promise for promise in promises if promise.command(form) is not None]
    found = {promise.name: _current(promise, form, results) for promise in rows}
    yield from ("", f"## {HEADINGS[form]}", "", *_runs(list(filter(None, found.values()))))
    for part in Part:
        of_part = [promise for promise in rows if promise.part is part]
        if of_part:
            yield from (
                "",
                f"### {part}, {form} form",
                "",
                "| row | promise | command, its time, and what it printed |",
                "|---|---|---|",
            )
            yield from (_row(promise, form, found[promise.name]) for promise in of_part)


def _current(promise: Promise, form: Form, results: Mapping[str, Result]) -> Result | None:
    """Return the result of the row, unless it is that of another command, which the row had before."""
    result = results.get(promise.name)
    return result if result is not None and result.command == promise.command(form) else None


def _runs(results: Sequence[Result]) -> list[str]:
    """Return a line for each run that has results here."""
    if not results:
        return ["No command of this form has been run yet."]
    runs: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        runs.setdefault((result.date, result.commit, result.machine), []).append(result)
    return [
        f"- {date}, commit `{commit}`, {machine}: {_number(len(of_run), 'command')}, "
        f"{_time(sum(result.seconds for result in of_run))}."
        for (date, commit, machine), of_run in sorted(runs.items())
    ]


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _time(seconds: float) -> str:
    """Return the time for readers: in seconds, or in minutes from ten minutes on."""
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _row(promise: Promise, form: Form, result: Result | None) -> str:
    shown = "not run yet"
    if result is not None and result.state is State.PASSED:
        shown = f"{_time(result.seconds)}: {', '.join(f'`{line}`' for line in result.printed)}"
    elif result is not None:
        words = "**failed**" if result.state is State.FAILED else "not run here"
        shown = f"{words}: {', '.join(result.printed)}"
    cells = [f"`{promise.name}`", f"{promise.text} ({promise.pages})", f"`{promise.command(form)}`<br>{shown}"]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

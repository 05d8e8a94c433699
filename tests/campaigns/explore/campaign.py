"""Explore all states of small scenarios, in which the real flows run over the memory store.

    nox -s explore                                   all scenarios
    nox -s explore -- --small                        the smaller bound, which the tests use
    nox -s explore -- --path packets:1+first,1a,t    repeat one path, and print each step
    nox -s explore -- --faults                       search code that is broken on purpose

A path is the name of a scenario and its choices. `world.py` lists the choices.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from campaigns.explore.faults import FAULTS
from campaigns.explore.requests import Handle, Setup, Subject
from campaigns.explore.rules import books_of
from campaigns.explore.scenarios import SCENARIOS
from campaigns.explore.search import Report, Search, replay
from campaigns.explore.world import Broken, State, World

_OUTCOMES = {
    "": "happens",
    "b": "does not happen, because the process dies before it",
    "a": "happens, and the process dies after it",
    "f": "fails, and does not happen",
    "u": "happens, but the process gets an error",
    "n": "is refused by the host",
}


def explore(name: str, *, large: bool) -> Report:
    """Search all states of the scenario `name`."""
    return Search(World(SCENARIOS[name](large=large))).run()


def explore_fault(name: str) -> Report:
    """Search the scenario of the fault `name` until the fault shows."""
    return Search(World(_setup_of(FAULTS[name].scenario, name, large=False))).run()


def _setup_of(scenario: str, fault: str | None, *, large: bool) -> Setup:
    subject: Subject | None = None if fault is None else FAULTS[fault].subject
    return SCENARIOS[scenario](subject, large=large)


def text_of(scenario: str, path: Sequence[str]) -> str:
    """Return the path as the text that `--path` takes."""
    return f"{scenario}:{','.join(path)}"


def lines_of(text: str, fault: str | None, *, large: bool) -> Iterator[str]:
    """Yield a line for each step of the path `text`. Raise `Broken` at a broken promise."""
    name, _, choices = text.partition(":")
    if name not in SCENARIOS:
        raise Broken(f"there is no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    world = World(_setup_of(name, fault, large=large))
    for number, (choice, before, after) in enumerate(replay(world, choices.split(",") if choices else []), 1):
        yield f"{number:4}  {choice:<14}{_described(world, choice, before, after)}"
        yield from (f"{'':20}{line}" for line in _changes(world, before, after))


def _described(world: World, choice: str, before: State, after: State) -> str:
    if choice == "t":
        return f"the time is {world.moments[after.moment]:%H:%M:%S}"
    process, verb = choice[0], choice[1:]
    if verb[:1] == "+":
        return f"process {process} receives {verb[1:]}"
    effect = world.effect_of(before, int(process) - 1)
    call = before.calls[int(process) - 1]
    name = "" if call is None else world.setup.requests[call.place.request].name
    about = f" of {effect.delivery.id}" if isinstance(effect, Handle) else ""
    return f"process {process}, {name}: {effect.method if effect else ''}{about} {_OUTCOMES[verb]}"


def _changes(world: World, before: State, after: State) -> Iterator[str]:
    """Yield what has changed in the store, and which clients have got an answer."""
    old, new = books_of(before.rows), books_of(after.rows)
    for id, books in new.items():
        known = len(old[id].events) if id in old else 0
        for event in books.events[known:]:
            credit = f" {event.credit_id}" if event.credit_id else ""
            yield f"event {event.version}: {event.kind}{credit}, total {event.received.value}"
    for request, earlier, answers in zip(world.setup.requests, before.answers, after.answers, strict=True):
        yield from (f"{request.name} is answered: {answer}" for answer in answers if answer not in earlier)


def print_path(text: str, fault: str | None, say: Callable[[str], None], *, large: bool) -> int:
    """Print each step of a path, and return 1 if a promise is broken."""
    try:
        for line in lines_of(text, fault, large=large):
            say(line)
    except Broken as broken:
        say(f"broken: {broken}")
        return 1
    say("no promise is broken")
    return 0


def print_reports(reports: Iterator[Report], say: Callable[[str], None]) -> int:
    """Print a row for each scenario, and the path of each failure."""
    status, states = 0, 0
    say(f"{'scenario':<12}{'states':>10}{'steps':>12}{'ends':>8}{'schedules':>12}{'longest':>9}{'seconds':>9}")
    for report in reports:
        row = f"{report.scenario:<12}{report.states:>10,}{report.steps:>12,}{report.ends:>8,}"
        say(f"{row}{report.schedules:>12.2g}{report.longest:>9}{report.seconds:>9.1f}")
        states += report.states
        if report.failure is not None:
            status = 1
            say(f"broken: {report.failure.text}")
            say(f"to repeat this: nox -s explore -- --path {text_of(report.scenario, report.failure.path)}")
    say(f"{states:,} states in all" + ("" if status else ", and no promise is broken"))
    return status


def print_faults(reports: Iterator[Report], say: Callable[[str], None]) -> int:
    """Print the shortest path to each fault, and return 1 if one was not found."""
    found = 0
    for name, report in zip(FAULTS, reports, strict=True):
        if report.failure is None:
            say(f"{name}: not found in {report.states:,} states")
        else:
            found += 1
            say(f"{name}: {report.failure.text}\n    {text_of(report.scenario, report.failure.path)}")
    say(f"{found} of {len(FAULTS)} faults were found")
    return 0 if found == len(FAULTS) else 1


def main(arguments: Sequence[str], say: Callable[[str], None] = print) -> int:
    """Run the command and return its exit status, which is 0 if no promise is broken."""
    parser = argparse.ArgumentParser(prog="nox -s explore --", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--small", action="store_true", help="use the smaller bound")
    parser.add_argument("--scenario", choices=SCENARIOS, help="explore only this scenario")
    parser.add_argument("--path", help="repeat this path, and print each step")
    parser.add_argument("--faults", action="store_true", help="search code that is broken on purpose")
    parser.add_argument("--fault", choices=FAULTS, help="with --path, repeat the path with this fault")
    options = parser.parse_args(arguments)
    if options.path is not None:
        return print_path(options.path, options.fault, say, large=not options.small and options.fault is None)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        if options.faults:
            return print_faults(pool.map(explore_fault, FAULTS), say)
        names = [options.scenario] if options.scenario else list(SCENARIOS)
        search: Any = partial(explore, large=not options.small)
        return print_reports(pool.map(search, names), say)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

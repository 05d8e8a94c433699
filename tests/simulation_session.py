"""The long simulation, for `nox -s simulate`: many seeds on all cores, and a table of what they have met.

It fails when a promise is broken, and prints the command that does it again; and when something that a simulation is
there to meet has not happened once in all of it.
"""

import argparse
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from attrs import frozen

from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing.simulation import KINDS, SimulationFailed, StoreFactory, simulate

RUN_STEPS: Final = 5_000  # of one seed: then a failure is seen again within a second
STEPS: Final = 1_000_000
SQLITE_STEPS: Final = 40_000  # of each of both SQLite stores, beside the million


@frozen
class Run:
    """One seed over one store."""

    store: str
    seed: int
    steps: int

    @property
    def command(self) -> str:
        """What does it again."""
        return f"nox -s simulate -- --store {self.store} --seed {self.seed} --steps {self.steps}"


@frozen
class Outcome:
    """What came of a run: what it met, or how it failed."""

    run: Run
    steps: int
    met: dict[str, int]
    failure: str = ""


def perform(run: Run) -> Outcome:
    """Simulate once, over a store of its own."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "payments.db"
        factories: dict[str, StoreFactory | None] = {
            "memory": None,
            "sqlite": lambda: SqliteStore(path),
            "async-sqlite": lambda: AsyncSqliteStore(path),
        }
        try:
            report = simulate(run.seed, run.steps, store_factory=factories[run.store])
        except SimulationFailed as failure:
            return Outcome(run, failure.step, {}, str(failure))
        return Outcome(run, report.steps, dict(report.met))


def plan(store: str | None, first: int, steps: int) -> list[Run]:
    """The runs that make `steps` steps over the `store`, or over all of them in the usual measure."""
    measures = {store: steps} if store else {"memory": steps, "sqlite": SQLITE_STEPS, "async-sqlite": SQLITE_STEPS}
    return [
        Run(name, first + index, RUN_STEPS)
        for name, measure in measures.items()
        for index in range(-(-measure // RUN_STEPS))
    ]


def table(met: Counter[str]) -> list[str]:
    """How often each kind happened."""
    return [f"{met[kind]:12,}  {kind}" for kind in KINDS]


def play(runs: Sequence[Run], workers: int, say: Callable[[str], None]) -> int:
    """Do all `runs`, tell what they met, and return the exit status."""
    begun = time.monotonic()
    met: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    with ProcessPoolExecutor(workers) as pool:
        for outcome in pool.map(perform, runs, chunksize=4):
            if outcome.failure:
                say(f"{outcome.failure}\n\nto see it again: {outcome.run.command}")
                pool.shutdown(wait=False, cancel_futures=True)
                return 1
            met.update(outcome.met)
            steps[outcome.run.store] += outcome.steps
    seconds = time.monotonic() - begun
    say("\n".join(table(met)))
    for store, count in steps.items():
        say(f"{count:12,}  steps over {store}")
    say(f"{seconds:12.1f}  seconds for {len(runs)} seeds from {runs[0].seed} on, {workers} at a time")
    if missing := [kind for kind in KINDS if not met[kind]]:
        say(f"never happened, and so was not tried: {', '.join(missing)}")
        return 1
    return 0


def main(arguments: Sequence[str], say: Callable[[str], None] = print) -> int:
    """The command; its exit status is 0 when all is well."""
    parser = argparse.ArgumentParser(prog="nox -s simulate --", description=__doc__)
    parser.add_argument("--steps", type=int, help=f"how many in all, {STEPS:,} unless told; with --seed of that seed")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--first", type=int, help="the first of many seeds; drawn unless told")
    parser.add_argument("--store", choices=["memory", "sqlite", "async-sqlite"], help="over this one only")
    asked = parser.parse_args(arguments)
    if asked.seed is not None:
        outcome = perform(Run(asked.store or "memory", asked.seed, asked.steps or RUN_STEPS))
        say(outcome.failure or f"{outcome.steps:,} steps of seed {asked.seed} broke nothing")
        return 1 if outcome.failure else 0
    first = secrets.randbelow(2**32) if asked.first is None else asked.first
    return play(plan(asked.store, first, asked.steps or STEPS), os.cpu_count() or 1, say)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run many seeds of the simulation on all cores, and print how often each situation occurred: `nox -s simulate`.

The session fails if a promise is broken, and prints the command that repeats the failure. It also fails if one of the
situations in `KINDS` has not occurred in any run.
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

RUN_STEPS: Final = 5_000  # of one seed, so that repeating a failure takes about a second
STEPS: Final = 1_000_000
SQLITE_STEPS: Final = 40_000  # for each of the two SQLite stores, in addition to `STEPS` in memory


@frozen
class Run:
    """One seed over one store."""

    store: str
    seed: int
    steps: int

    @property
    def command(self) -> str:
        """Return the command that repeats this run."""
        return f"nox -s simulate -- --store {self.store} --seed {self.seed} --steps {self.steps}"


@frozen
class Outcome:
    """The result of a run: how often each situation occurred, or the text of the failure."""

    run: Run
    steps: int
    met: dict[str, int]
    failure: str = ""


def perform(run: Run) -> Outcome:
    """Simulate one seed over a new store."""
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
    """Return the runs for `steps` steps over `store`, or over all stores in the usual proportion."""
    steps_of = {store: steps} if store else {"memory": steps, "sqlite": SQLITE_STEPS, "async-sqlite": SQLITE_STEPS}
    return [
        Run(name, first + index, RUN_STEPS)
        for name, total in steps_of.items()
        for index in range(-(-total // RUN_STEPS))
    ]


def table(met: Counter[str]) -> list[str]:
    """Return one line for each situation, with the number of times it occurred."""
    return [f"{met[kind]:12,}  {kind}" for kind in KINDS]


def play(runs: Sequence[Run], workers: int, say: Callable[[str], None]) -> int:
    """Perform all `runs`, print the result, and return the exit status."""
    begun = time.monotonic()
    met: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    with ProcessPoolExecutor(workers) as pool:
        for outcome in pool.map(perform, runs, chunksize=4):
            if outcome.failure:
                say(f"{outcome.failure}\n\nto repeat this failure: {outcome.run.command}")
                pool.shutdown(wait=False, cancel_futures=True)
                return 1
            met.update(outcome.met)
            steps[outcome.run.store] += outcome.steps
    seconds = time.monotonic() - begun
    say("\n".join(table(met)))
    for store, count in steps.items():
        say(f"{count:12,}  steps over {store}")
    say(f"{seconds:12.1f}  seconds for {len(runs)} runs with seeds from {runs[0].seed} on, {workers} at a time")
    if missing := [kind for kind in KINDS if not met[kind]]:
        say(f"these situations never occurred, so they are not tested: {', '.join(missing)}")
        return 1
    return 0


def main(arguments: Sequence[str], say: Callable[[str], None] = print) -> int:
    """Run the command and return its exit status, which is 0 if no promise is broken."""
    parser = argparse.ArgumentParser(prog="nox -s simulate --", description=__doc__)
    parser.add_argument("--steps", type=int, help=f"number of steps (default: {STEPS:,}, or {RUN_STEPS:,} with --seed)")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--first", type=int, help="the first of many seeds (default: random)")
    parser.add_argument("--store", choices=["memory", "sqlite", "async-sqlite"], help="use only this store")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        outcome = perform(Run(options.store or "memory", options.seed, options.steps or RUN_STEPS))
        say(outcome.failure or f"{outcome.steps:,} steps of seed {options.seed} broke no promise")
        return 1 if outcome.failure else 0
    first = secrets.randbelow(2**32) if options.first is None else options.first
    return play(plan(options.store, first, options.steps or STEPS), os.cpu_count() or 1, say)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

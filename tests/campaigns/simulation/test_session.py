"""The simulation session runs many seeds, counts situations, and prints the command that repeats a failure."""

from collections.abc import Callable
from typing import Self

import pytest

from campaigns.simulation import session as simulation_session
from campaigns.simulation.session import Outcome, Run


def session(*arguments: str) -> tuple[int, str]:
    """Return the exit status of the session and its output."""
    output: list[str] = []
    return simulation_session.main(arguments, output.append), "\n".join(output)


def test_many_seeds_run_over_each_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output contains how often each situation occurred, and the number of steps over each store."""
    kinds = ("created", "packet answered fulfilled")
    monkeypatch.setattr(simulation_session, "KINDS", kinds)
    monkeypatch.setattr(simulation_session, "SQLITE_STEPS", 1)
    monkeypatch.setattr(simulation_session, "RUN_STEPS", 300)
    status, output = session("--steps", "600", "--first", "1")
    lines = [line.split("  ")[-1].strip() for line in output.splitlines()]
    assert (status, lines[:2]) == (0, list(kinds))
    assert lines[2:5] == ["steps over memory", "steps over sqlite", "steps over async-sqlite"]
    assert lines[5].startswith("seconds for 4 runs with seeds from 1 on, ")


def test_a_situation_that_never_occurs_fails_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of the output names the situation."""
    monkeypatch.setattr(simulation_session, "KINDS", ("created", "an impossible situation"))
    monkeypatch.setattr(simulation_session, "RUN_STEPS", 300)
    status, output = session("--store", "memory", "--steps", "1", "--first", "1")
    line = "these situations never occurred, so they are not tested: an impossible situation"
    assert (status, output.splitlines()[-1]) == (1, line)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_command_of_a_run_repeats_its_seed(store: str) -> None:
    """A failure prints this command."""
    run = Run(store, 3, 100)
    assert run.command == f"nox -s simulate -- --store {store} --seed 3 --steps 100"
    status, output = session(*run.command.split(" -- ")[1].split())
    assert (status, output.partition(" ")[2]) == (0, "steps of seed 3 broke no promise")


def test_a_failure_is_printed_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit status is 1."""
    monkeypatch.setattr(simulation_session, "ProcessPoolExecutor", _InProcess)
    monkeypatch.setattr(simulation_session, "perform", lambda run: Outcome(run, 7, {}, "the totals differ"))
    status, output = session("--store", "memory", "--first", "9")
    command = "nox -s simulate -- --store memory --seed 9 --steps 5000"
    assert (status, output) == (1, f"the totals differ\n\nto repeat this failure: {command}")


class _InProcess:
    """An executor that runs everything in this process."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: Callable[[Run], Outcome], runs: list[Run], chunksize: int) -> list[Outcome]:
        """Return the results in order."""
        assert chunksize > 0
        return [function(run) for run in runs]

    def shutdown(self, **_: object) -> None:
        """Do nothing."""

"""The crash kit passes stores that keep their promises, and catches stores that lose or double credits in a crash."""

import re
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from incoming_payments.testing import crash
from incoming_payments.testing._crash_processes import Parent
from incoming_payments.testing._crash_worker import AFTER_ANSWER, Calls, Plan, work
from incoming_payments.testing.crash import CrashFailed, check_crashes
from incoming_payments.testing.steps import create
from kits.reference_store import ReferenceStore

RUNS = 5  # of a kit that has found no fault


@pytest.mark.parametrize(
    "factory", ["incoming_payments.stores.sqlite:SqliteStore", "kits.store_factories:open_async_sqlite"]
)
def test_our_stores_survive_crashes(factory: str, tmp_path: Path) -> None:
    """Each acknowledged credit is in the file, and the kit has killed a worker at each moment and in each round."""
    report = check_crashes(factory, str(tmp_path / "payments.db"), moments=3, rounds=1)

    assert report.killed >= 3
    assert report.acknowledged >= report.killed


def test_the_reference_store_survives_crashes(tmp_path: Path) -> None:
    """The reference store passes. Each broken store differs from it in one fault."""
    report = check_crashes("kits.reference_store:ReferenceStore", str(tmp_path / "payments.db"), rounds=1, seed=7)

    assert report.seed == 7
    assert report.killed >= 8


def test_a_commit_may_finish_after_the_death_of_its_process(tmp_path: Path) -> None:
    """The kit does not read before that, as a database server commits although its client was killed."""
    factory = "kits.store_factories:FinishesCommitsOfDeadProcesses"
    assert check_crashes(factory, str(tmp_path / "payments.db"), moments=1, rounds=0).killed == 3


@pytest.mark.parametrize(
    ("name", "moments", "rounds", "fault"),
    [
        ("LocksTheProcess", 0, 3, "the store answered credit|adds|has the versions"),
        ("CachesPaymentsInTheProcess", 0, 0, "the payment has version 1, and its events have the versions"),
        ("CommitsEventsLater", 8, 0, "the payment has version 4, and its events have the versions"),
        ("CommitsCreatedEventsLater", 8, 0, r"has version 1 after its insert, and its events are \[\]"),
        (
            "InsertsLater",
            1,
            0,
            "the store answered the insert of payment .*, but the repeated insert stored the payment again",
        ),
        ("CommitsCreditsFirst", 8, 0, "is stored with the total .*, and its event has None"),
        ("AnswersEarly", 1, 0, "and its event has None"),
        ("AnswersSlightlyEarly", 1, 0, "and its event has None"),
        ("CreditsTwice", 0, 0, "and the repeated credit with"),
        ("ShiftsTotals", 0, 0, "adds .* to the total, but no client sent that"),
        ("BreaksWhenItLoads", 0, 0, "after a crash, the store raised StoreUnusable"),
        ("broken_keys:CommitsKeysFirst", 8, 0, "must have one payment: .* are stored"),
        ("broken_keys:CommitsKeysLater", 8, 0, "must have one payment: .* are stored"),
        ("broken_keys:LooksUpBeforeTheLock", 0, 2, "must have one payment: .* are stored"),
        ("broken_keys:ForgetsKeys", 1, 0, "must have one payment: .* are stored"),
        ("FailsToUpdate", 0, 0, "(?s)a worker ended with status 1.*ZeroDivisionError: no update of"),
    ],
)
def test_a_broken_store_is_caught(name: str, moments: int, rounds: int, fault: str, tmp_path: Path) -> None:
    """The message says what is wrong, and names the seed. On a busy machine, a fault in time can escape one run."""
    failures: list[str] = []
    factory = f"kits.{name}" if ":" in name else f"kits.broken_sqlite:{name}"
    for run in range(RUNS):
        if not failures:
            try:
                check_crashes(factory, str(tmp_path / f"{run}.db"), moments=moments, rounds=rounds)
            except CrashFailed as failed:
                failures.append(str(failed))

    [failure] = failures
    assert re.search(fault, failure)
    assert re.search(r"\(seed=\d+\)$", failure)


def test_a_worker_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes a limited time."""
    monkeypatch.setattr(crash, "_SILENCE_S", 1.0)
    with pytest.raises(CrashFailed, match="a worker did not report for 1 seconds"):
        check_crashes("kits.broken_sqlite:NeverAnswers", str(tmp_path / "payments.db"))


def test_processes_that_cannot_start_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message contains their output."""
    monkeypatch.setattr("sys.executable", "false")
    with pytest.raises(CrashFailed, match="the parent of the workers has ended"):
        check_crashes("kits.reference_store:ReferenceStore", str(tmp_path / "payments.db"))


def test_a_parent_that_has_ended_is_an_error() -> None:
    """It sends no reply."""
    control, other = socket.socketpair()
    other.shutdown(socket.SHUT_WR)
    worker = Parent(control).worker(Plan("module:store", "", None, "x", steps=1, seed=1), 1.0)
    with control, other, pytest.raises(ConnectionResetError):
        worker.__enter__()


def test_a_factory_has_a_name_with_a_colon(tmp_path: Path) -> None:
    """The message says how to write the name."""
    with pytest.raises(ValueError, match="factory must be written as module:callable, not 'my_store'"):
        check_crashes("my_store", str(tmp_path))


# --- the worker, in this process ---


class Ended(Exception):
    """The worker has ended itself."""


def reports_of(path: Path, moment: int | None) -> list[tuple[object, ...]]:
    """Return the reports of a worker that credits a new payment, until it ends."""
    reports: list[tuple[object, ...]] = []
    with closing(ReferenceStore(path)) as store:
        id = create(store)
    plan = Plan("kits.reference_store:ReferenceStore", str(path), id, "x", steps=4, seed=1, moment=moment)

    def end() -> None:
        raise Ended

    try:
        work(plan, lambda *words: reports.append(words), lambda: reports.append(("began",)), end)
    except Ended:
        reports.append(("ended",))
    return reports


def test_a_worker_reports_each_step(tmp_path: Path) -> None:
    """It waits before its first credit, and reports the slowest moments of the third at its end."""
    reports = reports_of(tmp_path / "payments.db", None)

    steps = ["sent", "answered"]
    assert [str(kind) for kind, *_ in reports] == ["ready", "began", *steps * 4, "moments"]
    assert [words[1] for words in reports if words[0] == "sent"] == ["x-0", "x-1", "x-2", "x-3"]
    assert all(0 < moment < 1000 for moment in cast("list[int]", reports[-1][1]))


def test_a_worker_ends_itself_after_an_answer(tmp_path: Path) -> None:
    """It does not report the answer first, because a store could commit in that time."""
    reports = reports_of(tmp_path / "payments.db", AFTER_ANSWER)
    assert [str(kind) for kind, *_ in reports] == ["ready", "began", *["sent", "answered"] * 2, "sent", "ended"]


def test_a_worker_ends_itself_at_a_call() -> None:
    """The slowest moments are the calls after the longest gaps."""
    ended: list[int] = []
    calls = Calls(3, lambda: ended.append(1))
    calls.count(None, "call", None)  # before the decision
    calls.begin()
    for pause_s in (0, 0.001, 0.005):
        time.sleep(pause_s)
        calls.count(None, "call", None)

    assert ended == [1]
    assert calls.slowest() == [3, 2]

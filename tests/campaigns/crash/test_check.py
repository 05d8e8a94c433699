"""The check finds broken promises: in edited databases, in false answers, and with services that have a fault."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Final

import pytest

from campaigns.crash.campaign import run_campaign
from campaigns.crash.check import Report, check
from campaigns.crash.payer import Payer
from campaigns.crash.records import COMPLETE, LIST, STOPPED, ClientRecord, entries_in
from campaigns.crash.service import Service
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import together
from kits.sqlite_jobs import edit


@pytest.fixture
def payer(tmp_path: Path) -> Payer:
    """A full payment of 100: two packets, and a bank transfer that exceeds the limit by 5."""
    with Service(tmp_path) as service:
        payer = Payer(service, limit=100)
        with SqliteStore(service.database) as store:
            assert [payer.send_here(payer.packet(amount), store) for amount in (60, 30)] == ["fulfilled"] * 2
            payer.credit_here(15, store)
            assert payer.send_here(payer.packet(1), store) == "F07"
    return payer


def checked(payer: Payer) -> Report:
    """Return the report of the check."""
    return check(payer.service.database, [payer.path])


def test_correct_database_has_no_violation(payer: Payer) -> None:
    """The check finds no violation, and counts requests and credits."""
    report = checked(payer)

    assert report.violations == []
    figures = report.figures
    assert (figures.packets, figures.fulfilled, figures.calls, figures.calls_credited) == (3, 2, 1, 1)
    assert (figures.creates, figures.payments, figures.completed, figures.credits) == (1, 1, 1, 3)


def test_answered_completion_lasts(payer: Payer) -> None:
    """A payment that its client has completed stays completed. The refusal of an expired payment changes nothing."""
    payer.record.sent(kind=COMPLETE, key="complete-1", payment=payer.id)
    assert checked(payer).kinds == {"every request is settled"}
    payer.record.answered("complete-1", "completed")
    assert checked(payer).violations == []
    payer.record.sent(kind=COMPLETE, key="complete-2", payment=payer.id)
    payer.record.answered("complete-2", "payment_expired")
    assert checked(payer).kinds == {"an expired payment is not completed"}
    edit(payer.service.database, "UPDATE events SET kind = 'expired' WHERE kind = 'completed'")
    assert "a completed payment stays completed" in checked(payer).kinds


def test_recorded_list_is_a_violation(payer: Payer) -> None:
    """A list without a created payment is a broken promise."""
    payer.record.answered(LIST, "wrong", missing=[payer.id], listed=[])
    assert checked(payer).kinds == {"a list has every payment in order"}


ANOTHER: Final = (
    "CREATE TEMP TABLE more AS SELECT * FROM payments; UPDATE more SET id = 'other'; "
    "INSERT INTO payments SELECT * FROM more"
)
EDITS: Final = [
    ("fulfilled money is credited", "DELETE FROM credits WHERE amount = '60'"),
    ("fulfilled money is credited", "DELETE FROM credits WHERE amount = '15'"),
    ("no credit without its packet", "UPDATE credits SET credit_id = 'stream:other' WHERE amount = '60'"),
    ("no credit without its packet", "UPDATE credits SET credit_id = 'other' WHERE amount = '15'"),
    ("a credit has the amount that was sent", "UPDATE credits SET amount = '59' WHERE amount = '60'"),
    ("no credit without its payment", "UPDATE credits SET payment_id = 'other' WHERE amount = '60'"),
    ("no credit without its payment", "UPDATE events SET payment_id = 'other' WHERE version = 5"),
    ("an answered payment exists", "UPDATE payments SET id = 'other'"),
    ("no payment without its request", ANOTHER),
    (
        "an order has one payment",
        f"INSERT INTO metadata VALUES (9, '{{}}'); UPDATE payments SET metadata_number = 9; {ANOTHER}",  # noqa: S608
    ),
    ("the total is the sum of the credits", "UPDATE payments SET received_amount = '104'"),
    ("each event has the total", "UPDATE events SET received_amount = '61' WHERE version = 2"),
    ("each event has the total", "UPDATE credits SET received_amount = '61' WHERE amount = '60'"),
    ("events have no gaps", "DELETE FROM events WHERE version = 3"),
    ("events have no gaps", "UPDATE payments SET version = 6"),
    ("one event for the creation", "UPDATE events SET kind = 'expired' WHERE version = 1"),
    ("one event for each credit", "UPDATE events SET kind = 'expired' WHERE version = 2"),
    ("one event for each credit", "UPDATE events SET credit_id = 'wire-3' WHERE version = 2"),
    ("not completed without a request", "UPDATE payments SET closed_at = updated_at"),
    ("not completed early", "UPDATE payments SET incoming_amount = '106'"),
    ("completed when full", "UPDATE events SET kind = 'expired' WHERE version = 5"),
    ("completed when full", "UPDATE credits SET completes = 0"),
    ("completed once", "UPDATE credits SET completes = 1"),
    ("completed once", "UPDATE events SET kind = 'completed', credit_id = NULL WHERE version = 4"),
    ("nothing after completion", "UPDATE events SET version = 6 WHERE version = 4"),
    ("nothing after completion", "UPDATE payments SET incoming_amount = '90'"),
    ("no packet exceeds the tolerance", "UPDATE payments SET incoming_amount = '60'"),
    ("nothing after expiry", "UPDATE payments SET expires_at = created_at, sweep_at = NULL"),
]


@pytest.mark.parametrize(("kind", "statements"), EDITS)
def test_edited_database_has_a_violation(payer: Payer, kind: str, statements: str) -> None:
    """Each promise is broken by an edit of the database."""
    edit(payer.service.database, *statements.split("; "))

    assert kind in checked(payer).kinds


def test_damaged_file_has_a_violation(payer: Payer) -> None:
    """The check includes SQLite's integrity check."""
    edit(payer.service.database, "PRAGMA writable_schema = ON", "DELETE FROM sqlite_schema WHERE name LIKE '%to_sweep'")

    assert "the file is sound" in checked(payer).kinds


ENTRIES: Final[list[tuple[str, Callable[[Payer], object]]]] = [
    ("every request is settled", lambda payer: payer.packet(1)),
    ("every request is settled", lambda payer: payer.record.answered(payer.packet(1).key, STOPPED)),
    ("refused money is not credited", lambda payer: _answer_all(payer, "F99")),
    ("an answer stays the same", lambda payer: _answer_all(payer, "F08")),
]


@pytest.mark.parametrize(("kind", "write"), ENTRIES)
def test_false_entry_in_a_record_is_a_violation(payer: Payer, kind: str, write: Callable[[Payer], object]) -> None:
    """Each promise about answers is broken by a false entry in the record."""
    write(payer)

    assert kind in checked(payer).kinds


def _answer_all(payer: Payer, answer: str) -> None:
    for entry in list(entries_in(payer.path)):
        payer.record.answered(entry.key, answer)


def test_incomplete_line_is_no_entry(tmp_path: Path) -> None:
    """An incomplete line is ignored, and the next writer of the record removes it."""
    path = tmp_path / "client-1.record"
    ClientRecord(path).answered("key-1", "fulfilled")
    with path.open("ab") as file:
        file.write(b'["answered", "key-2"')
    assert [entry.key for entry in entries_in(path)] == ["key-1"]
    ClientRecord(path).answered("key-3", "fulfilled")
    assert [entry.key for entry in entries_in(path)] == ["key-1", "key-3"]


# --- services with a fault -------------------------------------------------------------------

AT_ONE_STEP: Final = [
    ("answer_before_commit,batches_of_two,before_commit", {"fulfilled money is credited"}),
    (
        "batches_of_two,commit_in_two_steps,between_statements",
        {"the total is the sum of the credits", "events have no gaps"},
    ),
]


@pytest.mark.parametrize(("faults", "kinds"), AT_ONE_STEP)
def test_fault_is_found_by_a_kill_at_one_step(faults: str, kinds: set[str], tmp_path: Path) -> None:
    """A kill at one exact step reveals a service that answers before it commits, or commits in two steps."""
    with Service(tmp_path) as service:
        payer = Payer(service, limit=100)
        packets = [payer.packet(amount) for amount in (60, 40)]
        service.up(*faults.split(","))
        together([partial(payer.send, request) for request in packets])
        assert service.wait() == -SIGKILL

    assert kinds == check(service.database, [payer.path], settled=False).kinds


@pytest.mark.parametrize(
    ("faults", "kinds"),
    [
        ("answer_before_commit", {"fulfilled money is credited", "an answered payment exists"}),
        ("random_credit_ids", {"no credit without its packet"}),
    ],
)
def test_fault_is_found_by_the_campaign(faults: str, kinds: set[str], tmp_path: Path) -> None:
    """Two kills at random times are enough to find each of these faults, by one of the promises that it breaks."""
    assert kinds & run_campaign(tmp_path, kills=2, seed=3, faults=[faults]).kinds

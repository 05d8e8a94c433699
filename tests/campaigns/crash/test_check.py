"""The check finds what it is for: in files that somebody has edited, and with services that break a promise."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Final

import pytest

from campaigns.crash.books import Book, notes_in
from campaigns.crash.campaign import run_campaign
from campaigns.crash.check import Report, check
from campaigns.crash.scene import Scene
from campaigns.crash.service import Service
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import together
from kits.sqlite_jobs import edit


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A payment of 100 that is full: two packets, and money of core banking, which has brought 5 too much."""
    with Service(tmp_path) as service:
        scene = Scene(service, limit=100)
        with SqliteStore(service.database) as store:
            assert [scene.send_here(scene.packet(amount), store) for amount in (60, 30)] == ["fulfilled"] * 2
            scene.book_here(15, store)
            assert scene.send_here(scene.packet(1), store) == "F99"
    return scene


def checked(scene: Scene) -> Report:
    """What the check says."""
    return check(scene.service.database, [scene.path])


def test_what_is_right_is_found_right(scene: Scene) -> None:
    """And counted."""
    report = checked(scene)

    assert report.violations == []
    figures = report.figures
    assert (figures.packets, figures.fulfilled, figures.calls, figures.booked) == (3, 2, 1, 1)
    assert (figures.creates, figures.payments, figures.completed, figures.credits) == (1, 1, 1, 3)


ANOTHER: Final = (
    "CREATE TEMP TABLE more AS SELECT * FROM payments; UPDATE more SET id = 'other'; "
    "INSERT INTO payments SELECT * FROM more"
)
EDITS: Final = [
    ("what was fulfilled is credited", "DELETE FROM credits WHERE amount = '60'"),
    ("what was fulfilled is credited", "DELETE FROM credits WHERE amount = '15'"),
    ("no credit without its packet", "UPDATE credits SET credit_id = 'stream:other' WHERE amount = '60'"),
    ("no credit without its packet", "UPDATE credits SET credit_id = 'other' WHERE amount = '15'"),
    ("a credit is for what was sent", "UPDATE credits SET amount = '59' WHERE amount = '60'"),
    ("no credit without its payment", "UPDATE credits SET payment_id = 'other' WHERE amount = '60'"),
    ("no credit without its payment", "UPDATE events SET payment_id = 'other' WHERE version = 5"),
    ("a payment that was answered is there", "UPDATE payments SET id = 'other'"),
    ("no payment that nobody asked for", ANOTHER),
    ("the total is the sum of the credits", "UPDATE payments SET received_amount = '104'"),
    ("each event tells the total", "UPDATE events SET received_amount = '61' WHERE version = 2"),
    ("each event tells the total", "UPDATE credits SET received_amount = '61' WHERE amount = '60'"),
    ("events have no gaps", "DELETE FROM events WHERE version = 3"),
    ("events have no gaps", "UPDATE payments SET version = 6"),
    ("one event for the creation", "UPDATE events SET kind = 'expired' WHERE version = 1"),
    ("one event for each credit", "UPDATE events SET kind = 'expired' WHERE version = 2"),
    ("one event for each credit", "UPDATE events SET credit_id = 'wire-3' WHERE version = 2"),
    ("not completed early", "UPDATE payments SET incoming_amount = '106'"),
    ("completed when full", "UPDATE events SET kind = 'expired' WHERE version = 5"),
    ("completed when full", "UPDATE credits SET completes = 0"),
    ("completed once", "UPDATE credits SET completes = 1"),
    ("completed once", "UPDATE events SET kind = 'completed', credit_id = NULL WHERE version = 4"),
    ("nothing after completion", "UPDATE events SET version = 6 WHERE version = 4"),
    ("nothing after completion", "UPDATE payments SET incoming_amount = '90'"),
    ("no packet brings too much", "UPDATE payments SET incoming_amount = '60'"),
    ("nothing after expiry", "UPDATE payments SET expires_at = created_at, sweep_at = NULL"),
]


@pytest.mark.parametrize(("kind", "statements"), EDITS)
def test_what_is_wrong_is_found(scene: Scene, kind: str, statements: str) -> None:
    """Each promise that somebody breaks in the file."""
    edit(scene.service.database, *statements.split("; "))

    assert kind in checked(scene).kinds


def test_damage_is_found(scene: Scene) -> None:
    """SQLite's own check is asked."""
    edit(scene.service.database, "PRAGMA writable_schema = ON", "DELETE FROM sqlite_schema WHERE name LIKE '%to_sweep'")

    assert "the file is sound" in checked(scene).kinds


NOTES: Final[list[tuple[str, Callable[[Scene], object]]]] = [
    ("every request is settled", lambda scene: scene.packet(1)),
    ("what was refused is not credited", lambda scene: _answer_all(scene, "F99")),
    ("an answer stays the same", lambda scene: _answer_all(scene, "F08")),
]


@pytest.mark.parametrize(("kind", "write"), NOTES)
def test_what_clients_were_told_is_compared(scene: Scene, kind: str, write: Callable[[Scene], object]) -> None:
    """Each promise that somebody breaks to them."""
    write(scene)

    assert kind in checked(scene).kinds


def _answer_all(scene: Scene, said: str) -> None:
    for note in list(notes_in(scene.path)):
        scene.book.answered(note.key, said)


def test_a_line_in_part_is_no_note(tmp_path: Path) -> None:
    """Its writer was killed; whoever goes on with the book writes over it."""
    path = tmp_path / "client-1.book"
    Book(path).answered("key-1", "fulfilled")
    with path.open("ab") as file:
        file.write(b'["answered", "key-2"')
    assert [note.key for note in notes_in(path)] == ["key-1"]
    Book(path).answered("key-3", "fulfilled")
    assert [note.key for note in notes_in(path)] == ["key-1", "key-3"]


# --- services that break a promise -------------------------------------------------------------------

AT_ONE_MOMENT: Final = [
    ("answers_first,in_pairs,uncommitted", {"what was fulfilled is credited"}),
    (
        "in_pairs,commits_apart,written_in_part",
        {"the total is the sum of the credits", "events have no gaps"},
    ),
]


@pytest.mark.parametrize(("spoilt_by", "kinds"), AT_ONE_MOMENT)
def test_a_broken_service_is_caught_at_the_moment(spoilt_by: str, kinds: set[str], tmp_path: Path) -> None:
    """One that answers before it commits, and one that commits in two steps: killed just then, they leave a trace."""
    with Service(tmp_path) as service:
        scene = Scene(service, limit=100)
        packets = [scene.packet(amount) for amount in (60, 40)]
        service.up(*spoilt_by.split(","))
        together([partial(scene.send, asked) for asked in packets])
        assert service.wait() == -SIGKILL

    assert kinds == check(service.database, [scene.path], settled=False).kinds


@pytest.mark.parametrize(
    ("spoilt_by", "kind"),
    [("answers_first", "what was fulfilled is credited"), ("forgets_ids", "no credit without its packet")],
)
def test_a_broken_service_is_caught_by_the_campaign(spoilt_by: str, kind: str, tmp_path: Path) -> None:
    """Killed at random moments, twice are enough, each of them is found out."""
    assert kind in run_campaign(tmp_path, kills=2, seed=3, spoilt_by=[spoilt_by]).kinds

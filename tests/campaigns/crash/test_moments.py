"""Killed at each step from a packet to its answer: the table in docs/receiving.md, row by row."""

import sqlite3
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Final

import pytest
from attrs import frozen

from campaigns.crash.books import UNHEARD
from campaigns.crash.check import check
from campaigns.crash.deadly import PAIR, watches_files
from campaigns.crash.scene import Scene
from campaigns.crash.service import Service
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import together
from kits.processes import ROOT

NO_INSIDE: Final = "the system calls of this SQLite cannot be replaced: not on Linux, or its names are hidden"
AMOUNTS: Final = (60, 40)  # of the two packets that are in one batch


@frozen
class Row:
    """A row of the table: the moment, its name in `crash.deadly`, and of two packets how many are credited then."""

    killed: str
    name: str
    credited: int
    held: int | None = None  # how many, when another process has the file open; `None`: just as many
    inside: bool = False  # of SQLite


ROWS: Final = (
    Row("when the packet has arrived", "arrived", 0),
    Row("between two packets of one batch", "between", 0),
    Row("when all of the batch is decided", "decided", 0),
    Row("between two statements of the transaction", "written_in_part", 0),
    Row("before the commit", "uncommitted", 0),
    Row("in the commit, with half of a page in the log", "logged_in_part", 0, held=0, inside=True),
    Row("in the commit, before the log is synced", "logged", PAIR, held=0, inside=True),
    Row("in the commit, when the log is synced", "synced", PAIR, held=PAIR, inside=True),
    Row("after the commit, before the reply", "committed", PAIR),
    Row("in a checkpoint, with half of a page in the file", "checkpointing", PAIR, held=PAIR, inside=True),
    Row("after the reply", "answered", PAIR),
)
CASES: Final = [pytest.param(row, False, id=row.name) for row in ROWS] + [
    pytest.param(row, True, id=f"{row.name}-held") for row in ROWS if row.held is not None
]


def credits_in(database: Path) -> int:
    """How many there are, for whoever opens the file now."""
    with closing(sqlite3.connect(database)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM credits").fetchone()
        return int(count)


@pytest.mark.parametrize(("row", "held"), CASES)
def test_each_moment(row: Row, held: bool, tmp_path: Path) -> None:
    """What is in the file then, what the sender has heard, and that the very same packets are credited once after it.

    `held`: core banking has the file open all the time, so that nobody recovers the log, and books before the service
    is back.
    """
    if row.inside and not watches_files():
        pytest.skip(
            "the system calls of this SQLite cannot be replaced: not on Linux, or linked so that they are hidden"
        )
    with ExitStack() as stack:
        service = stack.enter_context(Service(tmp_path / "bank"))
        scene = Scene(service, limit=sum(AMOUNTS) + held)
        packets = [scene.packet(amount) for amount in AMOUNTS]
        if held:
            stack.enter_context(SqliteStore(service.database)).load(scene.id)
        service.up("in_pairs", row.name)
        heard = together([partial(scene.send, asked) for asked in packets])
        assert service.wait() == -SIGKILL
        expected = row.credited if row.held is None or not held else row.held
        assert expected == credits_in(service.database if held else service.copy(tmp_path / "copy"))
        assert [UNHEARD if row.name != "answered" else "fulfilled"] * PAIR == heard

        store = stack.enter_context(SqliteStore(service.database))
        if held:
            scene.book_here(1, store)
        assert [scene.send_here(asked, store) for asked in packets] == ["fulfilled"] * PAIR

    report = check(service.database, [scene.path])
    assert report.violations == []
    assert (report.figures.credits, report.figures.completed) == (PAIR + held, 1)


@pytest.mark.skipif(not watches_files(), reason=NO_INSIDE)
def test_killed_while_it_recovers(tmp_path: Path) -> None:
    """A process that dies while it reads the log of one that was killed leaves the log to the next one."""
    with Service(tmp_path / "bank") as service:
        scene = Scene(service, limit=sum(AMOUNTS))
        packets = [scene.packet(amount) for amount in AMOUNTS]
        service.up("in_pairs", "committed")
        together([partial(scene.send, asked) for asked in packets])
        assert service.wait() == -SIGKILL
        for _ in range(2):
            service.start("recovering")
            assert service.wait() == -SIGKILL
        service.up()
        assert [scene.send(asked) for asked in packets] == ["fulfilled"] * PAIR
        service.stop()

    report = check(service.database, [scene.path])
    assert (report.violations, report.figures.credits) == ([], PAIR)


def test_the_table_of_the_docs_is_this_one() -> None:
    """Each row in docs/receiving.md is a row here, in the same order."""
    page = (ROOT / "docs" / "receiving.md").read_text("utf-8")
    table = page[page.index("| killed |") :].partition("\n\n")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines()]
    assert ["killed", "---", *(row.killed for row in ROWS)] == rows

"""`serve` killed at each step from a packet to its reply: the table in docs/receiving.md, row by row."""

import sqlite3
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Final

import pytest
from attrs import frozen

from campaigns.crash.check import check
from campaigns.crash.faults import PAIR, watches_files
from campaigns.crash.payer import Payer
from campaigns.crash.records import NO_ANSWER
from campaigns.crash.service import Service
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import PaymentNotFound
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import crediting
from incoming_payments.testing.steps import together
from kits.processes import ROOT

NO_INSIDE: Final = "the system calls of SQLite cannot be replaced here: not Linux, or the library hides its names"
AMOUNTS: Final = (60, 40)  # of the two packets of the batch


@frozen
class Row:
    """A row of the table: the step, its name in `crash.faults`, and how many of two packets are credited then."""

    killed: str
    name: str
    credited: int
    held: int | None = None  # credited packets if another process has the database open; None if that changes nothing
    inside: bool = False  # the process dies inside SQLite


ROWS: Final = (
    Row("when the packet has arrived", "packet_arrived", 0),
    Row("between two packets of one batch", "between_packets", 0),
    Row("when the whole batch is decided", "batch_decided", 0),
    Row("between two statements of the transaction", "between_statements", 0),
    Row("before the commit", "before_commit", 0),
    Row("in the commit, with half of a page in the log", "log_page_torn", 0, held=0, inside=True),
    Row("in the commit, before the log is synced", "log_written", PAIR, held=0, inside=True),
    Row("in the commit, when the log is synced", "log_synced", PAIR, held=PAIR, inside=True),
    Row("after the commit, before the reply", "after_commit", PAIR),
    Row("in a checkpoint, with half of a page in the file", "checkpoint_torn", PAIR, held=PAIR, inside=True),
    Row("after the reply", "after_reply", PAIR),
)
CASES: Final = [pytest.param(row, False, id=row.name) for row in ROWS] + [
    pytest.param(row, True, id=f"{row.name}-held") for row in ROWS if row.held is not None
]


def credits_in(database: Path) -> int:
    """Return the number of credits, as seen by a process that opens the database now."""
    with closing(sqlite3.connect(database)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM credits").fetchone()
        return int(count)


@pytest.mark.parametrize(("row", "held"), CASES)
def test_process_killed_at_one_step(row: Row, held: bool, tmp_path: Path) -> None:
    """The state of the database and the answers are those of the table. Repeated packets are credited once.

    With `held`, another process has the database open all the time. So no process recovers the log, and the other
    process credits money before the service runs again.
    """
    if row.inside and not watches_files():
        pytest.skip(NO_INSIDE)
    with ExitStack() as stack:
        service = stack.enter_context(Service(tmp_path / "bank"))
        payer = Payer(service, limit=sum(AMOUNTS) + held)
        packets = [payer.packet(amount) for amount in AMOUNTS]
        if held:
            stack.enter_context(SqliteStore(service.database)).load(payer.id)
        service.up("batches_of_two", row.name)
        answers = together([partial(payer.send, request) for request in packets])
        assert service.wait() == -SIGKILL
        expected = row.credited if row.held is None or not held else row.held
        assert expected == credits_in(service.database if held else service.copy(tmp_path / "copy"))
        assert [NO_ANSWER if row.name != "after_reply" else "fulfilled"] * PAIR == answers

        store = stack.enter_context(SqliteStore(service.database))
        if held:
            payer.credit_here(1, store)
        assert [payer.send_here(request, store) for request in packets] == ["fulfilled"] * PAIR

    report = check(service.database, [payer.path])
    assert report.violations == []
    assert (report.figures.credits, report.figures.completed) == (PAIR + held, 1)


@pytest.mark.skipif(not watches_files(), reason=NO_INSIDE)
@pytest.mark.parametrize("point", ["log_written", "log_synced"])
def test_unfinished_commit_does_not_come_back(point: str, tmp_path: Path) -> None:
    """Another process has the database open and refuses a credit. A later recovery must not find it credited."""
    with Service(tmp_path / "bank") as service:
        payer = Payer(service, limit=sum(AMOUNTS))
        packets = [payer.packet(amount) for amount in AMOUNTS]
        with SqliteStore(service.database) as store:
            store.load(payer.id)
            service.up("batches_of_two", point)
            together([partial(payer.send, packet) for packet in packets])
            assert service.wait() == -SIGKILL
            before = credits_in(service.database)
            with pytest.raises(PaymentNotFound):
                store.update(PaymentId("no such"), crediting("wire-1", 1))
            assert credits_in(service.copy(tmp_path / "copy")) == before


@pytest.mark.skipif(not watches_files(), reason=NO_INSIDE)
def test_process_killed_during_recovery(tmp_path: Path) -> None:
    """A process that dies while it recovers the log leaves the log to the next one."""
    with Service(tmp_path / "bank") as service:
        payer = Payer(service, limit=sum(AMOUNTS))
        packets = [payer.packet(amount) for amount in AMOUNTS]
        service.up("batches_of_two", "after_commit")
        together([partial(payer.send, request) for request in packets])
        assert service.wait() == -SIGKILL
        for _ in range(2):
            service.start("during_recovery")
            assert service.wait() == -SIGKILL
        service.up()
        assert [payer.send(request) for request in packets] == ["fulfilled"] * PAIR
        service.stop()

    report = check(service.database, [payer.path])
    assert (report.violations, report.figures.credits) == ([], PAIR)


def test_docs_have_the_same_table() -> None:
    """Each row in docs/receiving.md is a row here, in the same order."""
    page = (ROOT / "docs" / "receiving.md").read_text("utf-8")
    table = page[page.index("| killed |") :].partition("\n\n")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines()]
    assert ["killed", "---", *(row.killed for row in ROWS)] == rows

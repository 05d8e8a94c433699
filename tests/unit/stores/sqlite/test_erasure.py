"""Erased metadata is in no byte of the database and its log, whatever other processes do."""

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from incoming_payments.domain import lifecycle
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.domain.reference import Reference
from incoming_payments.errors import StoreUnavailable
from incoming_payments.ports import Erasure, PaymentStore
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore, _erasure
from incoming_payments.stores.sqlite._schema import APPLICATION_ID, VERSION_1
from incoming_payments.testing import NOW, SyncView, a_creation
from incoming_payments.testing.erasure import ErasureContract
from incoming_payments.testing.steps import create, credit
from kits.service_kit import Recorder
from kits.sqlite_jobs import act_on, another_process, credit_one, in_one_batch, rows

SECRET: Final = "Jane-Doe"
METADATA: Final = f'{{"externalRef":"{SECRET}"}}'
LATER: Final = NOW + timedelta(days=1)


class TestSqliteErasure(ErasureContract):
    """The contract suite against `SqliteErasure`."""

    def make(self, directory: Path) -> tuple[PaymentStore, Erasure]:
        """Return a store in a new file."""
        store = SqliteStore(directory / "payments.db")
        return store, store.erasure


class TestAsyncSqliteErasure(ErasureContract):
    """The contract suite against `AsyncSqliteErasure`."""

    def make(self, directory: Path) -> tuple[PaymentStore, Erasure]:
        """Return a store in a new file, with its own event loop."""

        async def open_store() -> AsyncSqliteStore:
            return AsyncSqliteStore(directory / "payments.db")

        view = SyncView(open_store, AsyncSqliteStore.close)
        return view, SyncErasure(view)


class SyncErasure:
    """An `Erasure` port that calls the port of an `AsyncSqliteStore` in the event loop of `view`."""

    def __init__(self, view: SyncView) -> None:
        assert isinstance(view.store, AsyncSqliteStore)
        self._view, self._erasure = view, view.store.erasure

    def erase(self, id: PaymentId) -> IncomingPayment:
        """Call `erase`."""
        return self._view.run(self._erasure.erase(id))

    def erase_ended(self, before: datetime) -> bool:
        """Call `erase_ended`."""
        return self._view.run(self._erasure.erase_ended(before))


def files_with(path: Path, text: str = SECRET) -> list[str]:
    """Return the names of the files beside the database that contain `text`.

    Another process reads them, because SQLite loses its locks when its own process closes a file of the database.
    """
    script = (
        "import pathlib, sys\n"
        "for file in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n"
        "    if sys.argv[2].encode() in file.read_bytes(): print(file.name)"
    )
    command = [sys.executable, "-c", script, str(path.parent), text]
    return subprocess.check_output(command, text=True, timeout=60).split()


def test_no_byte_of_a_thousand_payments_is_left(path: Path) -> None:
    """Rows and index entries move between pages all the time, and long texts take pages of their own."""
    chance = random.Random(7)

    async def live() -> None:
        async with AsyncSqliteStore(path, reference="externalRef") as store:
            made = [
                a_creation(
                    limit=9, metadata=f'{{"externalRef":"{SECRET}-{number}","n":"{"y" * chance.choice(SIZES)}"}}'
                )
                for number in range(1000)
            ]
            chance.shuffle(made)
            await asyncio.gather(*map(store.insert, made))
            ids = [creation.answer.id for creation in made]
            for number in range(3):
                some = chance.sample(ids, 500)
                await asyncio.gather(*(credit_one(store, id, f"wire-{number}-{'z' * 150}") for id in some))
            assert files_with(path)
            completes = partial(lifecycle.complete, now=NOW)
            await asyncio.gather(*(store.update(id, completes) for id in ids[1:]))
            while not await store.erasure.erase_ended(LATER):
                pass
            await store.erasure.erase(ids[0])
            assert files_with(path) == files_with(path, "yyyy") == []
            assert not await store.find_payments(query(f"{SECRET}-1"))

    asyncio.run(live())
    assert files_with(path) == []


SIZES: Final = (0, 10, 100, 300, 1000, 5000)


def query(text: str) -> PaymentQuery:
    """Return the query for the payments with this reference."""
    return PaymentQuery(now=NOW, limit=9, reference=Reference("externalRef", text))


def test_erasure_empties_the_log_that_other_processes_have_open(path: Path) -> None:
    """Another process has read the metadata, and goes on with its own connections and page cache."""
    script = """
import sys
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import credit
with SqliteStore(sys.argv[1]) as store:
    for line in sys.stdin:
        credit(store, sys.argv[2], f"wire-{store.load(sys.argv[2]).version}", 1)
        print(store.load(sys.argv[2]).terms.metadata, flush=True)
"""
    with SqliteStore(path, reference="externalRef") as store:
        id = create(store, a_creation(metadata=METADATA))
        with another_process(script, path, id) as step:
            assert step() == METADATA
            assert store.erasure.erase(id).metadata is None
            assert files_with(path) == []
            assert step() == "None"
            assert files_with(path) == []
        assert store.load(id).received.value >= 2
    assert files_with(path) == []


@pytest.mark.parametrize("is_async", [False, True])
def test_log_in_use_is_reported_and_emptied_later(path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    """A reader keeps an old snapshot. The call says so, and a repeated call finishes the erasure."""
    monkeypatch.setattr(_erasure, "STORE_BUSY_S_MAX", 0.2)
    with SqliteStore(path) as store:
        id = create(store, a_creation(metadata=METADATA, limit=1))
        other = create(store)
        view = SyncView(partial(opened, path), AsyncSqliteStore.close)
        erasure: Erasure = SyncErasure(view) if is_async else store.erasure
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM payments").fetchone()
            with pytest.raises(StoreUnavailable, match="its log may still hold the metadata, because a reader"):
                erasure.erase(id)
            assert store.load(id).terms.metadata is None
            with pytest.raises(StoreUnavailable):
                erasure.erase_ended(NOW)
            credit(store, other, "wire-1", 1)  # other calls go on
            assert files_with(path)
        assert erasure.erase_ended(NOW)
        assert files_with(path) == []
        view.close()


async def opened(path: Path) -> AsyncSqliteStore:
    """Return a store in the running event loop."""
    return AsyncSqliteStore(path)


KILLED: Final = """
import os, signal, sys
from incoming_payments.stores.sqlite import SqliteStore, _writer
_writer.Writer._empty_log = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
SqliteStore(sys.argv[1]).erasure.erase(sys.argv[2])
"""


def test_attempts_to_empty_the_log_leave_time_for_other_calls(path: Path) -> None:
    """Each attempt holds back the other calls for a quarter of a second. A backup may take minutes."""
    recorder = Recorder()
    with SqliteStore(path, observer=recorder) as store, closing(sqlite3.connect(path, isolation_level=None)) as reader:
        id = create(store, a_creation(metadata=METADATA))
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM payments").fetchone()
        recorder.take()
        with pytest.raises(StoreUnavailable, match="its log may still hold the metadata"):
            store.erasure.erase(id)
        assert len(recorder.take()) <= 10


@pytest.mark.parametrize("is_open", [False, True])
def test_erasure_of_a_killed_process_is_finished(path: Path, is_open: bool) -> None:
    """The process is killed after the commit, when the log still has the metadata. Any later call empties the log."""
    store = SqliteStore(path)
    id = create(store, a_creation(metadata=METADATA))
    if not is_open:
        store.close()
    assert subprocess.run([sys.executable, "-c", KILLED, path, id], timeout=60).returncode == -9
    assert files_with(path)
    if not is_open:
        store = SqliteStore(path)
        assert files_with(path) == []  # the first process brings the log into the database, and empties it
    with store:
        assert store.load(id).terms.metadata is None
        assert store.erasure.erase_ended(NOW)
        assert files_with(path) == []
        assert rows(path, "SELECT erasures, emptied FROM settings") == [(1, 1)]


def test_idle_sweep_does_not_write(store: SqliteStore, path: Path) -> None:
    """A sweep that finds nothing is one read."""
    create(store, a_creation(metadata=METADATA))
    size = os.stat(f"{path}-wal").st_size
    assert store.erasure.erase_ended(LATER)
    assert os.stat(f"{path}-wal").st_size == size


def test_calls_of_one_transaction_see_the_erasure(tasks: AsyncSqliteStore, store: SqliteStore, path: Path) -> None:
    """A payment is credited, erased and completed in one commit, in each order."""
    early, late = (create(store, a_creation(metadata=METADATA, limit=2)) for _ in range(2))
    answers = in_one_batch(
        credit_one(tasks, early, "wire-1"),
        tasks.erasure.erase(early),
        credit_one(tasks, early, "wire-2"),
        credit_one(tasks, late, "wire-1"),
        credit_one(tasks, late, "wire-2"),
        tasks.erasure.erase(late),
    )
    assert [getattr(answer, "metadata", None) for answer in answers] == [None] * 6
    assert [store.load(id).received.value for id in (early, late)] == [2, 2]
    assert rows(path, "SELECT count(*) FROM metadata_to_erase") == [(0,)]
    assert files_with(path) == []


def test_failed_erasure_changes_nothing(path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text and its number are removed in one transaction."""
    with SqliteStore(path) as store:
        id = create(store, a_creation(metadata=METADATA))

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("no")

    act_on(monkeypatch, "UPDATE settings SET erasures", fail)
    with SqliteStore(path) as store:
        with pytest.raises(Exception, match="no"):
            store.erasure.erase(id)
        assert store.load(id).terms.metadata == METADATA


def test_metadata_of_version_1_is_read_and_erased(path: Path) -> None:
    """The metadata stays in its old column until it is erased. Payments that ended before the upgrade have a row."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in (*VERSION_1, f"PRAGMA application_id = {APPLICATION_ID}", "PRAGMA user_version = 1"):
            connection.execute(statement)
        start = int(NOW.timestamp()) * 1_000_000
        for number, (received, limit, expires_at, closed_at, announced_at) in enumerate(
            [("0", "5", None, None, None), ("10", "9", None, None, None), ("0", None, None, start, None),
             ("0", None, start + 1, None, start + 9), ("0", None, start + 1, None, None)]
        ):  # fmt: skip
            id = f"019b796d-d600-7000-8000-00000000000{number}"
            values = (
                id,
                1,
                received,
                start,
                "https://bank.example/a",
                "the host",
                "USD",
                2,
                limit,
                expires_at,
                METADATA,
            )
            columns = "?" + ", ?" * 14
            connection.execute(
                f"INSERT INTO payments VALUES ({columns})",  # noqa: S608
                (*values, start, closed_at, announced_at, None),
            )
    ids = [PaymentId(f"019b796d-d600-7000-8000-00000000000{number}") for number in range(5)]
    with SqliteStore(path) as store:
        assert [store.load(id).terms.metadata for id in ids] == [METADATA] * 5
        assert store.erasure.erase_ended(LATER)
        kept = [METADATA, None, None, None, METADATA]
        assert [store.load(id).terms.metadata for id in ids] == kept
        store.reindex("externalRef")
        assert [payment.id for payment in store.find_payments(query(SECRET))] == [ids[4], ids[0]]
        for id in ids:
            store.erasure.erase(id)
        assert [file for file in files_with(path) if not file.endswith(".backup")] == []
        assert not store.find_payments(query(SECRET))

"""SQLite stores are opened with care and closed with manners; their readers are few."""

import asyncio
import gc
import os
import sqlite3
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import (
    ConfigurationError,
    IncomingPaymentsError,
    StoreUnavailable,
    StoreUnusable,
)
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore, _engine, _rows
from incoming_payments.stores.sqlite._engine import Engine
from incoming_payments.stores.sqlite._file import DatabaseFile
from incoming_payments.stores.sqlite._queue import Job
from incoming_payments.stores.sqlite._rows import Rows
from incoming_payments.testing import NOW, a_creation, crediting
from incoming_payments.testing.steps import create, credit
from kits.sqlite_jobs import busy_writer, queue


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file of a test goes."""
    return tmp_path / "payments.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    """A store in a new file."""
    with SqliteStore(path, busy_s=0.05) as store:
        yield store


# --- opening and closing ---


@pytest.mark.parametrize("path", ["", ":memory:", "a\0b", b"payments.db"])
def test_a_path_that_names_no_file_is_refused(path: Any) -> None:
    """With a hint to the store that needs none."""
    with pytest.raises(ConfigurationError, match="MemoryStore") as caught:
        SqliteStore(path)
    assert caught.value.details == {"setting": "path"}


@pytest.mark.parametrize("busy_s", [-1, 5.1, float("nan")])
def test_a_waiting_time_out_of_bounds_is_refused(path: Path, busy_s: float) -> None:
    """It is bounded by `limits.STORE_BUSY_S_MAX`."""
    with pytest.raises(ConfigurationError):
        SqliteStore(path, busy_s=busy_s)
    assert not path.exists()


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    """And not created: it may be a volume that is not mounted."""
    with pytest.raises(StoreUnusable, match="missing does not exist"):
        SqliteStore(tmp_path / "missing" / "payments.db")
    with pytest.raises(StoreUnusable, match="is a directory"):
        SqliteStore(tmp_path)


@pytest.mark.parametrize("name", ["a b?mode=ro#x%41.db", "gäld 🪙.db", "file:x"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    """Nothing in a path is taken for an option of SQLite's."""
    with SqliteStore(str(tmp_path / name)) as store:
        create(store)
    assert (tmp_path / name).is_file()


def test_a_relative_path_is_fixed_when_the_store_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later change of directory does not lead to another file."""
    monkeypatch.chdir(tmp_path)
    with SqliteStore("payments.db") as store:
        monkeypatch.chdir("/")
        id = create(store)
        assert store.load(id).id == id
    assert (tmp_path / "payments.db").is_file()


def test_a_closed_store_says_so(path: Path) -> None:
    """To every method; closing again is allowed."""
    store = SqliteStore(path)
    id = create(store)
    store.close()
    store.close()

    created = a_creation()
    for ask in (
        lambda: store.insert(created),
        lambda: store.load(id),
        lambda: store.events(id),
        lambda: store.find_expired(NOW, 1),
        lambda: credit(store, id, "wire-1", 1),
    ):
        with pytest.raises(StoreUnusable, match="closed"):
            ask()


def test_a_closed_async_store_says_so(path: Path) -> None:
    """Likewise."""

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            pass
        await store.close()
        with pytest.raises(StoreUnusable, match="closed"):
            await store.find_expired(NOW, 1)
        with pytest.raises(StoreUnusable, match="closed"):
            await store.insert(a_creation())

    asyncio.run(scenario())


def test_closing_finishes_what_is_queued(path: Path) -> None:
    """Every caller that waits is answered."""
    store = SqliteStore(path)
    id = create(store)
    with busy_writer(store._engine):
        jobs = [queue(store, id, crediting(f"wire-{number}", 1), f"wire-{number}") for number in range(5)]
        closing = threading.Thread(target=store.close)
        closing.start()
    closing.join()

    assert [job.wait().received.value for job in jobs] == [1, 2, 3, 4, 5]
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 5


def test_a_store_that_is_dropped_ends_its_thread(path: Path) -> None:
    """As if it had been closed."""
    store = SqliteStore(path)
    create(store)
    assert store._engine._writer is not None
    thread, _ = store._engine._writer
    del store
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_a_store_dropped_by_its_own_writer_does_not_wait_for_itself(path: Path) -> None:
    """The garbage collector may run anywhere, so also there."""
    engine = Engine(DatabaseFile(path, busy_s=0))
    job = Job(lambda _: engine.close_unattended())
    engine.submit(job)
    job.wait()
    assert engine._writer is not None
    engine._writer[0].join(30)


def test_a_thread_that_cannot_be_started_is_trouble_that_passes(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call tries again."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(StoreUnavailable):
            create(store)
    create(store)


# --- readers ---


def test_readers_are_kept_up_to_a_bound(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that read at once need two connections; one of them is kept for the next."""
    monkeypatch.setattr(_engine, "STORE_READERS_MAX", 1)
    id = create(store)
    assert store._engine.read(lambda _: store.load(id)).id == id
    assert len(store._engine._idle) == 1
    (kept,) = store._engine._idle
    assert store.load(id).id == id
    assert [kept] == store._engine._idle


def test_a_reader_that_outlives_the_store_is_closed(path: Path) -> None:
    """When it comes back."""
    store = SqliteStore(path)
    lent: list[sqlite3.Connection] = []

    def close_meanwhile(rows: Rows) -> None:
        lent.append(rows.connection)
        store.close()

    store._engine.read(close_meanwhile)
    assert store._engine._idle == []
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        lent[0].execute("SELECT 1")


def test_an_interrupted_reader_is_not_used_again(store: SqliteStore) -> None:
    """Whatever it was doing may be half done."""
    with pytest.raises(KeyboardInterrupt):
        store._engine.read(lambda _: _interrupt())
    assert store._engine._idle == []


def test_a_reader_that_found_nothing_is_used_again(store: SqliteStore) -> None:
    """A refusal is no trouble."""
    for _ in range(3):
        with pytest.raises(IncomingPaymentsError):
            store.load(PaymentId("no such"))
    assert len(store._engine._idle) == 1


def test_the_sweep_uses_its_index(store: SqliteStore) -> None:
    """Its cost is that of what it finds, not of the table."""
    connection = store._engine._file.connect_reader()
    plan = connection.execute(f"EXPLAIN QUERY PLAN {_rows._SELECT_EXPIRED}", (0, 0)).fetchall()
    store._engine._file.disconnect(connection)
    assert [row[3] for row in plan] == ["SEARCH payments USING COVERING INDEX payments_to_sweep (sweep_at<?)"]
    assert list(store.find_expired(NOW + timedelta(days=1), 5)) == []


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
def test_a_new_file_is_private(path: Path) -> None:
    """It and its log, whatever the umask; the mode of a file that is there already is its owner's business."""
    before = os.umask(0)
    try:
        with SqliteStore(path) as store:
            create(store)
            assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
        path.chmod(0o640)
        with SqliteStore(path):
            assert path.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)

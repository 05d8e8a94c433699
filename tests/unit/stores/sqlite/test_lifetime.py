"""How SQLite stores are opened and closed, and their reading connections."""

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
    """Return the path of the database."""
    return tmp_path / "payments.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    """Yield a store in a new file."""
    with SqliteStore(path, busy_s=0.05) as store:
        yield store


# --- opening and closing ---


@pytest.mark.parametrize("path", ["", ":memory:", "a\0b", b"payments.db"])
def test_path_of_no_file_is_refused(path: Any) -> None:
    """The message names `MemoryStore`, which needs no file."""
    with pytest.raises(ConfigurationError, match="MemoryStore") as caught:
        SqliteStore(path)
    assert caught.value.details == {"setting": "path"}


@pytest.mark.parametrize("busy_s", [-1, 5.1, float("nan")])
def test_busy_s_out_of_bounds_is_refused(path: Path, busy_s: float) -> None:
    """`busy_s` is a number from 0 to `limits.STORE_BUSY_S_MAX`."""
    with pytest.raises(ConfigurationError):
        SqliteStore(path, busy_s=busy_s)
    assert not path.exists()


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    """The store does not create the directory, which may be an unmounted volume."""
    with pytest.raises(StoreUnusable, match="missing does not exist"):
        SqliteStore(tmp_path / "missing" / "payments.db")
    with pytest.raises(StoreUnusable, match="is a directory"):
        SqliteStore(tmp_path)


@pytest.mark.parametrize("name", ["a b?mode=ro#x%41.db", "gäld 🪙.db", "file:x"])
def test_any_file_name_is_accepted(tmp_path: Path, name: str) -> None:
    """No part of a path is read as an option of SQLite."""
    with SqliteStore(str(tmp_path / name)) as store:
        create(store)
    assert (tmp_path / name).is_file()


def test_relative_path_is_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later change of the working directory does not lead to another file."""
    monkeypatch.chdir(tmp_path)
    with SqliteStore("payments.db") as store:
        monkeypatch.chdir("/")
        id = create(store)
        assert store.load(id).id == id
    assert (tmp_path / "payments.db").is_file()


def test_closed_store_refuses_every_call(path: Path) -> None:
    """Every method raises `StoreUnusable`. Only `close` may be called again."""
    store = SqliteStore(path)
    id = create(store)
    store.close()
    store.close()

    created = a_creation()
    for call in (
        lambda: store.insert(created),
        lambda: store.load(id),
        lambda: store.events(id),
        lambda: store.find_expired(NOW, 1),
        lambda: credit(store, id, "wire-1", 1),
    ):
        with pytest.raises(StoreUnusable, match="closed"):
            call()


def test_closed_async_store_refuses_every_call(path: Path) -> None:
    """Reads and writes raise `StoreUnusable`."""

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            pass
        await store.close()
        with pytest.raises(StoreUnusable, match="closed"):
            await store.find_expired(NOW, 1)
        with pytest.raises(StoreUnusable, match="closed"):
            await store.insert(a_creation())

    asyncio.run(scenario())


def test_close_finishes_queued_updates(path: Path) -> None:
    """Every waiting caller gets an answer."""
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


def test_garbage_collected_store_ends_its_thread(path: Path) -> None:
    """The collection of a store closes it."""
    store = SqliteStore(path)
    create(store)
    assert store._engine._writer is not None
    thread, _ = store._engine._writer
    del store
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_store_collected_in_its_writer_thread_does_not_deadlock(path: Path) -> None:
    """The garbage collector may run in any thread, also in the one that writes."""
    engine = Engine(DatabaseFile(path, busy_s=0))
    job = Job(lambda _: engine.close(wait=False))
    engine.submit(job)
    job.wait()
    assert engine._writer is not None
    engine._writer[0].join(30)


def test_failed_thread_start_is_temporary(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call raises `StoreUnavailable`, and the next call tries again."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(StoreUnavailable):
            create(store)
    create(store)


# --- readers ---


def test_idle_readers_are_limited(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two concurrent reads open two connections. With a limit of one, the store keeps one of them."""
    monkeypatch.setattr(_engine, "STORE_READERS_MAX", 1)
    id = create(store)
    assert store._engine.read(lambda _: store.load(id)).id == id
    assert len(store._engine._idle) == 1
    (kept,) = store._engine._idle
    assert store.load(id).id == id
    assert [kept] == store._engine._idle


def test_reader_in_use_is_closed_after_the_store(path: Path) -> None:
    """The connection is closed when its read ends."""
    store = SqliteStore(path)
    used: list[sqlite3.Connection] = []

    def close_meanwhile(rows: Rows) -> None:
        used.append(rows.connection)
        store.close()

    store._engine.read(close_meanwhile)
    assert store._engine._idle == []
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        used[0].execute("SELECT 1")


def test_interrupted_reader_is_not_reused(store: SqliteStore) -> None:
    """The state of an interrupted connection is unknown."""
    with pytest.raises(KeyboardInterrupt):
        store._engine.read(lambda _: _interrupt())
    assert store._engine._idle == []


def test_reader_without_a_result_is_reused(store: SqliteStore) -> None:
    """`PaymentNotFound` is no failure of the connection."""
    for _ in range(3):
        with pytest.raises(IncomingPaymentsError):
            store.load(PaymentId("no such"))
    assert len(store._engine._idle) == 1


def test_sweep_uses_its_index(store: SqliteStore) -> None:
    """The sweep reads the expired payments only, and not the whole table."""
    connection = store._engine._file.connect_reader()
    plan = connection.execute(f"EXPLAIN QUERY PLAN {_rows._SELECT_EXPIRED}", (0, 0)).fetchall()
    store._engine._file.disconnect(connection)
    assert [row[3] for row in plan] == ["SEARCH payments USING COVERING INDEX payments_to_sweep (sweep_at<?)"]
    assert list(store.find_expired(NOW + timedelta(days=1), 5)) == []


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.skipif(os.name != "posix", reason="file modes need POSIX")
def test_new_files_are_private(path: Path) -> None:
    """The mode of new files is 0600 for any umask. The mode of an existing file stays."""
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

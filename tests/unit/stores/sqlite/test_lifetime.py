"""How SQLite stores are opened and closed, and their reading connections."""

import asyncio
import fcntl
import gc
import os
import sqlite3
import threading
import time
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
    with SqliteStore(path, busy_s=1) as store:
        yield store


# --- opening and closing ---


@pytest.mark.parametrize("path", ["", ":memory:", "a\0b"])
def test_path_of_no_file_is_refused(path: Any) -> None:
    """The message names `MemoryStore`, which needs no file."""
    with pytest.raises(ConfigurationError) as caught:
        SqliteStore(path)
    assert caught.value.details == {"setting": "path"}
    assert caught.value.description == (
        "the path names the database's file; to keep payments in memory use MemoryStore"
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (b"payments.db", "the path must be text or a Path, not bytes"),
        (None, "the path must be text or a Path, not NoneType"),
        (Path, "the path must be text or a Path, not the class Path"),
        ("sqlite:///payments.db", "the path must not be a URL: write the path of the database's file, such as"),
        ("~/payments.db", "the path begins with ~, which only a shell replaces: write the path of your home directory"),
        (Path("~/payments.db"), "the path begins with ~"),
        ("~", "the path begins with ~"),
    ],
)
def test_path_of_another_form_is_refused(path: Any, text: str) -> None:
    """The message names the mistake, and not a directory that is missing because of it."""
    with pytest.raises(ConfigurationError, match=f"^{text}") as caught:
        SqliteStore(path)
    assert caught.value.details == {"setting": "path"}


@pytest.mark.parametrize("busy_s", [-1, 5.1, float("nan")])
def test_busy_s_out_of_bounds_is_refused(path: Path, busy_s: float) -> None:
    """`busy_s` is a number from 0 to `limits.STORE_BUSY_S_MAX`."""
    with pytest.raises(ConfigurationError) as caught:
        SqliteStore(path, busy_s=busy_s)
    assert caught.value.details == {"setting": "busy_s"}
    assert caught.value.description == "busy_s is how many seconds to wait for a lock, from 0 to 5"
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
        with pytest.raises(StoreUnavailable, match=r"^the thread that writes could not be started \(can't start new"):
            create(store)
    create(store)


def test_threads_have_names(path: Path) -> None:
    """An operator finds them in a dump of all stacks. The one that writes does not keep the process from ending."""

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            created = a_creation()
            await store.insert(created)
            await store.load(created.answer.id)
            threads = {thread.name: thread for thread in threading.enumerate()}
            assert threads["incoming-payments-write"].daemon
            assert "incoming-payments-read_0" in threads

    asyncio.run(scenario())


def refuses(engine: Engine) -> bool:
    """Return whether the engine refuses reads, because it is closed."""
    try:
        engine.read(lambda _: None)
    except StoreUnusable:
        return True
    return False


def test_concurrent_reads_of_tasks_are_limited(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other reads wait for a thread."""
    monkeypatch.setattr(_engine, "STORE_READERS_MAX", 2)
    engine = Engine(DatabaseFile(path, busy_s=5))
    entered = threading.Semaphore(0)
    go = threading.Event()

    def query(_: Rows) -> bool:
        entered.release()
        return go.wait(30)

    reads = [engine.read_elsewhere(query) for _ in range(3)]
    assert [entered.acquire(timeout=wait_s) for wait_s in (30, 30, 0.02)] == [True, True, False]
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not refuses(engine):
        time.sleep(0.001)
    assert closing.is_alive()  # `close` waits for the reads
    go.set()
    closing.join(30)
    assert not closing.is_alive()
    assert all(read.done() for read in reads)
    with pytest.raises(StoreUnusable):
        reads[2].result()  # it began after the call of `close`


def test_closed_store_releases_its_lock(path: Path) -> None:
    """Another process can open the file alone, and restore the log."""
    store = SqliteStore(path)
    create(store)
    descriptor = os.open(path.with_name("payments.db-lock"), os.O_RDWR)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        store.close()
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


# --- forks, without a second process ---


def test_fork_leaves_no_connection_open(store: SqliteStore) -> None:
    """A call that is made during the fork waits until it is over."""
    id = create(store)
    store.load(id)
    engine = store._engine
    (idle,) = engine._idle
    assert engine._writer is not None
    writer, _ = engine._writer
    loads: list[PaymentId] = []
    _engine._before_fork()
    try:
        assert engine._idle == []
        assert not writer.is_alive()
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            idle.connection.execute("SELECT 1")
        calls = [
            threading.Thread(target=lambda: loads.append(store.load(id).id)),
            threading.Thread(target=lambda: loads.append(create(store))),
        ]
        for call in calls:
            call.start()
        calls[0].join(0.02)
        assert loads == []
    finally:
        _engine._after_fork_in_parent()
    for call in calls:
        call.join(30)
    assert len(loads) == 2


def test_fork_waits_for_a_read(store: SqliteStore) -> None:
    """The connection of the read is closed before the fork."""
    forked = threading.Event()
    connections: list[sqlite3.Connection] = []

    def fork() -> None:
        _engine._before_fork()
        forked.set()
        _engine._after_fork_in_parent()

    def query(rows: Rows) -> None:
        connections.append(rows.connection)
        forking.start()
        assert not forked.wait(0.02)

    forking = threading.Thread(target=fork)
    store._engine.read(query)
    forking.join(30)
    assert forked.is_set()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connections[0].execute("SELECT 1")


def test_store_that_is_dropped_during_a_fork_does_not_wait(path: Path) -> None:
    """The garbage collector closes it, and the thread that forks may have called the garbage collector."""
    engine = Engine(DatabaseFile(path, busy_s=0))
    _engine._before_fork()
    try:
        engine.close(wait=False)
        closing = threading.Thread(target=engine.close)
        closing.start()
        closing.join(0.02)
        assert closing.is_alive()  # any other call of `close` waits
    finally:
        _engine._after_fork_in_parent()
    closing.join(30)
    assert not closing.is_alive()


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


@pytest.mark.parametrize("error", [KeyboardInterrupt(), sqlite3.OperationalError("disk I/O error")])
def test_interrupted_reader_is_closed(store: SqliteStore, error: BaseException) -> None:
    """The state of a connection is unknown after an interrupt, and after an error of SQLite."""
    used: list[sqlite3.Connection] = []

    def query(rows: Rows) -> None:
        used.append(rows.connection)
        raise error

    with pytest.raises((KeyboardInterrupt, StoreUnusable)):
        store._engine.read(query)
    assert store._engine._idle == []
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        used[0].execute("SELECT 1")


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

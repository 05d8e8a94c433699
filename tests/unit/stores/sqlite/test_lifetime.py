"""How SQLite stores are opened and closed, and their reading connections."""

import asyncio
import fcntl
import gc
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.errors import ConfigurationError, PaymentNotFound, StoreUnavailable, StoreUnusable
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore, _engine
from incoming_payments.stores.sqlite._rows import Rows
from incoming_payments.stores.sqlite._watch import FileWatch
from incoming_payments.testing import a_creation
from incoming_payments.testing.steps import create, credit
from kits.sqlite_jobs import before_reads, busy_writer, writers

# --- opening and closing ---


def test_interrupt_at_the_end_of_an_opening_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store that is interrupted closes its connections, and the next store works."""
    note_index = FileWatch.note_index

    def interrupt(watch: FileWatch) -> None:
        note_index(watch)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FileWatch, "note_index", interrupt)
        with pytest.raises(KeyboardInterrupt):
            SqliteStore(path)
    with SqliteStore(path) as store:
        assert store.load(create(store)).received.value == 0


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", "the path must name a file: to keep payments in memory, use MemoryStore$"),
        (":memory:", "the path must name a file: to keep payments in memory, use MemoryStore$"),
        ("a\0b", "the path must name a file: to keep payments in memory, use MemoryStore$"),
        (b"payments.db", "the path must be text or a Path, not bytes"),
        (None, "the path must be text or a Path, not NoneType"),
        (Path, "the path must be text or a Path, not the class Path"),
        ("sqlite:///payments.db", "the path must not be a URL: write the path of a file, such as"),
        ("~/payments.db", "the path begins with ~, which only a shell replaces: write the path of your home directory"),
        (Path("~/payments.db"), "the path begins with ~"),
        ("~", "the path begins with ~"),
    ],
)
def test_wrong_path_is_refused(path: Any, text: str) -> None:
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
    assert caught.value.description == "busy_s, the seconds to wait for a lock, must be from 0 to 5"
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


def test_close_finishes_queued_updates(path: Path) -> None:
    """Every waiting caller gets an answer."""
    store = SqliteStore(path)
    id = create(store)
    with ThreadPoolExecutor(6) as pool:
        with busy_writer(store, id):
            calls = [pool.submit(credit, store, id, f"wire-{number}", 1) for number in range(5)]
            time.sleep(0.05)
            closing = pool.submit(store.close)
        closing.result(30)
    assert sorted(call.result().received.value for call in calls) == [1, 2, 3, 4, 5]
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 5


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise `KeyboardInterrupt`. A shell ignores SIGINT for programs that it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_close_after_an_interrupted_close_waits_for_the_updates(path: Path) -> None:
    """Ctrl-C ends the first close. Until the second one returns, the updates need the locks of the file."""
    store = SqliteStore(path)
    id = create(store, a_creation())
    with ThreadPoolExecutor(1) as pool:
        with busy_writer(store, id):
            threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                store.close()
            closing = pool.submit(store.close)
            time.sleep(0.05)
            assert not closing.done()
        closing.result(30)


def test_garbage_collected_store_ends_its_thread(path: Path) -> None:
    """The collection of a store closes it."""
    before = set(writers())
    store = SqliteStore(path)
    create(store)
    [thread] = set(writers()) - before
    del store
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_failed_thread_start_is_temporary(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call raises `StoreUnavailable`, and the next call tries again."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(StoreUnavailable, match=r"^the thread that writes could not be started \(can't start new"):
            create(store)
    create(store)


def test_concurrent_reads_of_tasks_are_limited(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other reads wait for a thread. `close` waits for the reads that have begun, and refuses the rest."""
    monkeypatch.setattr(_engine, "STORE_READERS_MAX", 2)
    entered, go = threading.Semaphore(0), threading.Event()

    def wait(_: Rows) -> None:
        entered.release()
        assert go.wait(30)

    before_reads(monkeypatch, "events", wait)

    async def scenario() -> list[Any]:
        store = AsyncSqliteStore(path)
        created = a_creation()
        await store.insert(created)
        reads = [asyncio.create_task(store.events(created.answer.id)) for _ in range(3)]
        await asyncio.sleep(0)
        assert [entered.acquire(timeout=wait_s) for wait_s in (30, 30, 0.02)] == [True, True, False]
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        go.set()
        await closing
        return await asyncio.gather(*reads, return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(scenario())] == [list, list, StoreUnusable]


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


# --- readers ---


def test_failed_read_breaks_no_later_one(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted connection is not used again: its state is unknown."""
    id = create(store)
    connections: list[sqlite3.Connection] = []

    def fail(rows: Rows) -> None:
        connections.append(rows.connection)
        raise errors.pop()

    errors = [KeyboardInterrupt(), sqlite3.OperationalError("disk I/O error"), PaymentNotFound("not there")]
    with monkeypatch.context() as patch:
        before_reads(patch, "payment", fail)
        for error in (PaymentNotFound, StoreUnusable, KeyboardInterrupt):
            with pytest.raises(error):
                store.load(id)
    assert store.load(id).id == id
    found, broken, interrupted = connections
    assert found is broken  # `PaymentNotFound` is no failure of the connection
    for connection in (broken, interrupted):
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_lock_stays_while_a_closed_store_still_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another store that took the lock for its own would drop the locks of that read."""
    locked: list[bool] = []

    def is_locked() -> bool:
        with open(f"{path}-lock", "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def close(_: Rows) -> None:
        store.close()
        locked.append(is_locked())

    before_reads(monkeypatch, "events", close)
    store = SqliteStore(path)
    assert len(store.events(create(store))) == 1
    assert (locked, is_locked()) == ([True], False)


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

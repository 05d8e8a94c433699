"""A store stops when its disk fails or its files change, and then acknowledges nothing."""

import asyncio
import contextlib
import errno
import fcntl
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, IncomingPayment, PaymentId, credit_id
from incoming_payments.errors import PaymentNotFound, StoreStopped, StoreUnavailable, StoreUnusable
from incoming_payments.stores.sqlite import (
    AsyncSqliteStore,
    SqliteStore,
    _disk,
    _file,
    _log_watch,
    _opening,
    _watch,
    _writer,
)
from incoming_payments.stores.sqlite._file import DatabaseFile
from incoming_payments.stores.sqlite._watch import FileWatch
from incoming_payments.testing import NOW, crediting
from incoming_payments.testing.steps import create, credit, together
from kits.sqlite_jobs import another_process, beside, credit_one, fail_on, fork, in_one_batch, leave_a_log, leave_a_sync


def refuses_everything(store: SqliteStore, id: PaymentId) -> bool:
    """Return whether each method raises `StoreStopped`."""
    calls: list[Callable[[], object]] = [
        lambda: store.load(id),
        lambda: store.events(id),
        lambda: store.find_expired(NOW, 1),
        lambda: store.backup("backup.db"),
        lambda: create(store),
        lambda: credit(store, id, "wire-again", 1),
        lambda: store.nonces.use("0" * 64, NOW, NOW),
    ]
    for call in calls:
        with pytest.raises(StoreStopped):
            call()
    return True


# --- errors of the disk ---

LOST_DATA = (
    "SHORT_READ", "WRITE", "FSYNC", "DIR_FSYNC", "TRUNCATE", "BEGIN_ATOMIC", "COMMIT_ATOMIC", "ROLLBACK_ATOMIC",
)  # fmt: skip
TEMPORARY = ("FULL", "IOERR_READ", "IOERR_NOMEM", "IOERR_SHMSIZE")


@pytest.mark.parametrize("name", LOST_DATA)
def test_failed_write_stops_the_store(path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each call of the batch gets `StoreStopped`, also a refused one, and `on_stop` is called once."""
    stops: list[StoreStopped] = []
    tasks = AsyncSqliteStore(path, on_stop=stops.append)
    with monkeypatch.context() as patch:
        fail_on(patch, "COMMIT", getattr(sqlite3, f"SQLITE_IOERR_{name}"))
        outcomes = in_one_batch(credit_one(tasks, id, "wire-1"), credit_one(tasks, PaymentId("no such"), "wire-2"))
    assert [type(outcome) for outcome in outcomes] == [StoreStopped, StoreStopped]
    for call in (tasks.load(id), credit_one(tasks, id, "wire-1")):
        with pytest.raises(StoreStopped):
            asyncio.run(call)
    asyncio.run(tasks.close())
    [stop] = stops
    assert "SQLITE_IOERR_TEST" in stop.description
    assert str(path) in stop.description


def fail_once(monkeypatch: pytest.MonkeyPatch, store: SqliteStore, id: PaymentId) -> None:
    """Stop the store by a failed sync at its first credit."""
    with monkeypatch.context() as patch:
        fail_on(patch, "COMMIT", sqlite3.SQLITE_IOERR_FSYNC)
        with pytest.raises(StoreStopped):
            credit(store, id, "wire-1", 1)


@pytest.mark.parametrize("name", TEMPORARY)
def test_error_without_data_loss_is_temporary(
    path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A full disk and a failed read affect only the calls that meet them."""
    with SqliteStore(path) as store:
        with monkeypatch.context() as patch:
            fail_on(patch, "COMMIT", getattr(sqlite3, f"SQLITE_{name}"))
            with pytest.raises(StoreUnavailable):
                credit(store, id, "wire-1", 1)
        assert credit(store, id, "wire-1", 1).received.value == 1


def test_failed_stat_fails_its_call_only(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the operating system, such as an unreachable path, is temporary too."""
    id = create(store)

    def unreadable(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(_disk, "stat", unreadable)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            store.load(id)
    assert store.load(id).id == id


def after_connecting(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Call `change` directly after SQLite has opened the files for a writer."""
    connect = DatabaseFile.connect_writer

    def connect_and_change(file: DatabaseFile) -> sqlite3.Connection:
        connection = connect(file)
        change()
        return connection

    monkeypatch.setattr(DatabaseFile, "connect_writer", connect_and_change)


@pytest.mark.parametrize(
    ("ending", "message"), [("wal", "was removed while it was open"), ("shm", "was removed or replaced")]
)
def test_missing_log_stops_the_writer(path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, message: str) -> None:
    """The log or its index is removed between its opening by SQLite and its opening by the writer."""
    with SqliteStore(path) as store:
        after_connecting(monkeypatch, beside(path, ending).unlink)
        with pytest.raises(StoreStopped, match=f"payments.db-{ending} {message}"):
            create(store)


def fails(number: int) -> Callable[..., int]:
    """Return a function that raises `OSError` with this error number."""

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


# --- other stores on the same file ---


def test_stop_reaches_every_store_on_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other stores stop at their next call. A new store is refused while one of them is open."""
    with SqliteStore(path) as failing, SqliteStore(path) as writing, SqliteStore(path) as reading:
        id = create(writing)
        reading.load(id)
        fail_once(monkeypatch, failing, id)
        for store, call in ((writing, partial(credit, writing, id, "wire-2", 1)), (reading, partial(reading.load, id))):
            with pytest.raises(StoreStopped) as caught:
                call()
            assert caught.value.description == (
                f"the store of {path} has stopped: another process that uses the database has stopped its store. "
                "The store accepts no more calls. Check the disk and the files, end every process that uses the "
                "database, "
                "and start again"
            )
            assert refuses_everything(store, id)
        with pytest.raises(StoreStopped, match="still has"):
            SqliteStore(path)


LOADING = """
import sys
from incoming_payments.errors import StoreStopped
from incoming_payments.stores.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
for line in sys.stdin:
    try:
        store.load(sys.argv[2])
        print("answered", flush=True)
    except StoreStopped:
        print("stopped", flush=True)
"""

STOPPING = """
import sys
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import credit
store = SqliteStore(sys.argv[1])
input()
print(credit(store, sys.argv[2], "wire-1", 1).received.value, flush=True)
input()
store._engine._file.watch.stop("for a test")
print("stopped", flush=True)
input()
"""


def test_stop_reaches_another_process(path: Path, id: PaymentId) -> None:
    """When both processes have ended, a new one opens the file, which has every acknowledged credit."""
    with another_process(LOADING, path, id) as load:
        with another_process(STOPPING, path, id) as step:
            assert (step(), load()) == ("1", "answered")
            assert (step(), load()) == ("stopped", "stopped")
        with pytest.raises(StoreStopped, match="still has"):
            SqliteStore(path)
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 1


def test_closed_store_that_has_stopped_leaves_the_log_alone(
    path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite would copy the log, which may be damaged, into the database and remove it with the last connection.

    The process keeps the lock until its end, so that no other process opens the database.
    """
    with SqliteStore(path) as store:
        store.load(id)
        fail_once(monkeypatch, store, id)
        before = path.read_bytes(), beside(path, "wal").read_bytes()
    assert (path.read_bytes(), beside(path, "wal").read_bytes()) == before
    with pytest.raises(StoreStopped, match="a process still has"):
        SqliteStore(path)


# --- the lock ---


@pytest.mark.parametrize("locked", ["the lock file", "the directory"])
def test_new_store_waits_for_the_lock(path: Path, locked: str) -> None:
    """It waits at most `busy_s` while another process opens the file, or brings the log to the disk.

    If that process is killed in the sync, no other process has taken over what it has recovered.
    """
    id = leave_a_log(path)
    descriptor = os.open(beside(path, "lock") if locked == "the lock file" else path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # as the other process does
        with pytest.raises(StoreUnavailable, match="still opening"):
            SqliteStore(path, busy_s=0.01)
        release = threading.Timer(0.05, fcntl.flock, (descriptor, fcntl.LOCK_UN))
        release.start()
        with SqliteStore(path) as store:
            assert store.load(id).received.value == 1
        release.join()
    finally:
        os.close(descriptor)


def test_file_system_without_locks_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says to use a local disk."""

    def flock(_descriptor: int, _kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StoreUnusable, match=r"No locks available.*local disk"):
        SqliteStore(path)


# --- the log of a killed process ---


def test_a_log_is_written_again_before_anything_is_answered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte by byte in place, and then synced, before any connection is opened that answers."""
    id = leave_a_log(path)
    log = beside(path, "wal").read_bytes()
    steps: list[str] = []
    written = bytearray(len(log))
    pwrite, sync, connect = os.pwrite, _disk.sync, sqlite3.connect

    def note_write(descriptor: int, data: bytes, offset: int) -> int:
        if os.fstat(descriptor).st_size == len(log):
            data = data[:1000]  # the kernel may write only a part
            written[offset : offset + len(data)] = data
            steps.append("write")
        return pwrite(descriptor, data, offset)

    def note_sync(descriptor: int) -> None:
        steps.append("sync")
        sync(descriptor)

    def note_connect(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        steps.append("connect")
        connection: sqlite3.Connection = connect(*arguments, **settings)
        return connection

    monkeypatch.setattr(os, "pwrite", note_write)
    monkeypatch.setattr(_disk, "sync", note_sync)
    monkeypatch.setattr(sqlite3, "connect", note_connect)
    with SqliteStore(path) as store:
        assert written == log
        assert steps[0] == "connect"  # it holds SQLite's write lock
        assert list(dict.fromkeys(steps)) == ["connect", "write", "sync"]
        assert steps[-1] == "sync"
        assert store.load(id).received.value == 1


def test_failed_rewrite_of_the_log_refuses_the_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk fails, the store does not open. When the disk works again, every credit is there."""
    id = leave_a_log(path)
    with monkeypatch.context() as patch:
        patch.setattr(_disk, "sync", fails(errno.EIO))
        for _ in range(2):
            with pytest.raises(StoreStopped, match="cannot be written and synced"):
                SqliteStore(path)
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
@pytest.mark.parametrize("how", ["another store", "fork"])
def test_log_in_use_is_written_again_by_each_process(path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Each store does so before its first answer, and a child of a fork before its own first answer."""
    with SqliteStore(path) as first, SqliteStore(path) as other:
        id = create(other)
        monkeypatch.setattr(_disk, "sync", fails(errno.EIO))
        if how == "another store":
            with pytest.raises(StoreStopped, match="the log cannot be written and synced"):
                SqliteStore(path)
        else:
            child = os.fork()
            if child == 0:
                with contextlib.suppress(StoreStopped):
                    first.load(id)
                    os._exit(1)  # it has answered
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        assert refuses_everything(first, id)


def test_store_stops_when_a_process_was_killed_in_a_sync_that_an_earlier_checkpoint_needs(path: Path) -> None:
    """The killed process has left a mark in the lock file. The store does not copy the log at its end either."""
    stops: list[StoreStopped] = []
    with SqliteStore(path, on_stop=stops.append) as store:
        create(store)
        log = beside(path, "wal").read_bytes()
        leave_a_sync(path)
    [stop] = stops
    assert "a process was killed while it brought the database to the disk" in stop.description
    assert beside(path, "wal").read_bytes() == log


def test_nothing_is_answered_after_a_process_was_killed_in_such_a_sync(path: Path) -> None:
    """The database may lack pages, although the index of the log shows them as copied."""
    with SqliteStore(path) as store:
        id = create(store)
        credit(store, id, "wire-1", 1)
        leave_a_sync(path)
        with pytest.raises(StoreStopped, match="a process was killed while it brought the database to the disk"):
            store.load(id)
        assert refuses_everything(store, id)


def test_reads_wait_for_the_end_of_such_a_sync(path: Path) -> None:
    """Another process makes the checkpoint. Its sync may still fail."""
    with SqliteStore(path) as store, ThreadPoolExecutor(1) as pool:
        id = create(store)
        with beside(path, "wal").open("rb") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            leave_a_sync(path)
            answer = pool.submit(store.load, id)
            with pytest.raises(TimeoutError):
                answer.result(0.2)
            leave_a_sync(path, b"\1")
        assert answer.result(30).id == id


def test_read_waits_for_such_a_sync_only_for_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the other process may hang. The call fails, and the store goes on."""
    monkeypatch.setattr(_watch, "STORE_BUSY_S_MAX", 0.01)
    with SqliteStore(path) as store:
        id = create(store)
        with beside(path, "wal").open("rb") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            leave_a_sync(path)
            with pytest.raises(StoreUnavailable):
                store.load(id)
            leave_a_sync(path, b"\1")
        assert store.load(id).id == id


def test_store_does_not_stop_when_such_syncs_follow_each_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read takes no sync that has just begun for one whose process was killed."""
    pread = os.pread

    def look_in_a_sync(*arguments: Any) -> bytes:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # the read keeps the next sync from its begin
            return pread(*arguments)
        leave_a_sync(path)
        try:
            return pread(*arguments)
        finally:
            leave_a_sync(path, b"\1")
            fcntl.flock(log, fcntl.LOCK_UN)

    with SqliteStore(path) as store:
        id = create(store)
        with beside(path, "wal").open("rb") as log, monkeypatch.context() as patch:
            patch.setattr(os, "pread", look_in_a_sync)
            assert store.load(id).id == id


def test_stop_is_noticed_until_the_last_look_before_an_answer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync of another process fails while this one reads. The mark of the stop removes the state of the sync."""
    looks: list[object] = []
    stop_at = 0
    pread = os.pread

    def look(*arguments: Any) -> bytes:
        looks.append(arguments)
        if len(looks) == stop_at:
            os.truncate(beside(path, "lock"), 1)
        return pread(*arguments)

    with SqliteStore(path) as store:
        id = create(store)
        store.load(id)
        monkeypatch.setattr(os, "pread", look)
        store.load(id)
        stop_at = 2 * len(looks)
        with pytest.raises(StoreStopped, match="another process"):
            store.load(id)


@pytest.mark.parametrize("state", [b"\1", b"\2"])
def test_checkpoint_finds_what_another_process_has_left_meanwhile(
    path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch, state: bytes
) -> None:
    """After a part of the log was copied, it is not emptied. After a killed process, the store stops."""
    monkeypatch.setattr(_writer, "STORE_LOG_BYTES_MAX", 1)
    flock = fcntl.flock

    def leave_and_lock(descriptor: int, kind: int) -> None:
        flock(descriptor, kind)
        leave_a_sync(path, state)

    with SqliteStore(path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", leave_and_lock)
            assert credit(store, id, "wire-1", 1).received.value == 1  # the checkpoint comes after the answer
            with contextlib.suppress(StoreStopped):
                credit(store, id, "wire-2", 1)
        if state == b"\2":
            assert refuses_everything(store, id)
        else:
            assert credit(store, id, "wire-3", 1).received.value == 3


@pytest.mark.parametrize("statement", ["PRAGMA synchronous", "PRAGMA wal_checkpoint"])
def test_store_that_fails_late_in_its_opening_can_be_opened_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """The failed attempt leaves the log alone."""
    id = leave_a_log(path)
    with monkeypatch.context() as patch:
        fail_on(patch, statement, sqlite3.SQLITE_IOERR_NOMEM)
        with pytest.raises(StoreUnavailable):
            SqliteStore(path)
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 1


def test_backup_of_pages_that_may_be_lost_gets_no_name(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process is killed in such a sync while the backup is made. Nobody may take the copy for a good one."""
    fsync = os.fsync

    def sync_after_the_kill(descriptor: int) -> None:
        leave_a_sync(path)
        fsync(descriptor)

    with SqliteStore(path) as store:
        create(store)
        monkeypatch.setattr(os, "fsync", sync_after_the_kill)
        with pytest.raises(StoreStopped):
            store.backup(tmp_path / "backup.db")
    assert not list(tmp_path.glob("backup*"))


def test_interrupt_does_not_hide_that_such_a_sync_has_failed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when a store is closed, before the store can tell the others that its sync has failed."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with SqliteStore(path) as reading:
        ending = SqliteStore(path)
        id = create(ending)
        leave_a_sync(path, b"\1")
        with monkeypatch.context() as patch:
            fail_on(patch, "PRAGMA wal_checkpoint", sqlite3.SQLITE_IOERR_FSYNC)
            patch.setattr(os, "ftruncate", interrupt)
            with pytest.raises(KeyboardInterrupt):
                ending.close()
        with pytest.raises(StoreStopped):
            reading.load(id)


def test_store_opens_beside_a_program_that_kept_a_checkpoint_from_its_end(path: Path) -> None:
    """The program reads an older state, and stays connected. No sync has failed, so the store need not wait for it."""
    script = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in ("BEGIN", "SELECT count(*) FROM payments", "COMMIT"):
    input()
    print(statement, connection.execute(statement).fetchone(), flush=True)
input()
"""
    with another_process(script, path) as step:
        with SqliteStore(path) as store:
            id = create(store)
            assert [step(), step()] == ["BEGIN None", "SELECT count(*) FROM payments (1,)"]
            credit(store, id, "wire-1", 1)
        assert step() == "COMMIT None"
        with SqliteStore(path, busy_s=0.1) as store:
            assert credit(store, id, "wire-2", 1).received.value == 2


def test_store_does_not_open_while_another_program_keeps_sqlite_from_recovering(path: Path) -> None:
    """A process was killed in a checkpoint. The program keeps the index of the log, so SQLite copies only the rest."""
    leave_a_log(path)
    leave_a_sync(path)
    script = """
import sqlite3, sys
input()
print(*sqlite3.connect(sys.argv[1]).execute("SELECT count(*) FROM payments").fetchone(), flush=True)
input()
"""
    with another_process(script, path) as step:
        assert step() == "1"
        with pytest.raises(StoreUnavailable, match=r"another program has .* open"):
            SqliteStore(path, busy_s=0.05)
    with SqliteStore(path) as store:
        create(store)


def test_index_that_cannot_be_opened_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user has left it. The message does not blame the lock file."""
    leave_a_log(path)
    leave_a_sync(path)
    real = os.open

    def open_fails(name: str, *arguments: Any) -> int:
        if str(name).endswith("-shm"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(name, *arguments)

    monkeypatch.setattr(os, "open", open_fails)
    with pytest.raises(StoreUnusable, match=r"payments.db-shm cannot be opened \(Permission denied\)"):
        SqliteStore(path)


def test_lock_file_says_what_it_is(path: Path) -> None:
    """A person who finds the file reads its text. Behind it are a tag of the last commit, an id, and a state."""
    text = b"An open database needs this file. Do not remove it.\n"
    SqliteStore(path).close()
    unused = beside(path, "lock").read_bytes()
    id_and_state = unused[-17:]
    assert unused == text + bytes(8) + id_and_state
    assert id_and_state.endswith(b"\0")
    tags: list[bytes] = []
    for _ in range(2):
        with SqliteStore(path) as store:
            create(store)
        content = beside(path, "lock").read_bytes()
        assert content.startswith(text)
        assert content.endswith(id_and_state)
        tags.append(content[len(text) : -17])
    assert [len(tag) for tag in tags] == [8, 8]
    assert tags[0] != tags[1]


def test_macos_syncs_with_f_fullfsync(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS, `fsync` does not reach the disk."""
    leave_a_log(path)
    calls: list[int] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda _, command: calls.append(command))
    SqliteStore(path).close()
    assert set(calls) == {51}


# --- files that change ---


def remove_the_log(path: Path) -> None:
    """Remove the log, as `rm payments.db-wal` does."""
    beside(path, "wal").unlink()


def empty_the_log(path: Path) -> None:
    """Empty the log, as `> payments.db-wal` does."""
    os.truncate(beside(path, "wal"), 0)


def replace_the_log(path: Path) -> None:
    """Replace the log by a copy of itself."""
    log = beside(path, "wal")
    log.with_suffix(".new").write_bytes(log.read_bytes())
    log.with_suffix(".new").rename(log)


def replace_the_database(path: Path) -> None:
    """Replace the database, as `mv backup.db payments.db` does."""
    path.with_suffix(".new").write_bytes(path.read_bytes())
    path.with_suffix(".new").rename(path)


def overwrite_the_log(path: Path) -> None:
    """Overwrite its header with zeros."""
    with beside(path, "wal").open("r+b") as log:
        log.write(bytes(32))


CHANGES_AT_ANY_TIME: dict[str, Callable[[Path], object]] = {
    "log emptied": empty_the_log,
    "log removed": remove_the_log,
    "log replaced": replace_the_log,
    # Processes that start later do not see the locks of this one.
    "index removed": lambda path: beside(path, "shm").unlink(),
    "database removed": Path.unlink,
    "database moved, as an unmount does": lambda path: path.rename(path.with_suffix(".away")),
    "database replaced": replace_the_database,
    "database shortened": lambda path: os.truncate(path, 4096),
}
CHANGES: dict[str, Callable[[Path], object]] = CHANGES_AT_ANY_TIME | {
    "log overwritten": overwrite_the_log,
    "log shortened by a page": lambda path: os.truncate(beside(path, "wal"), beside(path, "wal").stat().st_size - 5000),
    # A new process cannot know then that the store has the database open.
    "lock file removed": lambda path: beside(path, "lock").unlink(),
    "lock file replaced": lambda path: beside(path, "other").rename(beside(path, "lock")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_file_stops_the_store(path: Path, change: Callable[[Path], object]) -> None:
    """The store acknowledges no credit, new or duplicate, that the next process may not find."""
    with SqliteStore(path) as store:
        id = create(store)
        credit(store, id, "wire-1", 1)
    with SqliteStore(path) as store:
        for number in range(2, 12):
            credit(store, id, f"wire-{number}", 1)
        beside(path, "other").write_text("A file with other content.")
        change(path)
        with pytest.raises(StoreStopped):
            credit(store, id, "wire-11" if change is empty_the_log else "wire-12", 1)
        assert refuses_everything(store, id)


@pytest.mark.parametrize("change", CHANGES_AT_ANY_TIME.values(), ids=CHANGES_AT_ANY_TIME)
def test_file_changed_during_a_transaction_stops_the_store(path: Path, change: Callable[[Path], object]) -> None:
    """The commit of that transaction is not acknowledged."""
    with SqliteStore(path) as store:
        id = create(store)
        book = crediting("wire-1", 1)

        def change_and_decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[Credit]:
            change(path)
            return book(payment, earlier)

        with pytest.raises(StoreStopped):
            store.update(id, change_and_decide, credit_id("wire-1"))
        assert refuses_everything(store, id)


def test_stopped_store_writes_nothing_even_if_it_could_not_leave_the_mark(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not mark the lock file. The connection of the writer is open, and every file is in its place again."""
    id = create(store)
    away = path.with_suffix(".away")
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", fails(errno.EIO))
        path.rename(away)
        with pytest.raises(StoreStopped):
            store.load(id)
        away.rename(path)
    size = beside(path, "wal").stat().st_size
    assert refuses_everything(store, id)
    assert beside(path, "wal").stat().st_size == size


def test_mark_is_seen_although_a_tag_has_made_the_lock_file_long_again(path: Path) -> None:
    """A process may die after it has left its tag behind the mark of another."""
    with SqliteStore(path) as store:
        id = create(store)
        with beside(path, "lock").open("r+b") as lock:
            lock.truncate(1)
            lock.seek(52)
            lock.write(bytes(8))
        with pytest.raises(StoreStopped, match="another process"):
            store.load(id)
        with pytest.raises(StoreStopped, match="still has"):
            SqliteStore(path)


def test_lock_file_is_no_symbolic_link(path: Path, tmp_path: Path) -> None:
    """The file behind a link could be removed, and the directory of the database would not show it."""
    (tmp_path / "elsewhere").touch()
    beside(path, "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreUnusable, match="the lock file"):
        SqliteStore(path)


def test_log_replaced_while_the_writer_opens_it_stops_the_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer opens the log that SQLite has open, or none."""
    look = _log_watch.LogWatch.check_names

    def replace_and_look(log: _log_watch.LogWatch) -> None:
        replace_the_log(path)
        look(log)

    with SqliteStore(path) as other, SqliteStore(path) as store:
        id = create(other)
        monkeypatch.setattr(_log_watch.LogWatch, "check_names", replace_and_look)
        with pytest.raises(StoreStopped, match="removed or replaced"):
            credit(store, id, "wire-1", 1)


def copy_the_log(path: Path) -> None:
    """Copy the log into the database and leave it as it is."""
    with closing(sqlite3.connect(path)) as other:
        _, frames, copied = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        assert frames == copied > 0


def test_an_emptied_log_stops_the_store_even_when_it_was_copied(store: SqliteStore, path: Path) -> None:
    """SQLite would write the next commit behind the end of the empty log, where no process can recover it."""
    id = create(store)
    credit(store, id, "wire-1", 1)
    copy_the_log(path)
    empty_the_log(path)
    with pytest.raises(StoreStopped, match="was emptied"):
        credit(store, id, "wire-1", 1)


def test_a_log_that_is_emptied_unseen_stops_the_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that needs no page of the log succeeds behind the end of the empty log. The missing header shows it."""
    with SqliteStore(path) as other, SqliteStore(path) as store:
        id = create(other)
        credit(other, id, "wire-1", 1)
        copy_the_log(path)
        credit(other, id, "wire-2", 1)
        after_connecting(monkeypatch, partial(empty_the_log, path))
        with pytest.raises(StoreStopped, match="was emptied"):
            store.nonces.use("0" * 64, NOW, NOW)


def test_a_checkpoint_that_fails_stops_the_store(path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers to the commits before it stand: the log has them. `on_stop` gets the first reason only."""
    monkeypatch.setattr(_writer, "STORE_LOG_BYTES_MAX", 1)
    stops: list[StoreStopped] = []
    with SqliteStore(path, on_stop=stops.append) as store:
        with monkeypatch.context() as patch:
            fail_on(patch, "PRAGMA wal_checkpoint", sqlite3.SQLITE_IOERR_FSYNC)
            assert credit(store, id, "wire-1", 1).received.value == 1
            with pytest.raises(StoreStopped):
                credit(store, id, "wire-2", 1)
        remove_the_log(path)
        assert refuses_everything(store, id)
    [stop] = stops
    assert "the disk failed" in stop.description


def test_a_disk_that_fails_while_the_file_is_created_is_reported_by_the_constructor(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no store yet, so `on_stop` is not called."""
    stops: list[StoreStopped] = []
    fail_on(monkeypatch, "COMMIT", sqlite3.SQLITE_IOERR_FSYNC)
    with pytest.raises(StoreStopped):
        SqliteStore(path, on_stop=stops.append)
    assert stops == []


def test_log_emptied_by_a_checkpoint_is_accepted(store: SqliteStore, path: Path) -> None:
    """Another process may make a checkpoint, which copies the log into the database."""
    id = create(store)
    credit(store, id, "wire-1", 1)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
    assert beside(path, "wal").stat().st_size == 0
    assert credit(store, id, "wire-1", 1).received.value == 1
    assert credit(store, id, "wire-2", 1).received.value == 2


def test_restarted_log_is_accepted(store: SqliteStore, path: Path) -> None:
    """After a checkpoint, SQLite may shorten the log and write it from its beginning."""
    id = create(store)
    for number in range(200):
        credit(store, id, f"wire-{number}", 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_size_limit = 0")
        other.execute("PRAGMA wal_checkpoint(RESTART)")
        other.execute("UPDATE nonce_count SET held = held")
    assert credit(store, id, "wire-200", 1).received.value == 201


def test_missing_database_is_not_recreated(path: Path) -> None:
    """An empty database would accept every credit again. The lock file shows that a database existed."""
    SqliteStore(path).close()
    path.unlink()
    with pytest.raises(StoreUnusable, match=r"is gone.*restore it from a backup"):
        SqliteStore(path)
    assert not path.exists()
    beside(path, "lock").unlink()
    SqliteStore(path).close()


def test_a_database_that_was_moved_away_is_not_begun_again_beside_its_log(path: Path) -> None:
    """SQLite would remove the log of an empty database. Once it is back, everything acknowledged is in it."""
    with SqliteStore(path) as store:
        id = create(store)
        credit(store, id, "wire-1", 5)
        path.rename(path.with_suffix(".away"))
        for state in ("is gone", "is empty"):
            with pytest.raises(StoreUnusable) as caught:
                SqliteStore(path)
            assert caught.value.description == (
                f"{path} {state}, and the files beside it show that it held payments: put the database back if it was "
                f"moved or renamed, or restore it from a backup. To begin with an empty database, move {path}-lock and "
                f"{path}-wal to another folder, and keep the log, because it may hold payments"
            )
            path.touch()
        path.with_suffix(".away").rename(path)
        with SqliteStore(path) as other:
            assert other.load(id).received.value == 5


# --- no false stops ---


def test_a_file_that_grows_while_threads_check_it_stops_nothing(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread may have seen the new size before another compares the old one."""
    id = create(store)
    look = _disk.stat
    sizes: list[int] = []

    def look_late(name: str) -> os.stat_result | None:
        found = look(name)
        if name == str(path) and not sizes:
            sizes.append(path.stat().st_size)
            os.truncate(path, sizes[0] + 4096)
            together([lambda: store.events(id)])
        return found

    monkeypatch.setattr(_disk, "stat", look_late)
    assert store.load(id).id == id
    assert sizes


def test_commits_between_two_looks_at_the_log_stop_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process commits while this one checks the log after its own commit."""
    lseek = os.lseek
    to_come: list[tuple[int, int]] = []  # threads and their looks

    def seek_and_commit(descriptor: int, offset: int, whence: int) -> int:
        found = lseek(descriptor, offset, whence)
        look = threading.get_ident(), whence
        if look in to_come:
            to_come.remove(look)
            credit(other, id, f"other-{whence}", 1)
        return found

    def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[Credit]:
        to_come.extend((threading.get_ident(), whence) for whence in (os.SEEK_END, os.SEEK_HOLE))
        return crediting("wire-1", 1)(payment, earlier)

    with SqliteStore(path) as other, SqliteStore(path) as store:
        id = create(other)
        credit(store, id, "wire-0", 1)
        monkeypatch.setattr(os, "lseek", seek_and_commit)
        assert store.update(id, decide, credit_id("wire-1")).received.value == 2
        assert store.load(id).received.value == 4
    assert to_come == []


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("what", ["log", "directory"])
def test_a_process_out_of_descriptors_stops_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, what: str
) -> None:
    """The call fails, and the next one works."""
    failing = str(beside(path, "wal")) if what == "log" else str(path.parent)
    real = os.open

    def open_fails(name: str, *arguments: Any) -> int:
        if str(name) == failing:
            raise OSError(number, os.strerror(number))
        return real(name, *arguments)

    with SqliteStore(path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", open_fails)
            with pytest.raises(StoreUnavailable):
                SqliteStore(path)
            if what == "log":
                with pytest.raises(StoreUnavailable):
                    create(store)
        create(store)


RETRY = """
import errno, os, sqlite3, subprocess, sys
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import StoreUnavailable
from incoming_payments.stores.sqlite import SqliteStore, _disk
from incoming_payments.testing.steps import credit
path, id = sys.argv[1], PaymentId(sys.argv[2])
def fail(_):
    raise OSError(errno.EMFILE, "Too many open files")
sync, _disk.sync = _disk.sync, fail
before = open(path, "rb").read(), open(path + "-wal", "rb").read()
try:
    SqliteStore(path)
except StoreUnavailable:
    _disk.sync = sync
assert (open(path, "rb").read(), open(path + "-wal", "rb").read()) == before
with SqliteStore(path) as store:
    program = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('PRAGMA quick_check').fetchone()[0])"
    for number in range(2, 5):
        credit(store, id, f"wire-{number}", 1)
        assert subprocess.check_output([sys.executable, "-c", program, path]) == b"ok\\n"
    assert store.load(id).received.value == 4
"""


def test_process_that_opens_the_store_after_a_failure_keeps_the_locks_of_sqlite(path: Path) -> None:
    """The failed attempt has left no connection open. Other programs do not take the index of the log for unused."""
    id = leave_a_log(path)
    leave_a_sync(path)
    done = subprocess.run([sys.executable, "-c", RETRY, str(path), id], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_a_lock_file_that_cannot_be_made_for_now_is_no_failure_for_good(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The disk may have space again, and the process descriptors."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails(number))
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            SqliteStore(path)
    leave_a_log(path)
    with monkeypatch.context() as patch:
        patch.setattr(_disk, "sync", fails(errno.EMFILE))
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            SqliteStore(path)
    SqliteStore(path).close()


# --- the log is written again by one store at a time ---


def test_no_other_program_writes_while_the_log_is_written_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without this library does not know the lock file, so SQLite's write lock is held as well."""
    leave_a_log(path)
    rewrite = _opening.rewrite_log
    locked: list[str] = []

    def rewrite_and_try(watch: FileWatch) -> None:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                locked.append(str(error))
        rewrite(watch)

    monkeypatch.setattr(_file, "rewrite_log", rewrite_and_try)
    SqliteStore(path).close()
    assert locked == ["database is locked"]


def test_a_program_that_writes_for_long_keeps_the_store_from_opening(path: Path) -> None:
    """For as long as it holds SQLite's write lock."""
    leave_a_log(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            SqliteStore(path, busy_s=0.01)
    SqliteStore(path).close()


def test_a_store_does_not_open_a_log_that_another_has_failed_to_restore(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes start at once on a dead disk. None of them takes the log for restored by another."""
    leave_a_log(path)
    with monkeypatch.context() as patch:
        patch.setattr(_disk, "sync", fails(errno.EIO))
        with pytest.raises(StoreStopped):
            SqliteStore(path)
    descriptor = os.open(beside(path, "lock"), os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # as one of them does, for a moment
        with pytest.raises(StoreUnavailable, match="still opening"):
            SqliteStore(path, busy_s=0.01)
    finally:
        os.close(descriptor)
    SqliteStore(path).close()


def test_process_that_is_not_root_gives_no_file_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not, and the files belong to its user."""
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setattr(os, "fchown", fails(errno.EPERM))
    SqliteStore(path).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_a_lock_file_made_by_root_belongs_to_the_owner_of_the_database(path: Path) -> None:
    """An operator makes a backup as root. The service, which runs as another user, can use the lock file then."""
    SqliteStore(path).close()
    beside(path, "lock").unlink()
    os.chown(path, 1234, 5678)
    SqliteStore(path).close()
    assert (beside(path, "lock").stat().st_uid, beside(path, "lock").stat().st_gid) == (1234, 5678)


# --- on_stop ---


@pytest.mark.parametrize("error", [SystemExit(1), ValueError("a mistake")])
def test_an_on_stop_that_raises_leaves_no_caller_waiting(
    path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """Each caller gets `StoreStopped`. The error of `on_stop` is in the log."""

    def on_stop(_: StoreStopped) -> None:
        raise error

    with SqliteStore(path, on_stop=on_stop) as store:
        fail_once(monkeypatch, store, id)
        assert refuses_everything(store, id)
    assert "incoming payments: on_stop has failed" in caplog.messages


def test_a_child_has_a_guard_of_its_own(store: SqliteStore) -> None:
    """A thread of the parent may hold the parent's guard at the fork."""
    watch = store._engine._file.watch
    with watch._guard:
        watch.after_fork_in_child()
        assert "a test" in str(watch.stop("a test"))


def test_mark_that_is_left_while_a_connection_leaves_its_tag_stops_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tag makes the lock file long again, and its first bytes show that it was short."""
    write = os.pwrite
    with SqliteStore(path) as other, SqliteStore(path) as store:
        id = create(other)

        def stop_and_write(descriptor: int, content: bytes, offset: int) -> int:
            patch.undo()
            other._engine._file.watch.stop("a test")
            return write(descriptor, content, offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", stop_and_write)
            with pytest.raises(StoreStopped, match="another process"):
                credit(store, id, "wire-1", 1)
        assert refuses_everything(store, id)


# --- commits that were cut short ---


def log_frames(path: Path) -> int:
    """The number of pages in the log that SQLite sees."""
    with closing(sqlite3.connect(path)) as other:
        return int(other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1])


def test_connection_that_commits_for_the_first_time_writes_a_page(path: Path) -> None:
    """The page takes the place of an unfinished commit that a killed process may have left in the log."""
    with (
        SqliteStore(path) as other,
        SqliteStore(path) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as reader,
    ):
        id = create(other)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM payments").fetchone()  # while it reads, SQLite only appends to the log
        refused = partial(store.update, PaymentId("no such"), crediting("wire-1", 1))
        frames = log_frames(path)
        for expected in (frames + 1, frames + 1):  # once: the connection finds its own tag the second time
            with pytest.raises(PaymentNotFound):
                refused()
            assert log_frames(path) == expected
        credit(other, id, "wire-2", 1)
        frames = log_frames(path)
        with pytest.raises(PaymentNotFound):
            refused()
        assert log_frames(path) == frames + 1


# --- the end of a store ---


def test_closed_store_leaves_a_database_alone_that_was_put_in_the_place_of_its_own(path: Path, id: PaymentId) -> None:
    """The log belongs to the database that was moved away, and only the log holds the last payments."""
    with SqliteStore(path) as store:
        store.backup(path.with_suffix(".backup"))
        credit(store, id, "wire-1", 1)
        path.rename(path.with_suffix(".away"))
        path.with_suffix(".backup").rename(path)
        before = path.read_bytes(), beside(path, "wal").read_bytes()
    assert (path.read_bytes(), beside(path, "wal").read_bytes()) == before


@pytest.mark.parametrize("at_end", [SqliteStore.close, lambda _: fork()])
def test_store_that_has_not_noticed_the_stop_of_another_leaves_the_log_alone(
    path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch, at_end: Callable[[SqliteStore], object]
) -> None:
    """The sync of a checkpoint may have failed, and the kernel reports that only once."""
    with SqliteStore(path) as idle, SqliteStore(path) as failing:
        credit(failing, id, "wire-0", 1)
        failing.close()
        with SqliteStore(path) as store:
            fail_once(monkeypatch, store, id)
        before = path.read_bytes(), beside(path, "wal").read_bytes()
        at_end(idle)
        assert (path.read_bytes(), beside(path, "wal").read_bytes()) == before

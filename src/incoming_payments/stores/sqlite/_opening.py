"""Open a database so that everything that the store answers later is on the disk.

- Before its first answer, each process writes the whole log again in place, and syncs it. A child process does the same
  after a fork. So data in the log that never reached the disk is written now. If the write fails, the process answers
  nothing. Such data may come from a process that was killed before the end of its sync. The process may also have
  received the error of the sync, which the kernel reports only once. While the store writes, it holds SQLite's write
  lock, because any other program may write to the database too.
- Only one process at a time writes the log again (see `one_at_a_time`).
- After that, each process keeps a connection open. While this connection is open, SQLite does not recover the log, and
  shows only commits whose sync has succeeded. The store closes this connection before a fork, and when the store is
  closed.
- After a stop, or after an unfinished checkpoint, SQLite has to recover the log, and then copies the whole log again.
  SQLite recovers nothing while another program has the database open. So the store waits until that program ends.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from typing import Final, Protocol

from incoming_payments.errors import StoreStopped, StoreUnavailable, StoreUnusable
from incoming_payments.stores.sqlite import _disk
from incoming_payments.stores.sqlite._database_id import UNKNOWN
from incoming_payments.stores.sqlite._lock_file import Checkpoints, Text
from incoming_payments.stores.sqlite._watch import FileWatch

_CONNECTED_AT: Final = 128  # the position of the "DMS" lock in the index, see https://sqlite.org/walformat.html#locks
_POLL_S: Final = 0.001
_CHUNK_BYTES: Final = 1 << 20


class Database(Protocol):
    """The steps of opening a database that need SQLite."""

    def has_id(self, id: bytes) -> bool:
        """Return whether the database has this id. This process must have no connection open."""

    def restore(self, known: bytes) -> bytes:
        """Write the log to the disk, create the tables, and return the id. `known` is the id in the lock file."""


def take_lock(watch: FileWatch, database: Database, *, patience_s: float) -> None:
    """Take the lock, and create a missing database. Restore the log if no other store has the database open.

    Raises `StoreStopped` when the log cannot be restored, or when a process whose store has stopped is still running.
    Raises `StoreUnavailable` when another process keeps the lock for longer than `patience_s` seconds. Raises
    `StoreUnusable` when there is a lock file but no database, when the log belongs to another database, or when the
    file system has no locks.
    """
    try:
        watch.lock.open()
        _take_lock(watch, database, time.monotonic() + patience_s)
    except OSError as error:
        if error.errno in _disk.OUT_OF_RESOURCES:
            raise StoreUnavailable(f"{watch.path} cannot be opened ({error.strerror}): repeat the call") from error
        raise StoreUnusable(
            f"the lock file {watch.lock.path} cannot be used ({error.strerror}): let the process write to it and "
            "to its directory, and keep the database on a local disk"
        ) from error


def _take_lock(watch: FileWatch, database: Database, deadline: float) -> None:
    lock = watch.lock
    while True:
        if lock.take(fcntl.LOCK_EX):
            lock.read_id()
            if lock.text_bytes() != Text.IN_USE or lock.checkpoints() is Checkpoints.SYNCING:
                _await_other_programs(watch, deadline)
            _open_alone(watch, database)
        if lock.take(fcntl.LOCK_SH):
            lock.read_id()
            if lock.text_bytes() not in (Text.NEW, Text.RESTORING):
                break
            lock.take(fcntl.LOCK_UN)  # another process failed to restore the log
        if time.monotonic() >= deadline:
            raise StoreUnavailable(f"another process is still opening {watch.path}: repeat the call")
        time.sleep(_POLL_S)
    if not lock.is_in_use():
        raise StoreStopped(
            f"a store of {watch.path} has stopped, and a process still has {lock.path} open: check the disk and the "
            "files, end every process that uses the database, and start again"
        )


def _await_other_programs(watch: FileWatch, deadline: float) -> None:
    """Wait until no other program has the database open, so that SQLite recovers the log.

    Raises `StoreUnavailable` after `deadline`.
    """
    while _is_connected(watch.index_path):
        if time.monotonic() >= deadline:
            raise StoreUnavailable(
                f"another program has {watch.path} open, and the database may lack pages until its log is recovered: "
                f"end that program, which `fuser {watch.path}` lists, and start again"
            )
        time.sleep(_POLL_S)


def _is_connected(index_path: str) -> bool:
    """Return whether another process has a connection to the database. Each connection locks one byte of the index.

    The calling process must have no connection, because closing the descriptor would release the locks of that
    connection.
    """
    try:
        index = os.open(index_path, os.O_RDWR)
    except FileNotFoundError:
        return False
    except PermissionError as error:
        text = f"the file {index_path} cannot be opened ({error.strerror}): let the process read and write it"
        raise StoreUnusable(text) from error
    try:
        fcntl.lockf(index, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _CONNECTED_AT)
    except (BlockingIOError, PermissionError):
        return True
    finally:
        os.close(index)
    return False


def _open_alone(watch: FileWatch, database: Database) -> None:
    """Write the log to the disk, or create the database. No other store may have the database open."""
    lock = watch.lock
    is_new = lock.text_bytes() == Text.NEW
    if not is_new:
        require_database(watch)
    log = _disk.stat(watch.log_path)
    if log is None or not log.st_size:
        lock.id = UNKNOWN  # the next log belongs to the database that has this path now
    elif lock.id and not database.has_id(lock.id):
        raise StoreUnusable(
            f"the log {watch.log_path} belongs to another database: {watch.path} was replaced, perhaps by a backup. "
            "Put the original file back, because the latest payments may be only in the log. "
            f"If you restored a backup on purpose, move {watch.log_path} to another folder and keep it"
        )
    if is_new:
        # Only the owner may read the payments. SQLite gives the log the mode of the database.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(watch.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        if os.geteuid() == 0:  # if root makes a backup, the service must be able to lock the file later
            lock.give_to(os.stat(watch.path))
    else:
        lock.shorten_text(Text.RESTORING)
    require_database(watch)
    try:
        lock.id = database.restore(lock.id)
        _disk.sync_directory(watch.directory)
    except OSError as error:
        if _disk.says_nothing_about_the_disk(error):
            raise
        # Until the disk works again, each attempt to open the database must fail like this one.
        raise StoreStopped(
            f"the log {watch.log_path} cannot be written and synced ({error.strerror}): check the disk, and start again"
        ) from error
    lock.write_text()


def require_database(watch: FileWatch) -> None:
    """Raise `StoreUnusable` when the database is missing, or when it is empty although it has a log."""
    database, log = _disk.stat(watch.path), _disk.stat(watch.log_path)
    if database is not None and (database.st_size or log is None or not log.st_size):
        return
    state = "is gone" if database is None else "is empty"
    raise StoreUnusable(
        f"{watch.path} {state}, and the files beside it show that it held payments: put the database back if "
        f"it was moved or renamed, or restore it from a backup. To begin with an empty database, move "
        f"{watch.lock.path} and {watch.log_path} to another folder, and keep the log, because it may hold payments"
    )


@contextlib.contextmanager
def one_at_a_time(watch: FileWatch, *, patience_s: float) -> Iterator[None]:
    """Prevent other processes from writing a log in this directory to the disk.

    SQLite may recover a commit that is not on the disk. If this process is killed during the sync, the log may lose
    that commit. Another process with an open connection would not notice the loss, because the index of the log has the
    commit. Raises `StoreUnavailable` after `patience_s` seconds.
    """
    directory = os.open(watch.directory, os.O_RDONLY)
    try:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock ends with the process
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    text = f"another process is still opening {watch.path}: repeat the call"
                    raise StoreUnavailable(text) from None
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(directory)


def rewrite_log(watch: FileWatch) -> None:
    """Write each byte of the log again, in place, and sync the log, so that the kernel has to write the whole log.

    The caller holds SQLite's write lock, so no other process appends to the log. Readers find the same bytes.
    """
    try:
        log = os.open(watch.log_path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        offset = 0
        while chunk := os.pread(log, _CHUNK_BYTES, offset):
            offset += os.pwrite(log, chunk, offset)
        _disk.sync(log)
    finally:
        os.close(log)  # closing the log releases no lock, because SQLite locks only the database and the index
    _disk.sync_directory(watch.directory)


def log_failure(watch: FileWatch, error: OSError) -> OSError | StoreStopped:
    """Return the error to raise when `rewrite_log` has failed while other stores may have the database open."""
    if _disk.says_nothing_about_the_disk(error):
        return error
    return watch.stop(f"the log cannot be written and synced ({error.strerror})")

"""Stops a store whose disk fails or whose files change, before it acknowledges anything that the disk may not hold.

The kernel reports a failed write once, and then treats the data as written. A second `fsync` succeeds, and every
process that reads the file gets the data from memory. So after a failed write or sync, no process can trust the file
before its contents are on the disk. The store follows these rules:

- After a failed write, sync or truncation the store stops. It refuses every call, and never writes again.
- The stop holds for every process that has the file open. They find a mark in the lock file beside the database.
- The first process that opens the file when no other has it open writes the whole log again, in place, and syncs it,
  before SQLite reads it. Data that never reached the disk reaches it then, or the open fails.
- The store also stops when the database or its log is removed, replaced or shortened while it is open.

The lock file is `<database>-lock`. Each open store holds a shared `flock` on it. Its size is its state.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from attrs import frozen

from incoming_payments.errors import StoreStopped, StoreUnavailable, StoreUnusable

_IN_USE: Final = b"An open database needs this file. Do not remove it.\n"
_NEW_BYTES: Final = 0  # the size of a lock file that has never had a database
_STOPPED_BYTES: Final = 1  # to shorten a file needs no space on the disk, so it works when the disk is full
_POLL_S: Final = 0.001
_CHUNK_BYTES: Final = 1 << 20
# https://sqlite.org/fileformat2.html#the_write_ahead_log: 16 bytes, then the two salts, which change when SQLite starts
# to write the log from its beginning again.
_LOG_MAGIC: Final = (bytes.fromhex("377f0682"), bytes.fromhex("377f0683"))
_LOG_HEADER_BYTES: Final = 24
_SALTS: Final = slice(16, 24)
_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)  # on macOS, only this reaches the disk

OnStop = Callable[[StoreStopped], object]


@frozen
class _LogState:
    """The log as it was after the last commit of this process: its salts and its size."""

    salts: bytes
    size_bytes: int


class FileWatch:
    """Watches the files of one database for one open store. Methods raise `StoreStopped` once the store has stopped."""

    def __init__(self, path: Path, on_stop: OnStop | None = None) -> None:
        self._path = path
        self._on_stop = on_stop
        self.log_path = Path(f"{path}-wal")
        self._lock_path = Path(f"{path}-lock")
        self._lock: int | None = None  # the descriptor of the lock file
        self._lock_file: tuple[int, int] | None = None
        self._database: tuple[int, int] | None = None
        self._database_bytes = 0
        self._why: str | None = None  # the reason why the store has stopped

    @property
    def is_stopped(self) -> bool:
        """Whether the store has stopped."""
        return self._why is not None

    # --- opening and closing ---

    def open(self, *, patience_s: float) -> None:
        """Take the lock, and restore the log when no other store has the database open. SQLite must not read it before.

        Raises `StoreStopped` when the log cannot be restored, or another process has stopped and still runs;
        `StoreUnavailable` when another process keeps the lock for longer than `patience_s` seconds; `StoreUnusable`
        when there is a lock file and no database, or the file system has no locks.
        """
        try:
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
            self._lock_file = _identity(os.fstat(self._lock))
            self._take_lock(patience_s)
        except OSError as error:
            self.close()
            raise StoreUnusable(
                f"the lock file {self._lock_path} cannot be used ({error.strerror}): give the process write access to "
                "the directory, and keep the database on a local disk"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock. A stopped store keeps it until its process ends."""
        if self._lock is not None and not self.is_stopped:
            os.close(self._lock)
            self._lock = None

    def note_database(self) -> None:
        """Remember which file the path names: from now on it must stay that file."""
        found = os.stat(self._path)
        self._database, self._database_bytes = _identity(found), found.st_size

    # --- stopping ---

    def stop(self, why: str) -> StoreStopped:
        """Stop this store and every other one that has the database open. Returns the error to raise."""
        if self._why is None:
            self._why = why
            if self._lock is not None:
                # Where even this fails, the other processes meet the same disk.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._lock, _STOPPED_BYTES)
            if self._on_stop is not None:
                self._on_stop(self.refusal())
        return self.refusal()

    def refusal(self) -> StoreStopped:
        """The error that every call of a stopped store raises."""
        return StoreStopped(
            f"the store of {self._path} has stopped: {self._why}. Nothing was acknowledged that may be lost. Check the "
            "disk and the files, end every process that uses the database, and start again"
        )

    # --- checks ---

    def check(self) -> None:
        """Raise `StoreStopped` when a store on this database has stopped, or the database was removed or replaced."""
        if self._why is not None:
            raise self.refusal()
        lock, database = _stat(self._lock_path), _stat(self._path)
        if lock is None or _identity(lock) != self._lock_file:
            raise self.stop(f"{self._lock_path} was removed or replaced while the database was open")
        if lock.st_size <= _STOPPED_BYTES:
            raise self.stop("a store in another process that has the database open has stopped")
        if database is None or _identity(database) != self._database:
            raise self.stop(f"{self._path} was removed or replaced while it was open")
        if database.st_size < self._database_bytes:
            raise self.stop(f"{self._path} was shortened while it was open")
        self._database_bytes = database.st_size

    # --- the lock and the log ---

    def _take_lock(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        if self._lock_now(fcntl.LOCK_EX):
            self._restore()
        while not self._lock_now(fcntl.LOCK_SH):
            if time.monotonic() >= deadline:
                raise StoreUnavailable(f"another process is still opening {self._path}: repeat the call")
            time.sleep(_POLL_S)
        if self._lock_bytes() == _STOPPED_BYTES:
            raise StoreStopped(
                f"a store of {self._path} has stopped, and its process still runs: check the disk and the files, end "
                "every process that uses the database, and start again"
            )

    def _lock_now(self, kind: int) -> bool:
        assert self._lock is not None  # noqa: S101 - our own bug: `open` has set it
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            return False
        return True

    def _lock_bytes(self) -> int:
        assert self._lock is not None  # noqa: S101 - our own bug: `open` has set it
        return os.fstat(self._lock).st_size

    def _restore(self) -> None:
        """Bring the log to the disk as memory has it. No other store of this library has the database open."""
        if self._lock_bytes() != _NEW_BYTES and _stat(self._path) is None:
            raise StoreUnusable(
                f"{self._path} is gone, and {self._lock_path} shows that it was there: restore the database from a "
                "backup, or remove the lock file to begin with an empty one"
            )
        try:
            self._rewrite_log()
            self.sync_directory()
        except OSError as error:
            # Until the disk is good again, each attempt to open has to fail like this one.
            raise StoreStopped(
                f"the log {self.log_path} cannot be written and synced ({error.strerror}): check the disk, and start "
                "again"
            ) from error
        assert self._lock is not None  # noqa: S101 - our own bug: `open` has set it
        os.pwrite(self._lock, _IN_USE, 0)

    def _rewrite_log(self) -> None:
        """Write each byte of the log again, in place, and sync it: then the kernel has to write all of it."""
        try:
            log = os.open(self.log_path, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            offset = 0
            while chunk := os.pread(log, _CHUNK_BYTES, offset):
                offset += os.pwrite(log, chunk, offset)
            _sync(log)
        finally:
            os.close(log)

    def sync_directory(self) -> None:
        """Sync the names of the files. SQLite does this as well, but ignores an error."""
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class LogWatch:
    """Watches the log for the one connection that writes. `open` it when the connection has opened the log."""

    def __init__(self, files: FileWatch) -> None:
        self._files = files
        self._path = files.log_path
        self._last: _LogState | None = None
        self._was_empty = False
        try:
            # Closing this descriptor releases no lock of SQLite: SQLite locks the database and the shared memory only.
            self._log = os.open(self._path, os.O_RDWR)
        except OSError as error:
            raise files.stop(f"its log cannot be opened ({error.strerror})") from error
        try:
            # A killed process may have written a commit to the log without syncing it. SQLite finds that commit and
            # does not sync it, so a repeated credit could be acknowledged that a power cut takes back.
            _sync(self._log)
            files.sync_directory()
        except OSError as error:
            self.close()
            raise files.stop(f"its log cannot be synced ({error.strerror})") from error
        self._file = _identity(os.fstat(self._log))

    def close(self) -> None:
        """Close the descriptor of the log."""
        with contextlib.suppress(OSError):  # it has written nothing that could be lost
            os.close(self._log)

    def before_write(self) -> bool:
        """Check the files. SQLite's write lock is held. Returns whether the log was emptied since the last commit.

        Another process may have emptied it in a checkpoint, or another program by mistake: `forget` or stop.
        """
        self._files.check()
        size_bytes, last = self._size(), self._last
        self._was_empty = size_bytes < _LOG_HEADER_BYTES
        if last is None or size_bytes >= last.size_bytes:
            return False
        # SQLite shortens the log when it has begun to write it again, with other salts.
        if not self._was_empty and self._header()[_SALTS] == last.salts:
            raise self._files.stop(f"{self._path} was shortened while it was open")
        return self._was_empty

    def forget(self) -> None:
        """Forget the last commit: a checkpoint has emptied the log."""
        self._last = None

    def after_commit(self) -> int:
        """Check that the commit is in the files that the paths name. Returns the size of the log in bytes."""
        self._files.check()
        size_bytes, header = self._size(), self._header()
        # SQLite writes a header at the beginning of an empty log. Without one, another program emptied the log.
        if self._was_empty and size_bytes and header[:4] not in _LOG_MAGIC:
            raise self._files.stop(f"{self._path} was emptied while it was open")
        self._last = _LogState(header[_SALTS], size_bytes)
        return size_bytes

    def _size(self) -> int:
        found = _stat(self._path)
        if found is None or _identity(found) != self._file:
            raise self._files.stop(f"{self._path} was removed or replaced while it was open")
        return found.st_size

    def _header(self) -> bytes:
        return os.pread(self._log, _LOG_HEADER_BYTES, 0)


def _sync(descriptor: int) -> None:
    if _FULL_SYNC is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, _FULL_SYNC)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino

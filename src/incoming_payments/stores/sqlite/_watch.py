"""Stop a store when its disk fails or its files change, before it acknowledges data that may not be on the disk.

The kernel reports a failed write once, and then treats the data as written. A second `fsync` succeeds, and every
process that reads the file gets the data from memory. So after a failed write or sync, no process can trust the file
before its contents are on the disk. The store follows these rules:

- After a failed write, sync or truncation the store stops. It refuses every call, and never writes again.
- The stop holds for every process that has the file open: they find a mark in the lock file beside the database.
- Before the first connection of each process, also of a child after a fork, the store writes the whole log again in
  place, and syncs it. Only then does the process answer. Data that never reached the disk reaches it then, or the
  process answers nothing. A killed process may have left such data: it died before the end of its sync, or it has got
  the error of the sync, so that the next sync succeeds. The store holds SQLite's write lock during this, because other
  processes, also without this library, may write to the database too.
- From then on each process keeps a connection open. While one is open, SQLite does not recover the log, and shows no
  commit whose sync has not succeeded. The store closes that connection before a fork, and at its own end.
- The store also stops when one of its files is removed, replaced or shortened while it is open.
- SQLite syncs the database only after it has copied the whole log. While a reader needs an older state, or another
  process commits, a checkpoint copies a part, and the next checkpoint syncs both. A process that is killed in that sync
  may have got its error. The next process would copy and sync the later part again, take the earlier one for synced,
  and begin the log again. So the lock file shows the state of the checkpoints. A store that finds a sync of that kind
  unfinished stops. Only a checkpoint that holds SQLite's write lock is known to have synced.
- After a stop, or such a state, SQLite has to recover the log: then it copies the whole log again. It recovers nothing
  while a program without this library has the database open. So the store does not open before that program has ended.
- A process that is killed in the middle of a commit leaves that commit in the log. The other processes do not see it,
  but a process that recovers the log later does. A credit that was refused in the meantime would then appear. So each
  connection that commits leaves its tag in the lock file. If it finds the tag of another connection there, it also
  writes the first page of the database. This page overwrites an unfinished commit in the log.

The lock file is `<database>-lock`. Each open store holds a shared `flock` on it. Its text shows that the database is in
use. In the other states it is shorter. No release may change the text: stores of two releases would stop each other.
Behind the text are the tag, the id of the database (see `_database_id`), and the state of the checkpoints.
"""

import contextlib
import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from incoming_payments.errors import StoreStopped, StoreUnavailable, StoreUnusable
from incoming_payments.log import LogEvent, log_event
from incoming_payments.stores.sqlite._database_id import ID_BYTES, UNKNOWN

_IN_USE: Final = b"An open database needs this file. Do not remove it.\n"
TAG_BYTES: Final = 8  # behind the text in the lock file
_ID_AT: Final = len(_IN_USE) + TAG_BYTES  # behind the tag: the id of the database that the log belongs to
_CHECKPOINTS_AT: Final = _ID_AT + ID_BYTES  # behind the id: the state of the checkpoints, one byte
_SYNCED: Final = 0  # all pages in the database that a checkpoint has copied are on the disk
_COPIED: Final = 1  # a checkpoint has copied pages, or has begun to, and they may not be on the disk
_SYNCING: Final = 2  # the same, and another checkpoint has begun, which may sync them
_CONNECTED_AT: Final = 128  # https://sqlite.org/walformat.html#locks: the "DMS" lock, in the index
_ANOTHER_RUNS: Final = (1, -1, -1)  # SQLite's answer when another process makes a checkpoint
# How much of the text is there. The rest is zeros, or missing: to shorten a file works when the disk is full.
_NEW_BYTES: Final = 0  # the lock file has never had a database
_STOPPED_BYTES: Final = 1
_RESTORING_BYTES: Final = 2  # the log is being restored, or that has failed
OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC})  # these pass
_CLOSED: Final = -1
_POLL_S: Final = 0.001
_CHUNK_BYTES: Final = 1 << 20

logger = logging.getLogger("incoming_payments.stores.sqlite")

OnStop = Callable[[StoreStopped], object]
# SQLite's answer to `PRAGMA wal_checkpoint`: 1 if others kept it from its work, the frames of the log, those copied.
CheckpointRow = tuple[int, int, int]


class Database(Protocol):
    """The steps of opening a database that need SQLite."""

    def has_id(self, id: bytes) -> bool:
        """Return whether the database has this id. No connection is open."""

    def restore(self, known: bytes) -> bytes:
        """Bring the log to the disk, create the tables, and return the id. `known` is the id in the lock file."""


class FileWatch:
    """Watches the files of one database for one open store. Methods raise `StoreStopped` once the store has stopped."""

    def __init__(self, path: Path, on_stop: OnStop | None = None) -> None:
        # Paths as text: `os.stat` is called for each commit and read, and takes twice as long with a `Path`.
        self._path = str(path)
        self.directory = os.path.dirname(self._path)
        self.log_path = f"{path}-wal"
        self.index_path = f"{path}-shm"
        self._lock_path = f"{path}-lock"
        self.paths = self._path, self.log_path, self._lock_path
        self._on_stop = on_stop
        self._lock = _CLOSED  # the descriptor of the lock file
        self._lock_file: tuple[int, int] | None = None
        self._id = UNKNOWN  # of the database that the log belongs to, as in the lock file
        self._database: tuple[int, int] | None = None
        self._database_bytes = 0
        self._index: tuple[int, int] | None = None  # while this process has a connection open
        self._why: str | None = None  # the reason why the store has stopped
        self._guard = threading.Lock()  # of `_why` and `_lock`

    @property
    def is_stopped(self) -> bool:
        """Whether the store has stopped."""
        return self._why is not None

    def after_fork_in_child(self) -> None:
        """Replace the guard: a thread of the parent may have held it."""
        self._guard = threading.Lock()

    def open(self, *, patience_s: float, database: Database) -> None:
        """Take the lock. Create the database if there was none. Restore its log if no other store has it open.

        Raises `StoreStopped` when the log cannot be restored, or another process has stopped and still runs;
        `StoreUnavailable` when another process keeps the lock for longer than `patience_s` seconds; `StoreUnusable`
        when there is a lock file and no database, when the log belongs to another database, or when the file system has
        no locks.
        """
        try:
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            self._lock_file = identity(os.fstat(self._lock))
            self._take_lock(patience_s, database)
        except OSError as error:
            self.close()
            if error.errno in OUT_OF_RESOURCES:
                raise StoreUnavailable(f"{self._path} cannot be opened ({error.strerror}): repeat the call") from error
            raise StoreUnusable(
                f"the lock file {self._lock_path} cannot be used ({error.strerror}): let the process write to it and "
                "to its directory, and keep the database on a local disk"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock. A stopped store keeps it until its process ends."""
        with self._guard:
            if self._lock != _CLOSED and not self.is_stopped:
                os.close(self._lock)
                self._lock = _CLOSED

    def note_database(self) -> None:
        """Remember which file the path names: from now on it must stay that file."""
        found = os.stat(self._path)
        self._database, self._database_bytes = identity(found), found.st_size

    def stop(self, why: str) -> StoreStopped:
        """Stop this store and every other one that has the database open. Returns the error to raise."""
        with self._guard:
            if self._why is not None:
                return self.refusal()
            # If this fails too, the other processes get the same error from the disk.
            with contextlib.suppress(OSError):
                self._shorten_text(_STOPPED_BYTES)
            self._why = why  # last, so that a call that an interrupt ended can be repeated
        # While the store is opened, the constructor raises the error, and there is no store yet that could stop.
        if self._on_stop is not None and self._database is not None:
            try:
                self._on_stop(self.refusal())
            except BaseException as error:  # noqa: BLE001 - the thread that writes still has to answer its callers
                log_event(logger, logging.ERROR, LogEvent.ON_STOP_FAILED, "on_stop has failed", error=error)
        return self.refusal()

    def refusal(self) -> StoreStopped:
        """The error that every call of a stopped store raises."""
        return StoreStopped(
            f"the store of {self._path} has stopped: {self._why}. It acknowledges nothing more. Check the disk and the "
            "files, end every process that uses the database, and start again"
        )

    def note_index(self) -> None:
        """Remember the index of the log: a connection is open now, and until `forget_index`."""
        self._index = identity(os.stat(self.index_path))

    def forget_index(self) -> None:
        """Accept another index: SQLite removes it with the last connection."""
        self._index = None

    def check_mark(self) -> None:
        """Raise `StoreStopped` when a store on this database has stopped."""
        if self._why is not None:
            raise self.refusal()
        if self._is_marked():
            raise self._stopped_elsewhere()

    def check(self) -> None:
        """Raise `StoreStopped` as the other checks, and when the lock file was removed or replaced.

        Without the lock file, a new process does not know that the database is open.
        """
        self.check_mark()
        lock = stat(self._lock_path)
        if lock is None or identity(lock) != self._lock_file:
            raise self.stop(f"{self._lock_path} was removed or replaced while the database was open")
        self.check_index()
        self.check_database()

    def check_index(self) -> None:
        """Raise `StoreStopped` when the index of the log was removed or replaced while a connection is open.

        A process that opens the database then creates another index. It does not see the locks and the commits of this
        one, and this one does not see its commits.
        """
        index = None if self._index is None else stat(self.index_path)
        if self._index is not None and (index is None or identity(index) != self._index):
            raise self.stop(f"{self.index_path} was removed or replaced while the database was open")

    def check_database(self) -> None:
        """Raise `StoreStopped` when the database was removed, replaced or shortened."""
        known_bytes = self._database_bytes  # read first: another thread may check a file that has grown meanwhile
        database = stat(self._path)
        if database is None or identity(database) != self._database:
            raise self.stop(f"{self._path} was removed or replaced while it was open")
        if database.st_size < known_bytes:
            raise self.stop(f"{self._path} was shortened while it was open")
        self._database_bytes = database.st_size

    def is_new_committer(self, tag: bytes) -> bool:
        """Leave `tag` in the lock file, and return whether there was another. SQLite's write lock is held.

        Raises `StoreStopped` when a store on this database has stopped: the mark removes the tag.
        """
        if os.pread(self._lock, TAG_BYTES, len(_IN_USE)) == tag:
            return False
        self.check_mark()
        os.pwrite(self._lock, tag, len(_IN_USE))
        self.check_mark()  # a store may have stopped in between
        return True

    def checkpoint(self, run: Callable[[], CheckpointRow], *, is_passive: bool) -> CheckpointRow:
        """Return the answer of `run`, a checkpoint, and note its state in the lock file.

        SQLite does not say whether a passive checkpoint has synced. If data may be lost, `run` stops the store before
        it raises. While another process makes a checkpoint, return `_ANOTHER_RUNS`, and do not call `run`. Raises
        `StoreStopped` when a process was killed in a sync that an earlier checkpoint needs.
        """
        if self.is_stopped:  # it writes nothing, also when it is closed
            raise self.refusal()
        with open(self.log_path, "rb", buffering=0) as log:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process; SQLite does not use this lock
            except BlockingIOError:
                return _ANOTHER_RUNS
            state = self._checkpoints()
            if state == _SYNCING:
                raise self.stop("a process was killed while it brought the database to the disk")
            self._note_checkpoints(state + 1)
            state = _COPIED
            try:
                busy, _, _ = row = run()
                if not (busy or is_passive):
                    state = _SYNCED
            finally:
                self._note_checkpoints(state)
        return row

    def _checkpoints(self) -> int:
        return int.from_bytes(os.pread(self._lock, 1, _CHECKPOINTS_AT), "big")

    def _note_checkpoints(self, state: int) -> None:
        os.pwrite(self._lock, bytes([state]), _CHECKPOINTS_AT)

    def _read_id(self) -> None:
        id = os.pread(self._lock, ID_BYTES, _ID_AT)
        # A power cut can leave zeros where the id was not written yet.
        self._id = id if len(id) == ID_BYTES and any(id) else UNKNOWN

    def _shorten_text(self, size_bytes: int) -> None:
        os.ftruncate(self._lock, size_bytes)
        os.pwrite(self._lock, self._id, _ID_AT)

    def _is_marked(self) -> bool:
        return os.pread(self._lock, len(_IN_USE), 0) != _IN_USE

    def _stopped_elsewhere(self) -> StoreStopped:
        return self.stop("a store in another process that has the database open has stopped")

    def _take_lock(self, patience_s: float, database: Database) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            if self._lock_now(fcntl.LOCK_EX):
                self._read_id()
                self._await_other_programs(deadline)
                self._open_alone(database)
            if self._lock_now(fcntl.LOCK_SH):
                self._read_id()
                if self._text_bytes() not in (_NEW_BYTES, _RESTORING_BYTES):
                    break
                self._lock_now(fcntl.LOCK_UN)  # another process failed to restore the log
            if time.monotonic() >= deadline:
                raise StoreUnavailable(f"another process is still opening {self._path}: repeat the call")
            time.sleep(_POLL_S)
        if self._is_marked():
            raise StoreStopped(
                f"a store of {self._path} has stopped, and a process still has {self._lock_path} open: check the disk "
                "and the files, end every process that uses the database, and start again"
            )

    def _lock_now(self, kind: int) -> bool:
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            return False
        return True

    def _text_bytes(self) -> int:
        return len(os.pread(self._lock, len(_IN_USE), 0).rstrip(b"\0"))

    def _await_other_programs(self, deadline: float) -> None:
        """If the database may lack pages of the log, wait until no other program has it open: SQLite then recovers it.

        Raises `StoreUnavailable` after `deadline`.
        """
        if self._text_bytes() == len(_IN_USE) and self._checkpoints() == _SYNCED:
            return
        while self._is_connected():
            if time.monotonic() >= deadline:
                raise StoreUnavailable(
                    f"another program has {self._path} open, and the database may lack pages until its log is "
                    f"recovered: end that program, which `fuser {self._path}` lists, and start again"
                )
            time.sleep(_POLL_S)

    def _is_connected(self) -> bool:
        """Return whether another process has a connection to the database: each one locks this byte of the index."""
        try:
            index = os.open(self.index_path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.lockf(index, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _CONNECTED_AT)
        except (BlockingIOError, PermissionError):
            return True
        finally:
            os.close(index)
        return False

    def _open_alone(self, database: Database) -> None:
        """Bring the log to the disk, or create the database. No other store has it open."""
        if self._text_bytes() != _NEW_BYTES:
            self.require_database()
        log = stat(self.log_path)
        if log is None or not log.st_size:
            self._id = UNKNOWN  # the next log belongs to the database that is there now
        elif self._id and not database.has_id(self._id):
            raise StoreUnusable(
                f"{self.log_path} belongs to another database than {self._path}, such as the one before a backup was "
                "restored: put the database back that it belongs to, because only the log may hold its last payments. "
                f"If you restored a backup on purpose, move {self.log_path} away and keep it"
            )
        if self._text_bytes() == _NEW_BYTES:
            # Only the owner may read the payments. SQLite gives the log the mode of the database.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            if os.geteuid() == 0:  # root may be making a backup: the service must be able to lock the file later
                owner = os.stat(self._path)
                os.fchown(self._lock, owner.st_uid, owner.st_gid)
        else:
            self._shorten_text(_RESTORING_BYTES)
        self.require_database()
        try:
            self._id = database.restore(self._id)
            self.sync_directory()
        except OSError as error:
            if _says_nothing_about_the_disk(error):
                raise
            # Until the disk is good again, each attempt to open has to fail like this one.
            raise StoreStopped(
                f"the log {self.log_path} cannot be written and synced ({error.strerror}): check the disk, and start "
                "again"
            ) from error
        os.pwrite(self._lock, self._id, _ID_AT)
        os.pwrite(self._lock, _IN_USE, 0)

    def require_database(self) -> None:
        """Raise `StoreUnusable` when the database is gone, or is empty beside its log: SQLite would remove the log."""
        database, log = stat(self._path), stat(self.log_path)
        if database is not None and (database.st_size or log is None or not log.st_size):
            return
        state = "is gone" if database is None else "is empty"
        raise StoreUnusable(
            f"{self._path} {state}, and the files beside it show that it held payments: put it back if it was moved or "
            f"renamed; otherwise restore it from a backup. To begin with an empty one, move {self._lock_path} and "
            f"{self.log_path} away, and keep the latter, because it may hold payments"
        )

    def rewrite_log(self) -> None:
        """Write each byte of the log again, in place, and sync it: then the kernel has to write all of it.

        The caller holds SQLite's write lock, so no other process appends to the log. Readers find the same bytes.
        """
        try:
            log = os.open(self.log_path, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            offset = 0
            while chunk := os.pread(log, _CHUNK_BYTES, offset):
                offset += os.pwrite(log, chunk, offset)
            sync(log)
        finally:
            os.close(log)  # this releases no lock: SQLite locks the database and the index only
        self.sync_directory()

    def log_failure(self, error: OSError) -> OSError | StoreStopped:
        """Return the error to raise when `rewrite_log` has failed while other stores may have the database open."""
        if _says_nothing_about_the_disk(error):
            return error
        return self.stop(f"its log cannot be written and synced ({error.strerror})")

    def sync_directory(self) -> None:
        """Sync the names of the files. SQLite does this as well, but ignores an error."""
        directory = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _says_nothing_about_the_disk(error: OSError) -> bool:
    """Return whether this process lacks memory or descriptors, or a signal handler has raised `error`."""
    return error.errno is None or error.errno in OUT_OF_RESOURCES - {errno.ENOSPC}


def sync(descriptor: int) -> None:
    """Write the file to the disk. On macOS, only `F_FULLFSYNC` reaches it."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def stat(path: str) -> os.stat_result | None:
    """Return the status of the file at `path`, or `None` if there is no file."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def identity(found: os.stat_result) -> tuple[int, int]:
    """Return the device and the number of a file. No two files have the same ones at the same time."""
    return found.st_dev, found.st_ino

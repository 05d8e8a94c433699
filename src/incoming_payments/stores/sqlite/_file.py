"""The database file: its path and schema, the connections to it, and the meaning of SQLite's errors."""

import contextlib
import ctypes
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from incoming_payments.domain.checks import name_of
from incoming_payments.errors import (
    BrokenDecision,
    ConfigurationError,
    IncomingPaymentsError,
    StoreError,
    StoreStopped,
    StoreUnavailable,
    StoreUnusable,
)
from incoming_payments.limits import STORE_BUSY_S_MAX, STORE_LOG_KEPT_BYTES_MAX
from incoming_payments.log import LogEvent, log_event
from incoming_payments.stores.sqlite._database_id import UNKNOWN, ensure_id, has_id
from incoming_payments.stores.sqlite._log_watch import LogWatch
from incoming_payments.stores.sqlite._schema import APPLICATION_ID, PARTS, STATEMENTS, VERSION
from incoming_payments.stores.sqlite._second_name import refuse_second_names
from incoming_payments.stores.sqlite._watch import CheckpointRow, FileWatch, OnStop

T = TypeVar("T")

SQLITE_VERSION_MIN: Final = (3, 37, 0)  # STRICT tables
# Between attempts to get a lock. Shorter than a commit of another process, so that this process gets its turn. With
# 1 ms, the slowest creates of two processes take 1.6 times as long (benchmark `http`, p99).
_POLL_S: Final = 0.0002
_FULL_ATTEMPTS: Final = 50  # to get the write lock for a checkpoint: longer than some commits of another process
_LOOKS_MAX: Final = 10  # at a log that was emptied, while other processes commit

# FULL syncs the log at every commit: without it, a power cut can remove acknowledged commits. On macOS only F_FULLFSYNC
# reaches the disk.
_SYNCED: Final = "synchronous = FULL", "fullfsync = ON", "checkpoint_fullfsync = ON"

# One statement, so that it sees the file before or after another process creates the tables, and never in between.
_IDENTIFY: Final = (
    "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master) "
    "FROM pragma_application_id, pragma_user_version"
)


def _codes(names: str) -> frozenset[int]:
    """Return SQLite's result codes with these names."""
    return frozenset(getattr(sqlite3, f"SQLITE_{name}") for name in names.split())


# After one of these errors, written data may be lost. A short read means that a file has become shorter. FULL is not in
# the list, because SQLite has rolled that write back.
_LOST_DATA: Final = _codes(
    "IOERR_SHORT_READ IOERR_WRITE IOERR_FSYNC IOERR_DIR_FSYNC IOERR_TRUNCATE IOERR_BEGIN_ATOMIC IOERR_COMMIT_ATOMIC "
    "IOERR_ROLLBACK_ATOMIC"
)
# These pass: another process holds the lock, the disk is full or cannot be read, the file is read-only.
_TEMPORARY: Final = _codes("BUSY CANTOPEN FULL INTERRUPT IOERR LOCKED NOMEM PERM PROTOCOL READONLY")
_NO_ACCESS: Final = _codes("CANTOPEN PERM READONLY")  # a part of the above
_ABOUT_THE_STATEMENT: Final = _codes("CONSTRAINT MISMATCH MISUSE RANGE TOOBIG")

logger = logging.getLogger("incoming_payments.stores.sqlite")


class DatabaseFile:
    """One SQLite file, from `prepare` to `watch.close`. `on_stop` is called once, with the error that stopped it."""

    def __init__(self, path: str | os.PathLike[str], *, busy_s: float, on_stop: OnStop | None = None) -> None:
        if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
            least = ".".join(map(str, SQLITE_VERSION_MIN))
            raise StoreUnusable(
                f"Python uses SQLite {sqlite3.sqlite_version}, and the store needs {least} or later: use a Python that "
                "is built with a newer SQLite"
            )
        self.path = _checked_path(path)
        if not 0 <= busy_s <= STORE_BUSY_S_MAX:
            text = f"busy_s is how many seconds to wait for a lock, from 0 to {STORE_BUSY_S_MAX:g}"
            raise ConfigurationError(text, setting="busy_s")
        self._busy_s = busy_s
        self.watch = FileWatch(self.path, on_stop)
        self._held: sqlite3.Connection | None = None  # see `_hold`
        self._holding = threading.Lock()

    def prepare(self) -> None:
        """Create the file or check its schema, also when other processes do the same. Raises `StoreError`."""
        if not self.path.parent.is_dir():
            raise StoreUnusable(f"the directory {self.path.parent} does not exist: create it for the database")
        if self.path.is_dir():
            raise StoreUnusable(f"{self.path} is a directory: name a file for the database")
        refuse_second_names(self.watch.paths)
        try:
            self.watch.open(patience_s=self._busy_s, database=self)
            self.watch.require_database()
            self._hold()
            self.watch.note_database()
        except (sqlite3.Error, OSError) as error:
            explained = self.explain(error)
            self.close()
            raise explained from error
        except BaseException:
            self.close()
            raise

    def has_id(self, id: bytes) -> bool:
        """Return whether the database has `id`, or cannot be read without its log. No connection is open."""
        return has_id(self.path, id)

    def restore(self, known: bytes) -> bytes:
        """As `_restored`, and return the id of the database. `known` is the id in the lock file.

        Return `UNKNOWN` while a new id is in the log only: `has_id` reads the database without its log.
        """
        connection = self._restored()
        id = self.patiently(partial(ensure_id, connection))
        if id == known:
            return known
        busy, frames, copied = self.checkpoint(connection, "TRUNCATE")
        return UNKNOWN if busy or frames != copied else id

    def release(self) -> None:
        """Close the connection that this process keeps open. No other one is open, and the next call opens it again."""
        held, self._held = self._held, None
        if held is not None:
            with contextlib.suppress(StoreStopped, sqlite3.Error, OSError):
                self.watch.check_index()
                # SQLite makes a checkpoint when the last connection is closed, and hides its errors.
                self.checkpoint(held, "FULL")
            self.watch.forget_index()
            self.disconnect(held)

    def close(self) -> None:
        """Close the connection that this process keeps open, and release the lock."""
        self.release()
        self.watch.close()

    def connect_writer(self) -> sqlite3.Connection:
        """Return a connection for the one thread that writes. Raises `StoreError` or `sqlite3.Error`."""
        return self._connect(
            *_SYNCED,
            f"journal_size_limit = {STORE_LOG_KEPT_BYTES_MAX}",
        )

    def connect_reader(self) -> sqlite3.Connection:
        """Return a connection that cannot write, for one thread at a time. Raises `StoreError` or `sqlite3.Error`."""
        return self._connect("query_only = ON")

    def begin(self, connection: sqlite3.Connection, log: LogWatch) -> None:
        """Begin to write when no other process holds the write lock. Raises `sqlite3.Error` after `busy_s`."""
        for _ in range(_LOOKS_MAX):
            self.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
            if not log.before_write():
                break
            # SQLite counts the pages of the log in shared memory. After a checkpoint has emptied the log, it has no
            # frames, unless another process has committed since. Then the log is not empty at the next look.
            connection.rollback()
            _, frames, _ = self.checkpoint(connection, "FULL")
            if frames <= 0:
                log.forget()
        else:
            raise self.watch.stop(f"{self.watch.log_path} was emptied while it was open")
        self.check_version(connection)

    def commit(self, connection: sqlite3.Connection, log: LogWatch) -> int:
        """Commit, and return the size of the log in bytes once the commit is known to be on the disk."""
        if log.is_new_committer():
            # Writes the first page, even when nothing has changed. An unfinished commit of a dead process begins there.
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
        size_bytes = log.after_commit()
        if not size_bytes:
            # Another process may have emptied the log by a checkpoint. Else this one finds that the frames are gone.
            self.checkpoint(connection, "FULL")
        return size_bytes

    def checkpoint(self, connection: sqlite3.Connection, mode: str) -> CheckpointRow:
        """Make a checkpoint. Raises `sqlite3.Error`, after it has stopped the store if data may be lost.

        Except in the mode PASSIVE, SQLite takes the write lock first. If another process has it, SQLite makes a PASSIVE
        checkpoint, and says that it was kept from its work. Then try FULL again for a short time.
        """

        def run() -> CheckpointRow:
            attempts = _FULL_ATTEMPTS if mode == "FULL" else 1
            try:
                while True:
                    row: CheckpointRow = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
                    busy, frames, copied = row
                    attempts -= 1
                    if not (busy and attempts) or copied < frames:  # a reader keeps it from the other frames
                        return row
                    time.sleep(_POLL_S)
            except sqlite3.Error as error:
                self.explain(error)
                raise

        return self.watch.checkpoint(run, is_passive=mode == "PASSIVE")

    def explain(self, error: BaseException) -> IncomingPaymentsError:
        """Return the error to raise in place of `error`. Stops the store when data may be lost."""
        if _code(error) in _LOST_DATA:
            error = self.watch.stop(f"its disk failed ({error}, {getattr(error, 'sqlite_errorname', '')})")
        if isinstance(error, StoreError):
            return type(error)(error.description)
        if blames_the_statement(error) and not isinstance(error, sqlite3.OperationalError):
            return BrokenDecision(f"the database refused the values to store: {error}")
        if _primary_code(error) in _NO_ACCESS:
            return StoreUnavailable(
                f"the database {self.path} cannot be opened or written ({error}): let the process write to the file "
                f"and to its directory {self.path.parent}, and repeat the call"
            )
        if isinstance(error, MemoryError | OSError) or _primary_code(error) in _TEMPORARY:
            return StoreUnavailable(f"the database {self.path} is unavailable ({error}): repeat the call later")
        advice = "correct the name, or restore" if _primary_code(error) == sqlite3.SQLITE_NOTADB else "restore"
        return StoreUnusable(f"the database {self.path} cannot be used ({error}): {advice} it from a backup")

    def disconnect(self, connection: sqlite3.Connection) -> None:
        """Close `connection`, which rolls back what is not committed. A stopped store leaves it open for good."""
        with contextlib.suppress(sqlite3.Error):
            connection.rollback()  # a connection that is never closed must not keep SQLite's write lock
        if self.watch.is_stopped:
            _never_close(connection)
        else:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _hold(self) -> None:
        """Open a connection if this process has none, and keep it open. First bring the log to the disk.

        SQLite recovers the log when a process opens the database that no other process has open. It may find a commit
        that is not on the disk, of a process that was killed before the end of its sync, or that has got the error of
        the sync. While this connection is open, SQLite recovers nothing.
        """
        with self._holding:
            if self._held is None:
                try:
                    self._restored()
                except OSError as error:
                    raise self.watch.log_failure(error) from error

    def _restored(self) -> sqlite3.Connection:
        """Open the connection that this process keeps open, bring the log to the disk, and create the tables."""
        connection = self._open()
        try:
            self.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        except BaseException:
            self.disconnect(connection)
            raise
        try:
            self.watch.rewrite_log()
        except BaseException:
            connection.rollback()
            # A close would copy the log into the database, although the log may not be on the disk.
            _never_close(connection)
            raise
        self._held = connection
        try:
            connection.rollback()
            self.patiently(lambda: self._create(connection))
            self.watch.note_index()
            # The place of the log on the disk may be lost as well, and no write in place repairs that. So begin another
            # log, unless other processes use this one: they have synced it.
            for setting in _SYNCED:
                connection.execute(f"PRAGMA {setting}")
            self.checkpoint(connection, "TRUNCATE")
        except BaseException:
            self.release()
            raise
        return connection

    def _connect(self, *settings: str) -> sqlite3.Connection:
        self.watch.check()
        self._hold()
        # Only `prepare` may create the file: a file that vanishes must not come back empty.
        connection = self._open()
        try:
            self.patiently(lambda: self.check_version(connection))
            for setting in settings:
                connection.execute(f"PRAGMA {setting}")
        except BaseException:
            self.disconnect(connection)
            raise
        return connection

    def _open(self) -> sqlite3.Connection:
        """Open a connection on which SQLite does not wait for a lock: `patiently` waits."""
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode=rw", uri=True, timeout=0, isolation_level=None, check_same_thread=False
        )
        # SQLite hides the errors of its automatic checkpoints. The writer makes checkpoints that do not.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def patiently(self, action: Callable[[], T]) -> T:
        """Repeat `action` while another process holds the lock. SQLite's own waiting may never get it."""
        deadline = time.monotonic() + self._busy_s
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_S)

    def _create(self, connection: sqlite3.Connection) -> None:
        """Create the tables in an empty file."""
        self._version(connection)  # before the file is changed: it may belong to another application
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreUnusable(f"the file system of {self.path} cannot hold a write-ahead log (WAL)")
        if self._version(connection) == VERSION:
            self._check_parts(connection)
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have created the tables before this one got the lock.
            is_new = self._version(connection) != VERSION
            if is_new:
                for statement in STATEMENTS:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise
        if is_new:
            text = "created the database %s, which holds no payments yet"
            log_event(logger, logging.INFO, LogEvent.DATABASE_CREATED, text, self.path)

    def _check_parts(self, connection: sqlite3.Connection) -> None:
        """Raise `StoreUnusable` for a file that lacks tables or indexes."""
        found = {f"{type} {name}" for type, name in connection.execute("SELECT type, name FROM sqlite_master")}
        missing = [part for part in PARTS if part not in found]
        if missing:
            raise StoreUnusable(
                f"{self.path} has schema version {VERSION}, but not {', '.join(missing)}: restore it from a backup, "
                "or choose another file to begin with an empty one"
            )

    def _version(self, connection: sqlite3.Connection) -> int:
        """Return the schema version, 0 for an empty file. Raises `StoreUnusable` for another application's file."""
        application, version, tables = connection.execute(_IDENTIFY).fetchone()
        if application != APPLICATION_ID and (application, version, tables) != (0, 0, 0):
            raise StoreUnusable(f"{self.path} is the database of another application: choose another file")
        if application == APPLICATION_ID:
            self._check_number(version)
        return int(version)

    def check_version(self, connection: sqlite3.Connection) -> None:
        """Raise `StoreUnusable` for another schema: a newer release may have changed it while this one runs."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        self._check_number(version)

    def _check_number(self, version: int) -> None:
        found = f"{self.path} has schema version {version}"
        if version > VERSION:
            text = f"{found}, which is newer than version {VERSION} of this release: upgrade incoming-payments"
            raise StoreUnusable(text)
        if version < VERSION:
            raise StoreUnusable(
                f"{found}, which is older than version {VERSION} of this release: restore a backup of version "
                f"{VERSION}, or choose another file to begin with an empty one"
            )


def blames_the_statement(error: BaseException) -> bool:
    """Return whether `error` is about the values of one statement, and not about the file or the machine."""
    if isinstance(error, MemoryError | OSError | StoreStopped):
        return False
    code = _primary_code(error)
    return code is None or code in _ABOUT_THE_STATEMENT


def _code(error: BaseException) -> int | None:
    """SQLite's extended result code. `None`: `error` comes from Python, such as text that is not Unicode."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return code


def _primary_code(error: BaseException) -> int | None:
    code = _code(error)
    return None if code is None else code & 0xFF


def _checked_path(path: str | os.PathLike[str]) -> Path:
    given: object = path
    text = os.fspath(path) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str):
        raise ConfigurationError(f"the path must be text or a Path, not {name_of(text)}", setting="path")
    why = None
    if text in {"", ":memory:"} or "\0" in text:
        why = "the path names the database's file; to keep payments in memory use MemoryStore"
    elif "://" in text:
        why = "the path must not be a URL: write the path of the database's file, such as payments.sqlite3"
    elif text.partition("/")[0] == "~":
        why = "the path begins with ~, which only a shell replaces: write the path of your home directory in its place"
    if why is not None:
        raise ConfigurationError(why, setting="path")
    # SQLite keeps the log beside the file that a symbolic link points to, so the store has to look there as well.
    return Path(os.path.realpath(text))


def _never_close(connection: sqlite3.Connection) -> None:
    """Keep `connection` open until the process ends, beyond the end of the interpreter.

    Closing the last connection makes SQLite copy the log into the database and remove the log by its name. A stopped
    store must not write, and another file may have that name by now.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

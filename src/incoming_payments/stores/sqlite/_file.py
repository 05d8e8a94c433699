"""The database file: its path and schema, and the connections to it."""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from incoming_payments.domain.checks import name_of
from incoming_payments.errors import ConfigurationError, IncomingPaymentsError, StoreStopped, StoreUnusable
from incoming_payments.limits import STORE_BUSY_S_MAX, STORE_LOG_KEPT_BYTES_MAX
from incoming_payments.stores._references import checked_member
from incoming_payments.stores.sqlite._checkpoint import Copied, copy_log, empty_log
from incoming_payments.stores.sqlite._database_id import UNKNOWN, ensure_id, has_id
from incoming_payments.stores.sqlite._errors import explain, is_busy
from incoming_payments.stores.sqlite._log_watch import LogWatch
from incoming_payments.stores.sqlite._opening import (
    log_failure,
    one_at_a_time,
    require_database,
    rewrite_log,
    take_lock,
)
from incoming_payments.stores.sqlite._references import indexed_member, prepare_reference
from incoming_payments.stores.sqlite._second_name import refuse_second_names
from incoming_payments.stores.sqlite._versions import check_version, prepare_tables
from incoming_payments.stores.sqlite._watch import FileWatch, OnStop

T = TypeVar("T")

SQLITE_VERSION_MIN: Final = (3, 37, 0)  # the first release with STRICT tables
# The pause between attempts to get a lock. The pause is shorter than a commit, so that this process gets the lock
# between two commits of another process. With 1 ms, the slowest creates of two processes take 60 % longer (benchmark
# `http`, p99).
_POLL_S: Final = 0.0002
# The longest wait for the write lock before a checkpoint. It is longer than several commits on a slow disk: if another
# process always has a commit waiting, a shorter wait would always end during the next commit, and the log would grow.
COPY_S_MAX: Final = 0.25

# With `synchronous = FULL`, SQLite syncs the log at every commit. With a lower level, a power cut can remove
# acknowledged commits. On macOS only F_FULLFSYNC reaches the disk.
_SYNCED: Final = "synchronous = FULL", "fullfsync = ON", "checkpoint_fullfsync = ON"
# SQLite overwrites removed data with zeros (see `_erasure`). Some builds of SQLite have this setting by default.
_WRITES: Final = *_SYNCED, "secure_delete = ON"


class DatabaseFile:
    """One SQLite file, from `prepare` to `watch.close`. A stop calls `on_stop` once, with the error."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_s: float,
        on_stop: OnStop | None = None,
        reference: str | None = None,
        may_be_moved: bool = False,
    ) -> None:
        if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
            least = ".".join(map(str, SQLITE_VERSION_MIN))
            raise StoreUnusable(
                f"Python uses SQLite {sqlite3.sqlite_version}, and the store needs {least} or later: use a Python that "
                "is built with a newer SQLite"
            )
        self.path = _checked_path(path)
        if not 0 <= busy_s <= STORE_BUSY_S_MAX:
            text = f"busy_s, the seconds to wait for a lock, must be from 0 to {STORE_BUSY_S_MAX:g}"
            raise ConfigurationError(text, setting="busy_s")
        self._busy_s = busy_s
        self._may_be_moved = may_be_moved
        self._wanted = checked_member(reference)
        self.reference: str | None = None  # the member of the metadata that the database indexes
        self.watch = FileWatch(self.path, on_stop)
        self._held: tuple[sqlite3.Connection, sqlite3.Connection] | None = None  # see `_hold`
        self._holding = threading.Lock()

    def prepare(self) -> None:
        """Create the file, or check its schema. Other processes may do so at the same time. Raises `StoreError`."""
        if not self.path.parent.is_dir():
            raise StoreUnusable(f"the directory {self.path.parent} does not exist: create it for the database")
        if self.path.is_dir():
            raise StoreUnusable(f"{self.path} is a directory: name a file for the database")
        refuse_second_names(self.watch.paths)
        try:
            take_lock(self.watch, self, patience_s=self._busy_s)
            require_database(self.watch)
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
        """Return whether the database has `id`, or cannot be read without its log. No connection may be open."""
        return has_id(self.path, id)

    def restore(self, known: bytes) -> bytes:
        """Restore the log, begin another log, and return the id of the database. `known` is the id in the lock file.

        Begin another log, because the disk may also have lost the location of the old log. Writing the old log again in
        place does not repair the location. If only the log has the new id, return `UNKNOWN`, because `has_id` reads the
        database without its log.
        """
        _, connection = self._restored(is_alone=True)
        empty_log(connection, self.watch)
        id = self.patiently(partial(ensure_id, connection))
        if id == known:
            return known
        return id if empty_log(connection, self.watch).is_all else UNKNOWN

    def release(self) -> None:
        """Close the connections that this process keeps open. No other connection may be open.

        The next call opens them again.
        """
        if self._held is None:
            return
        guard, connection = self._held
        is_copied = False
        if self.watch.is_open:
            with contextlib.suppress(StoreStopped, sqlite3.Error, OSError):
                self.watch.check()  # make this check first, because the path may now name another file
                with contextlib.closing(self._open("rw")) as other:
                    _set(other, *_SYNCED)
                    # SQLite makes a checkpoint when the last connection is closed, and hides the errors of that
                    # checkpoint.
                    is_copied = self.copy_log(other, patience_s=COPY_S_MAX).is_all
        self.watch.forget_index()
        for each in (guard, connection) if is_copied else (connection, guard):
            self.disconnect(each)
        self._held = None  # set last, so that an interrupted call can be repeated

    def close(self) -> None:
        """Close the connections that this process keeps open, and release the lock."""
        self.release()
        self.watch.close()

    def connect_writer(self) -> sqlite3.Connection:
        """Return a connection for the one thread that writes. Raises `StoreError` or `sqlite3.Error`."""
        return self._connect(
            *_WRITES,
            f"journal_size_limit = {STORE_LOG_KEPT_BYTES_MAX}",
        )

    def connect_reader(self) -> sqlite3.Connection:
        """Return a read-only connection, for one thread at a time. Raises `StoreError` or `sqlite3.Error`."""
        return self._connect("query_only = ON")

    def begin(self, connection: sqlite3.Connection, log: LogWatch) -> None:
        """Begin to write when no other process holds the write lock. Raises `sqlite3.Error` after `busy_s`."""
        self.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        if log.before_write():
            # SQLite counts the pages of the log in shared memory. A checkpoint that empties the log sets this number to
            # 0.
            _, other = self._hold()
            if self.patiently(lambda: copy_log(other, self.watch)).frames:
                raise self.watch.stop(f"{self.watch.log_path} was emptied while it was open")
            log.forget()
        self._check_version(connection)

    def commit(self, connection: sqlite3.Connection, log: LogWatch) -> int:
        """Commit, and return the size of the log in bytes once the commit is known to be on the disk."""
        if log.is_new_committer():
            # This statement writes the first page even when nothing has changed, and so overwrites an unfinished commit
            # of a dead process.
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("COMMIT")
        size_bytes = log.after_commit()
        if not size_bytes:
            # A checkpoint of another process may have emptied the log. If not, this call detects the lost frames.
            self.copy_log(connection)
        return size_bytes

    def copy_log(self, connection: sqlite3.Connection, *, patience_s: float | None = None) -> Copied:
        """Call `_checkpoint.copy_log` with retries. Takes SQLite's write lock."""
        _, other = self._hold()

        def copy() -> Copied:
            other.execute("BEGIN IMMEDIATE")
            try:
                return copy_log(connection, self.watch)
            finally:
                other.rollback()

        return self.patiently(copy, patience_s)

    def explain(self, error: BaseException) -> IncomingPaymentsError:
        """Return the error to raise in place of `error`. Stops the store when data may be lost."""
        return explain(error, self.watch)

    def disconnect(self, connection: sqlite3.Connection) -> None:
        """Close `connection`, which rolls back an open transaction."""
        with contextlib.suppress(sqlite3.Error):
            connection.close()

    def _hold(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        """Return the two connections that this process keeps open. Before opening them, bring the log to the disk.

        SQLite recovers the log when a process opens the database that no other process has open. The log may contain a
        commit that is not on the disk, because the process that made the commit was killed before the end of the sync,
        or got an error from the sync. While these connections are open, SQLite recovers nothing.

        When the last connection is closed, SQLite copies the log into the database and removes the log, unless that
        connection can only read. A store that has stopped or could not open must write nothing, because the log may not
        be on the disk, and another file may have its name by now. So one of the two connections can only read, and
        `release` decides which of them is closed last.
        """
        with self._holding:
            if self._held is not None:
                return self._held
            try:
                return self._restored(is_alone=False)
            except OSError as error:
                raise log_failure(self.watch, error) from error

    def _restored(self, *, is_alone: bool) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        """Open the connections that this process keeps open, bring the log to the disk, and create the tables.

        If `is_alone` is true, no other store has the database open, so the database may be upgraded.
        """
        with one_at_a_time(self.watch, patience_s=self._busy_s), contextlib.ExitStack() as on_failure:
            guard = self._open("ro")
            on_failure.callback(self.disconnect, guard)
            if os.path.exists(self.watch.log_path):
                self._join(guard)
            connection = self._open("rw")
            on_failure.callback(self.disconnect, connection)
            self.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
            rewrite_log(self.watch)
            connection.rollback()
            _set(connection, *_WRITES)
            self.patiently(lambda: self._prepare_tables(connection, is_alone=is_alone))
            self.patiently(lambda: prepare_reference(connection, self.path, self._wanted))
            self.reference = self.patiently(lambda: indexed_member(connection))
            self._wanted = None  # a process that has the database open continues after another one has changed it
            self._join(guard)
            on_failure.callback(self._forget)
            self.watch.note_index()
            self._held = guard, connection
            on_failure.pop_all()
        return guard, connection

    def _check_version(self, connection: sqlite3.Connection) -> None:
        check_version(connection, self.path, may_be_moved=self._may_be_moved)

    def _prepare_tables(self, connection: sqlite3.Connection, *, is_alone: bool) -> None:
        prepare_tables(connection, self.path, is_alone=is_alone, may_be_moved=self._may_be_moved)

    def _forget(self) -> None:
        self._held = None
        self.watch.forget_index()

    def _join(self, connection: sqlite3.Connection) -> None:
        """Read from `connection`, because SQLite counts a connection as open only after a read."""
        self.patiently(lambda: connection.execute("PRAGMA user_version").fetchone())

    def _connect(self, *settings: str) -> sqlite3.Connection:
        self.watch.check()
        self._hold()
        # Only `prepare` may create the file, because a deleted file must not come back as an empty one.
        connection = self._open("rw")
        try:
            self.patiently(lambda: self._check_version(connection))
            _set(connection, *settings)
        except BaseException:
            self.disconnect(connection)
            raise
        return connection

    def _open(self, mode: str) -> sqlite3.Connection:
        """Open a connection that does not wait for a lock: `patiently` waits instead. `mode` is "ro" or "rw"."""
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=0, isolation_level=None, check_same_thread=False
        )
        # SQLite hides the errors of its automatic checkpoints, so the writer makes the checkpoints.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def patiently(self, action: Callable[[], T], patience_s: float | None = None) -> T:
        """Repeat `action` while another process holds the lock. The busy handler of SQLite may never get the lock.

        Raises `sqlite3.OperationalError` after `patience_s` seconds, which is `busy_s` if it is not given.
        """
        deadline = time.monotonic() + (self._busy_s if patience_s is None else patience_s)
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_S)


def _set(connection: sqlite3.Connection, *settings: str) -> None:
    for setting in settings:
        connection.execute(f"PRAGMA {setting}")


def _checked_path(path: str | os.PathLike[str]) -> Path:
    given: object = path
    text = os.fspath(path) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str):
        raise ConfigurationError(f"the path must be text or a Path, not {name_of(text)}", setting="path")
    why = None
    if text in {"", ":memory:"} or "\0" in text:
        why = "the path must name a file: to keep payments in memory, use MemoryStore"
    elif "://" in text:
        why = "the path must not be a URL: write the path of a file, such as payments.sqlite3"
    elif text.partition("/")[0] == "~":
        why = "the path begins with ~, which only a shell replaces: write the path of your home directory instead of ~"
    if why is not None:
        raise ConfigurationError(why, setting="path")
    # SQLite keeps the log beside the file that a symbolic link points to, so the store has to look there as well.
    return Path(os.path.realpath(text))

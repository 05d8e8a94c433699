"""Read a SQLite database in short transactions, without changing anything.

A read transaction holds back the writer of the store, which cannot empty its log (`-wal`) meanwhile. So the audit reads
in slices. Each slice opens a read-only connection, and closes it at its end. Between two slices of a live database, the
audit pauses. In this pause, the writer can empty the log, and a store that opens the database can recover the log.

SQLite recovers the log when a process opens a database that no other process has open, even for reading. That is the
task of a store (see `stores.sqlite._opening`). So the audit reads a database with a log only while a store has it open.
"""

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from incoming_payments.errors import AuditFailed
from incoming_payments.limits import AUDIT_DIFFERENCES_MAX, AUDIT_PAUSE_S_MIN, AUDIT_SLICE_S_MAX, STORE_BUSY_S_MAX
from incoming_payments.stores.sqlite._lock_file import Text, text_of_open
from incoming_payments.stores.sqlite._schema import APPLICATION_ID, STATEMENTS, VERSION

_MAGIC: Final = b"SQLite format 3\0"
_FORMAT_AT: Final = (
    18  # the position of the byte that is 2 if the database has a log (https://sqlite.org/fileformat.html)
)
_WITH_LOG: Final = 2
_SELECT_PARTS: Final = "SELECT type, name, sql FROM sqlite_master WHERE sql <> ''"
_IDENTIFY: Final = "SELECT application_id, user_version FROM pragma_application_id, pragma_user_version"


class Damaged(Exception):
    """SQLite cannot read the pages, tables or columns of the database."""


class Snapshot:
    """One read transaction. Close it soon after `is_over` is true."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._end_s = time.monotonic() + AUDIT_SLICE_S_MAX

    @property
    def is_over(self) -> bool:
        """Whether the time of this transaction is used up."""
        return time.monotonic() >= self._end_s

    def rows(self, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Return the rows of a `SELECT`, which are read one by one."""
        return self._connection.execute(statement, values)

    def one(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Return the only row of a `SELECT` that always has one."""
        return self._connection.execute(statement, values).fetchone()


class Database:
    """The database at `path`: a copy, or the database of a store. Raises `AuditFailed`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # SQLite keeps the log beside the file that a symbolic link points to.
        self.path = Path(os.path.realpath(path))
        if not self.path.is_file():
            raise AuditFailed(f"{self.path} is not a file: give the path of a database")
        self.is_live = self._is_live()

    @contextmanager
    def read(self) -> Iterator[Snapshot]:
        """Begin a read transaction, and end it after the block. Raises `Damaged`."""
        is_live = self._is_live()
        if is_live:
            time.sleep(AUDIT_PAUSE_S_MIN)
        try:
            with closing(self._connect()) as connection:
                connection.execute("BEGIN")
                self._check_version(connection)
                self._check_lock(is_live=is_live)
                yield Snapshot(connection)
                self._check_lock(is_live=is_live)
        except UnicodeDecodeError as error:  # in a message of SQLite about a damaged definition
            raise Damaged(f"a definition has invalid text ({error})") from error
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):
                raise Damaged(str(error)) from error
            raise AuditFailed(f"{self.path} cannot be read ({error}): correct this, and repeat the audit") from error

    def _connect(self) -> sqlite3.Connection:
        uri = f"{self.path.as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, timeout=STORE_BUSY_S_MAX, isolation_level=None)
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # damaged text is a difference
        return connection

    def _is_live(self) -> bool:
        """Return whether a store has the database open. Raises `AuditFailed` for a log without a store.

        If no store has the database open, no store of this process has it open either. Only then may this process open
        the file by other means than SQLite, because closing such a descriptor releases SQLite's locks.
        """
        try:
            if self._has_store():
                return True
            with self.path.open("rb") as file:
                header = file.read(_FORMAT_AT + 1)
        except OSError as error:
            raise AuditFailed(f"{error.filename} cannot be read ({error.strerror}): let the process read it") from error
        if header[: len(_MAGIC)] != _MAGIC:
            raise AuditFailed(f"{self.path} is not an SQLite database: give the path of a database")
        if header[_FORMAT_AT:] == bytes([_WITH_LOG]):
            raise AuditFailed(
                f"{self.path} may have a log, and no store has it open: audit the database while the service runs, or "
                'audit a copy, which "incoming-payments backup --audit" makes'
            )
        return False

    def _has_store(self) -> bool:
        text = text_of_open(f"{self.path}-lock")
        if text not in (None, Text.IN_USE):
            raise AuditFailed(
                f"a store of {self.path} has stopped or is being opened: if it has stopped, correct the cause that its "
                "log names; then repeat the audit while the service runs"
            )
        return text is not None

    def _check_lock(self, *, is_live: bool) -> None:
        if is_live and not self._has_store():
            raise AuditFailed(
                f"the last store of {self.path} was closed during the audit: audit a copy, or repeat the audit while "
                "the service runs"
            )

    def _check_version(self, connection: sqlite3.Connection) -> None:
        application, version = connection.execute(_IDENTIFY).fetchone()
        if application != APPLICATION_ID:
            raise AuditFailed(f"{self.path} is the database of another application: give the path of a database")
        found = f"{self.path} has schema version {version}"
        if version > VERSION:
            raise AuditFailed(
                f"{found}, which is newer than version {VERSION} of this release: upgrade incoming-payments"
            )
        if version < VERSION:
            raise AuditFailed(
                f"{found}, which is older than version {VERSION} of this release: audit it with the release that wrote "
                "it, or open it once with this release, which upgrades it"
            )


def unsound_parts(snapshot: Snapshot) -> Iterator[str]:
    """Yield each difference of a definition from this release. The constraints of a table keep its column types."""
    found = {name: _normal(sql) for _, name, sql in snapshot.rows(_SELECT_PARTS)}
    with closing(sqlite3.connect(":memory:")) as model:
        for statement in STATEMENTS:
            model.execute(statement)
        for kind, name, sql in model.execute(_SELECT_PARTS):
            if found.get(name) != _normal(sql):
                yield f"the {kind} {name} is missing or has another definition"
    for (name,) in snapshot.rows("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
        yield f"there is a trigger {name}, which may change rows: remove it"


def unsound_pages(snapshot: Snapshot) -> Iterator[str]:
    """Yield each error that SQLite finds in the pages, the indexes and the constraints. This reads the whole file."""
    for (text,) in snapshot.rows(f"PRAGMA integrity_check({AUDIT_DIFFERENCES_MAX})"):
        if text != "ok":
            yield text


def _normal(statement: str) -> str:
    return " ".join(statement.split())


def next_key(before: Any, *candidates: Any) -> Any:
    """Return the first of the keys `candidates`, which must follow `before`.

    Raises `Damaged`, because a pass over rows that have no order could never end.
    """
    try:
        first = min(candidates)
        if before < first:
            return first
    except TypeError:  # a key is no text
        pass
    raise Damaged(f"the rows of a table are not in order: {candidates[0]!r} follows {before!r}")

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
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from incoming_payments.audit._snapshot import Damaged
from incoming_payments.audit._sqlite import SqliteSnapshot
from incoming_payments.errors import AuditFailed
from incoming_payments.limits import AUDIT_PAUSE_S_MIN, STORE_BUSY_S_MAX
from incoming_payments.stores._connection_text import may_be_connection_string
from incoming_payments.stores.sqlite._lock_file import Text, text_of_open
from incoming_payments.stores.sqlite._moves import own_version
from incoming_payments.stores.sqlite._schema import APPLICATION_ID, VERSION

_MAGIC: Final = b"SQLite format 3\0"
_FORMAT_AT: Final = (
    18  # the position of the byte that is 2 if the database has a log (https://sqlite.org/fileformat.html)
)
_WITH_LOG: Final = 2
_IDENTIFY: Final = "SELECT application_id, user_version FROM pragma_application_id, pragma_user_version"


class Database:
    """The database at `path`: a copy, or the database of a store. Raises `AuditFailed`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # SQLite keeps the log beside the file that a symbolic link points to.
        self.path = Path(os.path.realpath(path))
        if not self.path.is_file():
            if may_be_connection_string(os.fspath(path)):
                raise AuditFailed(
                    "the database is not a file, and not a URL of PostgreSQL: write for example "
                    "postgresql://user@host/database"
                )
            raise AuditFailed(f"{self.path} is not a file: give the path of a database")
        self.is_live = self._is_live()

    @contextmanager
    def read(self) -> Iterator[SqliteSnapshot]:
        """Begin a read transaction, and end it after the block. Raises `Damaged`."""
        is_live = self._is_live()
        if is_live:
            time.sleep(AUDIT_PAUSE_S_MIN)
        try:
            with closing(self._connect()) as connection:
                connection.execute("BEGIN")
                self._check_version(connection)
                self._check_lock(is_live=is_live)
                yield SqliteSnapshot(connection)
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
            raise AuditFailed(f"{self.path} is not a SQLite database: give the path of a database")
        if header[_FORMAT_AT:] == bytes([_WITH_LOG]):
            raise AuditFailed(
                f"{self.path} may have a log, and no store has it open: audit the database while the service runs, or "
                'audit a copy, which "incoming-payments backup --audit" makes; if its payments were moved to '
                "PostgreSQL, first repeat the move, which removes the log"
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
        version = own_version(version)  # a file that was moved to PostgreSQL still has its rows
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

"""The database file: its path, its schema and migrations, connections to it, and what its errors mean."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from incoming_payments.errors import (
    BrokenDecision,
    ConfigurationError,
    IncomingPaymentsError,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
)
from incoming_payments.limits import STORE_BUSY_S_MAX

T = TypeVar("T")

_UNWAITING: Final = 0.0  # SQLite's own waiting is off: `_patiently` waits
APPLICATION_ID: Final = int.from_bytes(b"IPay")  # in the file's header, so that `file` and we know it
_POLL_S: Final = (
    0.001  # between attempts at a lock: short beside one commit of another process, so that we get our turn
)

# One statement, so that it sees the file before or after another process creates the tables, and never in between.
_IDENTIFY: Final = (
    "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master) "
    "FROM pragma_application_id, pragma_user_version"
)

# One row a schema version: the statements that lead to it from the version before. Never edit one that was
# released: add another.
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        # Amounts are minor units of the asset as decimal text; moments are microseconds since 1970 in UTC.
        # `sweep_at` is `expires_at` for as long as the expiry has to be announced.
        """
        CREATE TABLE payments (
            id TEXT PRIMARY KEY NOT NULL,
            version INTEGER NOT NULL CHECK (version > 0),
            received_amount TEXT NOT NULL CHECK (received_amount NOT GLOB '*[^0-9]*'),
            updated_at INTEGER NOT NULL CHECK (updated_at >= created_at),
            wallet_address TEXT NOT NULL,
            client TEXT NOT NULL,
            asset_code TEXT NOT NULL,
            asset_scale INTEGER NOT NULL CHECK (asset_scale BETWEEN 0 AND 255),
            incoming_amount TEXT CHECK (incoming_amount NOT GLOB '*[^0-9]*'),
            expires_at INTEGER,
            metadata TEXT,
            created_at INTEGER NOT NULL,
            closed_at INTEGER,
            expiry_announced_at INTEGER,
            sweep_at INTEGER CHECK (sweep_at IS NULL OR sweep_at = expires_at)
        ) STRICT, WITHOUT ROWID
        """,
        "CREATE INDEX payments_to_sweep ON payments (sweep_at, id) WHERE sweep_at IS NOT NULL",
        """
        CREATE TABLE credits (
            payment_id TEXT NOT NULL,
            credit_id TEXT NOT NULL,
            amount TEXT NOT NULL CHECK (amount NOT GLOB '*[^0-9]*' AND amount <> '0'),
            received_amount TEXT NOT NULL CHECK (received_amount NOT GLOB '*[^0-9]*'),
            completes INTEGER NOT NULL CHECK (completes IN (0, 1)),
            at INTEGER NOT NULL,
            PRIMARY KEY (payment_id, credit_id)
        ) STRICT, WITHOUT ROWID
        """,
        """
        CREATE TABLE events (
            payment_id TEXT NOT NULL,
            version INTEGER NOT NULL CHECK (version > 0),
            kind TEXT NOT NULL,
            at INTEGER NOT NULL,
            received_amount TEXT NOT NULL CHECK (received_amount NOT GLOB '*[^0-9]*'),
            credit_id TEXT,
            PRIMARY KEY (payment_id, version)
        ) STRICT, WITHOUT ROWID
        """,
    ),
    (
        # Used nonces, each until its signature is stale. Counting them would take longer the more there are.
        """
        CREATE TABLE nonces (
            key TEXT PRIMARY KEY NOT NULL,
            until INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID
        """,
        "CREATE INDEX nonces_to_sweep ON nonces (until)",
        # Whatever was to be remembered until `swept_until` may be gone by now.
        "CREATE TABLE nonce_count (held INTEGER NOT NULL CHECK (held >= 0), swept_until INTEGER NOT NULL) STRICT",
        "INSERT INTO nonce_count (held, swept_until) VALUES (0, 0)",
    ),
    # Who brought the money of a packet. Nobody can say so of what was booked before.
    ("ALTER TABLE events ADD COLUMN peer TEXT",),
)

# Trouble that passes: somebody holds the lock, the disk is full or failing, the file is read-only or out of
# reach for now.
_TEMPORARY: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)
_ABOUT_THE_STATEMENT: Final = frozenset(
    {
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_MISUSE,
        sqlite3.SQLITE_RANGE,
        sqlite3.SQLITE_TOOBIG,
    }
)


class DatabaseFile:
    """One SQLite file. Creating this touches nothing but the path's parent directory; `prepare` opens it."""

    def __init__(self, path: str | os.PathLike[str], *, busy_s: float) -> None:
        self.path = _checked_path(path)
        if not 0 <= busy_s <= STORE_BUSY_S_MAX:
            raise ConfigurationError(
                f"busy_s is how many seconds to wait for a lock, from 0 to {STORE_BUSY_S_MAX:g}", setting="busy_s"
            )
        self._busy_s = busy_s

    def prepare(self) -> None:
        """Create the file or bring its schema up to date, whoever else is doing the same. Raises `StoreError`."""
        if not self.path.parent.is_dir():
            raise StoreUnusable(f"the directory {self.path.parent} does not exist: create it for the database")
        if self.path.is_dir():
            raise StoreUnusable(f"{self.path} is a directory: name a file for the database")
        with contextlib.suppress(OSError):  # what is wrong, SQLite says below
            # What people were paid is for nobody else to read. SQLite gives the log the mode of the file.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            connection = self._open("rwc", busy_s=_UNWAITING)
            try:
                self._patiently(lambda: self._migrate(connection))
            finally:
                self.disconnect(connection)
        except sqlite3.Error as error:
            raise self.explain(error) from error

    def connect_writer(self) -> sqlite3.Connection:
        """A connection for the one thread that writes. Raises `StoreError` or `sqlite3.Error`."""
        # FULL syncs the log at every commit: without it a power cut takes back what was acknowledged. On
        # macOS only F_FULLFSYNC reaches the disk.
        settings = ("synchronous = FULL", "fullfsync = ON", "checkpoint_fullfsync = ON")
        connection = self._connect(*settings, busy_s=_UNWAITING)
        try:
            self._sync_log()
        except OSError as error:
            self.disconnect(connection)
            why = f"its log cannot be synced: {error.strerror}"
            raise StoreUnavailable(f"the database {self.path} cannot do it for now ({why}): repeat the call") from error
        return connection

    def connect_reader(self) -> sqlite3.Connection:
        """A connection that cannot write, for one thread at a time. Raises `StoreError` or `sqlite3.Error`."""
        return self._connect("query_only = ON", busy_s=self._busy_s)

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin to write, when other processes let us. Raises `sqlite3.OperationalError` after `busy_s`."""
        self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        self._check_version(connection)

    def explain(self, error: BaseException) -> IncomingPaymentsError:
        """What `error` means for a caller, as a new exception."""
        if isinstance(error, StoreError):
            return type(error)(error.description)
        if blames_the_statement(error) and not isinstance(error, sqlite3.OperationalError):
            return BrokenDecision(f"the database refused what was to be stored: {error}")
        if isinstance(error, MemoryError) or _primary_code(error) in _TEMPORARY:
            return StoreUnavailable(f"the database {self.path} cannot do it for now ({error}): repeat the call")
        return StoreUnusable(f"the database {self.path} cannot be used: {error}")

    def disconnect(self, connection: sqlite3.Connection) -> None:
        """Close `connection`, which rolls back what is not committed."""
        with contextlib.suppress(sqlite3.Error):
            connection.close()

    def _connect(self, *settings: str, busy_s: float) -> sqlite3.Connection:
        # Only `prepare` may create the file: one that vanishes later must not come back empty.
        connection = self._open("rw", busy_s=busy_s)
        try:
            self._patiently(lambda: self._check_version(connection))
            for setting in settings:
                connection.execute(f"PRAGMA {setting}")
        except BaseException:
            self.disconnect(connection)
            raise
        return connection

    def _sync_log(self) -> None:
        """Bring to the disk what a process that was killed has written to the log, and perhaps not synced.

        Whoever opens the file after it finds that commit, and SQLite does not sync it then. A credit in it would be
        answered when it is repeated, with nothing to commit that would sync it: a power cut could take it back.
        """
        # To close this lets go of no lock: SQLite has none on the log itself.
        descriptor = os.open(f"{self.path}-wal", os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _open(self, mode: str, *, busy_s: float) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=busy_s,
            isolation_level=None,
            check_same_thread=False,
        )

    def _patiently(self, action: Callable[[], T]) -> T:
        """Repeat `action` while another process holds the lock.

        SQLite's own waiting sleeps up to a tenth of a second, and is starved by a process that commits all
        the time.
        """
        deadline = time.monotonic() + self._busy_s
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_S)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        self._version(connection)  # before the file is touched: it may be somebody else's
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreUnusable(f"the file system of {self.path} cannot hold a write-ahead log (WAL)")
        if self._version(connection) == len(MIGRATIONS):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statements in MIGRATIONS[self._version(connection) :]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise

    def _version(self, connection: sqlite3.Connection) -> int:
        """The schema version of the file, 0 for an empty one. Raises `StoreUnusable` when it is not ours to use."""
        application, version, tables = connection.execute(_IDENTIFY).fetchone()
        if application != APPLICATION_ID and (application, version, tables) != (0, 0, 0):
            raise StoreUnusable(f"{self.path} is the database of another application: choose another file")
        if version > len(MIGRATIONS):
            raise self._wrong_version(version)
        return int(version)

    def _check_version(self, connection: sqlite3.Connection) -> None:
        # A newer release may migrate the file while we run. What we would write then is not what it expects.
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != len(MIGRATIONS):
            raise self._wrong_version(version)

    def _wrong_version(self, version: int) -> StoreUnusable:
        return StoreUnusable(
            f"{self.path} has schema version {version}, this release knows version {len(MIGRATIONS)}: upgrade it"
        )


def blames_the_statement(error: BaseException) -> bool:
    """Whether `error` is about what one statement was asked to do, and not about the file or the machine."""
    if isinstance(error, MemoryError):
        return False
    code = _primary_code(error)
    return code is None or code in _ABOUT_THE_STATEMENT


def _primary_code(error: BaseException) -> int | None:
    """SQLite's result code without its extension. None: `error` comes from Python, such as text that is not Unicode."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _checked_path(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if not isinstance(text, str) or text in {"", ":memory:"} or "\0" in text:
        raise ConfigurationError(
            "the path names the database's file; to keep payments in memory use MemoryStore", setting="path"
        )
    return Path(text).absolute()

"""Bring a database to the version of this library, and check that it is at this version."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, get_args

import psycopg

from incoming_payments.errors import ConfigurationError, StoreUnavailable, StoreUnusable
from incoming_payments.limits import MIGRATION_S_MAX
from incoming_payments.stores._rows import Row
from incoming_payments.stores.postgres._errors import explain, unreachable
from incoming_payments.stores.postgres._schema import CREATE_VERSIONS, VERSION, VERSIONS, Version
from incoming_payments.stores.postgres._session import connection_string
from incoming_payments.stores.postgres._steps import statement

Step = Literal["before", "after", "all"]

_SELECT_VERSION: Final = statement(
    "SELECT before, after, current_setting('server_encoding') FROM incoming_payments.schema_version WHERE id = 1"
)
_SELECT_COPY: Final = statement("SELECT source FROM incoming_payments.copies WHERE NOT is_complete")
# The next statements are not in `STATEMENTS`: only a migration sends them.
_LOCK: Final = int.from_bytes(b"IPayMigr")
_TRY_LOCK: Final = f"SELECT pg_try_advisory_xact_lock({_LOCK})".encode()  # without a parameter, no snapshot stays
_KEEP_LOCK: Final = b"SET LOCAL idle_in_transaction_session_timeout = 0"
_LIMITS: Final = b"SELECT set_config('lock_timeout', '1s', true), set_config('statement_timeout', '0', true)"
_INVALID: Final = (
    b"SELECT format('DROP INDEX CONCURRENTLY %I.%I', nspname, relname) FROM pg_index "
    b"JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    b"WHERE NOT indisvalid AND nspname = 'incoming_payments'"
)
_PAUSE_S: Final = 0.1


def check_schema(conninfo: str) -> None:
    """Raise `StoreUnusable` unless the database has the tables of this version. Raises `StoreUnavailable`."""
    row: Row | None
    copy: Row | None = None
    try:
        with _connected(conninfo) as connection:
            row = connection.execute(_SELECT_VERSION.text).fetchone()
            copy = connection.execute(_SELECT_COPY.text).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        row = None
    except psycopg.Error as error:
        raise explain(error) from error
    before, after, encoding = row or (0, 0, "UTF8")
    if before == 0:
        raise StoreUnusable(f"the database has no tables of incoming-payments: {_HOW}")
    if before < VERSION:
        raise StoreUnusable(f"the database has version {before}, and this program needs version {VERSION}: {_HOW}")
    if after > VERSION:
        raise StoreUnusable(
            f"the database has version {after}, and this program knows only versions up to {VERSION}: install the "
            "incoming-payments that upgraded the database"
        )
    _check_encoding(encoding)
    if copy is not None:
        raise StoreUnusable(
            f"the database has a part of the rows of {copy[0]}, and the copy is not complete: complete it with "
            "`incoming-payments copy-to-postgres`, or abandon it with `--abandon`"
        )


def _connected(conninfo: str) -> psycopg.Connection[Row]:
    """Connect to the database. Raises `StoreUnavailable` if the server was not reached or refuses the connection."""
    try:
        return psycopg.connect(conninfo, autocommit=True)
    except psycopg.OperationalError as error:
        raise unreachable(error) from error


def _check_encoding(encoding: str | None) -> None:
    if encoding != "UTF8":
        raise StoreUnusable(f"the database has the encoding {encoding}: create a database with the encoding UTF8")


_HOW: Final = "run `incoming-payments migrate`, or call `incoming_payments.stores.postgres.migrate(conninfo)`"


def migrate(conninfo: str, step: Step = "all", versions: Sequence[Version] = VERSIONS) -> None:
    """Create the tables, or bring them to the version of this library.

    `before` runs the steps that the new code needs, while processes with the old code continue. Then replace these
    processes, and run the steps `after`. `all` runs both. A database without tables gets all steps. Several processes
    may call this at once: one of them works, and the others wait. Reads go on in the meantime.

    Raises `ConfigurationError` for an invalid argument. Raises `StoreUnusable` when the encoding of the database
    is not UTF8, when its version is newer than this library, or when the steps `after` of an earlier version have not
    run. Raises `StoreUnavailable` when the database does not answer, or another migration does not end.
    """
    if step not in get_args(Step):
        raise ConfigurationError(f'step must be "before", "after" or "all", not {step!r}', setting="step")
    conninfo = connection_string(conninfo)
    try:
        with _connected(conninfo) as connection, _locked(conninfo):
            _check_encoding(connection.info.parameter_status("server_encoding"))
            _transact(connection, CREATE_VERSIONS)
            _Migration(connection).run(step, versions)
    except psycopg.Error as error:
        raise explain(error) from error


@contextmanager
def _locked(conninfo: str) -> Iterator[None]:
    """Hold the lock of all migrations in a transaction of another connection.

    `CREATE INDEX CONCURRENTLY` waits for all transactions that have a snapshot. So no transaction of this function may
    keep a snapshot. A process that waits for the lock asks for it in short transactions, and the transaction that holds
    the lock runs at READ COMMITTED.
    """
    deadline_s = time.monotonic() + MIGRATION_S_MAX
    with _connected(conninfo) as connection:
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # under the others, a snapshot stays
        while True:
            with connection.transaction():
                connection.execute(_KEEP_LOCK)
                if connection.execute(_TRY_LOCK).fetchone() == (True,):
                    yield
                    return
            if time.monotonic() > deadline_s:
                raise StoreUnavailable("another migration is running: repeat the call later")
            time.sleep(_PAUSE_S)


class _Migration:
    """A migration that holds the lock."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection
        row = connection.execute(_SELECT_VERSION.text).fetchone()
        self._before, self._after = (0, 0) if row is None else row[:2]

    def run(self, step: Step, versions: Sequence[Version]) -> None:
        """Run the missing steps, in order."""
        last = versions[-1].number
        if self._before > last:
            raise StoreUnusable(
                f"the database has version {self._before}, and this program knows only versions up to {last}: use the "
                "program that upgraded the database"
            )
        if self._before == 0:
            step = "all"  # no process has worked with this database
        for version in versions:
            number = version.number
            if number > self._before and step != "after":
                if self._after < number - 1:
                    raise StoreUnusable(
                        f"the steps `after` of version {number - 1} have not run: end all processes with the code of "
                        f"version {number - 2}, and run `incoming-payments migrate --step after` first"
                    )
                self._apply(version.before, "before", number)
                self._before = number
            if self._after < number <= self._before and step != "before":
                self._apply(version.after, "after", number)
                self._after = number

    def _apply(self, steps: Sequence[str], column: str, number: int) -> None:
        """Run `steps`, and note the version when all of them have succeeded."""
        together: list[str] = []
        for step in steps:
            if "INDEX CONCURRENTLY" in step:
                _transact(self._connection, together)
                together = []
                self._alone(step)
            else:
                together.append(step)
        note = f"UPDATE incoming_payments.schema_version SET {column} = {number} WHERE id = 1"  # noqa: S608
        _transact(self._connection, [*together, note])

    def _alone(self, step: str) -> None:
        """Run a step outside a transaction. First remove the indexes that an interrupted step has left invalid."""
        for (drop,) in self._connection.execute(_INVALID).fetchall():
            self._connection.execute(drop.encode())
        self._connection.execute(step.encode())


def _transact(connection: psycopg.Connection[Row], steps: Sequence[str]) -> None:
    """Run `steps` in one transaction.

    A step that waits for a lock on a table makes all later reads of the table wait behind it. So a step waits only for
    a short time, and the transaction is repeated. Raises `psycopg.Error`.
    """
    deadline_s = time.monotonic() + MIGRATION_S_MAX
    while True:
        try:
            with connection.transaction():
                connection.execute(_LIMITS)
                for step in steps:
                    connection.execute(step.encode())
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_PAUSE_S)
        else:
            return

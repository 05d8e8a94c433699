"""The PostgreSQL side of a copy."""

# ruff: noqa: S608 - the names of tables are constants

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self

import psycopg
from attrs import frozen
from psycopg.conninfo import make_conninfo

from incoming_payments.copying._tables import SETTINGS_OF_TARGET, TABLES, Row, Table
from incoming_payments.errors import CopyFailed, StoreUnavailable
from incoming_payments.stores.postgres._errors import explain
from incoming_payments.stores.postgres._migrations import migrate
from incoming_payments.stores.postgres._session import connection_string, shown

_ROWS_MAX: Final = 2_000  # rows that one round trip fetches
# Lift the limits that the role may have for other programs, and let each commit wait for the disk. See
# `stores.postgres._session`. A policy must hide no rows. psycopg writes bytes in a form that depends on
# `standard_conforming_strings`.
_SETTINGS: Final = (
    "SELECT set_config(name, wanted.value, true) FROM (VALUES ('statement_timeout', '0'), ('lock_timeout', '10s'), "
    "('idle_in_transaction_session_timeout', '0'), ('transaction_timeout', '0'), ('extra_float_digits', '1'), "
    "('enable_sort', 'off'), ('cursor_tuple_fraction', '0'), ('client_min_messages', 'warning'), "
    "('row_security', 'off'), ('standard_conforming_strings', 'on'), "
    "('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') "
    "THEN 'on' ELSE current_setting('synchronous_commit') END)) AS wanted (name, value) JOIN pg_settings USING (name)"
)
_SELECT_COPY: Final = "SELECT copy_id, source, is_complete, place FROM incoming_payments.copies"
_LOCK_COPY: Final = f"{_SELECT_COPY} WHERE copy_id = %s FOR UPDATE"
_INSERT_COPY: Final = (
    "INSERT INTO incoming_payments.copies (id, copy_id, source, is_complete, place) VALUES (1, %s, %s, false, %s)"
)
_WRITE_PLACE: Final = "UPDATE incoming_payments.copies SET place = %s WHERE copy_id = %s"
_COMPLETE: Final = "UPDATE incoming_payments.copies SET is_complete = true WHERE copy_id = %s"
_HAVE_NO_ROWS: Final = (f"NOT EXISTS (SELECT 1 FROM incoming_payments.{table.name})" for table in TABLES)
# The name is that of `stores.postgres._session`. A copy has another one, because two copies may run at a time.
_IS_OPEN: Final = (
    "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name = 'incoming-payments' AND pid <> pg_backend_pid())"
)
_CONNECTION: Final = {"fallback_application_name": "incoming-payments copy"}
_CLOSE_S_MAX: Final = 1.0  # seconds in which the server ends the session of a connection that was closed
_IS_EMPTY: Final = f"SELECT {' AND '.join(_HAVE_NO_ROWS)}"
_WRITE_SETTINGS: Final = "UPDATE incoming_payments.settings SET reference = %s, reindexed_to = %s WHERE id = 1"
_WRITE_COUNT: Final = "UPDATE incoming_payments.nonce_counts SET held = %s, swept_until = %s WHERE slot = 0"
_TABLES: Final = ", ".join(f"incoming_payments.{table.name}" for table in TABLES)
_CLEAR: Final = (
    f"TRUNCATE {_TABLES}, incoming_payments.copies",
    "UPDATE incoming_payments.settings SET reference = NULL, reindexed_to = NULL",
    "UPDATE incoming_payments.nonce_counts SET held = 0, swept_until = -9223372036854775808",
)


@frozen
class Place:
    """The place that a copy has reached: a table, and its last key as in SQLite. At the end, `table` is `None`."""

    table: Table | None
    key: Row = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the place with this text."""
        name, *key = json.loads(text)
        return cls(next((table for table in TABLES if table.name == name), None), tuple(key))

    def text(self) -> str:
        """Return the place as text."""
        return json.dumps([None if self.table is None else self.table.name, *self.key])

    def after(self, rows: Sequence[Row]) -> "Place":
        """Return the place after a batch of `rows`."""
        if self.table is None:
            return self
        if len(rows) == self.table.batch:
            return Place(self.table, self.table.key_in_source(rows[-1]))
        following = [*TABLES[TABLES.index(self.table) + 1 :], None][0]
        return Place(following, () if following is None else following.start)


_START: Final = Place(TABLES[0], TABLES[0].start).text()


class Target:
    """The database at `conninfo`. The constructor creates the tables. Methods raise `StoreError`."""

    def __init__(self, conninfo: str) -> None:
        conninfo = make_conninfo(connection_string(conninfo), **_CONNECTION)
        self.name = shown(conninfo)
        migrate(conninfo)
        self._warnings: list[str | None] = []
        with _explained():
            self._connection = psycopg.connect(conninfo, prepare_threshold=None)
            self._connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        self._connection.add_notice_handler(lambda notice: self._warnings.append(notice.message_primary))

    def require_free(self, own: str | None) -> bool:
        """Return whether the database has the copy with the id `own`. If not, it is empty. Raises `CopyFailed`."""
        with self._transaction() as connection:
            return self._require_free(connection, own) is not None

    def _require_free(self, connection: psycopg.Connection[Any], own: str | None) -> str | None:
        row = connection.execute(_SELECT_COPY).fetchone()
        if row is not None and row[0] != own:
            what = "the payments" if row[2] else "a part of the payments"
            raise CopyFailed(
                f"{self.name} has {what} of {row[1]}: choose an empty database, or complete or abandon that copy"
            )
        if row is None and connection.execute(_IS_EMPTY).fetchone() != (True,):
            raise CopyFailed(f"{self.name} has payments or consumers already: choose an empty database")
        return None if row is None else str(row[3])

    def require_unopened(self) -> None:
        """Raise `CopyFailed` if a store has the database open. To abandon the copy would remove its payments."""
        deadline_s = time.monotonic() + _CLOSE_S_MAX
        while self._is_open():
            if time.monotonic() >= deadline_s:
                raise CopyFailed(f"a store has {self.name} open: end its process, and run the command again")
            time.sleep(_CLOSE_S_MAX / 20)

    def _is_open(self) -> bool:
        with self._transaction() as connection:
            return connection.execute(_IS_OPEN).fetchone() == (True,)

    def begin(self, copy_id: str, source: str) -> bool:
        """Record the copy, unless it has begun already. Return whether it is complete."""
        with self._transaction() as connection:
            if self._require_free(connection, copy_id) is None:
                connection.execute(_INSERT_COPY, (copy_id, source, _START))
            [row] = connection.execute(_SELECT_COPY)
            return bool(row[2])

    def add(self, copy_id: str, read: Callable[[Place], list[Row]]) -> tuple[Place, int]:
        """Add the rows that `read` returns for the place of the copy. Return the next place, and the number of rows.

        Raises `CopyFailed` if another process has ended the copy.
        """
        with self._incomplete(copy_id) as (connection, place):
            rows = read(place)
            following = place.after(rows)
            if place.table is not None:
                with connection.cursor() as cursor, cursor.copy(place.table.copy_into_target().encode()) as copy:
                    for row in rows:
                        copy.write_row(row)
                connection.execute(_WRITE_PLACE, (following.text(), copy_id))
        return following, len(rows)

    def write_settings(self, copy_id: str, settings: Row) -> None:
        """Write the single values. Raises the errors of `add`."""
        with self._incomplete(copy_id) as (connection, _):
            connection.execute(_WRITE_SETTINGS, settings[:2])
            connection.execute(_WRITE_COUNT, settings[2:])

    @contextmanager
    def _incomplete(self, copy_id: str) -> Iterator[tuple[psycopg.Connection[Any], Place]]:
        """Begin a transaction that locks the copy, so that several processes can copy in turn."""
        with self._transaction() as connection:
            row = connection.execute(_LOCK_COPY, (copy_id,)).fetchone()
            if row is None or row[2]:
                raise CopyFailed(f"another process has completed or abandoned the copy to {self.name}")
            yield connection, Place.parse(row[3])

    def settings(self) -> Row:
        """Return the single values."""
        with self._transaction() as connection:
            [row] = connection.execute(SETTINGS_OF_TARGET)
            return tuple(row)

    @contextmanager
    def rows(self, table: Table) -> Iterator[Iterator[Row]]:
        """Read the rows of `table` in the order of its key."""
        with self._transaction() as connection, connection.cursor(f"rows_of_{table.name}") as cursor:
            cursor.itersize = _ROWS_MAX
            yield iter(cursor.execute(table.select_of_target().encode()))

    def complete(self, copy_id: str) -> None:
        """Let stores open the database."""
        with self._transaction() as connection:
            connection.execute(_COMPLETE, (copy_id,))

    def require_incomplete(self, copy_id: str) -> None:
        """Raise `CopyFailed` if the copy is complete."""
        with self._transaction() as connection:
            self._is_incomplete(connection, copy_id)

    def clear(self, copy_id: str) -> None:
        """Remove the rows of an incomplete copy, if there is one. Raises `CopyFailed` if it is complete."""
        with self._transaction() as connection:
            if self._is_incomplete(connection, copy_id):
                for statement in _CLEAR:
                    connection.execute(statement.encode())

    def _is_incomplete(self, connection: psycopg.Connection[Any], copy_id: str) -> bool:
        row = connection.execute(_LOCK_COPY, (copy_id,)).fetchone()
        if row is not None and row[2]:
            raise CopyFailed(f"the copy to {self.name} is complete, so it cannot be abandoned: run it again")
        return row is not None

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection[Any]]:
        with _explained(), self._connection.transaction():
            self._connection.execute(_SETTINGS.encode())
            self._warnings.clear()
            yield self._connection
        if self._warnings:
            # If the wait for the standby was cancelled, COMMIT succeeds with a warning.
            raise StoreUnavailable(f"{self.name} may lack the last rows ({self._warnings}): run the command again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


@contextmanager
def _explained() -> Iterator[None]:
    """Turn the errors of psycopg into those of a store."""
    try:
        yield
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        text = error.diag.message_primary or str(error)  # the details have the whole row, with its metadata
        raise CopyFailed(f"PostgreSQL refused a row ({text}): audit the file, and correct the row") from error
    except psycopg.Error as error:
        raise explain(error) from error

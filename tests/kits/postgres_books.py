"""A PostgreSQL database for tests of the audit: honest traffic without constraints, and damage to one row."""

# ruff: noqa: S608 - the names of tables come from the schema
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from incoming_payments.stores.postgres import PostgresStore, migrate
from kits.audited_books import fill, other_value
from kits.postgres import execute, new_database

_UNCHANGED: Final = ("schema_version", "copies")  # the audit does not compare them
_TABLES: Final = "SELECT relname FROM pg_class WHERE relnamespace = 'incoming_payments'::regnamespace AND relkind = 'r'"
_CONSTRAINTS: Final = (
    "SELECT format('ALTER TABLE incoming_payments.%I DROP CONSTRAINT %I', relname, conname) FROM pg_constraint "
    "JOIN pg_class ON pg_class.oid = conrelid WHERE connamespace = 'incoming_payments'::regnamespace "
    "AND contype IN ('c', 'p')"
)
_COLUMNS: Final = (
    "SELECT attname, format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN ' not null' ELSE '' END "
    "FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum"
)


def url_of(conninfo: str) -> str:
    """Return `conninfo` as a URL."""
    found = conninfo_to_dict(conninfo)
    return "postgresql:///{dbname}?host={host}&user={user}".format(**found)


def filled_database(name: str) -> str:
    """Return the URL of a new database with honest traffic."""
    conninfo = new_database(name)
    migrate(conninfo)
    with PostgresStore(conninfo, reference="ref") as store:
        fill(store)
    return url_of(conninfo)


class PostgresBooks:
    """A database without constraints, so that any damage is possible, and a copy of each table to undo the damage."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)
        execute(url, "CREATE SCHEMA honest")
        names = sorted(name for (name,) in execute(url, _TABLES) if name not in _UNCHANGED)
        for name in names:
            execute(url, f"CREATE TABLE honest.{name} AS TABLE incoming_payments.{name}")
        for (statement,) in execute(url, _CONSTRAINTS):
            execute(url, statement)
        self.columns: dict[str, dict[str, str]] = {
            name: dict(self._connection.execute(_COLUMNS, (f"incoming_payments.{name}",)).fetchall()) for name in names
        }
        for name in ("settings", "registrations"):
            del self.columns[name]["id"]  # no statement of the audit reads it, because the table has one row

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def change(self, *statements: str) -> None:
        """Execute `statements`."""
        for statement in statements:
            self._connection.execute(statement)

    def undo(self, table: str) -> None:
        """Undo the damage to `table`."""
        self.change(
            f"DELETE FROM incoming_payments.{table}",
            f"INSERT INTO incoming_payments.{table} SELECT * FROM honest.{table}",
        )

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Return the rows of `table` as text, each with its place before its columns."""
        columns = ", ".join(f"{column}::text" for column in self.columns[table])
        return self._connection.execute(
            f"SELECT ctid, {columns} FROM incoming_payments.{table} ORDER BY ctid"
        ).fetchall()

    def damage(self, table: str, column: str, kind: str) -> bool:
        """Damage the first row of `table` that can have this damage, and return whether there is one."""
        whole, rows = f"incoming_payments.{table}", self.rows(table)
        first, *others = rows
        at = 1 + list(self.columns[table]).index(column) if column else 0
        if kind == "missing":
            self.change(f"DELETE FROM {whole} WHERE ctid = '{first[0]}'")
        elif kind == "twice":
            self.change(f"INSERT INTO {whole} SELECT * FROM {whole} WHERE ctid = '{first[0]}'")
        elif kind == "other":
            self._write(table, column, first[0], self._other(table, column, first[at]))
        elif kind == "null" and first[at] is not None and "not null" not in self.columns[table][column]:
            self._write(table, column, first[0], None)
        elif kind == "swapped" and (found := next((row for row in others if row[at] != first[at]), None)):
            self._write(table, column, first[0], found[at])
            self._write(table, column, found[0], first[at])
        else:
            return False
        return True

    def _write(self, table: str, column: str, place: str, value: object) -> None:
        self._connection.execute(
            f"UPDATE incoming_payments.{table} SET {column} = %s::{self._type(table, column)} WHERE ctid = '{place}'",
            (value,),
        )

    def _type(self, table: str, column: str) -> str:
        return self.columns[table][column].removesuffix(" not null")

    def _other(self, table: str, column: str, value: Any) -> object:
        """Return another value that is valid for the column alone."""
        kind = self._type(table, column)
        if kind == "boolean":
            return value != "true"
        other = other_value("request_counts" if table == "quota_clients" else table, column, value, self)
        if kind == "bytea":
            return bytes.fromhex(other) if isinstance(other, str) else other
        return [other] if kind == "text[]" else other

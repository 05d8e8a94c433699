"""The example of a store on PostgreSQL passes the contract suite and the crash kit, on a real server."""

import importlib
import secrets
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from incoming_payments.ports import PaymentStore
from incoming_payments.testing.contract import StoreContract
from incoming_payments.testing.crash import check_crashes
from kits.processes import ROOT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
    pgserver = pytest.importorskip(
        "pgserver", reason="pgserver has no wheel for this Python: no PostgreSQL to test with"
    )


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Yield the connection string of a new server."""
    # Not in a directory of pytest: when root runs the tests, pgserver runs the server as another user.
    server = pgserver.get_server(tempfile.mkdtemp(prefix="postgres-"), cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of the example, which the workers of the crash kit can import too."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module("postgres_store")


@pytest.fixture
def database(server: str, example: Any) -> str:
    """Return the connection string of a new database with the tables of the example."""
    name = f"test_{secrets.token_hex(8)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    conninfo = make_conninfo(server, dbname=name)
    with psycopg.connect(conninfo) as connection:
        connection.execute(example.SCHEMA)
    return conninfo


class TestPostgresStore(StoreContract):
    """The contract suite against the example."""

    @pytest.fixture(autouse=True)
    def _on_postgres(self, database: str, example: Any) -> None:
        self.database = database
        self.example = example

    def make_store(self, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return a store on empty tables."""
        with psycopg.connect(self.database) as connection:
            connection.execute("TRUNCATE payments, credits, events")
        return self._open()

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return another store, with connections of its own."""
        return self._open()

    def break_store(self, store: PaymentStore, directory: Path) -> None:  # noqa: ARG002 - part of the hook
        """End all sessions of the database, as a restart of the server does."""
        with psycopg.connect(self.database) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    def _open(self) -> PaymentStore:
        store: PaymentStore = self.example.PostgresStore(self.database)
        return store


def test_acknowledged_credits_survive_crashes(database: str, example: Any) -> None:
    """The workers of the crash kit are killed while they use the database."""
    report = check_crashes(f"{example.__name__}:PostgresStore", database)

    assert report.killed >= 8

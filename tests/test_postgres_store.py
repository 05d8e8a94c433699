"""The store on PostgreSQL of the docs passes the tests that the docs show with it, on a real server."""

import re
import sys
from typing import Any, Final

import psycopg
import pytest

from incoming_payments.errors import StoreUnavailable
from incoming_payments.testing import a_creation
from kits.postgres import execute, new_database
from kits.processes import ROOT

sys.path.append(str(ROOT / "examples"))  # the page and the workers of the crash kit import `postgres_store`


def shown() -> dict[str, Any]:
    """Return the names in the test module that the page shows."""
    page = (ROOT / "docs" / "stores.md").read_text("utf-8")
    [tests] = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "(database" in block]
    namespace: dict[str, Any] = {"__name__": "shown"}
    exec(tests, namespace)  # noqa: S102 - our own documentation
    return namespace


SHOWN: Final = shown()
TestPostgresStore: Final = SHOWN["TestPostgresStore"]
test_acknowledged_credits_survive_crashes: Final = SHOWN["test_acknowledged_credits_survive_crashes"]


@pytest.fixture(scope="module")
def database() -> str:
    """Return the connection string of a database with the tables of the example."""
    conninfo = new_database("example")
    execute(conninfo, sys.modules["postgres_store"].SCHEMA)
    return conninfo


def test_a_connection_that_is_closed_before_the_commit_is_an_error(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost transaction is never acknowledged. At the end of a block, psycopg skips a closed connection silently."""
    example = sys.modules["postgres_store"]
    write_events = example._write_events

    def write_and_close(connection: "psycopg.Connection[Any]", events: Any) -> None:
        write_events(connection, events)
        connection.close()

    monkeypatch.setattr(example, "_write_events", write_and_close)
    store = example.PostgresStore(database)
    try:
        with pytest.raises(StoreUnavailable):
            store.insert(a_creation())
    finally:
        store.close()

"""The store on PostgreSQL of the docs passes the tests that the docs show with it, on a real server."""

import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from incoming_payments.errors import StoreUnavailable
from incoming_payments.testing import a_creation
from kits.processes import ROOT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
    pgserver = pytest.importorskip("pgserver", reason="pgserver, which brings PostgreSQL, has no wheel for this Python")

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
def database() -> Iterator[str]:
    """Yield the connection string of a database with the tables of the example, on a new server."""
    # Not in a directory of pytest: when root runs the tests, pgserver runs the server as another user.
    server = pgserver.get_server(tempfile.mkdtemp(prefix="postgres-"), cleanup_mode="delete")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")  # no test can see a sync, and each takes time
        connection.execute("SELECT pg_reload_conf()")
        connection.execute(sys.modules["postgres_store"].SCHEMA)
    yield server.get_uri()
    server.cleanup()


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

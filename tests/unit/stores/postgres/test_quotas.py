"""Tests of the quotas in a PostgreSQL database."""

from pathlib import Path

from incoming_payments.stores.postgres import AsyncPostgresStore, PostgresStore
from incoming_payments.testing import SyncQuotas
from incoming_payments.testing.quotas import Pair, QuotaContract
from kits.postgres import READ_COMMITTED, SERIALIZABLE, async_view, empty_database


class TestPostgresQuotas(QuotaContract):
    """The contract suite against `PostgresQuotas`."""

    isolation = READ_COMMITTED

    def make_ports(self, directory: Path) -> Pair:
        """Return a store on the database of the test, and its quotas."""
        first = getattr(self, "directory", None) != directory
        self.directory = directory
        if first:
            self.database = empty_database(self.isolation)
        # With one connection, an insert waits for the exchange of the counts before it.
        store = PostgresStore(self.database, connections=1)
        return store, store.quotas(requests_per_minute=self.requests, unpaid_payments=self.unpaid)


class TestSerializablePostgresQuotas(TestPostgresQuotas):
    """The contract suite with serializable transactions."""

    isolation = SERIALIZABLE


class TestAsyncPostgresQuotas(TestPostgresQuotas):
    """The contract suite against `AsyncPostgresQuotas`."""

    def make_ports(self, directory: Path) -> Pair:
        """Return a store on the database of the test, and its quotas."""
        first = getattr(self, "directory", None) != directory
        self.directory = directory
        if first:
            self.database = empty_database(self.isolation)
        view = async_view(self.database, connections=1)
        assert isinstance(view.store, AsyncPostgresStore)
        quotas = view.store.quotas(requests_per_minute=self.requests, unpaid_payments=self.unpaid)
        return view, SyncQuotas(view, quotas)

"""The feed contract suite against the feeds on PostgreSQL, with both isolation levels."""

from pathlib import Path

from hypothesis import settings

from incoming_payments.ports import PaymentStore
from incoming_payments.stores.postgres import PostgresStore
from incoming_payments.testing.feed import FeedContract
from kits.postgres import READ_COMMITTED, SERIALIZABLE, async_view, empty_database


class TestPostgresFeed(FeedContract):
    """The contract suite against `PostgresStore.feed`."""

    isolation = READ_COMMITTED
    machine_settings = settings(FeedContract.machine_settings, max_examples=5)

    def make_store(self, directory: Path) -> PaymentStore:
        """Return a store in an empty database."""
        self.database = empty_database(self.isolation)
        return self.open_again(None, directory)  # type: ignore[arg-type] # the hook does not use it

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return another store on the same database."""
        return PostgresStore(self.database)


class TestSerializablePostgresFeed(TestPostgresFeed):
    """The contract suite with serializable transactions of payments."""

    isolation = SERIALIZABLE
    machine_settings = settings(FeedContract.machine_settings, max_examples=1)


class TestAsyncPostgresFeed(TestPostgresFeed):
    """The contract suite against `AsyncPostgresStore.feed`."""

    machine_settings = settings(FeedContract.machine_settings, max_examples=2)

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return another store on the same database, with its own event loop."""
        return async_view(self.database)

"""The contract suite of feeds, run on the feeds of this library."""

from pathlib import Path

from incoming_payments.ports import PaymentStore
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing import SyncView
from incoming_payments.testing.feed import FeedContract


class TestMemoryFeed(FeedContract):
    """The feed in memory."""

    memory_only = True

    def make_store(self, directory: Path) -> PaymentStore:  # noqa: ARG002 - a hook
        """Return a new store."""
        return MemoryStore()


class TestSqliteFeed(FeedContract):
    """The feed in a SQLite file."""

    def make_store(self, directory: Path) -> PaymentStore:
        """Return a store on a new file."""
        return SqliteStore(directory / "payments.db")

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - a hook
        """Return another store on the file."""
        return SqliteStore(directory / "payments.db")


class TestAsyncSqliteFeed(FeedContract):
    """The feed of an async store, whose callers are concurrent tasks of one event loop."""

    def make_store(self, directory: Path) -> PaymentStore:
        """Return a view of a store on a new file."""

        async def open_store() -> AsyncSqliteStore:
            return AsyncSqliteStore(directory / "payments.db")

        return SyncView(open_store, AsyncSqliteStore.close)

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - a hook
        """Return a view of another store on the file."""
        return self.make_store(directory)

"""The contract suite of feeds, run on the feeds of this library."""

from pathlib import Path

from incoming_payments.ports import PaymentStore
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.sqlite import SqliteStore
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

"""The contract suites against the stores on PostgreSQL, with both isolation levels."""

from pathlib import Path

from hypothesis import settings

from incoming_payments.ports import Nonces, PaymentStore
from incoming_payments.stores.postgres import AsyncPostgresNonces, AsyncPostgresStore, PostgresNonces, PostgresStore
from incoming_payments.testing import NOW, SyncNonces, SyncView
from incoming_payments.testing.contract import StoreContract
from incoming_payments.testing.nonces import KEYS, NonceContract
from kits.postgres import READ_COMMITTED, SERIALIZABLE, async_view, empty_database, end_connections


class TestPostgresStore(StoreContract):
    """The contract suite against `PostgresStore`."""

    isolation = READ_COMMITTED

    def make_store(self, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return a store in an empty database."""
        self.database = empty_database(self.isolation)
        return PostgresStore(self.database)

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return another store on the same database."""
        return PostgresStore(self.database)

    def break_store(self, store: PaymentStore, directory: Path) -> None:  # noqa: ARG002 - part of the hook
        """End the connections of the store."""
        end_connections(self.database)


class TestSerializablePostgresStore(TestPostgresStore):
    """The contract suite with serializable transactions."""

    isolation = SERIALIZABLE
    machine_settings = settings(StoreContract.machine_settings, max_examples=8)


class TestAsyncPostgresStore(StoreContract):
    """The contract suite against `AsyncPostgresStore`, whose callers are concurrent tasks of one event loop."""

    isolation = READ_COMMITTED
    machine_settings = settings(StoreContract.machine_settings, max_examples=8)

    def make_store(self, directory: Path) -> PaymentStore:
        """Return a store in an empty database, with its own event loop."""
        self.database = empty_database(self.isolation)
        return self.open_again(None, directory)  # type: ignore[arg-type] # the hook does not use it

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return another store on the same database."""
        return async_view(self.database)

    def break_store(self, store: PaymentStore, directory: Path) -> None:  # noqa: ARG002 - part of the hook
        """End the connections of the store."""
        end_connections(self.database)


class TestSerializableAsyncPostgresStore(TestAsyncPostgresStore):
    """The contract suite with serializable transactions."""

    isolation = SERIALIZABLE


class TestPostgresNonces(NonceContract):
    """The contract suite against `PostgresNonces`."""

    isolation = READ_COMMITTED

    def make_nonces(self, directory: Path) -> Nonces:
        """Return nonces in an empty database."""
        self.database = empty_database(self.isolation)
        return self.open_again(None, directory)  # type: ignore[arg-type] # the hook does not use it

    def open_again(self, nonces: Nonces, directory: Path) -> Nonces:  # noqa: ARG002 - part of the hook
        """Return the nonces of another store on the same database."""
        return PostgresNonces(PostgresStore(self.database), self.capacity)

    def close_nonces(self, nonces: Nonces) -> None:
        """Close the store of the nonces."""
        assert isinstance(nonces, PostgresNonces)
        nonces._store.close()


class TestSerializablePostgresNonces(TestPostgresNonces):
    """The contract suite with serializable transactions."""

    isolation = SERIALIZABLE


class TestAsyncPostgresNonces(NonceContract):
    """The contract suite against `AsyncPostgresNonces`."""

    def make_nonces(self, directory: Path) -> Nonces:
        """Return nonces in an empty database."""
        self.database = empty_database()
        return self.open_again(None, directory)  # type: ignore[arg-type] # the hook does not use it

    def open_again(self, nonces: Nonces, directory: Path) -> Nonces:  # noqa: ARG002 - part of the hook
        """Return the nonces of another store on the same database."""
        view = async_view(self.database)
        assert isinstance(view.store, AsyncPostgresStore)
        return SyncNonces(view, AsyncPostgresNonces(view.store, self.capacity))


def test_a_store_has_nonces(store: PostgresStore, view: SyncView) -> None:
    """All stores of a database share them."""
    assert isinstance(view.store, AsyncPostgresStore)
    assert store.nonces.use(KEYS[0], NOW, NOW)
    assert not SyncNonces(view, view.store.nonces).use(KEYS[0], NOW, NOW)
    assert SyncNonces(view, view.store.nonces).use(KEYS[1], NOW, NOW)
    assert not store.nonces.use(KEYS[1], NOW, NOW)

"""The hooks of `StoreContract`, which the author of a store overrides, and the fixtures that yield stores."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from incoming_payments.ports import PaymentStore


class StoreHooks:
    """The methods and settings that a subclass of `StoreContract` may override."""

    memory_only = False  # whether the store keeps its data in one object, which no other store can open
    threads = 8  # the number of concurrent callers

    def make_store(self, directory: Path) -> PaymentStore:
        """Return an empty store. `directory` is empty, and no other store uses it."""
        raise NotImplementedError(
            "make_store is missing: override make_store in your test class, and return the store to test"
        )

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:
        """Return a new store on the data of `store`, like a store that another process opens.

        `store` is the result of `make_store(directory)`. The new store must share no connection, lock or cache with
        `store`.
        """
        raise NotImplementedError(
            "open_again is missing: override open_again in your test class, and open the data of `store` "
            "again, as another process would. If the data belongs to one object, set memory_only = True"
        )

    def break_store(self, store: PaymentStore, directory: Path) -> None:
        """End the database connections of `store` from outside, like a restart of the database server.

        The tests call this method between two calls of the store, and while the store runs a decision. The new store of
        `open_again` must work afterwards.
        """
        raise NotImplementedError(
            "break_store is missing: override break_store in your test class, and end the database "
            "connections of `store` from outside. If the store has no connections, call pytest.skip with the reason"
        )

    def close_store(self, store: PaymentStore) -> None:
        """Close a store that `make_store` or `open_again` returned.

        By default, call the `close` method of the store, if it has one.
        """
        close = getattr(store, "close", None)
        if close is not None:
            close()

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[PaymentStore]:
        """Yield a store for one test."""
        store = self.make_store(tmp_path)
        yield store
        self.close_store(store)

    @pytest.fixture
    def other(self, store: PaymentStore, tmp_path: Path) -> Iterator[PaymentStore]:
        """Yield a second store on the data of `store`."""
        with self.opened_again(store, tmp_path) as other:
            yield other

    @contextmanager
    def opened_again(self, store: PaymentStore, directory: Path) -> Iterator[PaymentStore]:
        """Yield the store of `open_again`, and close it later. Skip the test when the store is `memory_only`."""
        if self.memory_only:
            pytest.skip("memory_only: no second object, and no other process, can open the data of this store")
        other = self.open_again(store, directory)
        try:
            yield other
        finally:
            self.close_store(other)

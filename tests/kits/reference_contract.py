"""The contract suite against the reference store. Workers of the crash kit import that store without pytest."""

from pathlib import Path

from incoming_payments.ports import PaymentStore
from incoming_payments.testing.contract import StoreContract
from kits.reference_store import ReferenceStore


class ReferenceContract(StoreContract):
    """The contract suite against `store_class`."""

    store_class: type[ReferenceStore] = ReferenceStore

    def make_store(self, directory: Path) -> PaymentStore:
        """Return a store in a new file."""
        return self.store_class(directory / "payments.db")

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return another store on the same file."""
        return self.store_class(directory / "payments.db")

    def break_store(self, store: PaymentStore, directory: Path) -> None:  # noqa: ARG002 - part of the hook
        """Close the connection of the store."""
        assert isinstance(store, ReferenceStore)
        if store.connection is not None:
            store.connection.close()

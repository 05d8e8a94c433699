"""The memory store keeps the contract."""

from pathlib import Path

from incoming_payments.ports import PaymentStore
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing.contract import StoreContract


class TestMemoryStore(StoreContract):
    """The contract suite against `MemoryStore`."""

    def make_store(self, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """A new one; it needs no directory."""
        return MemoryStore()

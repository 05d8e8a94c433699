"""The contract suites against the stores in memory, and their own rules."""

from datetime import timedelta
from pathlib import Path

import pytest

from incoming_payments.errors import InvalidValue
from incoming_payments.ports import Nonces, PaymentStore
from incoming_payments.stores.memory import MemoryNonces, MemoryStore
from incoming_payments.testing import NOW
from incoming_payments.testing.contract import StoreContract
from incoming_payments.testing.nonces import KEYS, NonceContract


class TestMemoryStore(StoreContract):
    """The contract suite against `MemoryStore`."""

    memory_only = True

    def make_store(self, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return a new store, which needs no directory."""
        return MemoryStore()


class TestMemoryNonces(NonceContract):
    """The contract suite against `MemoryNonces`."""

    memory_only = True

    def make_nonces(self, directory: Path) -> Nonces:  # noqa: ARG002 - part of the hook
        """Return new nonces, which need no directory."""
        return MemoryNonces(self.capacity)


def test_capacity_of_zero_is_refused() -> None:
    """The least capacity is one, because a store without any capacity would refuse every nonce."""
    with pytest.raises(InvalidValue) as caught:
        MemoryNonces(0)
    assert caught.value.details == {"member": "capacity"}


def test_interrupted_call_removes_no_later_key() -> None:
    """A key that an interrupted call has pushed can be used later, and stays used until its own end."""
    nonces = MemoryNonces()
    nonces._by_end.append((NOW, KEYS[0]))

    assert nonces.use(KEYS[0], NOW + timedelta(seconds=9), NOW)
    assert not nonces.use(KEYS[0], NOW + timedelta(seconds=9), NOW + timedelta(seconds=1))

"""The contract suites against the stores in memory, and their own rules."""

from datetime import timedelta
from pathlib import Path

import pytest

from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import InvalidValue, PaymentExists, PaymentNotFound, StoreUnavailable
from incoming_payments.ports import Erasure, Nonces, PaymentStore
from incoming_payments.stores.memory import MemoryNonces, MemoryStore
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing.contract import StoreContract
from incoming_payments.testing.erasure import ErasureContract
from incoming_payments.testing.nonces import KEYS, NonceContract
from incoming_payments.testing.steps import create


class TestMemoryStore(StoreContract):
    """The contract suite against `MemoryStore`."""

    memory_only = True

    def make_store(self, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return a new store, which needs no directory."""
        return MemoryStore()


class TestMemoryErasure(ErasureContract):
    """The contract suite against `MemoryErasure`."""

    def make(self, directory: Path) -> tuple[PaymentStore, Erasure]:  # noqa: ARG002 - part of the hook
        """Return a new store, which needs no directory."""
        store = MemoryStore()
        return store, store.erasure


class TestMemoryNonces(NonceContract):
    """The contract suite against `MemoryNonces`."""

    memory_only = True

    def make_nonces(self, directory: Path) -> Nonces:  # noqa: ARG002 - part of the hook
        """Return new nonces, which need no directory."""
        return MemoryNonces(self.capacity)


def test_messages_name_the_payment() -> None:
    """The host finds the payment in its own records."""
    store = MemoryStore()
    created = a_creation(expires_in_s=1)
    store.insert(created)
    with pytest.raises(PaymentExists) as exists:
        store.insert(created)
    assert exists.value.description.startswith(f"payment {created.answer.id} exists already:")
    with pytest.raises(PaymentNotFound) as missing:
        store.load(PaymentId("no such"))
    assert missing.value.description == "there is no payment no such"


def test_capacity_of_zero_is_refused() -> None:
    """The least capacity is one, because a store without any capacity would refuse every nonce."""
    with pytest.raises(InvalidValue) as caught:
        MemoryNonces(0)
    assert caught.value.details == {"member": "capacity"}
    assert caught.value.description == "capacity must be at least 1, not 0"


def test_full_store_names_its_capacity() -> None:
    """The message says to repeat the call later, when keys have ended."""
    nonces = MemoryNonces(1)
    assert nonces.use(KEYS[0], NOW, NOW)
    with pytest.raises(StoreUnavailable) as caught:
        nonces.use(KEYS[1], NOW, NOW)
    assert caught.value.description == "the nonce store is full (1): repeat the call later"


def test_negative_limit_finds_no_payment() -> None:
    """It is no limit from the end, as in a slice."""
    store = MemoryStore()
    for _ in range(2):
        create(store, a_creation(expires_in_s=1))
    assert store.find_expired(NOW + timedelta(days=1), -1) == []


def test_interrupted_call_removes_no_later_key() -> None:
    """A key that an interrupted call has pushed can be used later, and stays used until its own end."""
    nonces = MemoryNonces()
    nonces._by_end.append((NOW, KEYS[0]))

    assert nonces.use(KEYS[0], NOW + timedelta(seconds=9), NOW)
    assert not nonces.use(KEYS[0], NOW + timedelta(seconds=9), NOW + timedelta(seconds=1))

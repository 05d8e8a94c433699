"""The erasure contract detects ports that break a promise."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.ports import PaymentStore
from incoming_payments.stores.memory import MemoryErasure, MemoryStore
from incoming_payments.testing.erasure import ErasureContract


class Forgets(MemoryErasure):
    """Erases nothing."""

    def erase(self, id: PaymentId) -> IncomingPayment:
        """Return the payment as it is."""
        return self._store.load(id)


class ChangesMore(MemoryErasure):
    """Erases the limit too."""

    def erase(self, id: PaymentId) -> IncomingPayment:
        """Erase."""
        erased = super().erase(id)
        self._store._rows[id] = erased = evolve(erased, terms=evolve(erased.terms, limit=None))
        return erased


class InventsPayments(MemoryErasure):
    """Returns another payment in place of an error."""

    def erase(self, id: PaymentId) -> IncomingPayment:
        """Erase the first payment if there is no payment `id`."""
        return super().erase(id) if id in self._store._rows else None  # type: ignore[return-value]


class IsTooEarly(MemoryErasure):
    """Erases payments that have just ended."""

    def erase_ended(self, before: datetime) -> bool:
        """Erase."""
        return super().erase_ended(before + timedelta(microseconds=1))


class StopsEarly(MemoryErasure):
    """Says after the first batch that no payment is left."""

    def erase_ended(self, before: datetime) -> bool:
        """Erase a batch."""
        super().erase_ended(before)
        return True


class NeverCompletes(MemoryErasure):
    """Deletes the idempotency keys too."""

    def erase(self, id: PaymentId) -> IncomingPayment:
        """Erase."""
        rows = self._store._rows
        for key in [key for key in rows if isinstance(key, tuple) and key[-1] == "key"]:
            del rows[key]
        return super().erase(id)


@pytest.mark.parametrize(
    ("erasure", "test"),
    [
        (Forgets, ErasureContract.test_only_the_metadata_is_erased),
        (ChangesMore, ErasureContract.test_only_the_metadata_is_erased),
        (InventsPayments, ErasureContract.test_an_unknown_payment_is_not_found),
        (NeverCompletes, ErasureContract.test_a_payment_without_metadata_still_receives),
        (IsTooEarly, ErasureContract.test_ended_payments_lose_their_metadata),
        (StopsEarly, ErasureContract.test_batches_reach_every_ended_payment),
    ],
)
def test_broken_port_is_detected(erasure: Callable[[MemoryStore], MemoryErasure], test: Any) -> None:
    """The test of the promise fails, and passes for the port of the library."""
    store = MemoryStore()
    test(ErasureContract(), (store, store.erasure))
    store = MemoryStore()
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(ErasureContract(), (store, erasure(store)))


def test_port_is_needed(tmp_path: Path) -> None:
    """The error names the method to override."""
    with pytest.raises(NotImplementedError, match="override make"):
        ErasureContract().make(tmp_path)


class TestClosing(ErasureContract):
    """The contract closes a store that has a method for it."""

    closed = 0

    def make(self, directory: Path) -> tuple[PaymentStore, MemoryErasure]:  # noqa: ARG002 - part of the hook
        """Return a store that counts its ends."""
        store = MemoryStore()
        store.close = self.count  # type: ignore[attr-defined]
        return store, store.erasure

    def count(self) -> None:
        """Count a call."""
        type(self).closed += 1

    @classmethod
    def teardown_class(cls) -> None:
        """Check the number of ends."""
        assert cls.closed == 5

"""The guarantees of a payment store for several processes, and for a database that fails.

This is a part of `StoreContract`. A second store on the same data represents another process. Locks and caches of the
first store have no effect on the second store.
"""

# ruff: noqa: S101 - a test suite asserts
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from incoming_payments.domain import lifecycle
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import PaymentExists, PaymentNotFound, StoreError, StoreUnusable
from incoming_payments.ports import PaymentStore
from incoming_payments.testing._hooks import StoreHooks
from incoming_payments.testing.steps import (
    check_credits,
    check_lock,
    create,
    created_under,
    credit,
    credit_at_once,
    insert_at_once,
    persistently,
    together,
)
from incoming_payments.testing.values import NOW, a_creation, crediting

_RIVAL_S: Final = 1.0  # seconds to wait, because a broken transaction may keep its lock until its decision returns
_LATE: Final = NOW + timedelta(days=1)


class SharingContract(StoreHooks):
    """The tests with a second store on the same data."""

    def test_each_store_sees_the_changes_of_the_other(self, store: PaymentStore, other: PaymentStore) -> None:
        """Payments, credits, events and the sweep come from the database, and not from a cache of the process."""
        created = a_creation(expires_in_s=10)
        id = created.answer.id
        for reader in (store, other):
            with pytest.raises(PaymentNotFound):
                reader.load(id)
        create(store, created)
        with pytest.raises(PaymentExists):
            other.insert(created)

        for turn, (writer, reader) in enumerate([(store, other), (other, store)] * 3):
            answer = credit(writer, id, f"wire-{turn}", 1)
            assert reader.load(id).received == answer.received
            assert [event.version for event in reader.events(id)] == list(range(1, turn + 3))
            assert answer == credit(reader, id, f"wire-{turn}", 1)

        assert [id] == list(store.find_expired(_LATE, 10)) == list(other.find_expired(_LATE, 10))
        other.update(id, partial(lifecycle.expire, now=_LATE))
        assert list(store.find_expired(_LATE, 10)) == []

    def test_stores_credit_one_payment_at_the_same_time(self, store: PaymentStore, other: PaymentStore) -> None:
        """No credit is lost or doubled. A mutex in each process is not enough. Use a lock in the database."""
        credit_at_once([store, other] * (self.threads // 2))

    def test_of_inserts_through_two_stores_one_succeeds(self, store: PaymentStore, other: PaymentStore) -> None:
        """Both stores return the payment of the insert that succeeded."""
        insert_at_once([store, other] * (self.threads // 2))

    def test_a_decision_in_one_store_holds_up_the_other(self, store: PaymentStore, other: PaymentStore) -> None:
        """`decide` runs while the database holds the lock on the payment (see `check_lock`)."""
        check_lock(store, other)
        check_lock(other, store)

    def test_a_reader_sees_a_payment_with_its_events(self, store: PaymentStore, other: PaymentStore) -> None:
        """One transaction writes payment and events, so another process never sees only one of the two."""
        id = create(store)
        finished = threading.Event()

        def write() -> None:
            try:
                for number in range(50):
                    credit(store, id, f"wire-{number}", 1)
            finally:
                finished.set()

        def read() -> None:
            while not finished.is_set():
                version = other.load(id).version
                events = len(other.events(id))
                assert version <= events, "the payment was committed before its events"
                assert events <= other.load(id).version, "the events were committed before their payment"

        together([write, read])

    # --- failures of the database ---

    def test_a_closed_store_raises_store_errors(self, store: PaymentStore, tmp_path: Path) -> None:
        """A call of a closed store raises a `StoreError`, and never an exception of the driver."""
        id = create(store)
        with self.opened_again(store, tmp_path) as other:
            pass
        for call in _calls(other, id):
            _attempt(call)

    def test_a_broken_connection_raises_store_errors(self, store: PaymentStore, tmp_path: Path) -> None:
        """The store turns the driver's exceptions into a `StoreError`, and works again after `StoreUnavailable`."""
        with self.opened_again(store, tmp_path) as other:
            id = create(other)
        for call in _calls(store, id):
            _attempt(call)  # this call opens a connection
            self.break_store(store, tmp_path)
            _attempt(call)
        with suppress(StoreUnusable):  # an operator has to repair the database
            persistently(partial(credit, store, id, "wire-2", 2))

        with self.opened_again(store, tmp_path) as other:
            check_credits(other, id, [credit(other, id, f"wire-{number}", number) for number in (1, 2)])

    def test_a_transaction_that_breaks_decides_again(self, store: PaymentStore, tmp_path: Path) -> None:
        """When the connection breaks after a decision, the store decides again or raises `StoreUnavailable`.

        Another process credits the payment in the meantime, so the first decision must not be written.
        """
        decisions: list[Future[Credit]] = []
        with self.opened_again(store, tmp_path) as other:
            id = create(other)

        def rival() -> Credit:
            with self.opened_again(store, tmp_path) as other:
                return persistently(partial(credit, other, id, "wire-2", 2))

        with ThreadPoolExecutor(1) as executor:

            def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[Credit]:
                if not decisions:
                    self.break_store(store, tmp_path)
                    decisions.append(executor.submit(rival))
                    wait(decisions, _RIVAL_S)
                return crediting("wire-1", 1)(payment, earlier)

            try:
                answer = store.update(id, decide, CreditId("wire-1"))
            except StoreError:
                answer = None
        with self.opened_again(store, tmp_path) as other:
            repeated = credit(other, id, "wire-1", 1)
            check_credits(other, id, [decisions[0].result(), repeated])
        assert answer in (None, repeated)


def _calls(store: PaymentStore, id: PaymentId) -> list[Callable[[], object]]:
    """Return one call of each method of `store`."""
    return [
        partial(store.load, id),
        partial(store.events, id),
        partial(credit, store, id, "wire-1", 1),
        partial(store.find_expired, NOW, 10),
        lambda: store.insert(a_creation()),
        lambda: store.insert(a_creation(key="order-1")),
        partial(created_under, store, "order-1"),
    ]


def _attempt(call: Callable[[], object]) -> None:
    """Run `call`, which may raise a `StoreError`. Any other exception fails the test."""
    with suppress(StoreError):
        call()

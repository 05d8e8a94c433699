"""The guarantees of a payment store for idempotency keys. This is a part of `StoreContract`."""

# ruff: noqa: S101 - a test suite asserts
import threading
from datetime import timedelta
from typing import Final

import pytest

from incoming_payments.domain.idempotency import IdempotencyKey
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import HOST, IncomingPayment, client_id
from incoming_payments.errors import PaymentExists, PaymentNotFound
from incoming_payments.limits import IDEMPOTENCY_KEY_CHARS_MAX
from incoming_payments.ports import PaymentStore
from incoming_payments.testing._hooks import StoreHooks
from incoming_payments.testing.steps import create_at_once, created_under, together
from incoming_payments.testing.values import NOW, a_creation

_KEPT_S: Final = 60.0
_END: Final = NOW + timedelta(seconds=_KEPT_S)
_TICK: Final = timedelta(microseconds=1)


class IdempotencyContract(StoreHooks):
    """The tests of `insert` with an idempotency key, and of `find_creation`."""

    def test_find_creation_returns_the_record_of_a_key(self, store: PaymentStore) -> None:
        """The record has the values that were stored, and another key has no record."""
        created = a_creation(limit=100, key="order-1", fingerprint="0123456789abcdef" * 4)

        assert store.insert(created) is None

        assert created_under(store, "order-1") == created.keyed
        assert created_under(store, "order-2") is None
        assert store.load(created.answer.id) == created.answer
        assert tuple(store.events(created.answer.id)) == created.events

    def test_a_payment_without_a_key_has_no_record(self, store: PaymentStore) -> None:
        """`insert` returns `None`, for any number of payments."""
        assert [store.insert(a_creation()) for _ in range(2)] == [None, None]
        assert created_under(store, "order-1") is None

    def test_a_repeated_key_stores_nothing(self, store: PaymentStore) -> None:
        """`insert` returns the first record, even for another fingerprint, and does not store the second payment."""
        first = a_creation(limit=100, key="order-1")
        store.insert(first)

        for fingerprint in (first.keyed.fingerprint, "f" * 64):  # type: ignore[union-attr] # it has a key
            again = a_creation(limit=200, key="order-1", fingerprint=fingerprint)
            assert store.insert(again) == first.keyed
            with pytest.raises(PaymentNotFound):
                store.load(again.answer.id)

        assert created_under(store, "order-1") == first.keyed
        assert store.load(first.answer.id) == first.answer
        assert tuple(store.events(first.answer.id)) == first.events

    def test_a_key_belongs_to_one_client(self, store: PaymentStore) -> None:
        """Two clients and the host can use the same key for their own payments."""
        clients = [client_id("https://shop.example/"), client_id("https://shop.example"), HOST]
        created = [a_creation(client=client, key="order-1") for client in clients]

        assert [store.insert(one) for one in created] == [None, None, None]

        found = [store.find_creation(client, IdempotencyKey("order-1"), NOW) for client in clients]
        assert found == [one.keyed for one in created]

    @pytest.mark.parametrize(
        ("one", "another"),
        [
            ("a", "A"),
            ("1", "01"),
            ("a", "a "),
            (" ", "  "),
            ("a%", "a_"),
            ("'", '"'),
            ("~" * IDEMPOTENCY_KEY_CHARS_MAX, "~" * (IDEMPOTENCY_KEY_CHARS_MAX - 1)),
        ],
    )
    def test_idempotency_keys_are_compared_exactly(self, store: PaymentStore, one: str, another: str) -> None:
        """Two different spellings are two keys."""
        created = [a_creation(key=key) for key in (one, another)]

        assert [store.insert(each) for each in created] == [None, None]

        assert [created_under(store, key) for key in (one, another)] == [each.keyed for each in created]

    def test_a_key_that_has_ended_can_be_used_again(self, store: PaymentStore) -> None:
        """When the `until` of the record has passed, the key creates another payment."""
        first = a_creation(key="order-1", kept_s=_KEPT_S)
        store.insert(first)

        assert store.insert(a_creation(key="order-1", now=_END)) == first.keyed
        assert created_under(store, "order-1", _END) == first.keyed
        assert created_under(store, "order-1", _END + _TICK) is None
        second = a_creation(key="order-1", now=_END + _TICK)
        assert store.insert(second) is None

        assert created_under(store, "order-1", _END + _TICK) == second.keyed
        assert store.load(first.answer.id) == first.answer
        assert store.load(second.answer.id) == second.answer

    def test_an_old_key_does_not_remove_a_newer_one(self, store: PaymentStore) -> None:
        """An insert may remove expired records, but no other records."""
        for number in range(10):
            store.insert(a_creation(key=f"short-{number}", kept_s=1))
        long = [a_creation(key=f"long-{number}", kept_s=3600) for number in range(3)]
        for one in long:
            store.insert(one)
        later = NOW + timedelta(seconds=2)
        for number in range(10):
            assert store.insert(a_creation(key=f"short-{number}", now=later, kept_s=3600)) is None

        for number, one in enumerate(long):
            assert created_under(store, f"long-{number}", later) == one.keyed
            assert created_under(store, f"short-{number}", later) is not None

    def test_a_refused_insert_does_not_use_its_key(self, store: PaymentStore) -> None:
        """`PaymentExists` stores nothing, so the key can still create a payment."""
        first = a_creation()
        store.insert(first)
        with pytest.raises(PaymentExists):
            store.insert(a_creation(id=first.answer.id, key="order-1"))

        assert created_under(store, "order-1") is None
        assert store.insert(a_creation(key="order-1")) is None

    # --- concurrent requests and other processes ---

    def test_concurrent_inserts_under_one_key_create_one_payment(self, store: PaymentStore) -> None:
        """A duplicate waits for the transaction of the first request, and all callers get the same payment."""
        create_at_once([store] * self.threads)

    def test_a_key_is_known_to_other_stores(self, store: PaymentStore, other: PaymentStore) -> None:
        """The record comes from the database, and not from a cache of the process."""
        assert created_under(other, "order-1") is None
        created = a_creation(key="order-1")
        store.insert(created)

        assert created_under(other, "order-1") == created.keyed
        assert other.insert(a_creation(key="order-1")) == created.keyed

    def test_of_inserts_under_one_key_in_two_stores_one_creates(self, store: PaymentStore, other: PaymentStore) -> None:
        """A mutex in each process does not prevent two payments. Use a unique key in the database."""
        create_at_once([store, other] * (self.threads // 2))

    def test_a_reader_sees_a_key_with_its_payment(self, store: PaymentStore, other: PaymentStore) -> None:
        """One transaction writes key and payment, so another process never sees only one of the two."""
        created = [a_creation(key=f"order-{number}") for number in range(50)]
        finished = threading.Event()

        def write() -> None:
            try:
                for one in created:
                    store.insert(one)
            finally:
                finished.set()

        def read() -> None:
            number = 0
            while number < len(created):
                was_finished = finished.is_set()
                if _agrees(other, created[number], f"order-{number}"):
                    number += 1
                else:
                    assert not was_finished, "a payment is missing"

        together([write, read])


def _agrees(store: PaymentStore, created: Decision[IncomingPayment], key: str) -> bool:
    """Return whether the store has the payment.

    Assert that the store has both payment and record of the key, or neither.
    """
    is_known = created_under(store, key) is not None
    try:
        store.load(created.answer.id)
    except PaymentNotFound:
        assert not is_known, "the key was committed before its payment"
        return False
    assert created_under(store, key) is not None, "the payment was committed before its key"
    return True

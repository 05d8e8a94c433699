"""The guarantees of a payment store for concurrent callers. This part of `StoreContract` starts threads."""

# ruff: noqa: S101 - a test suite asserts
from functools import partial

import pytest

from incoming_payments.domain.payment import Credit, PaymentId
from incoming_payments.errors import PaymentCompleted, PaymentNotFound
from incoming_payments.limits import UINT64_MAX
from incoming_payments.ports import PaymentStore
from incoming_payments.testing._hooks import StoreHooks
from incoming_payments.testing.steps import (
    UNUSED_ID,
    check_credits,
    check_lock,
    create,
    credit,
    credit_at_once,
    insert_at_once,
    together,
)
from incoming_payments.testing.values import a_creation


class ConcurrencyContract(StoreHooks):
    """The tests that call a store from several threads at once."""

    def test_concurrent_credits_are_credited_once(self, store: PaymentStore) -> None:
        """All callers send the same credits in different orders, and get the same answers."""
        credit_at_once([store] * self.threads)

    def test_concurrent_updates_decide_one_after_the_other(self, store: PaymentStore) -> None:
        """`decide` runs while the store holds the lock on the payment (see `check_lock`)."""
        check_lock(store, store)

    def test_concurrent_credits_complete_a_payment_once(self, store: PaymentStore) -> None:
        """One of the credits completes the payment, and later credits are refused."""
        id = create(store, a_creation(limit=50))

        def caller(number: int) -> list[Credit]:
            accepted = []
            for turn in range(10):
                try:
                    accepted.append(credit(store, id, f"wire-{number}-{turn}", 1))
                except PaymentCompleted:
                    continue
            return accepted

        answers = together([partial(caller, number) for number in range(self.threads)])

        credits = {answer.id: answer for accepted in answers for answer in accepted}
        assert store.load(id).received.value == len(credits) == 50
        assert [answer.completes for answer in credits.values()].count(True) == 1
        check_credits(store, id, credits.values())

    def test_of_concurrent_inserts_with_one_id_one_succeeds(self, store: PaymentStore) -> None:
        """One insert succeeds, and the store contains its payment."""
        insert_at_once([store] * self.threads)

    def test_concurrent_callers_get_their_own_results(self, store: PaymentStore) -> None:
        """Each caller credits its own payment, and gets only the errors of its own wrong calls."""

        def caller(number: int) -> PaymentId:
            id = create(store, a_creation(limit=UINT64_MAX))
            for turn in range(10):
                assert credit(store, id, f"wire-{turn}", number + 1).received.value == (turn + 1) * (number + 1)
                with pytest.raises(PaymentNotFound):
                    credit(store, UNUSED_ID, "wire-1", 1)
            return id

        for number, id in enumerate(together([partial(caller, number) for number in range(self.threads)])):
            assert store.load(id).received.value == 10 * (number + 1)

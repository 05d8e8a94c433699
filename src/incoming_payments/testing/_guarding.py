"""The guarantee of a payment store that it refuses wrong decisions, with the checks of `stores.guard`.

This is a part of `StoreContract`. A host may write its own decisions. If a store did not make these checks, a faulty
decision could credit money that does not exist.
"""

# ruff: noqa: S101 - a test suite asserts
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, MetadataJson
from incoming_payments.errors import BrokenDecision, PaymentNotFound
from incoming_payments.ports import PaymentStore
from incoming_payments.testing._hooks import StoreHooks
from incoming_payments.testing.steps import create, credit
from incoming_payments.testing.values import NOW, a_creation, crediting

_ID: Final = CreditId("wire-1")
_Change = Callable[[IncomingPayment, Decision[Credit]], Any]


def _changed(payment: IncomingPayment, **progress: Any) -> IncomingPayment:
    return evolve(payment, progress=evolve(payment.progress, **progress))


def _without_credit(_: IncomingPayment, right: Decision[Credit]) -> Any:
    events = tuple(evolve(event, credit_id=None) for event in right.events)
    return evolve(right, credit=None, events=events)


def _with_another_total(_: IncomingPayment, right: Decision[Credit]) -> Any:
    assert right.payment is not None
    total = Amount(2 * right.answer.received.value, right.answer.amount.asset)
    events = tuple(evolve(event, received=total) for event in right.events)
    credit = evolve(right.answer, received=total)
    return evolve(right, payment=_changed(right.payment, received=total), events=events, credit=credit)


def _with_another_version(_: IncomingPayment, right: Decision[Credit]) -> Any:
    assert right.payment is not None
    return evolve(right, payment=_changed(right.payment, version=right.payment.version + 1))


def _with_earlier_time(before: IncomingPayment, right: Decision[Credit]) -> Any:
    assert right.payment is not None
    return evolve(right, payment=_changed(right.payment, updated_at=before.updated_at - timedelta(seconds=1)))


def _with_other_terms(_: IncomingPayment, right: Decision[Credit]) -> Any:
    assert right.payment is not None
    return evolve(right, payment=evolve(right.payment, terms=evolve(right.payment.terms, metadata=MetadataJson("{}"))))


_WRONG_UPDATES: Final[dict[str, _Change]] = {
    "a total without a credit": _without_credit,
    "a credit of less than the increase of the total": _with_another_total,
    "a credit without an event": lambda _, right: evolve(right, events=()),
    "an event without a credit": lambda _, right: evolve(right, credit=None),
    "events without a payment": lambda _, right: evolve(right, payment=None),
    "a credit id that was not looked up": lambda _, right: evolve(
        right,
        credit=evolve(right.answer, id=CreditId("wire-2")),
        events=tuple(evolve(event, credit_id=CreditId("wire-2")) for event in right.events),
    ),
    "a version without an event": _with_another_version,
    "an earlier time": _with_earlier_time,
    "other terms": _with_other_terms,
    "no decision": lambda _before, _right: None,
}

_RIGHT: Final = a_creation(key="a-key")
_OTHER: Final = a_creation()
_WRONG_INSERTS: Final[dict[str, Decision[IncomingPayment]]] = {
    "no payment": evolve(_RIGHT, payment=None),
    "no event": evolve(_RIGHT, events=()),
    "an event of another payment": evolve(_RIGHT, events=_OTHER.events),
    "a payment with money": evolve(_RIGHT, payment=crediting("wire-1", 5)(_RIGHT.answer, None).payment),
    "a key of another payment": evolve(_OTHER, keyed=_RIGHT.keyed),
}


class GuardContract(StoreHooks):
    """The tests with wrong decisions. The store calls `guard.check_insert` and `guard.check_update`."""

    @pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in _WRONG_UPDATES.items()])
    def test_a_wrong_update_is_refused(self, store: PaymentStore, change: _Change) -> None:
        """`update` raises `BrokenDecision` and stores nothing. To pass, call `guard.check_update` before you write."""
        id = create(store)
        credit(store, id, "wire-0", 1, NOW + timedelta(seconds=2))
        before = store.load(id), list(store.events(id))

        def decide(payment: IncomingPayment, earlier: Credit | None) -> Any:
            return change(payment, crediting(_ID, 300)(payment, earlier))

        with pytest.raises(BrokenDecision):
            store.update(id, decide, _ID)

        assert before == (store.load(id), list(store.events(id)))
        assert credit(store, id, _ID, 5).received.value == 6

    def test_a_second_credit_under_one_id_is_refused(self, store: PaymentStore) -> None:
        """A decision that ignores the earlier credit raises `BrokenDecision`. Pass that credit to `check_update`."""
        id = create(store)
        first = credit(store, id, _ID, 300)
        before = store.load(id), list(store.events(id))

        def decide(payment: IncomingPayment, _earlier: Credit | None) -> Decision[Credit]:
            return crediting(_ID, 300)(payment, None)

        with pytest.raises(BrokenDecision):
            store.update(id, decide, _ID)

        assert before == (store.load(id), list(store.events(id)))
        assert first == credit(store, id, _ID, 300)

    @pytest.mark.parametrize("decision", [pytest.param(wrong, id=name) for name, wrong in _WRONG_INSERTS.items()])
    def test_a_wrong_insert_is_refused(self, store: PaymentStore, decision: Decision[IncomingPayment]) -> None:
        """`insert` raises `BrokenDecision` and stores nothing. To pass, call `guard.check_insert` before you write."""
        with pytest.raises(BrokenDecision):
            store.insert(decision)

        with pytest.raises(PaymentNotFound):
            store.load(decision.answer.id)

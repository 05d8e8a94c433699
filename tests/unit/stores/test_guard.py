"""The guard refuses every decision that contradicts itself or the stored payment."""

import copy
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import BrokenDecision
from incoming_payments.stores.guard import check_insert, check_update, sweep_at
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import NOW, a_creation, crediting
from kits.changed_payments import changed

CREATED = a_creation(limit=1000, expires_in_s=60)
BEFORE = CREATED.answer
ID = CreditId("wire-1")
CREDITED: Decision[Credit] = crediting(ID, 300)(BEFORE, None)
AFTER = CREDITED.payment
KEYED = a_creation(key="order-1").keyed
OTHER = PaymentId("019b7a0c-ffff-7000-8000-000000000000")
assert AFTER is not None
assert CREDITED.credit is not None


def usd(value: int) -> Amount:
    """Return an amount in the asset of the payment."""
    return Amount(value, Asset("USD", 2))


def refusal(check: Callable[[], object]) -> str:
    """Return the message with which `check` refuses a decision."""
    with pytest.raises(BrokenDecision) as caught:
        check()
    return caught.value.description


def test_decisions_of_the_lifecycle_are_accepted() -> None:
    """A creation, a credit, and a decision that writes nothing pass the guard."""
    assert check_insert(CREATED) == BEFORE
    assert check_update(BEFORE, ID, None, CREDITED) == AFTER
    assert check_update(BEFORE, None, None, Decision("nothing")) is None


def test_equal_values_need_not_be_the_same_object() -> None:
    """A host may build the terms and the totals of its decision again."""
    assert AFTER is not None
    assert CREDITED.credit is not None
    payment = IncomingPayment(copy.deepcopy(BEFORE.terms), AFTER.progress)
    credit = evolve(CREDITED.credit, received=copy.deepcopy(AFTER.received))
    again = evolve(CREDITED, payment=payment, credit=credit)
    assert check_update(BEFORE, ID, None, again) == AFTER


CREATION = "a creation must store a payment that has received nothing, and no credit"
KEY_OF_ANOTHER = "the record of the idempotency key must name the payment of the same decision"
KEY_OF_AN_UPDATE = "only a creation can have an idempotency key"
NO_PAYMENT = "a decision that stores no payment cannot store events, a credit or a key"
TERMS = "a decision cannot change the id or the terms of a payment"
BACKWARDS = "updatedAt must not be before the stored updatedAt"
REOPENED = "a decision must not change a closed_at or expiry_announced_at that is set: keep the stored value"
EVENTS_MISSING = "every change needs an event, and version must equal the number of events so far"
EVENTS_WRONG = "events must name the payment and its total received, with versions that have no gap"
CREDITED_EVENTS = "a credit must have exactly one credited event, and any other change must have none"
NO_CREDIT = "only a credit can change the total received"
COMPLETED = "a completed payment cannot be credited"
COMPLETES = "completes must be true exactly when the credit completes the payment"
CREDIT_ID = "a credit must have the credit id that was looked up, and that id must be unused"
TOTAL = "a credit must raise the total received by its amount"

BROKEN_CREATIONS = [
    ("no decision", "decide must return a Decision, not NoneType", None),
    ("no payment", CREATION, evolve(CREATED, payment=None)),
    ("money received before any credit", CREATION, evolve(CREATED, payment=changed(BEFORE, received=usd(1)))),
    ("a credit", CREATION, evolve(CREATED, credit=CREDITED.credit)),
    ("the key of another payment", KEY_OF_ANOTHER, evolve(CREATED, keyed=KEYED)),
    ("no event", EVENTS_MISSING, evolve(CREATED, events=())),
    (
        "an event of another payment",
        EVENTS_WRONG,
        evolve(CREATED, events=(evolve(CREATED.events[0], payment_id=OTHER),)),
    ),
    ("an event out of order", EVENTS_WRONG, evolve(CREATED, events=(evolve(CREATED.events[0], version=2),))),
]


@pytest.mark.parametrize(("why", "message", "decision"), BROKEN_CREATIONS, ids=[row[0] for row in BROKEN_CREATIONS])
def test_broken_creation_is_refused(why: str, message: str, decision: Any) -> None:  # noqa: ARG001 - the test id
    """Each row breaks one rule of a creation, and the message names that rule."""
    assert refusal(lambda: check_insert(decision)) == message


def payment(**changes: Any) -> Decision[Credit]:
    """Return the credit decision with changes to the payment."""
    assert AFTER is not None
    return evolve(CREDITED, payment=changed(AFTER, **changes))


def credit(**changes: Any) -> Decision[Credit]:
    """Return the credit decision with changes to the credit."""
    assert CREDITED.credit is not None
    return evolve(CREDITED, credit=evolve(CREDITED.credit, **changes))


def euros(value: int) -> Amount:
    """Return an amount in another asset."""
    return Amount(value, Asset("EUR", 2))


COMPLETED_EVENT = evolve(CREDITED.events[0], kind=EventKind.COMPLETED, credit_id=None)
BROKEN_UPDATES = [
    ("no decision", "decide must return a Decision, not int", 7),
    ("events and no payment", NO_PAYMENT, evolve(CREDITED, payment=None, credit=None)),
    ("a credit and no payment", NO_PAYMENT, evolve(CREDITED, payment=None, events=())),
    ("a key and no payment", NO_PAYMENT, evolve(CREDITED, payment=None, events=(), credit=None, keyed=KEYED)),
    ("a key", KEY_OF_AN_UPDATE, evolve(CREDITED, keyed=KEYED)),
    ("another payment", TERMS, payment(id=OTHER)),
    ("another limit", TERMS, payment(limit=usd(2000))),
    ("another expiry", TERMS, payment(expires_at=None)),
    ("another wallet address", TERMS, payment(wallet_address="https://bank.example/bob")),
    ("another client", TERMS, payment(client="https://other.example/")),
    ("other metadata", TERMS, payment(metadata="{}")),
    ("another creation", TERMS, payment(created_at=NOW - timedelta(days=1))),
    ("a version skipped", EVENTS_MISSING, payment(version=3)),
    ("an event missing", EVENTS_MISSING, evolve(CREDITED, events=())),
    (
        "an event with another total",
        EVENTS_WRONG,
        evolve(CREDITED, events=(evolve(CREDITED.events[0], received=usd(1)),)),
    ),
    ("a credited event without a credit", CREDITED_EVENTS, evolve(CREDITED, credit=None)),
    ("a total without a credit", NO_CREDIT, evolve(CREDITED, credit=None, events=(COMPLETED_EVENT,))),
    ("a credit of another payment", CREDIT_ID, credit(payment_id=OTHER)),
    ("a credit under an id not looked up", CREDITED_EVENTS, credit(id=CreditId("wire-2"))),
    ("a credit that is not in the total", TOTAL, credit(amount=usd(299))),
    ("a credit with another total", TOTAL, credit(received=usd(301))),
    ("a credit that completes too early", COMPLETES, credit(completes=True)),
    (
        "a credit without its event",
        CREDITED_EVENTS,
        evolve(CREDITED, events=(evolve(CREDITED.events[0], credit_id=None),)),
    ),
    (
        "an event of another credit",
        CREDITED_EVENTS,
        evolve(CREDITED, events=(evolve(CREDITED.events[0], credit_id=CreditId("wire-2")),)),
    ),
    ("a credit in another asset", TOTAL, credit(amount=euros(300), received=euros(300))),
]


@pytest.mark.parametrize(("why", "message", "decision"), BROKEN_UPDATES, ids=[row[0] for row in BROKEN_UPDATES])
def test_broken_update_is_refused(why: str, message: str, decision: Any) -> None:  # noqa: ARG001 - the test id
    """The guard refuses it with a message that names the rule, and a store with the guard changes nothing."""
    assert refusal(lambda: check_update(BEFORE, ID, None, decision)) == message

    store = MemoryStore()
    store.insert(CREATED)
    with pytest.raises(BrokenDecision):
        store.update(BEFORE.id, lambda _payment, _earlier: decision, ID)
    assert store.load(BEFORE.id) == BEFORE
    assert list(CREATED.events) == list(store.events(BEFORE.id))


def test_final_states_and_times_stay() -> None:
    """An update cannot reopen a payment, withdraw its expiry, credit a full payment, or move `updatedAt` backwards."""
    closed = changed(BEFORE, closed_at=BEFORE.updated_at)
    assert BEFORE.expires_at is not None
    announced = changed(BEFORE, expiry_announced_at=BEFORE.expires_at + timedelta(seconds=1))
    full = changed(BEFORE, received=usd(1000))
    completed = Event(BEFORE.id, 2, EventKind.COMPLETED, NOW, BEFORE.received)
    for ended in (closed, announced):
        reopened = Decision(None, changed(BEFORE, version=2), (completed,))
        assert refusal(partial(check_update, ended, None, None, reopened)) == REOPENED
    later = changed(BEFORE, updated_at=NOW + timedelta(seconds=1))
    assert refusal(lambda: check_update(later, ID, None, CREDITED)) == BACKWARDS
    more = evolve(CREDITED.answer, received=usd(1300))
    after = changed(full, received=usd(1300), version=2)
    event = evolve(CREDITED.events[0], received=usd(1300))
    assert refusal(lambda: check_update(full, ID, None, Decision(more, after, (event,), more))) == COMPLETED


def test_credit_id_is_stored_once() -> None:
    """A decision that ignores the earlier credit is refused, and so is a credit id that was not looked up."""
    assert refusal(lambda: check_update(BEFORE, ID, CREDITED.credit, CREDITED)) == CREDIT_ID
    assert refusal(lambda: check_update(BEFORE, None, None, CREDITED)) == CREDIT_ID


def _after_expiry(payment: IncomingPayment) -> datetime:
    """Return a time at which the expiry of `payment` can be announced."""
    assert payment.expires_at is not None
    return payment.expires_at + timedelta(seconds=1)


SWEEPS: list[tuple[str, Callable[[IncomingPayment], IncomingPayment], bool]] = [
    ("pending", lambda payment: payment, True),
    ("no expiry", lambda payment: changed(payment, expires_at=None), False),
    ("partly paid", lambda payment: changed(payment, received=usd(999)), True),
    ("full", lambda payment: changed(payment, received=usd(1000)), False),
    ("closed", lambda payment: changed(payment, closed_at=NOW), False),
    ("announced", lambda payment: changed(payment, expiry_announced_at=_after_expiry(payment)), False),
]


@pytest.mark.parametrize(("state", "change", "due"), SWEEPS, ids=[state for state, _, _ in SWEEPS])
def test_sweep_finds_payments_that_can_still_expire(
    state: str,  # noqa: ARG001 - the test id
    change: Callable[[IncomingPayment], IncomingPayment],
    due: bool,
) -> None:
    """The sweep time is `expires_at` for a payment that can still expire, and `None` for any other."""
    assert (BEFORE.expires_at if due else None) == sweep_at(change(BEFORE))

"""The guard refuses every decision that contradicts itself or the stored payment."""

from collections.abc import Callable
from datetime import datetime, timedelta
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
OTHER = PaymentId("019b7a0c-ffff-7000-8000-000000000000")
assert AFTER is not None
assert CREDITED.credit is not None


def usd(value: int) -> Amount:
    """Return an amount in the asset of the payment."""
    return Amount(value, Asset("USD", 2))


def test_decisions_of_the_lifecycle_are_accepted() -> None:
    """A creation, a credit, and a decision that writes nothing pass the guard."""
    assert check_insert(CREATED) == BEFORE
    assert check_update(BEFORE, ID, None, CREDITED) == AFTER
    assert check_update(BEFORE, None, None, Decision("nothing")) is None


BROKEN_CREATIONS = [
    ("no decision", None),
    ("no payment", evolve(CREATED, payment=None)),
    ("money received before any credit", evolve(CREATED, payment=changed(BEFORE, received=usd(1)))),
    ("a credit", evolve(CREATED, credit=CREDITED.credit)),
    ("no event", evolve(CREATED, events=())),
    ("an event of another payment", evolve(CREATED, events=(evolve(CREATED.events[0], payment_id=OTHER),))),
    ("an event out of order", evolve(CREATED, events=(evolve(CREATED.events[0], version=2),))),
]


@pytest.mark.parametrize(("why", "decision"), BROKEN_CREATIONS, ids=[why for why, _ in BROKEN_CREATIONS])
def test_broken_creation_is_refused(why: str, decision: Any) -> None:  # noqa: ARG001 - the test id
    """Each row breaks one rule of a creation."""
    with pytest.raises(BrokenDecision):
        check_insert(decision)


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
    ("no decision", 7),
    ("events and no payment", evolve(CREDITED, payment=None, credit=None)),
    ("a credit and no payment", evolve(CREDITED, payment=None, events=())),
    ("another payment", payment(id=OTHER)),
    ("another limit", payment(limit=usd(2000))),
    ("another expiry", payment(expires_at=None)),
    ("another wallet address", payment(wallet_address="https://bank.example/bob")),
    ("another client", payment(client="https://other.example/")),
    ("other metadata", payment(metadata="{}")),
    ("another creation", payment(created_at=NOW - timedelta(days=1))),
    ("a version skipped", payment(version=3)),
    ("an event missing", evolve(CREDITED, events=())),
    ("an event with another total", evolve(CREDITED, events=(evolve(CREDITED.events[0], received=usd(1)),))),
    ("a credited event without a credit", evolve(CREDITED, credit=None)),
    ("a total without a credit", evolve(CREDITED, credit=None, events=(COMPLETED_EVENT,))),
    ("a credit of another payment", credit(payment_id=OTHER)),
    ("a credit under an id not looked up", credit(id=CreditId("wire-2"))),
    ("a credit that is not in the total", credit(amount=usd(299))),
    ("a credit with another total", credit(received=usd(301))),
    ("a credit that completes too early", credit(completes=True)),
    ("a credit without its event", evolve(CREDITED, events=(evolve(CREDITED.events[0], credit_id=None),))),
    (
        "an event of another credit",
        evolve(CREDITED, events=(evolve(CREDITED.events[0], credit_id=CreditId("wire-2")),)),
    ),
    ("a credit in another asset", credit(amount=euros(300), received=euros(300))),
]


@pytest.mark.parametrize(("why", "decision"), BROKEN_UPDATES, ids=[why for why, _ in BROKEN_UPDATES])
def test_broken_update_is_refused(why: str, decision: Any) -> None:  # noqa: ARG001 - the test id
    """The guard refuses it, and a store with the guard changes nothing."""
    with pytest.raises(BrokenDecision):
        check_update(BEFORE, ID, None, decision)

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
        with pytest.raises(BrokenDecision, match="cannot reopen"):
            check_update(ended, None, None, Decision(None, changed(BEFORE, version=2), (completed,)))
    later = changed(BEFORE, updated_at=NOW + timedelta(seconds=1))
    with pytest.raises(BrokenDecision, match="backwards"):
        check_update(later, ID, None, CREDITED)
    more = evolve(CREDITED.answer, received=usd(1300))
    after = changed(full, received=usd(1300), version=2)
    event = evolve(CREDITED.events[0], received=usd(1300))
    with pytest.raises(BrokenDecision, match="cannot be credited"):
        check_update(full, ID, None, Decision(more, after, (event,), more))


def test_credit_id_is_stored_once() -> None:
    """A decision that ignores the earlier credit is refused, and so is a credit id that was not looked up."""
    with pytest.raises(BrokenDecision):
        check_update(BEFORE, ID, CREDITED.credit, CREDITED)
    with pytest.raises(BrokenDecision):
        check_update(BEFORE, None, None, CREDITED)


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

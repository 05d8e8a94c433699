"""Tests of `complete`: close a payment before it has received its `incomingAmount`."""

from datetime import timedelta
from typing import Any

import pytest

from incoming_payments.domain.lifecycle import state_of
from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.domain.transitions import State
from incoming_payments.errors import InvalidValue, PaymentExpired, PaymentNotFound
from incoming_payments.flows.complete import complete
from incoming_payments.flows.run import run
from incoming_payments.ports import Ports
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import NOW, FakeClock, a_creation
from kits.service_kit import NOBODYS_ID

LATER = NOW + timedelta(minutes=1)


class Waiting(MemoryStore):
    """A store whose transaction begins after the `clock` has advanced by a minute."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def update(self, id: PaymentId, decide: Any, credit_id: CreditId | None = None) -> Any:
        """Update the payment after a minute."""
        self._clock.advance(60)
        return super().update(id, decide, credit_id)


def stored(store: MemoryStore, **terms: Any) -> PaymentId:
    """Store a payment, and return its id."""
    created = a_creation(**terms)
    store.insert(created)
    return created.answer.id


def test_clock_is_read_inside_the_transaction() -> None:
    """The payment is completed at the time of the decision, and not at the time of the call."""
    store = Waiting(clock := FakeClock())
    id = stored(store)
    completed = run(complete(id, clock=clock), Ports(store=store))
    assert (completed.closed_at, state_of(completed, LATER)) == (LATER, State.COMPLETED)
    assert completed == store.load(id)


def test_payment_that_expires_while_the_call_waits_is_not_completed() -> None:
    """A payment that has expired at the time of the decision cannot be completed."""
    store = Waiting(clock := FakeClock())
    id = stored(store, expires_in_s=30)
    with pytest.raises(PaymentExpired):
        run(complete(id, clock=clock), Ports(store=store))


def test_completed_payment_does_not_change() -> None:
    """A second call returns the payment of the first."""
    store, clock = MemoryStore(), FakeClock()
    id = stored(store)
    completed = run(complete(id, clock=clock), Ports(store=store))
    clock.advance(60)
    assert run(complete(id, clock=clock), Ports(store=store)) == completed


def test_unknown_payment_and_invalid_arguments_are_refused() -> None:
    """An unknown payment, an invalid id, and a clock that is not in UTC are refused."""
    ports = Ports(store=MemoryStore())
    with pytest.raises(PaymentNotFound):
        run(complete(NOBODYS_ID, clock=FakeClock()), ports)
    with pytest.raises(InvalidValue, match="a payment id is"):
        run(complete("1", clock=FakeClock()), ports)
    assert isinstance(ports.store, MemoryStore)
    id = stored(ports.store)
    with pytest.raises(InvalidValue, match="a time must be a datetime in UTC"):
        run(complete(id, clock=lambda: NOW.replace(tzinfo=None)), ports)

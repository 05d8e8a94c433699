"""Tests of `announce_expired`, the sweep that writes `expired` events."""

import pytest

from incoming_payments.domain.events import EventKind
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import InvalidValue, StoreUnavailable
from incoming_payments.flows.expire import announce_expired
from incoming_payments.flows.machinery.effects import UpdatePayment
from incoming_payments.limits import SWEEP_PAYMENTS_MAX
from incoming_payments.testing import a_creation
from kits.service_kit import ALICE, Service


def payments(service: Service, *expire_in_s: float | None) -> list[PaymentId]:
    """Store payments that expire after these numbers of seconds, and return their ids."""
    made = [a_creation(wallet_address=ALICE, expires_in_s=seconds) for seconds in expire_in_s]
    for creation in made:
        service.store.insert(creation)
    return [creation.answer.id for creation in made]


def kinds(service: Service, id: PaymentId) -> list[EventKind]:
    """Return the kinds of the events of a payment."""
    return [event.kind for event in service.store.events(id)]


def test_event_is_written_once() -> None:
    """An expired payment gets one `expired` event, also when the sweep runs twice."""
    service = Service()
    [due, not_due] = payments(service, 1, 3600)
    service.clock.advance(2)
    assert [service.run(announce_expired(service.now)) for _ in range(2)] == [1, 0]
    assert kinds(service, due) == [EventKind.CREATED, EventKind.EXPIRED]
    assert kinds(service, not_due) == [EventKind.CREATED]


def test_interrupted_sweep_can_be_repeated() -> None:
    """When the store fails in the middle, the written events stay, and the next call writes the others."""
    service = Service()
    ids = payments(service, 1, 2)
    service.clock.advance(60)
    flow = announce_expired(service.now)
    next(flow)
    update = flow.send(ids)
    assert isinstance(update, UpdatePayment)
    service.store.update(update.id, update.decide)
    flow.send(None)
    with pytest.raises(StoreUnavailable):
        flow.throw(StoreUnavailable("locked"))
    assert service.run(announce_expired(service.now)) == 1
    assert all(kinds(service, id) == [EventKind.CREATED, EventKind.EXPIRED] for id in ids)


@pytest.mark.parametrize("limit", [1, SWEEP_PAYMENTS_MAX])
def test_least_and_greatest_limit_are_allowed(limit: int) -> None:
    """The documented bounds are inclusive."""
    service = Service()
    payments(service, 1)
    service.clock.advance(60)
    assert service.run(announce_expired(service.now, limit=limit)) == 1


@pytest.mark.parametrize("limit", [0, -1, SWEEP_PAYMENTS_MAX + 1, True, 1.0])
def test_invalid_limit_is_refused(limit: int) -> None:
    """`limit` must be an integer from 1 to `SWEEP_PAYMENTS_MAX`."""
    service = Service()
    with pytest.raises(InvalidValue) as caught:
        service.run(announce_expired(service.now, limit=limit))
    assert caught.value.details == {"member": "limit"}

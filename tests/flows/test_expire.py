"""The sweep: it gives `expired` events, and nothing hangs on it."""

import pytest

from incoming_payments.domain.events import EventKind
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import InvalidValue, StoreUnavailable
from incoming_payments.flows.effects import FindExpired, UpdatePayment
from incoming_payments.flows.expire import announce_expired
from incoming_payments.limits import SWEEP_PAYMENTS_MAX
from incoming_payments.testing import NOW, a_creation
from service_kit import ALICE, Service, finish


def payments(service: Service, *expire_in_s: float | None) -> list[PaymentId]:
    """Payments that expire in so many seconds."""
    made = [a_creation(wallet_address=ALICE, expires_in_s=seconds) for seconds in expire_in_s]
    for creation in made:
        service.store.insert(creation)
    return [creation.answer.id for creation in made]


def kinds(service: Service, id: PaymentId) -> list[EventKind]:
    """The kinds of a payment's events."""
    return [event.kind for event in service.store.events(id)]


def test_effects_by_hand() -> None:
    """One question for those that are due, then one update each, in the order given."""
    ids = [a_creation().answer.id, a_creation().answer.id]
    flow = announce_expired(NOW)
    assert FindExpired(NOW, SWEEP_PAYMENTS_MAX) == next(flow)
    for expected, answer in zip(ids, (ids, None), strict=True):
        update = flow.send(answer)
        assert isinstance(update, UpdatePayment)
        assert (expected, None) == (update.id, update.credit_id)
    assert finish(flow) == 2


def test_nothing_is_due() -> None:
    """Then the answer is zero, and nothing is updated."""
    service = Service()
    payments(service, 60, None)
    service.clock.advance(60)
    assert service.run(announce_expired(service.now)) == 0


def test_gives_the_event_once() -> None:
    """A payment that has expired gets one `expired` event, however often the sweep comes round."""
    service = Service()
    [due, not_due] = payments(service, 1, 3600)
    service.clock.advance(2)
    assert [service.run(announce_expired(service.now)) for _ in range(2)] == [1, 0]
    assert kinds(service, due) == [EventKind.CREATED, EventKind.EXPIRED]
    assert kinds(service, not_due) == [EventKind.CREATED]


def test_completed_payment_does_not_expire() -> None:
    """What was filled in time stays completed, and gets no `expired` event."""
    service = Service()
    created = a_creation(wallet_address=ALICE, limit=1, expires_in_s=1)
    service.store.insert(created)
    service.receive(created.answer.id, 1)
    service.clock.advance(2)
    service.run(announce_expired(service.now))
    assert EventKind.EXPIRED not in kinds(service, created.answer.id)


def test_limit_bounds_one_call() -> None:
    """At most `limit` at a time, the longest expired first; an answer of `limit` says that there may be more."""
    service = Service()
    ids = payments(service, 3, 1, 2)
    service.clock.advance(60)
    assert [service.run(announce_expired(service.now, limit=2)) for _ in range(3)] == [2, 1, 0]
    assert all(kinds(service, id)[-1] is EventKind.EXPIRED for id in ids)


def test_cut_short_goes_on_where_it_stopped() -> None:
    """When the store gives up halfway, what was announced stays so, and the next call does the rest."""
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
def test_limit_is_bounded_itself(limit: int) -> None:
    """A sweep that could not end is not begun."""
    service = Service()
    with pytest.raises(InvalidValue) as caught:
        service.run(announce_expired(service.now, limit=limit))
    assert caught.value.details == {"member": "limit"}


def test_a_naive_moment_is_refused() -> None:
    """It would mean another one on another machine."""
    service = Service()
    with pytest.raises(InvalidValue) as caught:
        service.run(announce_expired(service.now.replace(tzinfo=None)))
    assert caught.value.details == {"member": "now"}

"""Money is booked: contract section 3, through the one call that hosts make."""

from datetime import timedelta
from typing import Any

import pytest

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, PaymentId
from incoming_payments.errors import (
    AmountOverflow,
    AssetMismatch,
    CreditIdReused,
    InvalidValue,
    PaymentCompleted,
    PaymentExpired,
    PaymentNotFound,
)
from incoming_payments.flows.effects import UpdatePayment
from incoming_payments.flows.receive import receive
from incoming_payments.flows.run import run
from incoming_payments.limits import UINT64_MAX
from incoming_payments.ports import Ports
from incoming_payments.testing import NOW, a_creation
from service_kit import ALICE, JPY, NOBODYS_ID, USD, Service, finish


def a_payment(service: Service, **terms: Any) -> PaymentId:
    """The id of a payment into Alice's wallet address."""
    created = a_creation(wallet_address=ALICE, **terms)
    service.store.insert(created)
    return created.answer.id


def test_one_effect_by_hand() -> None:
    """One question to the store, with the decision for it to run: nothing is loaded here, and nothing saved."""
    payment = a_creation(wallet_address=ALICE, limit=2500).answer
    flow = receive(payment.id, credit="wire-1", amount=Amount(2500, USD), now=NOW)
    effect = next(flow)
    assert isinstance(effect, UpdatePayment)
    assert (payment.id, "wire-1") == (effect.id, effect.credit_id)
    decision: Decision[Credit] = effect.decide(payment, None)
    assert decision.credit == decision.answer
    assert (decision.answer.received.value, decision.answer.completes) == (2500, True)
    assert decision.answer == finish(flow, decision.answer)


def test_needs_nothing_but_a_store() -> None:
    """A core banking process that only books money plugs in a store and no more."""
    service = Service()
    id = a_payment(service)
    flow = receive(id, credit="wire-1", amount=Amount(5, USD), now=NOW)
    assert run(flow, Ports(store=service.store)).received.value == 5


def test_3_total_reaches_incoming_amount_completes() -> None:
    """Row 1: the credit that reaches `incomingAmount` completes, and everything after it is rejected."""
    service = Service()
    id = a_payment(service, limit=2500)
    assert ((booked := service.receive(id, 2499)).received.value, booked.completes) == (2499, False)
    assert ((booked := service.receive(id, 1, credit="wire-2")).received.value, booked.completes) == (2500, True)
    with pytest.raises(PaymentCompleted):
        service.receive(id, 1, credit="wire-3")


def test_3_total_exceeds_incoming_amount_completes() -> None:
    """Row 1: so does the one that passes it; the money has arrived, so all of it is booked."""
    service = Service()
    id = a_payment(service, limit=2500)
    booked = service.receive(id, 9000)
    assert (booked.received.value, booked.completes) == (9000, True)
    with pytest.raises(PaymentCompleted):
        service.receive(id, 1, credit="wire-2")


def test_3_current_time_exceeds_expires_at_rejects() -> None:
    """Row 2: the moment itself still accepts, any later one rejects, and no sweep has to run for that."""
    service = Service()
    id = a_payment(service, expires_in_s=60)
    service.clock.advance(60)
    service.receive(id, 1)
    service.clock.advance(0.000001)
    with pytest.raises(PaymentExpired):
        service.receive(id, 1, credit="wire-2")
    assert service.store.load(id).received.value == 1


def test_7_payments_after_completed_are_rejected() -> None:
    """Rejected means that nothing is booked, and that the reason has a name."""
    service = Service()
    id = a_payment(service, limit=1)
    service.receive(id, 1)
    with pytest.raises(PaymentCompleted) as refused:
        service.receive(id, 1, credit="wire-2")
    assert refused.value.code == "payment_completed"


def test_7_payments_after_expires_at_are_rejected() -> None:
    """Likewise for a payment whose time is over."""
    service = Service()
    id = a_payment(service, expires_in_s=1)
    service.clock.advance(2)
    with pytest.raises(PaymentExpired) as refused:
        service.receive(id, 1)
    assert refused.value.code == "payment_expired"


def test_repeated_credit_id_is_answered_the_same_and_booked_once() -> None:
    """A host whose call was cut short repeats it: also once the payment has completed or its time is over."""
    service = Service()
    id = a_payment(service, limit=100, expires_in_s=60)
    first = service.receive(id, 40)
    assert first == service.receive(id, 40)
    service.receive(id, 60, credit="wire-2")
    service.clock.advance(3600)
    assert first == service.receive(id, 40)
    assert len(service.store.events(service.store.load(first.payment_id).id)) - 1 == 3


# One row per rule: what is booked after 40 minor units under wire-1, and the refusal.
REFUSALS: list[tuple[str, dict[str, Any], type[Exception]]] = [
    ("no such payment", {"id": NOBODYS_ID}, PaymentNotFound),
    ("no id at all", {"id": "../secrets"}, InvalidValue),
    ("no credit id", {"credit": ""}, InvalidValue),
    ("credit id too long", {"credit": "x" * 201}, InvalidValue),
    ("credit id of another amount", {"credit": "wire-1", "amount": Amount(41, USD)}, CreditIdReused),
    ("another asset", {"amount": Amount(1, JPY)}, AssetMismatch),
    ("nothing", {"amount": Amount(0, USD)}, InvalidValue),
    ("more than 64 bits", {"amount": Amount(UINT64_MAX - 39, USD)}, AmountOverflow),
]


@pytest.mark.parametrize(("booking", "error"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_refusals(booking: dict[str, Any], error: type[Exception]) -> None:
    """What cannot be booked is refused by name, and the payment stays as it was."""
    service = Service()
    created = a_creation(wallet_address=ALICE)
    service.store.insert(created)
    service.receive(created.answer.id, 40)
    before = service.store.load(created.answer.id)
    arguments = {"id": created.answer.id, "credit": "wire-2", "amount": Amount(1, USD), "now": service.now, **booking}
    with pytest.raises(error):
        service.run(receive(**arguments))
    assert before == service.store.load(created.answer.id)


def test_up_to_64_bits() -> None:
    """The largest total that the resource can show is booked."""
    service = Service()
    id = a_payment(service)
    service.receive(id, 1)
    assert service.receive(id, UINT64_MAX - 1, credit="wire-2").received.value == UINT64_MAX


def test_clock_that_went_back() -> None:
    """`updatedAt` never moves backwards, and the money is booked all the same."""
    service = Service()
    created = a_creation(wallet_address=ALICE, now=NOW)
    service.store.insert(created)
    service.clock.advance(-3600)
    assert service.receive(created.answer.id, 1).at == NOW
    assert service.store.load(created.answer.id).updated_at == NOW
    service.clock.advance(7200)
    service.receive(created.answer.id, 1, credit="wire-2")
    assert NOW + timedelta(hours=1) == service.store.load(created.answer.id).updated_at


@pytest.mark.parametrize(
    ("booking", "member"),
    [({"now": NOW.replace(tzinfo=None)}, "now"), ({"now": None}, "now"), ({"amount": 100}, "amount")],
    ids=str,
)
def test_what_is_no_moment_or_no_amount_is_said_at_once(booking: dict[str, Any], member: str) -> None:
    """Before the store is asked."""
    given: dict[str, Any] = {"credit": "wire-1", "amount": Amount(100, USD), "now": NOW}
    with pytest.raises(InvalidValue) as caught:
        run(receive(NOBODYS_ID, **{**given, **booking}), Ports())
    assert caught.value.details == {"member": member}

"""Tests of `receive`, the call by which a host credits money: spec section 3."""

from typing import Any

import pytest

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import (
    AmountOverflow,
    AssetMismatch,
    CreditIdReused,
    InvalidValue,
    PaymentExpired,
    PaymentNotFound,
)
from incoming_payments.flows.machinery.effects import UpdatePayment
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.flows.machinery.run import run
from incoming_payments.flows.receive import receive
from incoming_payments.limits import UINT64_MAX
from incoming_payments.testing import NOW, FakeClock, a_creation
from kits.service_kit import ALICE, JPY, NOBODYS_ID, USD, Service


def a_payment(service: Service, **terms: Any) -> PaymentId:
    """Store a payment for Alice's wallet address, and return its id."""
    created = a_creation(wallet_address=ALICE, **terms)
    service.store.insert(created)
    return created.answer.id


def test_clock_is_read_when_the_store_decides() -> None:
    """A credit that waited for the store until after `expiresAt` is refused, although it was requested in time."""
    payment = a_creation(wallet_address=ALICE, expires_in_s=60).answer
    clock = FakeClock()
    effect = next(receive(payment.id, credit="wire-1", amount=Amount(5, USD), clock=clock))
    assert isinstance(effect, UpdatePayment)
    clock.advance(60)
    assert effect.decide(payment, None).answer.at == clock()
    clock.advance(0.000001)
    with pytest.raises(PaymentExpired):
        effect.decide(payment, None)


def test_clock_that_returns_local_time_during_the_transaction_is_refused() -> None:
    """The time that the decision reads must be in UTC too."""
    payment = a_creation(wallet_address=ALICE).answer
    times = iter([NOW, NOW.replace(tzinfo=None)])
    effect = next(receive(payment.id, credit="wire-1", amount=Amount(5, USD), clock=lambda: next(times)))
    assert isinstance(effect, UpdatePayment)
    with pytest.raises(InvalidValue):
        effect.decide(payment, None)


def test_repeated_credit_id_is_credited_once() -> None:
    """A repeated credit id returns the first result, also after completion and expiry."""
    service = Service()
    id = a_payment(service, limit=100, expires_in_s=60)
    first = service.receive(id, 40)
    assert first == service.receive(id, 40)
    service.receive(id, 60, credit="wire-2")
    service.clock.advance(3600)
    assert first == service.receive(id, 40)
    assert len(service.store.events(service.store.load(first.payment_id).id)) - 1 == 3


# One row per rule: a credit after a first one of 40 minor units under wire-1, and the refusal.
REFUSALS: list[tuple[str, dict[str, Any], type[Exception]]] = [
    ("unknown payment", {"id": NOBODYS_ID}, PaymentNotFound),
    ("invalid payment id", {"id": "../secrets"}, InvalidValue),
    ("empty credit id", {"credit": ""}, InvalidValue),
    ("credit id too long", {"credit": "x" * 201}, InvalidValue),
    ("credit id with another amount", {"credit": "wire-1", "amount": Amount(41, USD)}, CreditIdReused),
    ("another asset", {"amount": Amount(1, JPY)}, AssetMismatch),
    ("amount of zero", {"amount": Amount(0, USD)}, InvalidValue),
    ("more than 64 bits", {"amount": Amount(UINT64_MAX - 39, USD)}, AmountOverflow),
]


@pytest.mark.parametrize(("changes", "error"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_refused_credit_changes_nothing(changes: dict[str, Any], error: type[Exception]) -> None:
    """Each refusal has its own exception, and the payment does not change."""
    service = Service()
    created = a_creation(wallet_address=ALICE)
    service.store.insert(created)
    service.receive(created.answer.id, 40)
    before = service.store.load(created.answer.id)
    arguments = {
        "id": created.answer.id,
        "credit": "wire-2",
        "amount": Amount(1, USD),
        "clock": service.clock,
        **changes,
    }
    with pytest.raises(error):
        service.run(receive(**arguments))
    assert before == service.store.load(created.answer.id)


@pytest.mark.parametrize(
    ("changes", "member"),
    [
        ({"clock": lambda: NOW.replace(tzinfo=None)}, "now"),
        ({"clock": lambda: None}, "now"),
        ({"clock": NOW}, "clock"),
        ({"clock": None}, "clock"),
        ({"amount": 100}, "amount"),
    ],
    ids=["naive time", "no time", "a time for a clock", "no clock", "amount"],
)
def test_invalid_argument_is_refused_before_the_store_is_used(changes: dict[str, Any], member: str) -> None:
    """A wrong time or amount raises `InvalidValue`, although there is no store."""
    given: dict[str, Any] = {"credit": "wire-1", "amount": Amount(100, USD), "clock": lambda: NOW}
    with pytest.raises(InvalidValue) as caught:
        run(receive(NOBODYS_ID, **{**given, **changes}), Ports())
    assert caught.value.details == {"member": member}

"""Tests of `flows.views`: the resource of spec section 2.2, built from a stored payment."""

from datetime import timedelta

import pytest

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import IncomingPayment, MetadataJson
from incoming_payments.errors import InvalidValue
from incoming_payments.flows.views import check_methods, view_of
from incoming_payments.limits import METHODS_MAX
from incoming_payments.testing import NOW, a_creation
from incoming_payments.wire import PaymentView
from kits.changed_payments import changed
from kits.service_kit import ALICE, USD

PAYMENT = a_creation(wallet_address=ALICE, limit=100, expires_in_s=60, metadata='{"a":1}').answer
FULL = changed(PAYMENT, received=Amount(100, USD), updated_at=NOW + timedelta(seconds=1))
CLOSED = changed(PAYMENT, closed_at=NOW)
URL = "https://bank.example/x"


def test_spec_2_2_members() -> None:
    """The resource has every member of the payment, and the URL from the caller."""
    method = IlpPaymentMethod("test.bank.x", "c2VjcmV0")
    assert PaymentView(
        id=URL,
        wallet_address=ALICE.url,
        completed=True,
        incoming_amount=Amount(100, USD),
        received_amount=Amount(100, USD),
        expires_at=NOW + timedelta(seconds=60),
        metadata=MetadataJson('{"a":1}'),
        created_at=NOW,
        updated_at=NOW + timedelta(seconds=1),
        methods=(method,),
    ) == view_of(FULL, URL, [method], NOW)


@pytest.mark.parametrize(
    ("payment", "after_s", "completed"),
    [
        (PAYMENT, 0, False),
        (PAYMENT, 61, False),  # expired
        (FULL, 0, True),
        (FULL, 61, True),  # a full payment stays completed after expiry
        (CLOSED, 0, True),
        (CLOSED, 61, True),
        (changed(PAYMENT, limit=None, received=Amount(2**64 - 1, USD)), 0, False),
    ],
)
def test_spec_2_2_completed(payment: IncomingPayment, after_s: float, completed: bool) -> None:
    """`completed` is true only in the completed state."""
    assert completed == view_of(payment, URL, (), NOW + timedelta(seconds=after_s)).completed


def test_spec_2_2_methods_are_unique() -> None:
    """Duplicate methods of the allocator are removed, and the order is kept."""
    first, second = IlpPaymentMethod("test.bank.x", "c2VjcmV0"), IlpPaymentMethod("test.bank.y", "c2VjcmV0")
    assert (first, second) == view_of(PAYMENT, URL, [first, second, first, second], NOW).methods


@pytest.mark.parametrize("count", [1, METHODS_MAX])
def test_least_and_greatest_number_of_methods_are_allowed(count: int) -> None:
    """The documented bounds are inclusive."""
    methods = [IlpPaymentMethod("test.bank.x", "c2VjcmV0")] * count
    assert check_methods(methods) == methods


@pytest.mark.parametrize("count", [0, METHODS_MAX + 1])
def test_wrong_number_of_methods_is_refused(count: int) -> None:
    """An allocator that returns no methods, or too many, is refused."""
    with pytest.raises(InvalidValue) as caught:
        check_methods([IlpPaymentMethod("test.bank.x", "c2VjcmV0")] * count)
    assert str(caught.value) == f"the method allocator must return 1 to {METHODS_MAX} payment methods, not {count}"

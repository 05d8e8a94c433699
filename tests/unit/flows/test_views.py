"""Tests of `flows.views`: the resource of spec section 2.2, built from a stored payment."""

from typing import Any

import pytest

from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import IncomingPayment
from incoming_payments.errors import ConfigurationError
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.views import check_methods, view_of
from incoming_payments.limits import METHODS_MAX
from incoming_payments.service import IncomingPayments
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import a_creation
from kits.service_kit import ALICE, Hosted

PAYMENT = a_creation(wallet_address=ALICE, limit=100, expires_in_s=60, metadata='{"a":1}').answer
URL = "https://bank.example/x"
METHOD = IlpPaymentMethod("test.bank.x", "c2VjcmV0")
POLICY = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")


class Allocator:
    """A `MethodAllocator` with a fixed answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def allocate(self, _: IncomingPayment) -> Any:
        """Return the answer."""
        return self.answer


def test_spec_2_2_methods_are_unique() -> None:
    """Duplicate methods of the allocator are removed, and the order is kept."""
    first, second = IlpPaymentMethod("test.bank.x", "c2VjcmV0"), IlpPaymentMethod("test.bank.y", "c2VjcmV0")
    assert (first, second) == view_of(PAYMENT, URL, [first, second, first, second]).methods


@pytest.mark.parametrize("count", [1, METHODS_MAX])
def test_least_and_greatest_number_of_methods_are_allowed(count: int) -> None:
    """The documented bounds are inclusive."""
    methods = [METHOD] * count
    assert check_methods(methods) == methods


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ([], "list of length 0"),
        ((METHOD,) * (METHODS_MAX + 1), f"tuple of length {METHODS_MAX + 1}"),
        (None, "NoneType"),
        ("x", "str"),
        (METHOD, "IlpPaymentMethod"),
        ({METHOD: METHOD}, "dict"),
        ([1], "list of int"),
        ([METHOD, None], "list of NoneType"),
        ([IlpPaymentMethod], "list of the class IlpPaymentMethod"),
    ],
)
def test_wrong_answer_of_the_allocator_is_refused(answer: object, found: str) -> None:
    """The error names the method of the port, its answer, and the answer to return."""
    ports = Ports(store=MemoryStore(), wallet_addresses=Hosted(), methods=Allocator(answer))
    service = IncomingPayments(policy=POLICY, ports=ports)
    with pytest.raises(ConfigurationError) as caught:
        service.create(wallet_address=ALICE.url)
    text = f"methods.allocate returned {found}: return a list of 1 to {METHODS_MAX} IlpPaymentMethod"
    assert str(caught.value) == text

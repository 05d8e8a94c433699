"""Tests of `approvals`: each proposal goes to its method of the port."""

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.methods import ilp_address
from incoming_payments.domain.payment import CreditId
from incoming_payments.flows.machinery.ports import AsyncPorts, Ports
from incoming_payments.ports.approval import Approval, ProposedCredit, ProposedPayment
from incoming_payments.testing import NOW, a_creation
from kits.stream_kit import USD

PAYMENT = a_creation(limit=1000).answer
CREDIT = ProposedCredit(
    payment=PAYMENT,
    credit_id=CreditId("stream:1"),
    amount=Amount(5, USD),
    peer=ilp_address("test.peer"),
    expires_at=NOW,
    data=b"data",
)


class Rules:
    """An approval port that returns its method and its argument."""

    def approve_payment(self, proposed: ProposedPayment) -> Approval:
        """Return the name and the argument of this method."""
        return ("payment", proposed)  # type: ignore[return-value] # for the test

    def approve_credit(self, proposed: ProposedCredit) -> Approval:
        """Return the name and the argument of this method."""
        return ("credit", proposed)  # type: ignore[return-value] # for the test


@pytest.mark.parametrize("kind", [Ports, AsyncPorts])
def test_each_proposal_goes_to_its_method(kind: type[Ports | AsyncPorts]) -> None:
    """`Ports` make the calls of the port, and keep its bound when other ports are replaced."""
    calls = evolve(kind(approval=Rules(), approval_s=3), store=None).approval_calls
    assert calls is not None
    assert calls.request(ProposedPayment(PAYMENT)).wait() == ("payment", ProposedPayment(PAYMENT))
    assert calls.request(CREDIT).wait() == ("credit", CREDIT)

"""Tests of `ports.approval`: the values that the host decides about."""

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.methods import ilp_address
from incoming_payments.domain.payment import CreditId
from incoming_payments.ports.approval import ProposedCredit, ProposedPayment
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


def test_proposals_name_client_wallet_address_and_amount() -> None:
    """Both proposals have the facts of the payment. A payment without `incomingAmount` has no amount."""
    proposed = ProposedPayment(PAYMENT)
    facts = (PAYMENT.client, PAYMENT.wallet_address)
    assert (proposed.client, proposed.wallet_address) == facts == (CREDIT.client, CREDIT.wallet_address)
    assert (proposed.amount, CREDIT.amount) == (Amount(1000, USD), Amount(5, USD))
    assert ProposedPayment(a_creation().answer).amount is None

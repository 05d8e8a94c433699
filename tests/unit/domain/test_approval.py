"""Tests of `Approved`: it covers one credit, and no other."""

from typing import Any

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.approval import Approved, Approver
from incoming_payments.domain.payment import Credit, CreditId, PaymentId
from incoming_payments.testing import NOW
from kits.service_kit import NOBODYS_ID
from kits.stream_kit import USD

ID = PaymentId(NOBODYS_ID)
CREDIT = Credit(ID, CreditId("stream:1"), Amount(5, USD), Amount(7, USD), completes=False, at=NOW)
APPROVED = Approved(Approver.HOST, ID, CreditId("stream:1"), Amount(5, USD))


@pytest.mark.parametrize(
    ("changes", "covered"),
    [
        ({}, True),
        ({"by": Approver.NO_PORT}, True),
        ({"payment_id": PaymentId(NOBODYS_ID.replace("0", "1"))}, False),
        ({"credit_id": CreditId("stream:2")}, False),
        ({"amount": Amount(6, USD)}, False),
        ({"amount": Amount(5, Asset("EUR", 2))}, False),
    ],
)
def test_approval_covers_its_credit(changes: dict[str, Any], covered: bool) -> None:
    """The payment, the credit id, the value and the asset must all be those of the credit."""
    assert evolve(APPROVED, **changes).covers(CREDIT) is covered

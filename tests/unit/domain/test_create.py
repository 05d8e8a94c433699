"""`domain.lifecycle.create`: new payments, and the terms that are refused."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import Decision, state_of
from incoming_payments.domain.payment import ClientId, IncomingPayment, MetadataJson, PaymentId, Progress, Terms
from incoming_payments.domain.transitions import State
from incoming_payments.errors import AssetMismatch, IncomingPaymentsError, TermsRefused
from incoming_payments.testing import NOW, a_creation, a_wallet_address
from kits.lifecycle_kit import EUR, EXPIRY, TICK, USD


def create(
    *,
    limit: Amount | None = None,
    expires_at: datetime | None = None,
    metadata: MetadataJson | None = None,
    expiry_s_max: int = 3600,
    default_expiry_s: int | None = None,
) -> Decision[IncomingPayment]:
    return lifecycle.create(
        id=PaymentId("019b76da-a800-7000-8000-000000000000"),
        wallet_address=a_wallet_address(),
        client=ClientId("https://shop.example"),
        limit=limit,
        expires_at=expires_at,
        metadata=metadata,
        now=NOW,
        expiry_s_max=expiry_s_max,
        default_expiry_s=default_expiry_s,
    )


@pytest.mark.parametrize(
    ("limit", "expires_at", "expected"),
    [
        (None, None, NOW + timedelta(seconds=600)),
        (None, EXPIRY, EXPIRY),
        (Amount(1, USD), None, None),
        (Amount(1, USD), EXPIRY, EXPIRY),
    ],
)
def test_default_expiry_applies_to_payments_without_amount_and_expiry(
    limit: Amount | None, expires_at: datetime | None, expected: datetime | None
) -> None:
    """Such a payment could stay open forever. An expiry that the client requests stays, and so does an amount."""
    payment = create(limit=limit, expires_at=expires_at, default_expiry_s=600).answer
    assert payment.expires_at == expected
    assert create(limit=limit, expires_at=expires_at).answer.expires_at == expires_at


def test_spec_3_newly_created() -> None:
    """A new payment has received zero, is not completed, and has the requested terms."""
    decision = create(limit=Amount(1000, USD), expires_at=EXPIRY, metadata=MetadataJson('{"a":1}'))
    payment = decision.answer
    terms = Terms(
        id=PaymentId("019b76da-a800-7000-8000-000000000000"),
        wallet_address=a_wallet_address().url,
        client=ClientId("https://shop.example"),
        asset=USD,
        created_at=NOW,
        limit=Amount(1000, USD),
        expires_at=EXPIRY,
        metadata=MetadataJson('{"a":1}'),
    )
    assert payment == IncomingPayment(terms, Progress(Amount(0, USD), NOW, version=1))
    assert state_of(payment, NOW) is State.PENDING
    assert decision == Decision(
        payment, payment, (Event(payment.id, 1, EventKind.CREATED, NOW, Amount(0, USD)),), credit=None
    )


def test_create_without_terms() -> None:
    """All terms are optional."""
    payment = create().answer
    assert (payment.limit, payment.expires_at, payment.metadata) == (None, None, None)


@pytest.mark.parametrize(
    ("terms", "refusal", "member", "message"),
    [
        pytest.param(
            {"limit": Amount(0, EUR), "expires_at": NOW},
            AssetMismatch,
            "incomingAmount",
            "incomingAmount must be in USD at scale 2, the asset of the wallet address",
            id="another asset code",
        ),
        pytest.param(
            {"limit": Amount(1, Asset("USD", 3))},
            AssetMismatch,
            "incomingAmount",
            "incomingAmount must be in USD at scale 2, the asset of the wallet address",
            id="another asset scale",
        ),
        pytest.param(
            {"limit": Amount(0, USD), "expires_at": NOW},
            TermsRefused,
            "incomingAmount.value",
            "incomingAmount.value must be greater than zero",
            id="nothing to receive",
        ),
        pytest.param(
            {"expires_at": NOW - TICK}, TermsRefused, "expiresAt", "expiresAt must be in the future", id="in the past"
        ),
        pytest.param({"expires_at": NOW}, TermsRefused, "expiresAt", "expiresAt must be in the future", id="now"),
        pytest.param(
            {"expires_at": NOW + timedelta(hours=1) + TICK},
            TermsRefused,
            "expiresAt",
            "expiresAt must be at most 3600 seconds in the future",
            id="too far ahead",
        ),
    ],
)
def test_create_refused(terms: dict[str, Any], refusal: type[IncomingPaymentsError], member: str, message: str) -> None:
    """Invalid terms are refused in this order, and the error names the member."""
    with pytest.raises(refusal) as caught:
        create(**terms)
    assert type(caught.value) is refusal
    assert str(caught.value) == message
    assert caught.value.details == {"member": member}


@pytest.mark.parametrize("expires_at", [NOW + TICK, NOW + timedelta(hours=1)])
def test_create_accepts_expiries_at_both_bounds(expires_at: datetime) -> None:
    """`expiresAt` may be the next microsecond, or exactly as far ahead as the policy allows."""
    assert create(expires_at=expires_at).answer.expires_at == expires_at


def test_create_accepts_expiries_up_to_a_year_by_default() -> None:
    """By default, `expiresAt` may be at most 366 days in the future."""
    assert a_creation(expires_in_s=366 * 86400).answer.expires_at == NOW + timedelta(days=366)
    with pytest.raises(TermsRefused) as caught:
        a_creation(expires_in_s=366 * 86400 + 1)
    assert str(caught.value) == "expiresAt must be at most 31622400 seconds in the future"

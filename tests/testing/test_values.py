"""The values to begin with can be had as they are or with what a test is about."""

from datetime import timedelta

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.payment import client_id
from incoming_payments.testing import NOW, a_creation, a_wallet_address, crediting


def test_payments_differ_by_their_ids() -> None:
    """So that a test may store several."""
    one, other = a_creation().answer, a_creation().answer
    assert one.id != other.id
    assert one.created_at == NOW


def test_what_a_test_is_about_can_be_given() -> None:
    """Everything else keeps its default."""
    yen = a_wallet_address("https://bank.example/bob", asset=Asset("JPY", 0))
    payment = a_creation(wallet_address=yen, limit=5, expires_in_s=60, metadata="{}", client=client_id("me")).answer
    assert (payment.wallet_address, payment.asset, payment.client) == (yen.url, yen.asset, "me")
    assert payment.expires_at == NOW + timedelta(seconds=60)
    assert crediting("wire-1", 5, asset=yen.asset)(payment, None).answer.completes

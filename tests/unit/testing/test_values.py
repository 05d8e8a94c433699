"""The example values have defaults, and each value can be replaced."""

from datetime import timedelta

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.payment import client_id
from incoming_payments.testing import NOW, a_creation, a_wallet_address, crediting


def test_each_payment_has_its_own_id() -> None:
    """A test can store several payments in one store."""
    one, other = a_creation().answer, a_creation().answer
    assert one.id != other.id
    assert one.created_at == NOW


def test_values_can_be_replaced() -> None:
    """The other values keep their defaults."""
    yen = a_wallet_address("https://bank.example/bob", asset=Asset("JPY", 0))
    payment = a_creation(wallet_address=yen, limit=5, expires_in_s=60, metadata="{}", client=client_id("me")).answer
    assert (payment.wallet_address, payment.asset, payment.client) == (yen.url, yen.asset, "me")
    assert payment.expires_at == NOW + timedelta(seconds=60)
    keyed = a_creation(client=client_id("me"), key="order-1", fingerprint="a" * 64, kept_s=5).keyed
    assert keyed is not None
    assert (keyed.client, keyed.key, keyed.fingerprint) == ("me", "order-1", "a" * 64)
    assert keyed.until == NOW + timedelta(seconds=5)
    assert crediting("wire-1", 5, asset=yen.asset)(payment, None).answer.completes

"""Idempotency keys, and the record of a payment that was created under one."""

from typing import Any

import pytest
from attrs import evolve

from incoming_payments.domain.idempotency import idempotency_key
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import IDEMPOTENCY_KEY_CHARS_MAX
from incoming_payments.testing import NOW, a_creation


@pytest.mark.parametrize(
    "key", ["a", " ", "~", "8e03978e-40d5-43dd-bc93-6894a57f9324", 'a b"\\', "k" * IDEMPOTENCY_KEY_CHARS_MAX]
)
def test_printable_ascii_is_a_key(key: str) -> None:
    """A key has 1 to 255 characters of RFC 9651 §3.3.3, with spaces and quotes, and is not changed."""
    assert idempotency_key(key) == key
    assert IDEMPOTENCY_KEY_CHARS_MAX == 255


@pytest.mark.parametrize("key", ["", "k" * 256, "a\n", "a\x7f", "\x00", "ü", "a\ud800", 5, None, b"a"])
def test_other_text_is_no_key(key: Any) -> None:
    """The error says which characters a key has, and does not repeat the key."""
    with pytest.raises(InvalidValue) as caught:
        idempotency_key(key)
    assert caught.value.description == "an idempotency key must have 1 to 255 printable ASCII characters"
    assert caught.value.details == {"member": "idempotency_key"}


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("key", ""),
        ("fingerprint", "0" * 63),
        ("fingerprint", "A" * 64),
        ("fingerprint", "0" * 64 + "\n"),
        ("payment", "5"),
        ("until", NOW.replace(tzinfo=None)),
    ],
)
def test_record_cannot_hold_an_invalid_member(member: str, value: Any) -> None:
    """The constructor refuses it."""
    keyed = a_creation(key="order-1").keyed
    assert keyed is not None
    with pytest.raises(InvalidValue):
        evolve(keyed, **{member: value})

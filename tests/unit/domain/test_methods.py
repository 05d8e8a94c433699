"""`domain.methods`: payment methods. Spec sections 2.3 and 8."""

from typing import Any

import pytest

from incoming_payments.domain.methods import ILP_ADDRESS_PATTERN, SHARED_SECRET_PATTERN, IlpPaymentMethod, ilp_address
from incoming_payments.errors import InvalidValue
from kits.frozen_values import assert_frozen

ADDRESS = "ilpAddress must be an ILP address of at most 1023 characters, such as g.bank.alice"
SECRET = "sharedSecret must be base64url without padding, and have at most 256 characters"


def test_spec_2_3_patterns() -> None:
    """The patterns are equal to the patterns of the specification, apart from one redundant escape."""
    assert ILP_ADDRESS_PATTERN == r"(g|private|example|peer|self|test[1-3]?|local)([.][a-zA-Z0-9_~-]+)+"
    assert SHARED_SECRET_PATTERN.replace("\\", "") == "[a-zA-Z0-9-_]+"


@pytest.mark.parametrize(
    "address",
    [
        "g.a",
        "private.a",
        "example.a",
        "peer.a",
        "self.a",
        "test.a",
        "test1.a",
        "test2.a",
        "test3.a",
        "local.a",
        "g.bank.Alice_~-9",
        "g." + "a" * 1021,
    ],
)
def test_spec_2_3_ilp_address(address: str) -> None:
    """An ILP address has a known prefix, at least one further segment, and at most 1023 characters."""
    assert IlpPaymentMethod(address, "c2VjcmV0").ilp_address == address


@pytest.mark.parametrize(
    "address",
    [
        pytest.param(None, id="not a string"),
        pytest.param("", id="empty"),
        pytest.param("g." + "a" * 1022, id="too long"),
        pytest.param("g", id="no segment"),
        pytest.param("g.", id="empty segment"),
        pytest.param("g..a", id="empty segment in the middle"),
        pytest.param("g.a.", id="trailing dot"),
        pytest.param(".g.a", id="leading dot"),
        pytest.param("G.a", id="upper case prefix"),
        pytest.param("test4.a", id="test4"),
        pytest.param("test0.a", id="test0"),
        pytest.param("gg.a", id="unknown prefix"),
        pytest.param("g.a b", id="space"),
        pytest.param("g.a\n", id="trailing newline"),
        pytest.param("g.a+b", id="character outside the alphabet"),
        pytest.param("g.\u00e9", id="not ASCII"),
    ],
)
def test_invalid_ilp_address_is_refused(address: Any) -> None:
    """The error for an invalid ILP address names the member."""
    with pytest.raises(InvalidValue) as caught:
        IlpPaymentMethod(address, "c2VjcmV0")
    assert str(caught.value) == ADDRESS
    assert caught.value.details == {"member": "ilpAddress"}


@pytest.mark.parametrize("secret", ["a", "azAZ09-_", "a" * 256])
def test_spec_2_3_shared_secret(secret: str) -> None:
    """A shared secret is base64url of 1 to 256 characters."""
    assert IlpPaymentMethod("g.a", secret).shared_secret == secret


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param(None, id="not a string"),
        pytest.param(b"c2VjcmV0", id="bytes"),
        pytest.param("", id="empty"),
        pytest.param("a" * 257, id="too long"),
        pytest.param("YQ==", id="padding"),
        pytest.param("a+b/", id="base64, not base64url"),
        pytest.param("a\n", id="trailing newline"),
        pytest.param("\u00e9", id="not ASCII"),
    ],
)
def test_invalid_shared_secret_is_refused(secret: object) -> None:
    """The error for an invalid shared secret names the member and does not contain the secret."""
    with pytest.raises(InvalidValue) as caught:
        IlpPaymentMethod("g.a", secret)  # type: ignore[arg-type] # on purpose
    assert str(caught.value) == SECRET
    assert caught.value.details == {"member": "sharedSecret"}


def test_repr_hides_the_shared_secret() -> None:
    """Neither `repr` nor `str` contains the shared secret."""
    method = IlpPaymentMethod("g.a", "c2VjcmV0")
    assert repr(method) == "IlpPaymentMethod(ilp_address='g.a')"
    assert str(method) == repr(method)


def test_methods_are_frozen() -> None:
    """Payment methods cannot change after their checks."""
    assert_frozen(IlpPaymentMethod("g.a", "c2VjcmV0"))


# --- ILP addresses: Interledger RFC 15 ---


def test_rfc_15_example() -> None:
    """The example address uses every kind of character that an address can hold."""
    address = "g.us-fed.ach.0.acmebank.swx0a0.acmecorp.sales.199.~ipr.cdfa5e16-e759-4ba3-88f6-8b9dc83c1868.2"
    assert ilp_address(address) == address

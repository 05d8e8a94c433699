"""Tests of `ilp.credentials`: the `ilp` method of a payment, derived from its id and a server secret."""

import base64

import pytest

from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import PaymentId, payment_id
from incoming_payments.errors import InvalidValue, MalformedAddress
from incoming_payments.ilp import DerivedMethods
from incoming_payments.testing import a_creation

SECRET = b"a server secret of 32 bytes only"
OLDER = b"another secret, used before this"
ID = payment_id("019b76da-a800-7000-8000-000000000000")
METHODS = DerivedMethods("test.bank", [SECRET])
KNOWN_ADDRESS = "test.bank.-V1Fz4Rq0fGXGDz2vurQH_yK3gb0OVD7xX7_V6aF-xM"
KNOWN_SECRET = "bf2a550d11fa2ff6ee0b69f2cef6b67569f71d7796340efe41ecb5c2fe530fe3"
WRONG_PREFIX = "the ILP address does not begin with the address of this service"
NOT_ISSUED = "this service did not issue the ILP address"


def test_derived_values_are_stable() -> None:
    """A payment has the same address and secret in every release of this library."""
    credentials = METHODS.derive(ID)
    assert credentials.payment_id == ID
    assert credentials.ilp_address == KNOWN_ADDRESS
    assert credentials.shared_secret.hex() == KNOWN_SECRET


def test_allocate_returns_one_ilp_method() -> None:
    """The port returns one `ilp` method, always the same. The secret is base64url without padding."""
    payment = a_creation(id=ID).answer
    credentials = METHODS.derive(ID)
    shared_secret = base64.urlsafe_b64encode(credentials.shared_secret).decode().rstrip("=")
    assert len(shared_secret) == 43
    assert METHODS.allocate(payment) == (IlpPaymentMethod(credentials.ilp_address, shared_secret),)
    assert METHODS.allocate(payment) == METHODS.allocate(payment)


SEGMENT = METHODS.derive(ID).ilp_address.removeprefix("test.bank.")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        pytest.param("", WRONG_PREFIX, id="empty"),
        pytest.param("test.bank", WRONG_PREFIX, id="address of the service"),
        pytest.param(SEGMENT, WRONG_PREFIX, id="without prefix"),
        pytest.param(f"test.other.{SEGMENT}", WRONG_PREFIX, id="another service"),
        pytest.param(f"test.Bank.{SEGMENT}", WRONG_PREFIX, id="different case"),
        pytest.param(f"test.bank.x.{SEGMENT}", WRONG_PREFIX, id="extra segment before"),
        pytest.param(f"test.bank.{SEGMENT}.x", WRONG_PREFIX, id="extra segment after"),
        pytest.param("test.bank.", NOT_ISSUED, id="empty segment"),
        pytest.param(f"test.bank.{SEGMENT[:-1]}", NOT_ISSUED, id="truncated"),
        pytest.param(f"test.bank.{SEGMENT}A", NOT_ISSUED, id="one character more"),
        pytest.param(f"test.bank.{SEGMENT}=", NOT_ISSUED, id="padded"),
        pytest.param(f"test.bank.{SEGMENT}\n", NOT_ISSUED, id="trailing newline"),
        pytest.param(f"test.bank.{SEGMENT[:-1]}=", NOT_ISSUED, id="padding for the last character"),
        pytest.param(f"test.bank.{SEGMENT[:-1]}\u00e9", NOT_ISSUED, id="not ASCII"),
        pytest.param(f"test.bank.{SEGMENT[:-1]} ", NOT_ISSUED, id="not base64url"),
        pytest.param("test.bank." + "A" * 43, NOT_ISSUED, id="not issued"),
        pytest.param("test.bank." + "A" * 10**6, NOT_ISSUED, id="a million characters"),
    ],
)
def test_address_that_was_not_issued_is_refused(address: str, message: str) -> None:
    """An address that this service did not issue is refused. The prefix is checked first."""
    with pytest.raises(MalformedAddress) as caught:
        METHODS.read(address)
    assert str(caught.value) == message
    assert caught.value.details == {}


@pytest.mark.parametrize(
    "last", sorted(set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") - {SEGMENT[-1]})
)
def test_last_character_is_canonical(last: str) -> None:
    """Another last character is refused, although its two lowest bits do not affect the decoded bytes."""
    with pytest.raises(MalformedAddress):
        METHODS.read(f"test.bank.{SEGMENT[:-1]}{last}")


def test_eight_secrets_are_accepted() -> None:
    """Eight secrets are accepted, and each of them reads its own addresses."""
    secrets = [bytes([number]) * 32 for number in range(8)]
    methods = DerivedMethods("test.bank", secrets)
    for secret in secrets:
        issued = DerivedMethods("test.bank", [secret]).derive(ID)
        assert methods.read(issued.ilp_address) == issued


WEAK = "each server secret must be at least 32 random bytes, not "
COUNT = "give 1 to 8 different server secrets"
LONG = "the ILP address of the service must have at most 979 characters, because each payment adds a segment to it"


@pytest.mark.parametrize(
    ("prefix", "secrets", "member", "message"),
    [
        pytest.param(
            "bank",
            [],
            "ilpAddress",
            "ilpAddress must be an ILP address of at most 1023 characters, such as g.bank.alice",
            id="not an address",
        ),
        pytest.param("g." + "a" * 978, [], "ilpAddress", LONG, id="prefix too long"),
        pytest.param("g.a", [b"x" * 31], "secrets", WEAK + "31 bytes", id="short secret"),
        pytest.param("g.a", [SECRET, b""], "secrets", WEAK + "0 bytes", id="empty second secret"),
        pytest.param("g.a", ["x" * 32], "secrets", WEAK + "str", id="string"),
        pytest.param("g.a", [bytearray(32)], "secrets", WEAK + "bytearray", id="bytearray"),
        pytest.param("g.a", SECRET, "secrets", WEAK + "int", id="not a list"),
        pytest.param("g.a", [], "secrets", COUNT, id="no secret"),
        pytest.param("g.a", [SECRET, OLDER, SECRET], "secrets", COUNT, id="duplicate"),
        pytest.param("g.a", [bytes([number]) * 32 for number in range(9)], "secrets", COUNT, id="nine secrets"),
    ],
)
def test_invalid_settings_are_refused(prefix: str, secrets: list[bytes], member: str, message: str) -> None:
    """Invalid prefixes and secrets are refused in this order. The messages contain no secret."""
    with pytest.raises(InvalidValue) as caught:
        DerivedMethods(prefix, secrets)
    assert str(caught.value) == message
    assert caught.value.details == {"member": member}


def test_longest_prefix_is_accepted() -> None:
    """The longest prefix makes addresses of 1023 characters, which can be read."""
    methods = DerivedMethods("g." + "a" * 977, [SECRET])
    address = methods.derive(ID).ilp_address
    assert len(address) == 1023
    assert methods.read(address).payment_id == ID


def test_repr_contains_no_secret() -> None:
    """The `repr` contains neither server secrets nor shared secrets."""
    assert repr(METHODS) == "DerivedMethods(prefix='test.bank')"
    credentials = METHODS.derive(PaymentId(ID))
    assert repr(credentials) == f"StreamCredentials(payment_id='{ID}', ilp_address='{credentials.ilp_address}')"

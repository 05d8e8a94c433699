"""`ilp.credentials`: the `ilp` method of a payment, derived from its id and a server secret."""

import base64
import hashlib
import hmac
import uuid

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from frozen_values import assert_frozen
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
NOT_BELOW = "the ILP address is not below this service's"
NOT_OURS = "the ILP address was not handed out by this service"


def test_known_answer() -> None:
    """The scheme is fixed: a payment keeps its address and secret over every release of this library."""
    credentials = METHODS.derive(ID)
    assert credentials.payment_id == ID
    assert credentials.ilp_address == KNOWN_ADDRESS
    assert credentials.shared_secret.hex() == KNOWN_SECRET


def test_the_scheme_is_the_documented_one() -> None:
    """AES-SIV (RFC 5297) of the id under one derived key, and HMAC-SHA-256 of the segment under another."""
    segment = METHODS.derive(ID).ilp_address.removeprefix("test.bank.")
    key = hmac.digest(SECRET, b"incoming-payments/1/address\x01", hashlib.sha256)
    sealed = base64.urlsafe_b64decode(segment + "=")
    assert AESSIV(key).decrypt(sealed, [b"test.bank"]) == uuid.UUID(ID).bytes
    key = hmac.digest(SECRET, b"incoming-payments/1/shared-secret\x01", hashlib.sha256)
    assert METHODS.derive(ID).shared_secret == hmac.digest(key, segment.encode(), hashlib.sha256)


def test_allocate() -> None:
    """The port gives one `ilp` method, the same whenever it is asked; the secret is base64url without padding."""
    payment = a_creation(id=ID).answer
    credentials = METHODS.derive(ID)
    shared_secret = base64.urlsafe_b64encode(credentials.shared_secret).decode().rstrip("=")
    assert len(shared_secret) == 43
    assert METHODS.allocate(payment) == (IlpPaymentMethod(credentials.ilp_address, shared_secret),)
    assert METHODS.allocate(payment) == METHODS.allocate(payment)


def test_read() -> None:
    """An address that was handed out leads back to its payment and secret, with no look-up."""
    assert METHODS.read(METHODS.derive(ID).ilp_address) == METHODS.derive(ID)


def test_payments_have_nothing_in_common() -> None:
    """Neither the address nor the secret of one payment tells those of another."""
    other = METHODS.derive(payment_id("019b76da-a800-7000-8000-000000000001"))
    assert other.ilp_address != METHODS.derive(ID).ilp_address
    assert other.shared_secret != METHODS.derive(ID).shared_secret


def test_services_have_nothing_in_common() -> None:
    """Two services with one secret do not take each other's addresses, moved below their own prefix or not."""
    address = DerivedMethods("test.other", [SECRET]).derive(ID).ilp_address
    for claimed in (address, address.replace("test.other", "test.bank")):
        with pytest.raises(MalformedAddress):
            METHODS.read(claimed)


SEGMENT = METHODS.derive(ID).ilp_address.removeprefix("test.bank.")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        pytest.param("", NOT_BELOW, id="empty"),
        pytest.param("test.bank", NOT_BELOW, id="the service's own"),
        pytest.param(SEGMENT, NOT_BELOW, id="no prefix"),
        pytest.param(f"test.other.{SEGMENT}", NOT_BELOW, id="another service's"),
        pytest.param(f"test.Bank.{SEGMENT}", NOT_BELOW, id="another case"),
        pytest.param(f"test.bank.x.{SEGMENT}", NOT_BELOW, id="one segment lower"),
        pytest.param(f"test.bank.{SEGMENT}.x", NOT_BELOW, id="below a payment's"),
        pytest.param("test.bank.", NOT_OURS, id="empty segment"),
        pytest.param(f"test.bank.{SEGMENT[:-1]}", NOT_OURS, id="cut short"),
        pytest.param(f"test.bank.{SEGMENT}A", NOT_OURS, id="longer"),
        pytest.param(f"test.bank.{SEGMENT}=", NOT_OURS, id="padded"),
        pytest.param(f"test.bank.{SEGMENT}\n", NOT_OURS, id="trailing newline"),
        pytest.param(f"test.bank.{SEGMENT[:-1]}=", NOT_OURS, id="padding for the last character"),
        pytest.param(f"test.bank.{SEGMENT[:-1]}\u00e9", NOT_OURS, id="not ASCII"),
        pytest.param(f"test.bank.{SEGMENT[:-1]} ", NOT_OURS, id="not base64url"),
        pytest.param("test.bank." + "A" * 43, NOT_OURS, id="made up"),
        pytest.param("test.bank." + "A" * 10**6, NOT_OURS, id="a million characters"),
    ],
)
def test_read_refused(address: str, message: str) -> None:
    """An address that this service did not hand out is refused, in this order."""
    with pytest.raises(MalformedAddress) as caught:
        METHODS.read(address)
    assert str(caught.value) == message
    assert caught.value.details == {}


@pytest.mark.parametrize(
    "last", sorted(set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") - {SEGMENT[-1]})
)
def test_the_last_character_has_one_spelling(last: str) -> None:
    """Its two lowest bits decode to nothing, and still an address has one spelling only."""
    with pytest.raises(MalformedAddress):
        METHODS.read(f"test.bank.{SEGMENT[:-1]}{last}")


def test_rotation() -> None:
    """A new secret in front makes the new addresses; old ones are read until their secret is dropped."""
    before = DerivedMethods("test.bank", [OLDER])
    during = DerivedMethods("test.bank", [SECRET, OLDER])
    after = DerivedMethods("test.bank", [SECRET])
    old, new = before.derive(ID), during.derive(ID)
    assert new == after.derive(ID)
    assert new != old
    assert during.read(old.ilp_address) == old
    assert during.read(new.ilp_address) == new
    with pytest.raises(MalformedAddress):
        after.read(old.ilp_address)
    with pytest.raises(MalformedAddress):
        before.read(new.ilp_address)


def test_eight_secrets_are_enough_for_any_rotation() -> None:
    """Up to eight secrets are taken, and each of them reads its own."""
    secrets = [bytes([number]) * 32 for number in range(8)]
    methods = DerivedMethods("test.bank", secrets)
    for secret in secrets:
        handed_out = DerivedMethods("test.bank", [secret]).derive(ID)
        assert methods.read(handed_out.ilp_address) == handed_out


WEAK = "a server secret is at least 32 random bytes"
COUNT = "give 1 to 8 different server secrets"


@pytest.mark.parametrize(
    ("prefix", "secrets", "member", "message"),
    [
        pytest.param(
            "bank",
            [],
            "ilpAddress",
            "must be an ILP address of at most 1023 characters, such as g.bank.alice",
            id="no address",
        ),
        pytest.param(
            "g." + "a" * 978, [], "ilpAddress", "the ILP address must leave room for 44 more characters", id="no room"
        ),
        pytest.param("g.a", [b"x" * 31], "secrets", WEAK, id="short secret"),
        pytest.param("g.a", [SECRET, b""], "secrets", WEAK, id="empty second secret"),
        pytest.param("g.a", ["x" * 32], "secrets", WEAK, id="text"),
        pytest.param("g.a", [bytearray(32)], "secrets", WEAK, id="bytes that can change"),
        pytest.param("g.a", SECRET, "secrets", WEAK, id="no list"),
        pytest.param("g.a", [], "secrets", COUNT, id="none"),
        pytest.param("g.a", [SECRET, OLDER, SECRET], "secrets", COUNT, id="twice the same"),
        pytest.param("g.a", [bytes([number]) * 32 for number in range(9)], "secrets", COUNT, id="nine"),
    ],
)
def test_settings_refused(prefix: str, secrets: list[bytes], member: str, message: str) -> None:
    """A prefix that leaves no room, and secrets that are none, are refused, in this order, and never shown."""
    with pytest.raises(InvalidValue) as caught:
        DerivedMethods(prefix, secrets)
    assert str(caught.value) == message
    assert caught.value.details == {"member": member}


def test_the_longest_prefix() -> None:
    """The longest prefix that is taken makes addresses of 1023 characters, which are read again."""
    methods = DerivedMethods("g." + "a" * 977, [SECRET])
    address = methods.derive(ID).ilp_address
    assert len(address) == 1023
    assert methods.read(address).payment_id == ID


def test_secrets_are_not_shown() -> None:
    """Neither server secrets nor shared secrets are in any `repr`."""
    assert repr(METHODS) == "DerivedMethods(prefix='test.bank')"
    credentials = METHODS.derive(PaymentId(ID))
    assert repr(credentials) == f"StreamCredentials(payment_id='{ID}', ilp_address='{credentials.ilp_address}')"


def test_what_is_derived_and_what_from_are_frozen() -> None:
    """Neither an address nor the secrets change: not with the list they were given in either."""
    assert_frozen(METHODS, METHODS.derive(ID))
    given = [SECRET]
    methods = DerivedMethods("test.bank", given)
    given.append(OLDER)
    assert methods == METHODS
    assert methods.secrets == (SECRET,)

"""`domain.payment`: identifiers, the wallet address, the credit and the resource of contract section 2.2 as stored."""

import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from attrs import evolve

from frozen_values import assert_frozen
from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.payment import (
    STREAM_CREDITS,
    ClientId,
    Credit,
    CreditId,
    IncomingPayment,
    MetadataJson,
    PaymentId,
    WalletAddress,
    WalletAddressUrl,
    client_id,
    credit_id,
    new_payment_id,
    payment_id,
    wallet_address_url,
)
from incoming_payments.errors import InvalidValue
from incoming_payments.testing import NOW

USD = Asset("USD", 2)
ID = PaymentId("019b76da-a800-7000-8000-000000000000")
URL = WalletAddressUrl("https://bank.example/alice")
UTC_ONLY = "a moment must be a datetime in UTC, such as datetime.now(UTC)"
NOT_UTC = [
    pytest.param(NOW.replace(tzinfo=None), id="naive"),
    pytest.param(NOW.astimezone(timezone(timedelta(hours=1))), id="another offset"),
]


def a_payment(**members: Any) -> IncomingPayment:
    """A payment with nothing received, with `members` instead of its own."""
    given: dict[str, Any] = {
        "id": ID,
        "wallet_address": URL,
        "client": ClientId("https://shop.example"),
        "received": Amount(0, USD),
        "created_at": NOW,
        "updated_at": NOW,
    }
    return IncomingPayment(**(given | members))


# --- identifiers -------------------------------------------------------------------------------


def test_new_payment_id_is_a_uuid_version_7() -> None:
    """RFC 9562 §5.7: 48 bits of milliseconds, the version, the variant, and 74 bits of randomness."""
    id = new_payment_id(NOW, bytes(range(10)))
    read = uuid.UUID(id)
    assert read.version == 7
    assert read.variant == uuid.RFC_4122
    assert read.int >> 80 == int(NOW.timestamp() * 1000)
    assert payment_id(id) == id


@pytest.mark.parametrize("bit", range(74))
def test_each_random_bit_makes_another_payment_id(bit: int) -> None:
    """None of the 74 bits is lost: an id is as hard to guess as it looks."""
    flipped = (1 << bit).to_bytes(10)
    assert new_payment_id(NOW, flipped) != new_payment_id(NOW, bytes(10))
    assert payment_id(new_payment_id(NOW, flipped)) == new_payment_id(NOW, flipped)


def test_payment_ids_sort_by_time() -> None:
    """Ids of one moment are neighbours in an index, and later ones come after, whatever the randomness."""
    earlier = new_payment_id(NOW, b"\xff" * 10)
    later = new_payment_id(NOW + timedelta(milliseconds=1), bytes(10))
    assert earlier < later


@pytest.mark.parametrize("count", [0, 9, 11])
def test_new_payment_id_takes_ten_random_bytes(count: int) -> None:
    """Less would be guessable, more would be thrown away."""
    with pytest.raises(InvalidValue) as caught:
        new_payment_id(NOW, bytes(count))
    assert str(caught.value) == f"a payment id takes 10 random bytes, not {count}"
    assert caught.value.details == {}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="no string"),
        pytest.param("", id="empty"),
        pytest.param(ID.upper(), id="upper case"),
        pytest.param(ID.replace("-", ""), id="no hyphens"),
        pytest.param("{" + ID + "}", id="braces"),
        pytest.param(ID + "\n", id="trailing newline"),
        pytest.param("019b76da-a800-4000-8000-000000000000", id="version 4"),
        pytest.param("019b76da-a800-7000-c000-000000000000", id="another variant"),
        pytest.param("\uff10" + ID[1:], id="full-width digit"),
    ],
)
def test_payment_id_refused(text: object) -> None:
    """What no payment can have as its id is refused."""
    with pytest.raises(InvalidValue) as caught:
        payment_id(text)
    assert str(caught.value) == "a payment id is a UUID version 7 in lower case"
    assert caught.value.details == {"member": "id"}


@pytest.mark.parametrize("text", ["x", "https://shop.example/", "!~" * 1024])
def test_client_id(text: str) -> None:
    """A client id is 1 to 2048 printable ASCII characters."""
    assert client_id(text) == text


@pytest.mark.parametrize("text", ["c", "wire-2026-11-21/0007", "!~" * 100])
def test_credit_id(text: str) -> None:
    """A credit id is 1 to 200 printable ASCII characters."""
    assert credit_id(text) == text


def test_credits_of_packets_are_told_by_their_ids() -> None:
    """The mark is in the books of every host: it stays what it is."""
    assert credit_id(f"{STREAM_CREDITS}1") == "stream:1"


@pytest.mark.parametrize("text", [None, 7, b"x", "", "a b", "a\n", "a\x7f", "\u00e9", "\0", "x" * 2049])
def test_client_id_refused(text: object) -> None:
    """Anything else is no client id."""
    with pytest.raises(InvalidValue) as caught:
        client_id(text)
    assert str(caught.value) == "a client id is 1 to 2048 printable ASCII characters without spaces"
    assert caught.value.details == {"member": "client"}


@pytest.mark.parametrize("text", [None, 7, b"x", "", "a b", "a\n", "a\x7f", "\u00e9", "\0", "x" * 201])
def test_credit_id_refused(text: object) -> None:
    """Anything else is no credit id."""
    with pytest.raises(InvalidValue) as caught:
        credit_id(text)
    assert str(caught.value) == "a credit id is 1 to 200 printable ASCII characters without spaces"
    assert caught.value.details == {"member": "creditId"}


@pytest.mark.parametrize(
    "text", ["https://bank.example/alice", "HTTPS://BANK.example:443/alice", "https://bank.example/alice/"]
)
def test_wallet_address_url(text: str) -> None:
    """The spellings that clients use for one wallet address are one."""
    assert wallet_address_url(text) == URL


def test_wallet_address_url_refused() -> None:
    """What is no URL is refused, naming the contract's member."""
    with pytest.raises(InvalidValue) as caught:
        wallet_address_url("bank.example/alice")
    assert str(caught.value) == (
        "walletAddress must be an absolute http or https URL, in ASCII, of at most 2048 characters"
    )
    assert caught.value.details == {"member": "walletAddress"}


# --- wallet address and credit -----------------------------------------------------------------


def test_wallet_address_refuses_another_spelling() -> None:
    """A wallet address is kept in the one spelling that is compared; the message says which."""
    with pytest.raises(InvalidValue) as caught:
        WalletAddress(WalletAddressUrl("https://Bank.example/alice/"), USD, "https://auth.bank.example")
    assert str(caught.value) == "write the wallet address as https://bank.example/alice"
    assert caught.value.details == {"member": "walletAddress"}


def test_wallet_address_refuses_an_unsafe_auth_server() -> None:
    """The authorization server has to fit `WWW-Authenticate`."""
    with pytest.raises(InvalidValue) as caught:
        WalletAddress(URL, USD, "https://auth.bank.example/,")
    assert str(caught.value) == (
        "authServer must be an absolute http or https URL without quotes, commas or semicolons"
    )
    assert caught.value.details == {"member": "authServer"}


@pytest.mark.parametrize("moment", NOT_UTC)
def test_credit_is_booked_in_utc(moment: datetime) -> None:
    """The moment of a credit is in UTC, or the credit cannot be built."""
    with pytest.raises(InvalidValue) as caught:
        Credit(ID, CreditId("wire-1"), Amount(1, USD), Amount(1, USD), completes=False, at=moment)
    assert str(caught.value) == UTC_ONLY


# --- the resource ------------------------------------------------------------------------------


def test_contract_2_2_optional_members_may_be_absent() -> None:
    """`incomingAmount`, `expiresAt` and `metadata` are not required; a new payment has one event."""
    payment = a_payment()
    assert (payment.limit, payment.expires_at, payment.metadata) == (None, None, None)
    assert (payment.closed_at, payment.expiry_announced_at) == (None, None)
    assert payment.version == 1
    assert payment.asset == USD


def test_contract_2_2_optional_members_may_be_there() -> None:
    """And what is given is kept."""
    later = NOW + timedelta(days=1)
    payment = a_payment(limit=Amount(1, USD), expires_at=later, metadata=MetadataJson("{}"))
    assert (payment.limit, payment.expires_at, payment.metadata) == (Amount(1, USD), later, "{}")


@pytest.mark.parametrize("member", ["created_at", "updated_at", "expires_at", "closed_at", "expiry_announced_at"])
@pytest.mark.parametrize("moment", NOT_UTC)
def test_payment_keeps_its_moments_in_utc(member: str, moment: datetime) -> None:
    """Each moment of a payment is in UTC, or the payment cannot be built."""
    with pytest.raises(InvalidValue) as caught:
        a_payment(**{member: moment})
    assert str(caught.value) == UTC_ONLY


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(Amount(0, USD), id="zero"),
        pytest.param(Amount(1, Asset("EUR", 2)), id="another code"),
        pytest.param(Amount(1, Asset("USD", 3)), id="another scale"),
    ],
)
def test_payment_refuses_a_limit_that_contradicts(limit: Amount) -> None:
    """`incomingAmount` is greater than zero and of the asset of `receivedAmount`."""
    with pytest.raises(InvalidValue) as caught:
        a_payment(limit=limit)
    assert str(caught.value) == "incomingAmount must be greater than zero and of the asset of receivedAmount"
    assert caught.value.details == {"member": "incomingAmount"}


def test_payment_is_not_updated_before_its_creation() -> None:
    """`updatedAt` does not lie before `createdAt`."""
    with pytest.raises(InvalidValue) as caught:
        a_payment(updated_at=NOW - timedelta(microseconds=1))
    assert str(caught.value) == "updatedAt must not lie before createdAt"
    assert caught.value.details == {"member": "updatedAt"}


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "1"])
def test_payment_counts_its_events(version: object) -> None:
    """`version` is a positive integer."""
    with pytest.raises(InvalidValue) as caught:
        a_payment(version=version)
    assert str(caught.value) == "version counts events, of which the creation is the first"
    assert caught.value.details == {"member": "version"}


def test_payment_refuses_another_spelling_of_its_wallet_address() -> None:
    """A payment names its wallet address in the spelling that is compared."""
    with pytest.raises(InvalidValue) as caught:
        a_payment(wallet_address="https://bank.example/alice/")
    assert caught.value.details == {"member": "walletAddress"}


def test_payment_is_frozen_and_checked_again_when_it_changes() -> None:
    """Nothing changes in place, and no way leads round the checks."""
    payment = a_payment()
    assert_frozen(payment)
    with pytest.raises(InvalidValue):
        evolve(payment, version=0)


def test_wallet_addresses_and_credits_are_frozen() -> None:
    """Neither where the money goes nor what was booked changes in place."""
    assert_frozen(
        WalletAddress(URL, USD, "https://auth.bank.example"),
        Credit(ID, CreditId("wire-1"), Amount(1, USD), Amount(1, USD), completes=False, at=NOW),
    )


def test_an_expiry_may_be_announced_once_it_has_happened() -> None:
    """From the first moment after `expiresAt`."""
    announced_at = NOW + timedelta(microseconds=1)
    payment = a_payment(expires_at=NOW, expiry_announced_at=announced_at)
    assert payment.expiry_announced_at == announced_at


def test_moments_of_any_utc_are_the_same() -> None:
    """UTC is an offset, not one class of time zones."""
    other = timezone(timedelta(0), "another UTC")
    assert a_payment(created_at=NOW.astimezone(other)) == a_payment()
    assert a_payment().created_at.tzinfo is UTC


@pytest.mark.parametrize(
    ("members", "member"),
    [
        ({"id": "x"}, "id"),
        ({"client": ""}, "client"),
        ({"received": 0}, "amount"),
        ({"limit": 100}, "amount"),
        ({"closed_at": NOW - timedelta(microseconds=1)}, "closedAt"),
        ({"expiry_announced_at": NOW}, "expiryAnnouncedAt"),
        ({"expires_at": NOW, "expiry_announced_at": NOW}, "expiryAnnouncedAt"),
    ],
    ids=str,
)
def test_payment_refuses_what_cannot_be(members: dict[str, Any], member: str) -> None:
    """Ids that are none, amounts that are none, and an order of moments that no history has."""
    with pytest.raises(InvalidValue) as caught:
        a_payment(**members)
    assert caught.value.details == {"member": member}


@pytest.mark.parametrize(
    ("amount", "received"),
    [
        (Amount(0, USD), Amount(0, USD)),
        (Amount(2, USD), Amount(1, USD)),
        (Amount(1, USD), Amount(1, Asset("EUR", 2))),
        (1, Amount(1, USD)),
        (Amount(1, USD), 1),
    ],
    ids=str,
)
def test_credit_is_part_of_the_total(amount: Any, received: Any) -> None:
    """A credit is greater than zero, and of the asset of the total, which holds it."""
    with pytest.raises(InvalidValue) as caught:
        Credit(ID, CreditId("wire-1"), amount, received, completes=False, at=NOW)
    assert caught.value.details == {"member": "amount"}


def test_a_credit_and_its_total_may_name_their_asset_apart() -> None:
    """Assets are one when they are equal, as those are that a store has read."""
    amount, received = Amount(1, USD), Amount(2, Asset("USD", 2))
    assert Credit(ID, CreditId("wire-1"), amount, received, completes=False, at=NOW).received == received


@pytest.mark.parametrize("asset", [None, "USD", ("USD", 2)])
def test_a_wallet_address_holds_an_asset(asset: Any) -> None:
    """What stands for an asset is one."""
    with pytest.raises(InvalidValue) as caught:
        WalletAddress(URL, asset, "https://auth.bank.example")
    assert caught.value.details == {"member": "asset"}


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_payment_ids_begin_in_1970() -> None:
    """The first millisecond that RFC 9562 counts is 0."""
    assert new_payment_id(EPOCH, bytes(10)) == "00000000-0000-7000-8000-000000000000"


@pytest.mark.parametrize("now", [EPOCH - timedelta(microseconds=1), NOW.replace(tzinfo=None), None], ids=str)
def test_new_payment_id_needs_a_moment_it_can_count(now: Any) -> None:
    """A clock that stands before 1970, or in no known zone, is set wrong."""
    with pytest.raises(InvalidValue) as caught:
        new_payment_id(now, bytes(10))
    assert caught.value.details == {"member": "now"}


def test_a_credit_changes_the_total_and_nothing_else() -> None:
    """`with_received` is what `evolve` would give."""
    payment = a_payment(limit=Amount(1000, USD), expires_at=NOW + timedelta(hours=1), metadata=MetadataJson("{}"))
    later = NOW + timedelta(seconds=1)
    total = Amount(400, Asset("USD", 2))
    after = payment.with_received(total, at=later, version=2)
    assert after == evolve(payment, received=total, updated_at=later, version=2)
    assert hash(after) == hash(evolve(payment, received=total, updated_at=later, version=2))
    assert payment.received == Amount(0, USD)


@pytest.mark.parametrize(
    ("received", "at", "version", "member"),
    [
        (Amount(1, Asset("EUR", 2)), NOW, 2, "received"),
        (Amount(1, USD), NOW - timedelta(microseconds=1), 2, "received"),
        (Amount(1, USD), NOW, 1, "received"),
        (Amount(1, USD), NOW.replace(tzinfo=None), 2, "now"),
        (None, NOW, 2, "amount"),
    ],
)
def test_a_credit_cannot_contradict_its_payment(received: Any, at: datetime, version: int, member: str) -> None:
    """Neither by the asset nor by going back in time or in the count of events."""
    with pytest.raises(InvalidValue) as caught:
        a_payment().with_received(received, at=at, version=version)
    assert caught.value.details == {"member": member}

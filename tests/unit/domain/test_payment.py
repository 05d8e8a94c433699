"""`domain.payment`: identifiers, wallet addresses, credits and incoming payments. Spec section 2.2."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from attrs import evolve, fields

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.payment import (
    STREAM_CREDITS,
    ClientId,
    Credit,
    CreditId,
    IncomingPayment,
    MetadataJson,
    PaymentId,
    Progress,
    Terms,
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
from kits.changed_payments import changed
from kits.frozen_values import assert_frozen

USD, USD_3, EUR = Asset("USD", 2), Asset("USD", 3), Asset("EUR", 2)
ID = PaymentId("019b76da-a800-7000-8000-000000000000")
URL = WalletAddressUrl("https://bank.example/alice")
UTC_ONLY = "a time must be a datetime in UTC, such as datetime.now(UTC)"
LIMIT = "incomingAmount must be greater than zero and in the asset of the payment"
CREDIT_AMOUNT = "amount must be greater than zero, at most received, and in the same asset"
NOT_UTC = [
    pytest.param(NOW.replace(tzinfo=None), id="naive"),
    pytest.param(NOW.astimezone(timezone(timedelta(hours=1))), id="another offset"),
]


def a_payment(**members: Any) -> IncomingPayment:
    """Return a payment with nothing received, and with `members` instead of its own members."""
    terms = Terms(ID, URL, ClientId("https://shop.example"), USD, NOW)
    return changed(IncomingPayment(terms, Progress(Amount(0, USD), NOW)), **members)


# --- identifiers -------------------------------------------------------------------------------


def test_new_payment_id_is_a_uuid_version_7() -> None:
    """RFC 9562 §5.7: 48 bits of milliseconds, the version, the variant, and 74 bits of randomness."""
    id = new_payment_id(NOW, bytes(range(10)))
    read = uuid.UUID(id)
    assert read.version == 7
    assert read.variant == uuid.RFC_4122
    assert read.int >> 80 == int(NOW.timestamp() * 1000)
    assert payment_id(id) == id


def test_payment_ids_sort_by_time() -> None:
    """A later id sorts behind an earlier one, whatever their random bits are."""
    earlier = new_payment_id(NOW, b"\xff" * 10)
    later = new_payment_id(NOW + timedelta(milliseconds=1), bytes(10))
    assert earlier < later


@pytest.mark.parametrize("count", [0, 9, 11])
def test_new_payment_id_takes_ten_random_bytes(count: int) -> None:
    """Any other number of random bytes is refused."""
    with pytest.raises(InvalidValue) as caught:
        new_payment_id(NOW, bytes(count))
    assert str(caught.value) == f"randomness must be 10 bytes, not {count}"
    assert caught.value.details == {}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="not a string"),
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
def test_invalid_payment_id_is_refused(text: Any) -> None:
    """A text that cannot be the id of a payment is refused."""
    with pytest.raises(InvalidValue) as caught:
        payment_id(text)
    assert str(caught.value) == "a payment id must be a UUID version 7 in lower case"
    assert caught.value.details == {"member": "id"}


@pytest.mark.parametrize(("check", "most"), [(client_id, 2048), (credit_id, 200)])
def test_printable_ascii_is_a_client_id_and_a_credit_id(check: Callable[[str], str], most: int) -> None:
    """Both are printable ASCII without spaces, of bounded length."""
    for text in ("x", "https://shop.example/", "wire-2026-11-21/0007", "!~" * (most // 2)):
        assert check(text) == text


@pytest.mark.parametrize(
    ("check", "most", "message", "member"),
    [
        (client_id, 2048, "a client id must have 1 to 2048 printable ASCII characters without spaces", "client"),
        (credit_id, 200, "a credit id must have 1 to 200 printable ASCII characters without spaces", "creditId"),
    ],
)
@pytest.mark.parametrize("text", [None, 7, b"x", "", "a b", "a\n", "a\x7f", "\u00e9", "\0", "too long"])
def test_other_text_is_no_id(check: Callable[[str], str], most: int, message: str, member: str, text: Any) -> None:
    """The error names the member."""
    with pytest.raises(InvalidValue) as caught:
        check("x" * (most + 1) if text == "too long" else text)
    assert str(caught.value) == message
    assert caught.value.details == {"member": member}


def test_prefix_of_packet_credits_is_stable() -> None:
    """The stores of all hosts contain the prefix, so it never changes."""
    assert credit_id(f"{STREAM_CREDITS}1") == "stream:1"


@pytest.mark.parametrize(
    "text", ["https://bank.example/alice", "HTTPS://BANK.example:443/alice", "https://bank.example/alice/"]
)
def test_wallet_address_url(text: str) -> None:
    """Different spellings of one wallet address get the same canonical spelling."""
    assert wallet_address_url(text) == URL


# --- wallet address and credit -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "member", "message"),
    [
        (
            {"url": "bank.example/alice"},
            "walletAddress",
            "walletAddress must be an absolute http or https URL, in ASCII",
        ),
        (
            {"url": "https://Bank.example/alice/"},
            "walletAddress",
            "write the wallet address as https://bank.example/al",
        ),
        ({"asset": None}, "asset", "asset must be of type Asset, not NoneType"),
        ({"asset": ("USD", 2)}, "asset", "asset must be of type Asset, not tuple"),
        (
            {"auth_server": "https://auth.bank.example/,"},
            "authServer",
            "authServer must be an absolute http or https URL",
        ),
    ],
)
def test_invalid_wallet_address_is_refused(members: dict[str, Any], member: str, message: str) -> None:
    """The URL needs its canonical spelling, and that of the authorization server must be safe in `WWW-Authenticate`."""
    with pytest.raises(InvalidValue) as caught:
        WalletAddress(**{"url": URL, "asset": USD, "auth_server": "https://auth.bank.example", **members})
    assert str(caught.value).startswith(message)
    assert caught.value.details == {"member": member}


@pytest.mark.parametrize("time", NOT_UTC)
def test_credit_with_a_time_that_is_not_utc_is_refused(time: datetime) -> None:
    """The time of a credit must be in UTC."""
    with pytest.raises(InvalidValue) as caught:
        Credit(ID, CreditId("wire-1"), Amount(1, USD), Amount(1, USD), completes=False, at=time)
    assert str(caught.value) == UTC_ONLY


# --- the resource ------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["created_at", "updated_at", "expires_at", "closed_at", "expiry_announced_at"])
@pytest.mark.parametrize("time", NOT_UTC)
def test_payment_with_a_time_that_is_not_utc_is_refused(member: str, time: datetime) -> None:
    """Each time of a payment must be in UTC."""
    with pytest.raises(InvalidValue) as caught:
        a_payment(**{member: time})
    assert str(caught.value) == UTC_ONLY


def test_payment_is_frozen_and_its_copies_are_checked() -> None:
    """A payment cannot change in place, and a changed copy passes the same checks."""
    payment = a_payment()
    assert_frozen(payment, payment.terms, payment.progress)
    with pytest.raises(AttributeError):
        payment.version = 2  # type: ignore[misc] # on purpose
    with pytest.raises(InvalidValue):
        evolve(payment.progress, version=0)


def test_wallet_addresses_and_credits_are_frozen() -> None:
    """Wallet addresses and credits cannot change in place."""
    assert_frozen(
        WalletAddress(URL, USD, "https://auth.bank.example"),
        Credit(ID, CreditId("wire-1"), Amount(1, USD), Amount(1, USD), completes=False, at=NOW),
    )


def test_expiry_may_be_announced_after_expires_at() -> None:
    """The first possible time is one microsecond after `expiresAt`."""
    announced_at = NOW + timedelta(microseconds=1)
    payment = a_payment(expires_at=NOW, expiry_announced_at=announced_at)
    assert payment.expiry_announced_at == announced_at


def test_times_with_another_utc_object_are_equal() -> None:
    """Any time zone with offset zero counts as UTC."""
    other = timezone(timedelta(0), "another UTC")
    assert a_payment(created_at=NOW.astimezone(other)) == a_payment()
    assert a_payment().created_at.tzinfo is UTC


@pytest.mark.parametrize(
    ("members", "member", "message"),
    [
        ({"id": "x"}, "id", "a payment id must be a UUID version 7 in lower case"),
        ({"client": ""}, "client", "a client id must have 1 to 2048 printable ASCII characters without spaces"),
        ({"asset": "USD"}, "asset", "asset must be "),
        ({"received": 0}, "amount", "an amount must be an Amount of minor units, not int"),
        (
            {"received": Amount(0, Asset("EUR", 2))},
            "receivedAmount",
            "receivedAmount must be in the asset of the payment",
        ),
        ({"limit": 100}, "amount", "an amount must be an Amount of minor units, not int"),
        *(({"limit": limit}, "incomingAmount", LIMIT) for limit in (Amount(0, USD), Amount(1, EUR), Amount(1, USD_3))),
        *(({"version": n}, "version", "version must be an integer from 1 to 1844") for n in (0, -1, True, 1.0, "1")),
        ({"updated_at": NOW - timedelta(microseconds=1)}, "updatedAt", "updatedAt must not be before createdAt"),
        ({"wallet_address": f"{URL}/"}, "walletAddress", f"write the wallet address as {URL}"),
        ({"closed_at": NOW - timedelta(microseconds=1)}, "closedAt", "closedAt must not be before createdAt"),
        ({"expiry_announced_at": NOW}, "expiryAnnouncedAt", "expiryAnnouncedAt must be after expiresAt"),
        (
            {"expires_at": NOW, "expiry_announced_at": NOW},
            "expiryAnnouncedAt",
            "expiryAnnouncedAt must be after expiresAt",
        ),
    ],
    ids=str,
)
def test_invalid_payment_is_refused(members: dict[str, Any], member: str, message: str) -> None:
    """Invalid ids and amounts, and times in an impossible order, are refused; the error names the member."""
    with pytest.raises(InvalidValue) as caught:
        a_payment(**members)
    assert str(caught.value).startswith(message)
    assert caught.value.details == {"member": member}


def test_payment_may_be_closed_when_it_is_created() -> None:
    """The earliest possible `closedAt` is `createdAt`."""
    assert a_payment(closed_at=NOW).closed_at == NOW


@pytest.mark.parametrize(
    ("amount", "received", "message"),
    [
        (Amount(0, USD), Amount(0, USD), CREDIT_AMOUNT),
        (Amount(2, USD), Amount(1, USD), CREDIT_AMOUNT),
        (Amount(1, USD), Amount(1, Asset("EUR", 2)), CREDIT_AMOUNT),
        (1, Amount(1, USD), "an amount must be an Amount of minor units, not int"),
        (Amount(1, USD), 1, "an amount must be an Amount of minor units, not int"),
    ],
    ids=str,
)
def test_invalid_credit_is_refused(amount: Any, received: Any, message: str) -> None:
    """A credit must be greater than zero, at most the total, and in its asset."""
    with pytest.raises(InvalidValue) as caught:
        Credit(ID, CreditId("wire-1"), amount, received, completes=False, at=NOW)
    assert str(caught.value) == message
    assert caught.value.details == {"member": "amount"}


def test_assets_of_a_credit_may_be_equal_objects() -> None:
    """The assets of amount and total need not be the same object; a store may build them separately."""
    amount, received = Amount(1, USD), Amount(2, Asset("USD", 2))
    assert Credit(ID, CreditId("wire-1"), amount, received, completes=False, at=NOW).received == received


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_earliest_payment_id_is_of_1970() -> None:
    """RFC 9562 counts milliseconds from 1970."""
    assert new_payment_id(EPOCH, bytes(10)) == "00000000-0000-7000-8000-000000000000"


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (EPOCH - timedelta(microseconds=1), "now must not be before 1970: set the clock of this machine"),
        (NOW.replace(tzinfo=None), UTC_ONLY),
        (None, UTC_ONLY),
    ],
    ids=str,
)
def test_payment_id_needs_a_time_in_utc_after_1970(now: Any, message: str) -> None:
    """A time before 1970, or a time that is not in UTC, is refused."""
    with pytest.raises(InvalidValue) as caught:
        new_payment_id(now, bytes(10))
    assert str(caught.value) == message
    assert caught.value.details == {"member": "now"}


def test_payment_has_the_members_of_its_parts() -> None:
    """The properties of a payment are the members of its terms and its progress. `metadata` is the object of a text."""
    payment = a_payment(
        limit=Amount(1, USD), expires_at=NOW, metadata=MetadataJson("{}"), version=2, closed_at=NOW,
        expiry_announced_at=NOW + timedelta(microseconds=1),
    )  # fmt: skip
    for part in (payment.terms, payment.progress):
        for attribute in fields(type(part)):
            value = getattr(part, attribute.name)
            assert getattr(payment, attribute.name) == ({} if attribute.name == "metadata" else value)


def test_assets_of_a_payment_may_be_equal_objects() -> None:
    """The asset of the total need not be the same object as the asset of the terms."""
    assert a_payment(received=Amount(1, Asset("USD", 2))).received == Amount(1, USD)

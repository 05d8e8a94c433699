"""The incoming payment, its identifiers, its wallet address and its credits (spec section 2.2).

These values are immutable. `lifecycle` has the decisions that replace a payment by a new value.
"""

import json
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NewType

from attrs import converters, field, frozen

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.checks import check_time, check_visible, instance, integer, name_of
from incoming_payments.domain.urls import canonical_url, header_safe_url
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import CLIENT_ID_CHARS_MAX, CREDIT_ID_CHARS_MAX

PaymentId = NewType("PaymentId", str)
ClientId = NewType("ClientId", str)
CreditId = NewType("CreditId", str)
WalletAddressUrl = NewType("WalletAddressUrl", str)
MetadataJson = NewType("MetadataJson", str)  # the text of a JSON object that `wire` has checked

# The client of a payment that the host creates for itself. No token can name this client, because `client_id` refuses a
# space.
HOST: Final = ClientId("the host")
STREAM_CREDITS: Final = "stream:"  # the prefix of the credit ids of packets; other credit ids must not have this prefix
PAYMENT_ID_RANDOM_BYTES: Final = 10
_PAYMENT_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def new_payment_id(now: datetime, randomness: bytes) -> PaymentId:
    """Return a UUID version 7 (RFC 9562 §5.7) with the millisecond of `now` and 74 bits of `randomness`.

    The random bits make the id impossible to guess, and its characters are URL-safe. Ids of about the same time are
    next to each other in an index, so the cost of an insert does not grow with the table. Raises `InvalidValue` unless
    `randomness` is exactly 10 bytes and `now` is in UTC and not before 1970.

    >>> new_payment_id(datetime(2026, 1, 1, tzinfo=UTC), bytes(10))
    '019b76da-a800-7000-8000-000000000000'
    """
    if len(randomness) != PAYMENT_ID_RANDOM_BYTES:
        raise InvalidValue(f"randomness must be {PAYMENT_ID_RANDOM_BYTES} bytes, not {len(randomness)}")
    check_time(now)
    stamp = (now - _EPOCH) // _MILLISECOND
    if stamp < 0:
        raise InvalidValue("now must not be before 1970: set the clock of this machine", member="now")
    bits = int.from_bytes(randomness)
    rand_a, rand_b = (bits >> 62) & 0xFFF, bits & (2**62 - 1)
    return PaymentId(str(uuid.UUID(int=stamp << 80 | 7 << 76 | rand_a << 64 | 2 << 62 | rand_b)))


def id_time(id: PaymentId) -> datetime:
    """Return the time that `new_payment_id` wrote into `id`, to the millisecond.

    >>> id_time(PaymentId("019b76da-a800-7000-8000-000000000000")).isoformat()
    '2026-01-01T00:00:00+00:00'
    """
    return _EPOCH + timedelta(milliseconds=uuid.UUID(id).int >> 80)


def payment_id(text: str) -> PaymentId:
    """Return `text` as a payment id. Raises `InvalidValue` when no payment can have this id."""
    if not isinstance(text, str) or not _PAYMENT_ID.fullmatch(text):
        raise InvalidValue("a payment id must be a UUID version 7 in lower case", member="id")
    return PaymentId(text)


def client_id(text: str) -> ClientId:
    """Return `text` as the identifier of a client.

    Raises `InvalidValue` when `text` is empty, too long or not printable ASCII.
    """
    return ClientId(check_visible(text, CLIENT_ID_CHARS_MAX, "a client id must have", member="client"))


def _owner(text: str) -> ClientId:
    return HOST if text == HOST else client_id(text)


def credit_id(text: str) -> CreditId:
    """Return `text` as a credit id, the name of one credit that is unique within its payment.

    Raises `InvalidValue` when `text` is empty, too long or not printable ASCII.

    >>> credit_id("wire-2026-11-21/0007")
    'wire-2026-11-21/0007'
    """
    return CreditId(check_visible(text, CREDIT_ID_CHARS_MAX, "a credit id must have", member="creditId"))


def wallet_address_url(text: str) -> WalletAddressUrl:
    """Return the canonical spelling of a wallet address.

    The scheme and the host are in lower case. There is no default port and no final slash.

    Clients spell one wallet address in several ways. The library compares canonical spellings only. Path and query keep
    their case, because case matters there. Raises `InvalidValue` for every text that `domain.urls.canonical_url`
    refuses.

    >>> wallet_address_url("HTTPS://Bank.Example:443/alice/")
    'https://bank.example/alice'
    """
    return WalletAddressUrl(canonical_url(text, member="walletAddress"))


def check_amount(amount: Amount) -> Amount:
    """Return `amount` if it is an `Amount`."""
    if not isinstance(amount, Amount):
        raise InvalidValue(f"an amount must be an Amount of minor units, not {name_of(amount)}", member="amount")
    return amount


def _canonical(url: str) -> WalletAddressUrl:
    canonical = wallet_address_url(url)
    if canonical != url:
        raise InvalidValue(f"write the wallet address as {canonical}", member="walletAddress")
    return canonical


def _auth_server(url: str) -> str:
    return header_safe_url(url, member="authServer")


@frozen
class WalletAddress:
    """A wallet address that the ASE hosts, with its URL, its asset and its authorization server.

    `url` has the spelling of `wallet_address_url`. `auth_server` is the URL of the GNAP authorization server that
    clients find in `authServer`. `WWW-Authenticate` names the authorization server of the service instead, because the
    service sends this header before it knows the wallet address. Raises `InvalidValue` for any other spelling of `url`.
    """

    url: WalletAddressUrl = field(converter=_canonical)
    asset: Asset = field(validator=instance(Asset))
    auth_server: str = field(converter=_auth_server)


@frozen
class InactiveWalletAddress:
    """A wallet address that accepts no new payments. Its existing payments still receive money.

    Raises `InvalidValue` unless `url` has the spelling of `wallet_address_url`.
    """

    url: WalletAddressUrl = field(converter=_canonical)


@frozen
class Credit:
    """A receipt of `amount` by a payment, at the time `at` and under the credit id `id`.

    `received` is the total after this credit. `completes` is true if the total reached or exceeded `incomingAmount`. A
    repeated call with the same credit id returns this credit. Raises `InvalidValue` unless `amount` is greater than
    zero, at most `received`, and in the same asset.
    """

    payment_id: PaymentId
    id: CreditId
    amount: Amount = field(converter=check_amount)
    received: Amount = field(converter=check_amount)
    completes: bool
    at: datetime = field(converter=check_time)

    @received.validator
    def _holds_the_amount(self, _: object, received: Amount) -> None:
        if received.asset != self.amount.asset or not 0 < self.amount.value <= received.value:
            raise InvalidValue(
                "amount must be greater than zero, at most received, and in the same asset", member="amount"
            )


@frozen
class Terms:
    """The part of an incoming payment that no decision changes.

    `client` is the client that created the payment. `limit` is `incomingAmount` in JSON. The payment is completed when
    its total reaches this limit. `expires_at` is the last time at which the payment accepts money. `metadata` is the
    text of a JSON object, until an erasure removes it. Raises `InvalidValue` for an invalid member, and for a `limit`
    that is zero or not in `asset`.
    """

    id: PaymentId = field(converter=payment_id)
    wallet_address: WalletAddressUrl = field(converter=_canonical)
    client: ClientId = field(converter=_owner)
    asset: Asset = field(validator=instance(Asset))
    created_at: datetime = field(converter=check_time)
    limit: Amount | None = field(default=None, converter=converters.optional(check_amount))
    expires_at: datetime | None = field(default=None, converter=converters.optional(check_time))
    metadata: MetadataJson | None = None

    @limit.validator
    def _one_asset(self, _: object, limit: Amount | None) -> None:
        if limit is not None and (limit.asset != self.asset or limit.value == 0):
            raise InvalidValue(
                "incomingAmount must be greater than zero and in the asset of the payment", member="incomingAmount"
            )


@frozen
class Progress:
    """The part of an incoming payment that its events change.

    `received` is `receivedAmount` in JSON, the sum of all credits. `updated_at` is the time of the last change that a
    client can see. `version` is the number of events so far. `closed_at` is the time at which the client completed the
    payment, or `None`. `expiry_announced_at` is the time of the `expired` event, or `None`. Raises `InvalidValue` for
    an invalid member.
    """

    received: Amount = field(converter=check_amount)
    updated_at: datetime = field(converter=check_time)
    version: int = field(default=1, validator=integer(1))
    closed_at: datetime | None = field(default=None, converter=converters.optional(check_time))
    expiry_announced_at: datetime | None = field(default=None, converter=converters.optional(check_time))


@frozen
class IncomingPayment:
    """An incoming payment as a store keeps it, with its terms and its progress (spec section 2.2).

    The state is not a member, because it depends on the time (see `lifecycle.state_of`). Raises `InvalidValue` when
    `progress` contradicts `terms`.
    """

    terms: Terms = field()
    progress: Progress = field()

    def __attrs_post_init__(self) -> None:
        terms, progress = self.terms, self.progress
        if progress.received.asset != terms.asset:
            raise InvalidValue("receivedAmount must be in the asset of the payment", member="receivedAmount")
        if progress.updated_at < terms.created_at:
            raise InvalidValue("updatedAt must not be before createdAt", member="updatedAt")
        if progress.closed_at is not None and progress.closed_at < terms.created_at:
            raise InvalidValue("closedAt must not be before createdAt", member="closedAt")
        announced_at = progress.expiry_announced_at
        if announced_at is not None and (terms.expires_at is None or announced_at <= terms.expires_at):
            raise InvalidValue("expiryAnnouncedAt must be after expiresAt", member="expiryAnnouncedAt")

    @property
    def id(self) -> PaymentId:
        """See `Terms`."""
        return self.terms.id

    @property
    def wallet_address(self) -> WalletAddressUrl:
        """See `Terms`."""
        return self.terms.wallet_address

    @property
    def client(self) -> ClientId:
        """See `Terms`."""
        return self.terms.client

    @property
    def asset(self) -> Asset:
        """See `Terms`."""
        return self.terms.asset

    @property
    def limit(self) -> Amount | None:
        """See `Terms`."""
        return self.terms.limit

    @property
    def expires_at(self) -> datetime | None:
        """See `Terms`."""
        return self.terms.expires_at

    @property
    def created_at(self) -> datetime:
        """See `Terms`."""
        return self.terms.created_at

    @property
    def received(self) -> Amount:
        """See `Progress`."""
        return self.progress.received

    @property
    def updated_at(self) -> datetime:
        """See `Progress`."""
        return self.progress.updated_at

    @property
    def version(self) -> int:
        """See `Progress`."""
        return self.progress.version

    @property
    def closed_at(self) -> datetime | None:
        """See `Progress`."""
        return self.progress.closed_at

    @property
    def expiry_announced_at(self) -> datetime | None:
        """See `Progress`."""
        return self.progress.expiry_announced_at

    @property
    def metadata(self) -> dict[str, Any] | None:
        """The JSON object that the client gave for the payment, as a new `dict`.

        `terms.metadata` is the text of this object.
        """
        text = self.terms.metadata
        return None if text is None else json.loads(text)

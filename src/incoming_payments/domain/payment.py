"""The incoming payment and what belongs to it: wallet address, credit, the facts of a creation. Contract section 2.2.

Nothing here changes anything: what may happen to a payment, and when, is `lifecycle.py`.
"""

import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NewType, Self

from attrs import field, fields, frozen
from attrs.validators import optional

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.urls import canonical_url, header_safe_url
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import CLIENT_ID_CHARS_MAX, CREDIT_ID_CHARS_MAX

PaymentId = NewType("PaymentId", str)
ClientId = NewType("ClientId", str)
CreditId = NewType("CreditId", str)
WalletAddressUrl = NewType("WalletAddressUrl", str)
MetadataJson = NewType("MetadataJson", str)  # the text of a JSON object, as `wire` checked and wrote it

STREAM_CREDITS: Final = "stream:"  # how the ids of credits begin that the STREAM receiver books, and no others
PAYMENT_ID_RANDOM_BYTES: Final = 10
_PAYMENT_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_VISIBLE: Final = re.compile(r"[!-~]+")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def new_payment_id(now: datetime, randomness: bytes) -> PaymentId:
    """A UUID version 7 (RFC 9562 §5.7): the millisecond of `now`, then 74 random bits.

    Unguessable by the randomness, URL-safe by its alphabet; and as ids of one moment are neighbours in an index,
    inserting costs the same however large the table is. Raises `InvalidValue` unless there are exactly 10 bytes of
    randomness, and for a moment that is not in UTC or before 1970.

    >>> new_payment_id(datetime(2026, 1, 1, tzinfo=UTC), bytes(10))
    '019b76da-a800-7000-8000-000000000000'
    """
    if len(randomness) != PAYMENT_ID_RANDOM_BYTES:
        raise InvalidValue(f"a payment id takes {PAYMENT_ID_RANDOM_BYTES} random bytes, not {len(randomness)}")
    check_moment(None, None, now)
    stamp = (now - _EPOCH) // timedelta(milliseconds=1)
    if stamp < 0:
        raise InvalidValue("a payment id counts milliseconds since 1970: set the clock", member="now")
    bits = int.from_bytes(randomness)
    rand_a, rand_b = (bits >> 62) & 0xFFF, bits & (2**62 - 1)
    return PaymentId(str(uuid.UUID(int=stamp << 80 | 7 << 76 | rand_a << 64 | 2 << 62 | rand_b)))


def payment_id(text: object) -> PaymentId:
    """`text` as a payment id; `InvalidValue` when no payment can have it, which spares the look-up.

    >>> payment_id("019b76da-a800-7000-8000-000000000000")
    '019b76da-a800-7000-8000-000000000000'
    """
    if not isinstance(text, str) or not _PAYMENT_ID.fullmatch(text):
        raise InvalidValue("a payment id is a UUID version 7 in lower case", member="id")
    return PaymentId(text)


def client_id(text: object) -> ClientId:
    """`text` as the identifier of a client; `InvalidValue` when it is empty, too long or not printable ASCII."""
    if not isinstance(text, str) or not _VISIBLE.fullmatch(text) or len(text) > CLIENT_ID_CHARS_MAX:
        raise InvalidValue(
            f"a client id is 1 to {CLIENT_ID_CHARS_MAX} printable ASCII characters without spaces",
            member="client",
        )
    return ClientId(text)


def credit_id(text: object) -> CreditId:
    """`text` as a credit id: the name under which the host books one receipt of money, unique within its payment.

    Raises `InvalidValue` when it is empty, too long or not printable ASCII.

    >>> credit_id("wire-2026-11-21/0007")
    'wire-2026-11-21/0007'
    """
    if not isinstance(text, str) or not _VISIBLE.fullmatch(text) or len(text) > CREDIT_ID_CHARS_MAX:
        raise InvalidValue(
            f"a credit id is 1 to {CREDIT_ID_CHARS_MAX} printable ASCII characters without spaces",
            member="creditId",
        )
    return CreditId(text)


def wallet_address_url(text: object) -> WalletAddressUrl:
    """The one spelling of a wallet address: scheme and host in lower case, no default port, no trailing slash.

    Two URLs that clients use for one wallet address become equal by this; everything that compares wallet addresses
    compares what this returns. Path and query keep their case, as it matters there. Raises `InvalidValue` for
    whatever `domain.urls.canonical_url` refuses.

    >>> wallet_address_url("HTTPS://Bank.Example:443/alice/")
    'https://bank.example/alice'
    """
    return WalletAddressUrl(canonical_url(text, member="walletAddress"))


def _canonical_url(_instance: object, _attribute: object, url: WalletAddressUrl) -> None:
    if wallet_address_url(url) != url:
        raise InvalidValue(f"write the wallet address as {wallet_address_url(url)}", member="walletAddress")


def check_moment(_instance: object, _attribute: object, moment: Any) -> None:
    """`InvalidValue` unless `moment` is a datetime in UTC: others mean another moment to every reader."""
    if not isinstance(moment, datetime) or (moment.tzinfo is not UTC and moment.utcoffset() != timedelta(0)):
        raise InvalidValue("a moment must be a datetime in UTC, such as datetime.now(UTC)", member="now")


def _payment_id(_instance: object, _attribute: object, id: Any) -> None:
    payment_id(id)


def _client_id(_instance: object, _attribute: object, client: Any) -> None:
    client_id(client)


def check_amount(_instance: object, _attribute: object, amount: Any) -> None:
    """`InvalidValue` unless `amount` is an `Amount`."""
    if not isinstance(amount, Amount):
        raise InvalidValue("an amount must be an Amount", member="amount")


def _header_safe(_instance: object, _attribute: object, url: str) -> None:
    header_safe_url(url, member="authServer")


@frozen
class WalletAddress:
    """A wallet address this ASE hosts: its URL, the asset it holds, and where grants for it are asked for.

    `url` is in the spelling of `wallet_address_url`. `auth_server` is the URL of the GNAP authorization server, which
    goes into `authServer`; `WWW-Authenticate` names that of the whole service, as it has to before a wallet address
    is known. Raises `InvalidValue` for other spellings.
    """

    url: WalletAddressUrl = field(validator=_canonical_url)
    asset: Asset = field()
    auth_server: str = field(validator=_header_safe)

    @asset.validator
    def _is_asset(self, _: object, asset: object) -> None:
        if not isinstance(asset, Asset):
            raise InvalidValue("asset must be an Asset", member="asset")


@frozen
class Credit:
    """Money booked into a payment: `amount` arrived at `at` under `id`, making the total `received`.

    `completes` says that this credit reached or passed `incomingAmount`. The same credit id booked again is answered
    with this very value. Raises `InvalidValue` when `amount` is zero, or of another asset than the total, or more.
    """

    payment_id: PaymentId
    id: CreditId
    amount: Amount = field(validator=check_amount)
    received: Amount = field()
    completes: bool
    at: datetime = field(validator=check_moment)

    @received.validator
    def _holds_the_amount(self, _: object, received: Amount) -> None:
        check_amount(None, None, received)
        same = received.asset is self.amount.asset or received.asset == self.amount.asset
        if not same or not 0 < self.amount.value <= received.value:
            raise InvalidValue("a credit is greater than zero and part of the total received", member="amount")


@frozen
class IncomingPayment:
    """The resource of contract section 2.2, as stored.

    `client` is who created it. `limit` is the contract's `incomingAmount`, and `received` its `receivedAmount`.
    `closed_at` is when its client completed it by hand, `expiry_announced_at` when its `expired` event was given;
    both are `None` before. `version` counts the events this payment has given rise to. Whether it is completed or
    expired is not stored: ask `lifecycle.state_of`. Raises `InvalidValue` when the members contradict each other.
    """

    id: PaymentId = field(validator=_payment_id)
    wallet_address: WalletAddressUrl = field(validator=_canonical_url)
    client: ClientId = field(validator=_client_id)
    received: Amount = field(validator=check_amount)
    created_at: datetime = field(validator=check_moment)
    updated_at: datetime = field(validator=check_moment)
    limit: Amount | None = field(default=None, validator=optional(check_amount))
    expires_at: datetime | None = field(default=None, validator=optional(check_moment))
    metadata: MetadataJson | None = None
    closed_at: datetime | None = field(default=None, validator=optional(check_moment))
    expiry_announced_at: datetime | None = field(default=None, validator=optional(check_moment))
    version: int = field(default=1)

    @limit.validator
    def _one_asset(self, _: object, limit: Amount | None) -> None:
        if limit is not None and (limit.asset != self.received.asset or limit.value == 0):
            raise InvalidValue(
                "incomingAmount must be greater than zero and of the asset of receivedAmount",
                member="incomingAmount",
            )

    @updated_at.validator
    def _not_before_creation(self, _: object, updated_at: datetime) -> None:
        if updated_at < self.created_at:
            raise InvalidValue("updatedAt must not lie before createdAt", member="updatedAt")

    @closed_at.validator
    def _closed_after_creation(self, _: object, closed_at: datetime | None) -> None:
        if closed_at is not None and closed_at < self.created_at:
            raise InvalidValue("a payment cannot be closed before it was created", member="closedAt")

    @expiry_announced_at.validator
    def _announced_after_expiry(self, _: object, announced_at: datetime | None) -> None:
        if announced_at is not None and (self.expires_at is None or announced_at <= self.expires_at):
            raise InvalidValue("an expiry cannot be announced before it has happened", member="expiryAnnouncedAt")

    @version.validator
    def _counts(self, _: object, version: int) -> None:
        if type(version) is not int or version < 1:
            raise InvalidValue("version counts events, of which the creation is the first", member="version")

    def with_received(self, received: Amount, *, at: datetime, version: int) -> Self:
        """This payment with another total, at another time: what a credit changes.

        The other members were checked when this value was built, and are taken over as they are: to check them anew for
        every credit is most of what `evolve` costs. Raises `InvalidValue` when what is new contradicts them.
        """
        check_amount(None, None, received)
        check_moment(None, None, at)
        foreign = received.asset is not self.asset and received.asset != self.asset
        if foreign or version <= self.version or at < self.updated_at:
            raise InvalidValue("a credit is of the payment's asset, and later than what was before", member="received")
        after = object.__new__(type(self))
        for put, member in _KEPT:
            put(after, member(self))
        _PUT_RECEIVED(after, received)
        _PUT_UPDATED_AT(after, at)
        _PUT_VERSION(after, version)
        return after

    @property
    def asset(self) -> Asset:
        """The asset of the wallet address, in which everything about this payment is counted."""
        return self.received.asset


def _slot(name: str) -> Any:
    """The descriptor of a member: by it, a copy takes half as long as by name, and reads stay as fast as slots are."""
    return getattr(IncomingPayment, name)


_CREDITED: Final = ("received", "updated_at", "version")  # what a credit changes
_PUT_RECEIVED, _PUT_UPDATED_AT, _PUT_VERSION = (_slot(name).__set__ for name in _CREDITED)
_KEPT: Final = tuple(
    (_slot(member.name).__set__, _slot(member.name).__get__)
    for member in fields(IncomingPayment)
    if member.name not in _CREDITED
)

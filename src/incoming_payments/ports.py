"""What a host plugs in: the Protocols behind the effects, each in a sync and an async form.

A port is a small class of the host's own. Write plain `def` methods for `run`, `async def` for `arun`; `arun` takes
either. A port answers, or raises: `PolicyRefused` to refuse by the host's own rules, `StoreUnavailable` (or a subclass
of its own) for trouble that may pass. `incoming_payments.testing` holds the contract suite every store has to pass.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from attrs import field, frozen

from incoming_payments.domain.events import Event
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import (
    Credit,
    CreditId,
    IncomingPayment,
    PaymentId,
    WalletAddress,
    WalletAddressUrl,
)
from incoming_payments.gnap.introspection import AccessTokenInfo
from incoming_payments.gnap.token import AccessToken

T = TypeVar("T")
Decide = Callable[[IncomingPayment, Credit | None], Decision[T]]


class PaymentStore(Protocol):
    """Where payments are kept. Each method is atomic, and answers when its outcome is durable."""

    def insert(self, decision: Decision[IncomingPayment]) -> None:
        """Store a new payment with its events. Raises `PaymentExists` when the id is taken."""
        ...

    def load(self, id: PaymentId) -> IncomingPayment:
        """The payment as last stored. Raises `PaymentNotFound`."""
        ...

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Load, decide and store as one transaction, and return the decision's answer.

        `decide` is called with the payment and with the credit booked in it under `credit_id`, if any, inside
        the transaction and no earlier: that of a packet looks at the clock then. It changes nothing itself and may be
        called more than once; what it said last counts. What it raises reaches the caller, and nothing is stored.
        Raises `PaymentNotFound`.
        """
        ...

    def events(self, id: PaymentId) -> Sequence[Event]:
        """The events of one payment, oldest first. Raises `PaymentNotFound`."""
        ...

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """At most `limit` payments whose `expires_at` lies before `now` and whose expiry is not announced.

        Ordered by `expires_at`. Leaves out completed payments: they never expire, so they would be named for ever and
        keep a sweep from reaching the others.
        """
        ...


class AsyncPaymentStore(Protocol):
    """`PaymentStore` with `async def` methods."""

    async def insert(self, decision: Decision[IncomingPayment]) -> None: ...
    async def load(self, id: PaymentId) -> IncomingPayment: ...
    async def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T: ...
    async def events(self, id: PaymentId) -> Sequence[Event]: ...
    async def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]: ...


class WalletAddresses(Protocol):
    """Which wallet addresses are hosted here."""

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """The wallet address with this URL (in the spelling of `wallet_address_url`), or `None`."""
        ...


class AsyncWalletAddresses(Protocol):
    """`WalletAddresses` with an `async def` method."""

    async def find(self, url: WalletAddressUrl) -> WalletAddress | None: ...


class Introspector(Protocol):
    """What the authorization server says of an access token. RFC 9767 §3.3."""

    def introspect(self, token: AccessToken) -> AccessTokenInfo | None:
        """What the token stands for, or `None` when it is not active."""
        ...


class AsyncIntrospector(Protocol):
    """`Introspector` with an `async def` method."""

    async def introspect(self, token: AccessToken) -> AccessTokenInfo | None: ...


class Nonces(Protocol):
    """What remembers nonces, so that a signed request with one is answered once. RFC 9421 §7.2.2.

    A memory of one process does for one process: several that serve one URL have to share theirs.
    """

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """`True` the first time that `key` is used, in one atomic step, and `False` from then on.

        A key may be forgotten once `now` is later than its `until`, and not before: who has no room left raises
        `StoreUnavailable`. `key` is of 64 hexadecimal digits. When `until` has passed already the answer is `False`,
        and so it is when it is no later than that of any key forgotten: `now` may be old by the time this is asked.
        """
        ...


class AsyncNonces(Protocol):
    """`Nonces` with an `async def` method."""

    async def use(self, key: str, until: datetime, now: datetime) -> bool: ...


class MethodAllocator(Protocol):
    """Who hands out the payment details of contract section 2.3."""

    def allocate(self, payment: IncomingPayment) -> Sequence[IlpPaymentMethod]:
        """The methods by which `payment` can be paid.

        Called whenever a payment that can receive is shown, so the same payment has to get the same answer.
        """
        ...


class AsyncMethodAllocator(Protocol):
    """`MethodAllocator` with an `async def` method."""

    async def allocate(self, payment: IncomingPayment) -> Sequence[IlpPaymentMethod]: ...


@frozen(kw_only=True)
class Ports:
    """The ports that `run` answers effects from. What a host's flows never ask for may be left out.

    A process that only books money needs nothing but a `store`. Without `nonces` every request whose signature has a
    nonce is refused. `randomness` draws that many bytes for ids; leave it alone outside tests.
    """

    store: PaymentStore | None = None
    wallet_addresses: WalletAddresses | None = None
    introspector: Introspector | None = None
    nonces: Nonces | None = None
    methods: MethodAllocator | None = None
    randomness: Callable[[int], bytes] = field(default=secrets.token_bytes, repr=False)


@frozen(kw_only=True)
class AsyncPorts:
    """The ports that `arun` answers effects from; each may be sync or async. See `Ports`."""

    store: AsyncPaymentStore | PaymentStore | None = None
    wallet_addresses: AsyncWalletAddresses | WalletAddresses | None = None
    introspector: AsyncIntrospector | Introspector | None = None
    nonces: AsyncNonces | Nonces | None = None
    methods: AsyncMethodAllocator | MethodAllocator | None = None
    randomness: Callable[[int], bytes] | Callable[[int], Awaitable[bytes]] = field(
        default=secrets.token_bytes, repr=False
    )

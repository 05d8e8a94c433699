"""The ports: the Protocols that a host implements to answer effects, each in a sync and an async form.

Write plain `def` methods for `run`, and `async def` methods for `arun`. `arun` accepts both kinds.

A method returns its answer or raises an exception. It raises `PolicyRefused` when a rule of the host refuses, and a
`PortUnavailable`, such as `StoreUnavailable` or `AuthorizationServerUnavailable`, for a temporary failure.
`incoming_payments.testing` has contract tests for stores.
"""

import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol, TypeVar

from attrs import Attribute, field, fields, frozen

from incoming_payments.acceptance import Acceptance, Approvals, AsyncAcceptance
from incoming_payments.blocking import LoopWatch, check_unblocking
from incoming_payments.domain.checks import name_of
from incoming_payments.domain.events import Event
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import (
    ClientId,
    Credit,
    CreditId,
    InactiveWalletAddress,
    IncomingPayment,
    PaymentId,
    WalletAddress,
    WalletAddressUrl,
)
from incoming_payments.errors import ConfigurationError
from incoming_payments.gnap.introspection import AccessTokenInfo, TokenQuery
from incoming_payments.limits import APPROVAL_S_MAX, APPROVAL_SETTING_S_MAX

T = TypeVar("T")
Validator = Callable[[object, "Attribute[Any]", Any], None]
Decide = Callable[[IncomingPayment, Credit | None], Decision[T]]


class PaymentStore(Protocol):
    """The store of payments. Each method is atomic, and returns when its result is durable."""

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Store a new payment with its events and `decision.keyed`, if there is one, in one transaction.

        Return `None`. If the store has a record with the client and the key of `decision.keyed`, return that record and
        store nothing. But replace a record if its `until` is before the `created_at` of the new payment. While another
        transaction inserts a payment under the key, wait for its end. Otherwise raise `PaymentExists` when a payment
        with this id exists.
        """

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        """Return the record that `insert` stored for this client and key, or `None`.

        Return `None` when its `until` is before `now`. The payment of a returned record can be loaded at once.
        """

    def load(self, id: PaymentId) -> IncomingPayment:
        """Return the payment as last stored. Raise `PaymentNotFound`."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Load, decide and store in one transaction, and return the answer of the decision.

        Call `decide` inside the transaction, with the payment and its credit under `credit_id`, or `None` if there is
        no such credit. Do not call it earlier, because the decision about a packet reads the clock. `decide` has no
        side effects and may be called more than once; store the result of the last call. If it raises, store nothing
        and let the exception reach the caller. Raises `PaymentNotFound`.
        """

    def events(self, id: PaymentId) -> Sequence[Event]:
        """Return the events of one payment, oldest first. Raise `PaymentNotFound`."""

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Return at most `limit` payments with `expires_at` before `now` and no `expired` event, by `expires_at`.

        Leave out completed payments. A completed payment never expires, so each sweep would find it again and not
        reach the other payments.
        """

    def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        """Return the page that `query` describes, newest first. `query.page_of(all_payments)` is the right answer.

        Find the place in the list by an index, so that every page of a wallet address, and of one client at a wallet
        address, costs the same. Never count rows from the start of the list.
        """


class AsyncPaymentStore(Protocol):
    """`PaymentStore` with `async def` methods."""

    async def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None: ...
    async def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None: ...
    async def load(self, id: PaymentId) -> IncomingPayment: ...
    async def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T: ...
    async def events(self, id: PaymentId) -> Sequence[Event]: ...
    async def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]: ...
    async def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]: ...


class WalletAddresses(Protocol):
    """The wallet addresses that this ASE hosts."""

    def find(self, url: WalletAddressUrl) -> WalletAddress | InactiveWalletAddress | None:
        """Return the wallet address with this URL (as `wallet_address_url` writes it), or `None`.

        Return an `InactiveWalletAddress` if it takes no new payments. Its existing payments still receive money.
        """


class AsyncWalletAddresses(Protocol):
    """`WalletAddresses` with an `async def` method."""

    async def find(self, url: WalletAddressUrl) -> WalletAddress | InactiveWalletAddress | None: ...


class Introspector(Protocol):
    """Token introspection by the authorization server. RFC 9767 §3.3."""

    def introspect(self, query: TokenQuery) -> AccessTokenInfo | None:
        """Return the information about the token, or `None` when it is not active.

        Send the action and the wallet address of `query` only if the authorization server answers only for these two.
        """


class AsyncIntrospector(Protocol):
    """`Introspector` with an `async def` method."""

    async def introspect(self, query: TokenQuery) -> AccessTokenInfo | None: ...


class ClientKeys(Protocol):
    """The keys of clients, for access tokens that do not carry the key to which they are bound."""

    def find(self, client: ClientId, key_id: str) -> Mapping[str, object] | None:
        """Return the public JWK of `client` with the `kid` `key_id`, or `None` if `client` has no such key.

        A request names `key_id`, so return only a key that `client` itself vouches for. This is called after the token
        was accepted. Raise `ClientKeysUnavailable` when the keys of the client are not known now.
        """


class AsyncClientKeys(Protocol):
    """`ClientKeys` with an `async def` method."""

    async def find(self, client: ClientId, key_id: str) -> Mapping[str, object] | None: ...


class Nonces(Protocol):
    """The record of used nonces, so that a signed request with a nonce is accepted only once. RFC 9421 §7.2.2.

    Processes that serve the same URL must share one record.
    """

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Record `key`, and return `True` if this is its first use or `False` otherwise, in one atomic step.

        `key` has 64 hexadecimal digits. Keep it until `now` is later than its `until`, and raise `StoreUnavailable`
        when there is no space for it. Return `False` when `until` is before `now`. For a key that is not recorded,
        raise `ClockBehind` when `until` is not later than the `until` of a key that was removed: `now` may be out of
        date when the call arrives, or another clock was ahead. `stores.guard.check_nonce_time` does this.
        """


class AsyncNonces(Protocol):
    """`Nonces` with an `async def` method."""

    async def use(self, key: str, until: datetime, now: datetime) -> bool: ...


class MethodAllocator(Protocol):
    """The allocator of payment methods. Spec section 2.3."""

    def allocate(self, payment: IncomingPayment) -> Sequence[IlpPaymentMethod]:
        """Return the methods by which `payment` can be paid.

        Always return the same methods for the same payment: this is called for each request that returns the payment.
        """


class AsyncMethodAllocator(Protocol):
    """`MethodAllocator` with an `async def` method."""

    async def allocate(self, payment: IncomingPayment) -> Sequence[IlpPaymentMethod]: ...


class Quotas(Protocol):
    """The quotas of clients. Processes that serve the same URL must share them. `stores.quotas` is for one process.

    Each method is one atomic step.
    """

    def admit(self, client: ClientId, now: datetime) -> float | None:
        """Count a request of `client`, and return `None`, or the seconds until a request of it is admitted again."""

    def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]:
        """Count `id`, a new unpaid payment of `client`, and return `()`.

        If that exceeds the quota, change nothing, and return the unpaid payments that are counted, oldest first and at
        most `limits.QUOTA_UNPAID_MAX`. The service releases payments that are no longer unpaid, and tries again.
        """

    def release(self, client: ClientId, id: PaymentId) -> None:
        """Stop counting the payment `id` of `client`. Do nothing if it is not counted."""


class AsyncQuotas(Protocol):
    """`Quotas` with `async def` methods."""

    async def admit(self, client: ClientId, now: datetime) -> float | None: ...
    async def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]: ...
    async def release(self, client: ClientId, id: PaymentId) -> None: ...


@frozen(kw_only=True)
class RequestAnswered:
    """An HTTP request got its response.

    `method` is `_OTHER` for an unknown one. `route` is the path below the base URL, with `{id}` for the id of a
    payment, or `""` if there is no such path. `outcome` is `ok`, or the code of the refusal or the failure.
    """

    method: str
    route: str
    status: int
    outcome: str
    duration_s: float


@frozen(kw_only=True)
class PacketAnswered:
    """An ILP packet got its reply. `outcome` is `fulfilled`, or the ILP error code of the Reject, such as `F08`."""

    outcome: str
    duration_s: float


@frozen(kw_only=True)
class CreditDecided:
    """The store decided about a credit. `outcome` is `credited`, also for a repeated call, or the code of the error."""

    outcome: str
    duration_s: float


@frozen(kw_only=True)
class TokenIntrospected:
    """The introspector answered. `outcome` is `active`, `inactive` or the code of the error."""

    outcome: str
    duration_s: float


@frozen(kw_only=True)
class StoreBatch:
    """The SQLite store committed `size` updates together. `outcome` is `committed`, or the code of the error."""

    size: int
    outcome: str
    duration_s: float


Observation = RequestAnswered | PacketAnswered | CreditDecided | TokenIntrospected | StoreBatch


class Observer(Protocol):
    """A receiver of observations, for metrics. `incoming_payments.observers` has two.

    It is called in the thread of the request or of the store, so it must be thread-safe and fast, and must not call the
    service. An exception is logged and breaks nothing.
    """

    def observe(self, observation: Observation) -> None:
        """Take note of `observation`. Its texts come from small sets of values, fit for labels, and hold no secret."""


def _port(protocol: type, *, is_sync: bool = False) -> Validator:
    """Return a validator for an object with the methods of `protocol`, or `None`.

    `is_sync` refuses `async def`. Otherwise the validator refuses a port of this library that blocks the event loop.
    """
    methods = [name for name in vars(protocol) if not name.startswith("_")]

    def check(_: object, attribute: "Attribute[Any]", port: object) -> None:
        missing = [name for name in methods if not callable(getattr(port, name, None))]
        if port is not None and (missing or isinstance(port, type)):
            found = f"the class {port.__name__}: make an object of it" if isinstance(port, type) else name_of(port)
            noun = "methods" if len(methods) > 1 else "method"
            text = f"{attribute.name} must be an object with the {noun} {', '.join(methods)}, not {found}"
            raise ConfigurationError(text, setting=attribute.name)
        if is_sync and any(inspect.iscoroutinefunction(getattr(port, name, None)) for name in methods):
            text = f"{attribute.name} is async: pass AsyncPorts to AsyncIncomingPayments, or write the port with def"
            raise ConfigurationError(text, setting=attribute.name)
        if not is_sync:
            check_unblocking(attribute.name, port)

    return check


def _function(_: object, attribute: "Attribute[Any]", value: object) -> None:
    if not callable(value):
        text = f"{attribute.name} must be a function of a number of bytes, not {name_of(value)}"
        raise ConfigurationError(text, setting=attribute.name)


def _bound(_: object, attribute: "Attribute[Any]", value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= APPROVAL_SETTING_S_MAX:
        text = f"{attribute.name} must be a number of seconds up to {APPROVAL_SETTING_S_MAX}, not {value!r}"
        raise ConfigurationError(text, setting=attribute.name)


class _Calls:
    """The state for the calls of ports, for the drivers."""

    acceptance: Any
    approval_s: float

    @cached_property
    def approvals(self) -> Approvals | None:
        """The calls of `acceptance` within its bound."""
        return None if self.acceptance is None else Approvals(self.acceptance, self.approval_s)

    @cached_property
    def loop_watch(self) -> LoopWatch:
        """The warnings about sync ports that block an event loop."""
        return LoopWatch()


@frozen(kw_only=True)
class Ports(_Calls):
    """The ports for `run`. Leave out ports that the flows of the host do not use.

    A process that only credits money needs only a `store`. Without `nonces`, a request with a nonce in its signature is
    refused. Without `client_keys`, a request is refused if its token does not carry a key. Without `acceptance` every
    payment and packet is approved, and without `quotas` there is no limit. `approval_s` is how many seconds
    `acceptance` may take. `randomness(count)` returns random bytes for ids and nonces; change it only in tests. Raises
    `ConfigurationError` for an object without the methods of its port, for a class in place of an object, and for
    `async def` methods.
    """

    store: PaymentStore | None = field(default=None, validator=_port(PaymentStore, is_sync=True))
    wallet_addresses: WalletAddresses | None = field(default=None, validator=_port(WalletAddresses, is_sync=True))
    introspector: Introspector | None = field(default=None, validator=_port(Introspector, is_sync=True))
    client_keys: ClientKeys | None = field(default=None, validator=_port(ClientKeys, is_sync=True))
    nonces: Nonces | None = field(default=None, validator=_port(Nonces, is_sync=True))
    methods: MethodAllocator | None = field(default=None, validator=_port(MethodAllocator, is_sync=True))
    acceptance: Acceptance | None = field(default=None, validator=_port(Acceptance, is_sync=True))
    approval_s: float = field(default=APPROVAL_S_MAX, validator=_bound)
    quotas: Quotas | None = field(default=None, validator=_port(Quotas, is_sync=True))
    randomness: Callable[[int], bytes] = field(default=secrets.token_bytes, repr=False, validator=_function)


@frozen(kw_only=True)
class AsyncPorts(_Calls):
    """The ports for `arun`, each sync or async. See `Ports`.

    A sync port must not wait, because it would block the event loop. Raises `ConfigurationError` also for such a port
    of this library, and names its async class.
    """

    store: AsyncPaymentStore | PaymentStore | None = field(default=None, validator=_port(PaymentStore))
    wallet_addresses: AsyncWalletAddresses | WalletAddresses | None = field(
        default=None, validator=_port(WalletAddresses)
    )
    introspector: AsyncIntrospector | Introspector | None = field(default=None, validator=_port(Introspector))
    client_keys: AsyncClientKeys | ClientKeys | None = field(default=None, validator=_port(ClientKeys))
    nonces: AsyncNonces | Nonces | None = field(default=None, validator=_port(Nonces))
    methods: AsyncMethodAllocator | MethodAllocator | None = field(default=None, validator=_port(MethodAllocator))
    acceptance: AsyncAcceptance | Acceptance | None = field(default=None, validator=_port(Acceptance))
    approval_s: float = field(default=APPROVAL_S_MAX, validator=_bound)
    quotas: AsyncQuotas | Quotas | None = field(default=None, validator=_port(Quotas))
    randomness: Callable[[int], bytes] | Callable[[int], Awaitable[bytes]] = field(
        default=secrets.token_bytes, repr=False, validator=_function
    )


def check_for_asyncio(ports: AsyncPorts | Ports) -> None:
    """Raise `ConfigurationError` for a port of this library in `ports` that would block an event loop."""
    if isinstance(ports, Ports):  # `AsyncPorts` is checked when it is built
        for each in fields(Ports):
            check_unblocking(each.name, getattr(ports, each.name))

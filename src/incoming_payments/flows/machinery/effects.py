"""The effects, which are port operations that a flow requests, as data. One effect is one atomic operation."""

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from types import NoneType
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

from attrs import frozen

from incoming_payments.domain.checks import name_of
from incoming_payments.domain.events import Event
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import (
    ClientId,
    CreditId,
    InactiveWalletAddress,
    IncomingPayment,
    PaymentId,
    WalletAddress,
    WalletAddressUrl,
)
from incoming_payments.errors import ConfigurationError, FlowStuck, WalletAddressesUnavailable
from incoming_payments.gnap.introspection import AccessTokenInfo, TokenQuery
from incoming_payments.ports import Decide
from incoming_payments.ports.approval import Approval, Proposal

P = ParamSpec("P")
T = TypeVar("T")


class Effect(Generic[T]):
    """A request to a port. In `answer = yield from effect`, type checkers know the type of the answer.

    `method` names the port and its method in messages. Raises `ConfigurationError` when the answer is not of one of the
    types `answers`.
    """

    method: ClassVar[str] = ""
    answers: ClassVar[tuple[type, ...]] = (object,)

    def __iter__(self) -> "Generator[Effect[Any], Any, T]":
        answer: T = yield self
        if not isinstance(answer, self.answers):
            names = " or ".join("None" if cls is NoneType else cls.__name__ for cls in self.answers)
            text = f"{self.method} returned {name_of(answer)}: return {names}"
            raise ConfigurationError(text, setting="ports")
        return answer


Flow = Generator[Effect[Any], Any, T]
"""One use case, which yields effects, and returns its answer or raises an `IncomingPaymentsError`."""


class Guarded(Generator[Effect[Any], Any, T]):
    """A flow that warns if it was never run, like a coroutine that was never awaited.

    `yield from` and the drivers run the generator inside this object directly, so the warning makes no step slower. A
    second run raises `FlowStuck`. A used generator would return `None` at once, as if it had succeeded.
    """

    __slots__ = ("_steps", "_unrun")

    def __init__(self, unrun: Flow[T]) -> None:
        self._unrun: Flow[T] | None = unrun

    def __iter__(self) -> Flow[T]:
        """Return the generator. A second call raises `FlowStuck`."""
        steps, self._unrun = self._unrun, None
        if steps is None:
            raise FlowStuck("this flow has already run: make a new flow for each call")
        self._steps = steps
        return steps

    def send(self, answer: Any, /) -> Effect[Any]:
        """Answer the last effect, and return the next one."""
        return self._taken().send(answer)

    def throw(self, *error: Any) -> Effect[Any]:
        """Raise an exception at the last effect, and return the next effect."""
        return self._taken().throw(*error)

    def _taken(self) -> Flow[T]:
        return self._steps if self._unrun is None else iter(self)

    def __del__(self) -> None:
        if self._unrun is not None:
            name = getattr(self._unrun, "__name__", "").lstrip("_")
            text = f"flow {name!r} was never run: pass it to run() or arun(), or call the service"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def flow(function: Callable[P, Flow[T]]) -> Callable[P, Flow[T]]:
    """Decorate `function` so that each of its flows warns if it was never run.

    Use this decorator for the flows that hosts call.
    """

    @wraps(function)
    def start(*args: P.args, **kwargs: P.kwargs) -> Flow[T]:
        return Guarded(function(*args, **kwargs))

    return start


@frozen
class DrawRandomness(Effect[bytes]):
    """Draw `count` random bytes that are fit for secrets."""

    method: ClassVar = "randomness"
    answers: ClassVar = (bytes,)
    count: int


@frozen
class FindWalletAddress(Effect[WalletAddress | InactiveWalletAddress | None]):
    """Find the wallet address with this URL, or `None` if this service does not host it."""

    method: ClassVar = "wallet_addresses.find"
    answers: ClassVar = (WalletAddress, InactiveWalletAddress, NoneType)
    url: WalletAddressUrl


def find_wallet_address(url: WalletAddressUrl) -> Flow[WalletAddress | InactiveWalletAddress | None]:
    """Find the wallet address. A timeout or a lost connection counts as an outage, and not as a defect of the port.

    Raises `ConfigurationError` when the port answers with a wallet address of another URL.
    """
    try:
        found = yield from FindWalletAddress(url)
        if found is None or found.url == url:
            return found
        text = (
            f"{FindWalletAddress.method} returned the wallet address {found.url} for {url}: return the wallet "
            "address with the given URL, or None"
        )
        raise ConfigurationError(text, setting="wallet_addresses")
    except (ConnectionError, TimeoutError) as error:
        text = f"the wallet address {url} cannot be read: {type(error).__name__}: {error}"
        raise WalletAddressesUnavailable(text) from error


@frozen
class IntrospectToken(Effect[AccessTokenInfo | None]):
    """Introspect an access token. The answer is `None` if the token is not active."""

    method: ClassVar = "introspector.introspect"
    answers: ClassVar = (AccessTokenInfo, NoneType)
    query: TokenQuery


@frozen
class FindClientKey(Effect[Mapping[str, object] | None]):
    """Find the public JWK of the client with this `kid`, or `None` if the client has no such key."""

    method: ClassVar = "client_keys.find"
    answers: ClassVar = (Mapping, NoneType)
    client: ClientId
    key_id: str


@frozen
class UseNonce(Effect[bool]):
    """Use the nonce `key`, and return whether this is its first use. The store keeps the nonce until `until`."""

    method: ClassVar = "nonces.use"
    answers: ClassVar = (bool,)
    key: str
    until: datetime
    now: datetime


@frozen
class AllocateMethods(Effect[Sequence[IlpPaymentMethod]]):
    """Allocate the payment methods of a payment that can receive. `views.check_methods` checks the answer."""

    method: ClassVar = "methods.allocate"
    payment: IncomingPayment


@frozen
class InsertPayment(Effect[KeyedCreation | None]):
    """Store a new payment with its events and its idempotency key. The answer means that they are durable.

    The answer is `None`, or the earlier record of the key. If there is an earlier record, nothing is stored. Raises
    `PaymentExists`.
    """

    method: ClassVar = "store.insert"
    answers: ClassVar = (KeyedCreation, NoneType)
    decision: Decision[IncomingPayment]


@frozen
class FindCreation(Effect[KeyedCreation | None]):
    """Find the record of a creation under an idempotency key, or `None` if no record is valid at `now`."""

    method: ClassVar = "store.find_creation"
    answers: ClassVar = (KeyedCreation, NoneType)
    client: ClientId
    key: IdempotencyKey
    now: datetime


@frozen
class LoadPayment(Effect[IncomingPayment]):
    """Load the payment as last stored. Raises `PaymentNotFound`."""

    method: ClassVar = "store.load"
    answers: ClassVar = (IncomingPayment,)
    id: PaymentId


@frozen
class UpdatePayment(Effect[T]):
    """Load, decide and store in one transaction. Answer when the transaction is durable. Raises `PaymentNotFound`.

    If the host has an approval port, a decision that credits the money of a packet needs the approval of the host
    (`Decision.approved`). If the approval is missing, the driver raises `ApprovalRequired`, and nothing is stored.
    """

    method: ClassVar = "store.update"
    id: PaymentId
    decide: Decide[T]
    credit_id: CreditId | None = None


@frozen
class RequestApproval(Effect[Approval]):
    """Request the approval of the host. If there is no approval port, the answer is always an approval.

    Raises `PolicyRefused` for a refusal.
    """

    method: ClassVar = "approval"
    answers: ClassVar = (Approval,)
    proposal: Proposal


@frozen
class CountRequest(Effect[float | None]):
    """Count a request of `client`.

    The answer is `None`, or the number of seconds until the quota admits another request.
    """

    method: ClassVar = "quotas.admit"
    answers: ClassVar = (float, int, NoneType)
    client: ClientId
    now: datetime


@frozen
class ReserveUnpaid(Effect[Sequence[PaymentId]]):
    """Count the new unpaid payment `id`. The answer is empty, or lists the payments that use up the quota."""

    method: ClassVar = "quotas.reserve"
    answers: ClassVar = (Sequence,)
    client: ClientId
    id: PaymentId


@frozen
class ReleaseUnpaid(Effect[None]):
    """Stop counting the payment `id` as unpaid."""

    method: ClassVar = "quotas.release"
    client: ClientId
    id: PaymentId


@frozen
class LoadEvents(Effect[Sequence[Event]]):
    """Load the events of one payment, oldest first. Raises `PaymentNotFound`."""

    method: ClassVar = "store.events"
    answers: ClassVar = (Sequence,)
    id: PaymentId


@frozen
class FindExpired(Effect[Sequence[PaymentId]]):
    """Find at most `limit` payments that have expired at `now` and have no `expired` event yet."""

    method: ClassVar = "store.find_expired"
    answers: ClassVar = (Sequence,)
    now: datetime
    limit: int


@frozen
class EraseMetadata(Effect[IncomingPayment]):
    """Erase the metadata of one payment. Raises `PaymentNotFound`."""

    method: ClassVar = "erasure.erase"
    answers: ClassVar = (IncomingPayment,)
    id: PaymentId


@frozen
class EraseEnded(Effect[bool]):
    """Erase the metadata of a batch of the payments that ended before `before`. Answer whether no metadata is left."""

    method: ClassVar = "erasure.erase_ended"
    answers: ClassVar = (bool,)
    before: datetime


@frozen
class FindPayments(Effect[Sequence[IncomingPayment]]):
    """Find the payments of one page, newest first."""

    method: ClassVar = "store.find_payments"
    answers: ClassVar = (Sequence,)
    query: PaymentQuery

"""The service: the one object that a host holds, with a method for each use case, sync or async.

`IncomingPayments` calls sync ports. `AsyncIncomingPayments` awaits its ports, and has the same methods as coroutines.
Both run the same flows. The functions at the top of this module become the methods of both classes.
"""

import functools
import inspect
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any, ClassVar, Concatenate, Final, Generic, ParamSpec, TypeVar, get_args

from attrs import evolve, frozen

from incoming_payments.api import Request, Response, check_head, handle, http_refusal, internal_error
from incoming_payments.clock import utc_now
from incoming_payments.domain.amount import Amount
from incoming_payments.domain.checks import name_of
from incoming_payments.domain.events import Event
from incoming_payments.domain.payment import Credit, IncomingPayment, PaymentId
from incoming_payments.errors import ConfigurationError, HttpRefused, PaymentNotFound
from incoming_payments.flows.complete import complete
from incoming_payments.flows.create import create_for_host
from incoming_payments.flows.effects import Flow, LoadEvents, LoadPayment
from incoming_payments.flows.expire import announce_expired
from incoming_payments.flows.observed import observed
from incoming_payments.flows.policy import COLLECTION_PATH, ServicePolicy
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import receive_packet
from incoming_payments.flows.run import arun, fresh, run
from incoming_payments.ilp import DerivedMethods, Peer, Receiver
from incoming_payments.ilp.packet import PacketType, contents_span
from incoming_payments.ilp_http import PacketPolicy, handle_packet_of
from incoming_payments.limits import BODY_BYTES_MAX, ILP_PREPARE_BYTES_MAX, SWEEP_PAYMENTS_MAX
from incoming_payments.log import LineLimit, LogEvent, log_event
from incoming_payments.observers.reporter import Reporter
from incoming_payments.ports import AsyncPorts, Observer, PacketAnswered, Ports, RequestAnswered

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")
PortsT = TypeVar("PortsT", bound=AsyncPorts | Ports)

_METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
_NO_PAYMENT: Final = PaymentId("00000000-0000-0000-0000-000000000000")


@frozen
class Endpoint:
    """How an adapter answers the requests to one path.

    `begin` checks a request without its body, and raises `HttpRefused` when no body could make the request acceptable.
    It returns a function from the body to the flow that answers; pass the flow to `run` of the service. `failed`
    returns the response for a request that failed with an unexpected exception. `body_bytes_max` is the size limit for
    the body.
    """

    begin: Callable[[Request], Callable[[bytes], Flow[Response]]]
    failed: Callable[[], Response]
    body_bytes_max: int


# --- the methods of both classes ---------------------------------------------------------------------


def _handle(service: "_Service[Any]", request: Request) -> Flow[Response]:
    """Return the response to a request for Open Payments, or to an ILP packet if the service has `packets`.

    A refusal is a response too. An exception, such as `PortMissing`, is never the fault of a client. Log it, and answer
    with `endpoint(request.path).failed()`.
    """
    _check(request, Request, "request", "pass Request(method, path, query, headers, body)")
    begin_s, endpoint = time.perf_counter(), service.endpoint(request.path)
    try:
        response = yield from endpoint.begin(request)(request.body)
    except HttpRefused as error:
        response = http_refusal(error)
    except Exception:
        service.answered(request.method, request.path, endpoint.failed(), begin_s)
        raise
    service.answered(request.method, request.path, response, begin_s)
    return response


def _create(
    service: "_Service[Any]",
    *,
    wallet_address: str,
    incoming_amount: Amount | None = None,
    expires_at: datetime | None = None,
    metadata: Mapping[str, object] | None = None,
    client: str | None = None,
    idempotency_key: str | None = None,
) -> Flow[IncomingPayment]:
    """Create a payment for the host's own app, and return it when it is durable.

    The payment belongs to `client`, which is the client id of access tokens, or to the host if `client` is `None`.
    Clients read a payment of the host in the public view, or with the right `read-all`. The URL for the payer is
    `service.policy.payment_url(payment.id)`. A repeated call with the same `idempotency_key` and the same arguments
    returns the payment of the first call, in the state of its creation. See `ServicePolicy.idempotency_key_s`.

    Raises `WalletAddressNotFound`, `WalletAddressInactive`, `AssetMismatch`, `TermsRefused`, `IdempotencyKeyReused`,
    and `InvalidValue`, which names the wrong member.
    """
    return (
        yield from create_for_host(
            wallet_address=wallet_address,
            incoming_amount=incoming_amount,
            expires_at=expires_at,
            metadata=metadata,
            client=client,
            idempotency_key=idempotency_key,
            policy=service.policy,
            now=service.clock(),
        )
    )


def _get(service: "_Service[Any]", payment: PaymentId | str) -> Flow[IncomingPayment]:
    """Return the payment as it was last stored; `state_of(payment, now)` is its state. Raises `PaymentNotFound`."""
    return (yield from LoadPayment(service.policy.payment_id(payment)))


def _receive(service: "_Service[Any]", payment: PaymentId | str, *, credit: str, amount: Amount) -> Flow[Credit]:
    """Credit `amount` to `payment` under the credit id `credit`. Return the credit when it is durable.

    `credit` is the host's own reference for this receipt of money, such as a ledger reference. A repeated call with the
    same reference is safe and returns the first result, so repeat a call that was interrupted. A credit that reaches
    or passes `incomingAmount` completes the payment. Raises the exceptions of `flows.receive.receive`.
    """
    id = service.policy.payment_id(payment)
    return (yield from receive(id, credit=credit, amount=amount, clock=service.clock))


def _receive_packet(service: "_Service[Any]", packet: bytes, *, peer: Peer) -> Flow[bytes]:
    """Answer the ILP Prepare `packet` that `peer` sent. Return the encoded Fulfill or Reject.

    A Fulfill is returned after the money is credited durably. Raises `ConfigurationError` if the service has no
    receiver.
    """
    _check(packet, bytes, "packet", "pass the bytes of an ILP packet")
    _check(peer, Peer, "peer", "pass the Peer that sent the packet")
    if service.receiver is None:
        raise ConfigurationError("this service has no receiver: pass receiver=Receiver(...)", setting="receiver")
    begin_s = time.perf_counter()
    reply = yield from receive_packet(packet, peer=peer, receiver=service.receiver, clock=service.clock)
    service.replied(reply, begin_s)
    return reply


def _complete(service: "_Service[Any]", payment: PaymentId | str) -> Flow[IncomingPayment]:
    """Close `payment`, so that it takes no more money, and return it. A completed payment does not change.

    Raises `PaymentNotFound` and `PaymentExpired`.
    """
    return (yield from complete(service.policy.payment_id(payment), clock=service.clock))


def _events(service: "_Service[Any]", payment: PaymentId | str) -> Flow[Sequence[Event]]:
    """Return the events of `payment`, oldest first. Raises `PaymentNotFound`."""
    return (yield from LoadEvents(service.policy.payment_id(payment)))


def _announce_expired(service: "_Service[Any]", *, limit: int = SWEEP_PAYMENTS_MAX) -> Flow[int]:
    """Write the `expired` event of at most `limit` payments that have expired. Return how many were found.

    Call it periodically. Call it again at once when it returns `limit`, because more payments may have expired.
    """
    return (yield from announce_expired(service.clock(), limit=limit))


def _is_ready(service: "_Service[Any]") -> Flow[bool]:
    """Return whether the store answers, for a readiness check. The log names the failure.

    An authorization server that does not answer changes nothing: packets and credits of the host need only the store.
    """
    try:
        yield from LoadPayment(_NO_PAYMENT)
    except PaymentNotFound:
        return True
    except Exception as error:  # noqa: BLE001 - it is logged
        if service.unready_lines.admits(logger, "failed readiness checks"):
            log_event(logger, logging.ERROR, LogEvent.NOT_READY, "not ready, because of the store", error=error)
    return False


Method = Callable[Concatenate[Any, P], Flow[T]]


def _sync(method: Method[P, T]) -> Callable[Concatenate["IncomingPayments", P], T]:
    """Return `method` as a method of `IncomingPayments`."""

    def call(self: "IncomingPayments", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(method(self, *args, **kwargs))

    return _documented(call, method)


def _async(method: Method[P, T]) -> Callable[Concatenate["AsyncIncomingPayments", P], Coroutine[Any, Any, T]]:
    """Return `method` as a method of `AsyncIncomingPayments`."""

    async def call(self: "AsyncIncomingPayments", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(method(self, *args, **kwargs))

    return _documented(call, method)


C = TypeVar("C", bound=Callable[..., Any])


def _documented(call: C, method: Callable[..., Any]) -> C:
    """Give `call` the docstring and the signature of `method`, and the answer of its flow as its return type."""
    functools.update_wrapper(call, method)
    # Python names both functions in its errors: for a wrong argument, and for a coroutine that is not awaited.
    call.__name__ = call.__qualname__ = method.__qualname__ = method.__name__.removeprefix("_")
    signature = inspect.signature(method)
    call.__signature__ = signature.replace(return_annotation=get_args(signature.return_annotation)[-1])  # type: ignore[attr-defined]
    return call


# --- the service -------------------------------------------------------------------------------------


class _Service(Generic[PortsT]):
    """The settings and the ports of a service, and its endpoints."""

    _takes: ClassVar[tuple[type, ...]]

    def __init__(
        self,
        *,
        policy: ServicePolicy,
        ports: PortsT,
        receiver: Receiver | None = None,
        packets: PacketPolicy | None = None,
        clock: Callable[[], datetime] = utc_now,
        observer: Observer | None = None,
    ) -> None:
        _check(policy, ServicePolicy, "policy", "pass ServicePolicy(base_url=..., auth_server=...)")
        _check(ports, self._takes, "ports", "pass Ports(store=...), or AsyncPorts to AsyncIncomingPayments")
        _check(receiver, (Receiver, NoneType), "receiver", "pass Receiver(methods)")
        _check(packets, (PacketPolicy, NoneType), "packets", "pass PacketPolicy(receiver=..., peers=[...])")
        _check(clock, Callable, "clock", "pass a function that returns the time, such as lambda: datetime.now(UTC)")
        if ports.store is None:
            raise ConfigurationError("ports has no store: pass Ports(store=...)", setting="store")
        if receiver is not None and packets is not None and receiver is not packets.receiver:
            text = "packets has another receiver: leave receiver out, or pass the receiver of packets"
            raise ConfigurationError(text, setting="receiver")
        self.policy: Final = policy
        self.ports: Final = ports
        self.packets: Final = packets
        self.receiver: Final = packets.receiver if packets else receiver
        self.clock: Final = clock
        self.unready_lines: Final = LineLimit()
        self._report: Final = None if observer is None else Reporter(observer)
        if self.receiver is not None:
            _check_receiver(self.receiver.methods, ports.methods)
        self._payments: Final = Endpoint(self._begin_payments, internal_error, BODY_BYTES_MAX)
        self._endpoints: Final[dict[str, Endpoint]] = {}
        if packets is not None:
            begin = functools.partial(self._begin_packets, packets)
            self._endpoints[packets.path] = Endpoint(begin, packets.failed, ILP_PREPARE_BYTES_MAX)

    def endpoint(self, path: str) -> Endpoint:
        """Return the endpoint at the raw `path` below the base URL, for an adapter that reads the body itself."""
        return self._endpoints.get(path, self._payments)

    def check_routes(self) -> None:
        """Raise `ConfigurationError` unless the ports suffice for HTTP requests. Each new adapter calls this method."""
        needed = ["wallet_addresses", "introspector", "methods"]
        if self.policy.signature.nonce_required or not self.policy.allow_identical:
            needed.append("nonces")
        if missing := [name for name in needed if getattr(self.ports, name) is None]:
            text = f"ports has no {' and no '.join(missing)}: pass each one, because requests of clients need it"
            raise ConfigurationError(text, setting=missing[0])

    def answered(self, method: str, path: str, response: Response, begin_s: float) -> None:
        """Report `response` to the observer, for an adapter. `begin_s` is from `time.perf_counter`."""
        if self._report is not None:
            cause = response.cause
            failed = "internal_error" if response.status >= 500 else "ok"
            self._report(
                RequestAnswered(
                    method=method if method in _METHODS else "_OTHER",
                    route=self._route(path),
                    status=response.status,
                    outcome=failed if cause is None else cause.code,
                    duration_s=time.perf_counter() - begin_s,
                )
            )
            if path in self._endpoints and response.status == 200:
                self.replied(response.body, begin_s)

    def replied(self, reply: bytes, begin_s: float) -> None:
        """Report the `reply` to an ILP packet to the observer."""
        if self._report is not None:
            outcome = "fulfilled"
            if reply[0] == PacketType.REJECT:
                start, _ = contents_span(reply, PacketType.REJECT)
                outcome = reply[start : start + 3].decode()
            self._report(PacketAnswered(outcome=outcome, duration_s=time.perf_counter() - begin_s))

    def _route(self, path: str) -> str:
        if path in {COLLECTION_PATH, *self._endpoints}:
            return path
        collection, _, id = path.rpartition("/")
        return f"{COLLECTION_PATH}/{{id}}" if collection == COLLECTION_PATH and id else ""

    def _observed(self, flow: Flow[T]) -> Flow[T]:
        if self._report is None:
            return flow
        return observed(fresh(flow, self.ports), self._report, time.perf_counter)

    def _begin_payments(self, head: Request) -> Callable[[bytes], Flow[Response]]:
        check_head(head)
        # A new request would pass its converters again: 2.1 us of some 48 of a public get (timeit).
        return lambda body: handle(evolve(head, body=body) if body else head, policy=self.policy, now=self.clock())

    def _begin_packets(self, packets: PacketPolicy, head: Request) -> Callable[[bytes], Flow[Response]]:
        peer = packets.sender_of(head)
        return lambda body: handle_packet_of(peer, body, policy=packets, clock=self.clock)


class IncomingPayments(_Service[Ports]):
    """The incoming payment service, for a host with sync ports. Thread-safe if the ports are.

    `receiver` is for `receive_packet`. `packets` has the peers that send ILP packets over HTTP, the path for them, and
    its own receiver. `clock` returns the time in UTC; change it only in tests. `observer` gets the observations of
    `ports`. The argument `payment` of a method is the URL of a payment, in any spelling, or its id. A process that only
    credits money needs no port but the store.

    Raises `ConfigurationError` for an argument of a wrong type, for ports without a store, and for a receiver that
    cannot read the addresses that `ports.methods` allocates.

    >>> from incoming_payments.stores.memory import MemoryStore
    >>> policy = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
    >>> IncomingPayments(policy=policy, ports=Ports(store=MemoryStore())).announce_expired()
    0
    """

    _takes = (Ports,)

    def run(self, flow: Flow[T]) -> T:
        """Run a flow of your own with the ports of the service. See `flows.run.run`."""
        return run(self._observed(flow), self.ports)

    handle = _sync(_handle)
    create = _sync(_create)
    get = _sync(_get)
    receive = _sync(_receive)
    receive_packet = _sync(_receive_packet)
    complete = _sync(_complete)
    events = _sync(_events)
    announce_expired = _sync(_announce_expired)
    is_ready = _sync(_is_ready)


class AsyncIncomingPayments(_Service[AsyncPorts | Ports]):
    """`IncomingPayments` for a host on asyncio: its methods are coroutines, and each port is sync or async."""

    _takes = (AsyncPorts, Ports)

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow of your own with the ports of the service. See `flows.run.arun`."""
        return await arun(self._observed(flow), self.ports)

    handle = _async(_handle)
    create = _async(_create)
    get = _async(_get)
    receive = _async(_receive)
    receive_packet = _async(_receive_packet)
    complete = _async(_complete)
    events = _async(_events)
    announce_expired = _async(_announce_expired)
    is_ready = _async(_is_ready)


def _check(value: object, expected: Any, setting: str, hint: str) -> None:
    if not isinstance(value, expected):
        raise ConfigurationError(f"{setting} must not be {name_of(value)}: {hint}", setting=setting)


def _check_receiver(receiver: DerivedMethods, methods: object) -> None:
    """Raise `ConfigurationError` when `receiver` cannot read new addresses: it would refuse all their packets."""
    if isinstance(methods, DerivedMethods) and (
        methods.prefix != receiver.prefix or methods.secrets[0] not in receiver.secrets
    ):
        text = "the receiver of packets cannot read the addresses of ports.methods: give both the same DerivedMethods"
        raise ConfigurationError(text, setting="receiver")

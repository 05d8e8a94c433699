"""The common base of the two services, with their settings, their ports, and the endpoints for adapters."""

import functools
import time
from collections.abc import Callable
from datetime import datetime
from http import HTTPMethod
from types import NoneType
from typing import Any, ClassVar, Final, Generic, TypeVar

from attrs import frozen

from incoming_payments.domain.checks import check_time, name_of
from incoming_payments.endpoints.open_payments import Request, Response, answer, check_head, internal_error, route_of
from incoming_payments.endpoints.packets import PacketPolicy, internal_reject, receive_packet_body
from incoming_payments.errors import ConfigurationError, InvalidValue
from incoming_payments.flows.machinery.effects import Flow
from incoming_payments.flows.machinery.observed import EffectReporter
from incoming_payments.flows.machinery.ports import AsyncPorts, Ports, check_for_asyncio
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.ilp import DerivedMethods, Receiver
from incoming_payments.ilp.packet import PacketType, contents_span
from incoming_payments.limits import BODY_BYTES_MAX, ILP_PREPARE_BYTES_MAX
from incoming_payments.observers.log import LineLimit
from incoming_payments.observers.reporter import Reporter
from incoming_payments.ports import Observer, PacketAnswered, RequestAnswered
from incoming_payments.ports.clock import utc_now

PortsT = TypeVar("PortsT", bound=AsyncPorts | Ports)

_METHODS: Final[frozenset[str]] = frozenset(HTTPMethod)


@frozen
class Endpoint:
    """The functions with which an adapter answers the requests to one path.

    `begin` checks a request without its body, and raises `HttpRefused` when no body could make the request acceptable.
    `begin` returns a function that takes the body and returns a flow. Pass this flow to `run` of the service. `failed`
    returns the response for a request that failed with an unexpected exception. `body_bytes_max` is the size limit for
    the body.
    """

    begin: Callable[[Request], Callable[[bytes], Flow[Response]]]
    failed: Callable[[], Response]
    body_bytes_max: int


class Service(Generic[PortsT]):
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
        check(policy, ServicePolicy, "policy", "pass ServicePolicy(base_url=..., auth_server=...)")
        check(ports, self._takes, "ports", "pass Ports(store=...), or AsyncPorts to AsyncIncomingPayments")
        if AsyncPorts in self._takes:
            check_for_asyncio(ports)
        check(receiver, (Receiver, NoneType), "receiver", "pass Receiver(methods)")
        check(packets, (PacketPolicy, NoneType), "packets", "pass PacketPolicy(peers=[...])")
        check(clock, Callable, "clock", "pass a function that returns the time, such as lambda: datetime.now(UTC)")
        _check_clock(clock)
        if ports.store is None:
            raise ConfigurationError("ports has no store: pass Ports(store=...)", setting="store")
        if receiver is not None:
            _check_receiver(receiver.methods, ports.methods)
        elif isinstance(ports.methods, DerivedMethods):
            receiver = Receiver(ports.methods)
        self.policy: Final = policy
        self.ports: Final = ports
        self.packets: Final = packets
        self.receiver: Final = receiver
        self.clock: Final = clock
        self.unready_lines: Final = LineLimit()
        self._report: Final = None if observer is None else Reporter(observer)
        self._reporter: Final = None if self._report is None else EffectReporter(self._report, time.perf_counter)
        self._payments: Final = Endpoint(self._begin_payments, internal_error, BODY_BYTES_MAX)
        self._endpoints: Final[dict[str, Endpoint]] = {}
        if packets is not None:
            if receiver is None:
                text = (
                    "packets= is given, but there is no receiver: pass Ports(methods=DerivedMethods(...)), or "
                    "receiver=Receiver(...)"
                )
                raise ConfigurationError(text, setting="receiver")
            begin = functools.partial(self._begin_packets, packets, receiver)
            failed = functools.partial(internal_reject, receiver)
            self._endpoints[packets.path] = Endpoint(begin, failed, ILP_PREPARE_BYTES_MAX)

    def endpoint(self, path: str) -> Endpoint:
        """Return the endpoint at the raw `path` below the base URL, for an adapter that reads the body itself."""
        return self._endpoints.get(path, self._payments)

    def check_routes(self) -> None:
        """Raise `ConfigurationError` if a port for HTTP requests is missing. Each new adapter calls this method."""
        needed = ["wallet_addresses", "introspector", "methods"]
        if self.policy.signature.nonce_required or not self.policy.allow_identical:
            needed.append("nonces")
        if missing := [name for name in needed if getattr(self.ports, name) is None]:
            text = f"ports has no {' and no '.join(missing)}: pass these ports, because requests of clients need them"
            raise ConfigurationError(text, setting=missing[0])

    @property
    def report(self) -> Reporter | None:
        """The function that passes observations to the observer, if there is an observer."""
        return self._report

    def require_feed(self) -> Any:
        """Return the port `feed`. Raises `ConfigurationError` if it is missing."""
        if self.ports.feed is None:
            raise ConfigurationError("ports has no feed: pass Ports(feed=store.feed)", setting="feed")
        return self.ports.feed

    def answered(self, method: str, path: str, response: Response, begin_s: float) -> None:
        """Report `response` to the observer, for an adapter. `begin_s` is from `time.perf_counter`."""
        if self._report is not None:
            cause = response.cause
            failed = "internal_error" if response.status >= 500 else "ok"
            self._report(
                RequestAnswered(
                    method=method if method in _METHODS else "_OTHER",
                    route=path if path in self._endpoints else route_of(path, self.policy)[0],
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

    def _begin_payments(self, head: Request) -> Callable[[bytes], Flow[Response]]:
        check_head(head)
        return lambda body: answer(head, bytes(body), self.policy, self.clock(), self.clock)

    def _begin_packets(
        self, packets: PacketPolicy, receiver: Receiver, head: Request
    ) -> Callable[[bytes], Flow[Response]]:
        peer = packets.sender_of(head)
        return lambda body: receive_packet_body(peer, body, receiver=receiver, clock=self.clock)


def check(value: object, expected: Any, setting: str, hint: str) -> None:
    if not isinstance(value, expected):
        raise ConfigurationError(f"{setting} must not be {name_of(value)}: {hint}", setting=setting)


def _check_clock(clock: Callable[[], datetime]) -> None:
    try:
        check_time(clock())
    except InvalidValue:
        text = "clock must return the time in UTC with its time zone: pass a function such as lambda: datetime.now(UTC)"
        raise ConfigurationError(text, setting="clock") from None


def _check_receiver(receiver: DerivedMethods, methods: object) -> None:
    """Raise `ConfigurationError` when `receiver` cannot decrypt new addresses, and so would refuse their packets."""
    if isinstance(methods, DerivedMethods) and (
        methods.prefix != receiver.prefix or methods.secrets[0] not in receiver.secrets
    ):
        text = (
            "the receiver of packets cannot decrypt the addresses of ports.methods: pass the same DerivedMethods "
            "to both"
        )
        raise ConfigurationError(text, setting="receiver")

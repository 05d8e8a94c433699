"""The sync and the async service. The functions here and in `_operating` become the methods of both classes."""

import functools
import inspect
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, get_args

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.events import Event
from incoming_payments.domain.feed import Consumer
from incoming_payments.domain.listing import PaymentPage
from incoming_payments.domain.payment import Credit, IncomingPayment, PaymentId
from incoming_payments.domain.reference import Reference
from incoming_payments.domain.transitions import State
from incoming_payments.endpoints.open_payments import Request, Response, http_refusal
from incoming_payments.errors import ConfigurationError, HttpRefused
from incoming_payments.flows.complete import complete
from incoming_payments.flows.create import create_for_host
from incoming_payments.flows.list import list_for_host
from incoming_payments.flows.machinery.effects import Flow, LoadEvents, LoadPayment
from incoming_payments.flows.machinery.ports import AsyncPorts, Ports
from incoming_payments.flows.machinery.run import arun, run
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import receive_packet
from incoming_payments.ilp import Peer
from incoming_payments.service._base import Service, check
from incoming_payments.service._operating import (
    announce_expired,
    consumers,
    dead_letters,
    disable,
    erase_metadata,
    erase_old_metadata,
    is_ready,
    read_delivery,
    redeliver,
    remove_batch,
    set_enabled,
    skip_batch,
)

if TYPE_CHECKING:
    from incoming_payments.relay import AsyncRelay, Handler, Relay, RelayOptions

T = TypeVar("T")
P = ParamSpec("P")


# --- the methods of both classes ---------------------------------------------------------------------


def _handle(service: Service[Any], request: Request) -> Flow[Response]:
    """Return the response to a request for Open Payments, or to an ILP packet if the service has `packets`.

    A refusal is also a response. A client can never cause an exception, such as `PortMissing`. Log an exception, and
    answer with `endpoint(request.path).failed()`.
    """
    check(request, Request, "request", "pass Request(method, path, query, headers, body)")
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
    service: Service[Any],
    *,
    wallet_address: str,
    incoming_amount: Amount | None = None,
    expires_at: datetime | None = None,
    metadata: Mapping[str, object] | None = None,
    client: str | None = None,
    idempotency_key: str | None = None,
) -> Flow[IncomingPayment]:
    """Create a payment for the host's own app, and return it when it is durable.

    The payment belongs to `client`, a client id as in access tokens, or to the host if `client` is `None`. Clients can
    read a payment of the host in the public view, or with the right `read-all`. The URL for the payer is
    `service.policy.payment_url(payment.id)`. A repeated call with the same `idempotency_key` and the same arguments
    returns the payment of the first call, in the state of its creation. See `ServicePolicy.idempotency_key_s`.
    `json.dumps` converts `metadata`, so the keys become text.

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
            clock=service.clock,
        )
    )


def _get(service: Service[Any], payment: PaymentId | str) -> Flow[IncomingPayment]:
    """Return the payment as last stored. Its state is `state_of(payment, now)`. Raises `PaymentNotFound`."""
    return (yield from LoadPayment(service.policy.payment_id(payment)))


def _list(
    service: Service[Any],
    *,
    wallet_address: str | None = None,
    state: State | str | None = None,
    client: str | None = None,
    reference: str | None = None,
    created_from: datetime | None = None,
    created_before: datetime | None = None,
    cursor: PaymentId | str | None = None,
    first: int | None = None,
    last: int | None = None,
) -> Flow[PaymentPage]:
    """Return a page of the payments that meet every filter, the newest first.

    `client` is a client id as in access tokens, or `HOST` for the payments that the host created for itself. `state` is
    the current state. `reference` is the text of the member of the metadata that the store indexes. Clients choose the
    metadata, so check the wallet address of each payment, or pass it too.

    The page has the `first` payments of the list, 20 by default and at most 100. If `cursor` is given, which is a
    payment of the list, the page has the `first` payments after this payment, or the `last` payments before it. A
    cursor stays valid when the state of its payment changes.

    Every page takes the same time, however deep in the list. If a state or only a client is given, a page can take
    longer, because the store reads and skips the payments that do not match.

    Raises `CursorNotFound` for a cursor of another wallet address or client, and `InvalidValue`. Raises
    `ConfigurationError` for a `reference` if the store indexes no references.
    """
    return (
        yield from list_for_host(
            wallet_address=wallet_address,
            state=state,
            client=client,
            reference=None if reference is None else _reference(service, reference),
            created_from=created_from,
            created_before=created_before,
            cursor=None if cursor is None else service.policy.payment_id(cursor),
            first=first,
            last=last,
            now=service.clock(),
        )
    )


def _reference(service: Service[Any], text: str) -> Reference:
    member = getattr(service.ports.store, "reference", None)
    if member is None:
        text = "the store indexes no references: name a member of the metadata, as in SqliteStore(path, reference=...)"
        raise ConfigurationError(text, setting="reference")
    return Reference(member, text)


def _receive(service: Service[Any], payment: PaymentId | str, *, credit_id: str, amount: Amount) -> Flow[Credit]:
    """Credit `amount` to `payment` under `credit_id`. Return the credit when it is durable.

    `credit_id` is the host's own reference for this receipt of money, such as a ledger reference. A repeated call with
    the same reference is safe and returns the first result, so repeat a call that was interrupted. A credit that
    reaches or exceeds `incomingAmount` completes the payment. Raises the exceptions of `flows.receive.receive`.
    """
    id = service.policy.payment_id(payment)
    return (yield from receive(id, credit_id=credit_id, amount=amount, clock=service.clock))


def _receive_packet(service: Service[Any], packet: bytes, *, peer: Peer) -> Flow[bytes]:
    """Answer the ILP Prepare `packet` that `peer` sent. Return the encoded Fulfill or Reject.

    The method returns a Fulfill only after the credit is durable. Raises `ConfigurationError` if the service has no
    receiver.
    """
    check(packet, bytes, "packet", "pass the bytes of an ILP packet")
    check(peer, Peer, "peer", "pass the Peer that sent the packet")
    if service.receiver is None:
        raise ConfigurationError(
            "this service has no receiver: pass Ports(methods=DerivedMethods(...)), or receiver=Receiver(...)",
            setting="receiver",
        )
    begin_s = time.perf_counter()
    reply = yield from receive_packet(packet, peer=peer, receiver=service.receiver, clock=service.clock)
    service.replied(reply, begin_s)
    return reply


def _complete(service: Service[Any], payment: PaymentId | str) -> Flow[IncomingPayment]:
    """Close `payment`, which then accepts no more money, and return it. A completed payment does not change.

    Raises `PaymentNotFound` and `PaymentExpired`.
    """
    return (yield from complete(service.policy.payment_id(payment), clock=service.clock))


def _events(service: Service[Any], payment: PaymentId | str) -> Flow[Sequence[Event]]:
    """Return the events of `payment`, oldest first. Raises `PaymentNotFound`."""
    return (yield from LoadEvents(service.policy.payment_id(payment)))


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
    """Give `call` the docstring and the signature of `method`. The return type is the answer of the flow."""
    functools.update_wrapper(call, method)
    # Python shows these names in errors about a wrong argument or a coroutine that is not awaited.
    call.__name__ = call.__qualname__ = method.__qualname__ = method.__name__.removeprefix("_")
    signature = inspect.signature(method)
    call.__signature__ = signature.replace(return_annotation=get_args(signature.return_annotation)[-1])  # type: ignore[attr-defined]
    return call


# --- the services ------------------------------------------------------------------------------------


class IncomingPayments(Service[Ports]):
    """The incoming payment service, for a host with sync ports. A service is thread-safe if its ports are thread-safe.

    `receiver` receives ILP packets. If it is `None` and `ports.methods` is a `DerivedMethods`, the service makes a
    receiver from `ports.methods`. `packets` has the peers that send packets over HTTP, and the path of their endpoint.
    `clock` returns the time in UTC. Change `clock` only in tests. `observer` gets the observations of `ports`. The
    argument `payment` of a method is the URL of a payment, in any spelling, or its id. A process that only credits
    money needs only the store.

    Raises `ConfigurationError` when an argument has a wrong type, when there is no store, or when the receiver cannot
    decrypt the addresses that `ports.methods` allocates.

    >>> from incoming_payments.flows.policy import ServicePolicy
    >>> from incoming_payments.stores.memory import MemoryStore
    >>> policy = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
    >>> IncomingPayments(policy=policy, ports=Ports(store=MemoryStore())).announce_expired()
    0
    """

    _takes = (Ports,)

    def run(self, flow: Flow[T]) -> T:
        """Run any flow with the ports of the service. See `flows.machinery.run.run`."""
        return run(flow, self.ports, reporter=self._reporter)

    handle = _sync(_handle)
    create = _sync(_create)
    get = _sync(_get)
    list = _sync(_list)
    receive = _sync(_receive)
    receive_packet = _sync(_receive_packet)
    complete = _sync(_complete)
    events = _sync(_events)
    announce_expired = _sync(announce_expired)
    dead_letters = _sync(dead_letters)
    read_delivery = _sync(read_delivery)
    redeliver = _sync(redeliver)
    consumers = _sync(consumers)
    disable = _sync(disable)
    erase_metadata = _sync(erase_metadata)
    erase_old_metadata = _sync(erase_old_metadata)
    is_ready = _sync(is_ready)

    def enable(self, consumer: str, *, skip: bool = False) -> None:
        """Enable `consumer` again. It continues where it was.

        If `skip` is true, first drop the deliveries that were due before this call, in batches. With them, drop all
        events that their payments have by then. Raises `ConsumerNotFound` and `InvalidValue`.
        """
        now = self.clock()
        while skip and not self.run(skip_batch(consumer, now)):
            pass
        self.run(set_enabled(consumer, now, enabled=True))

    def remove_consumer(self, consumer: str) -> None:
        """Remove `consumer` with its deliveries and dead letters, in batches. Stop its relays first.

        The payments and their events stay. A repeated call is safe after an interrupted one: it removes the rest.
        Raises `ConsumerNotFound` and `InvalidValue`.
        """
        while not self.run(remove_batch(consumer)):
            pass

    def relay(self, consumer: Consumer, handler: "Handler", **options: "Unpack[RelayOptions]") -> "Relay":
        """Return a relay, which registers `consumer` and calls `handler` with each of its deliveries.

        Use the relay as a context manager, or call its `run`. `options` are the other members of
        `relay.RelaySettings`: `start`, `retry`, `concurrency`, `attempt_s`, `lease_s`, `poll_s` and `render`.

        A delivery succeeds when `handler` returns. After any exception, the relay calls `handler` again later. After
        the last attempt, the delivery is a dead letter. A delivery arrives at least once, and `delivery.id` is the same
        in each attempt. With `AsyncIncomingPayments`, `handler` may be an `async def` function, and the relay is an
        async context manager. Raises `ConfigurationError` for a wrong setting, and without the port `feed`.
        """
        from incoming_payments.relay import Relay, RelaySettings

        settings = RelaySettings(consumer=consumer, handler=handler, **options)
        return Relay(settings, self.require_feed(), self.clock, self.report)


class AsyncIncomingPayments(Service[AsyncPorts | Ports]):
    """`IncomingPayments` for a host on asyncio. The methods are coroutines, and each port is sync or async."""

    _takes = (AsyncPorts, Ports)

    async def run(self, flow: Flow[T]) -> T:
        """Run any flow with the ports of the service. See `flows.machinery.run.arun`."""
        return await arun(flow, self.ports, reporter=self._reporter)

    handle = _async(_handle)
    create = _async(_create)
    get = _async(_get)
    list = _async(_list)
    receive = _async(_receive)
    receive_packet = _async(_receive_packet)
    complete = _async(_complete)
    events = _async(_events)
    announce_expired = _async(announce_expired)
    dead_letters = _async(dead_letters)
    read_delivery = _async(read_delivery)
    redeliver = _async(redeliver)
    consumers = _async(consumers)
    disable = _async(disable)
    erase_metadata = _async(erase_metadata)
    erase_old_metadata = _async(erase_old_metadata)
    is_ready = _async(is_ready)

    async def enable(self, consumer: str, *, skip: bool = False) -> None:
        now = self.clock()
        while skip and not await self.run(skip_batch(consumer, now)):
            pass
        await self.run(set_enabled(consumer, now, enabled=True))

    async def remove_consumer(self, consumer: str) -> None:
        while not await self.run(remove_batch(consumer)):
            pass

    def relay(self, consumer: Consumer, handler: "Handler", **options: "Unpack[RelayOptions]") -> "AsyncRelay":
        from incoming_payments.relay import AsyncRelay, RelaySettings

        settings = RelaySettings(consumer=consumer, handler=handler, **options)
        return AsyncRelay(settings, self.require_feed(), self.clock, self.report)


AsyncIncomingPayments.relay.__doc__ = IncomingPayments.relay.__doc__
AsyncIncomingPayments.enable.__doc__ = IncomingPayments.enable.__doc__
AsyncIncomingPayments.remove_consumer.__doc__ = IncomingPayments.remove_consumer.__doc__

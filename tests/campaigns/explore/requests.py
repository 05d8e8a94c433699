"""The requests of the exploration: packets, credits, completions, sweeps, creations, and consumers of the feed."""

import abc
import base64
import enum
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar

from attrs import evolve, field, frozen

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.feed import ConsumerName, Delivery, LeasedDelivery
from incoming_payments.domain.payment import Credit, IncomingPayment, PaymentId, WalletAddress
from incoming_payments.errors import PortUnavailable, StoreError
from incoming_payments.flows.complete import complete
from incoming_payments.flows.create import create_for_host
from incoming_payments.flows.expire import announce_expired
from incoming_payments.flows.machinery.effects import Effect, Flow
from incoming_payments.flows.pull import acknowledge_delivery, claim_deliveries
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import receive_packet
from incoming_payments.ilp.packet import Fulfill, Prepare, encode
from incoming_payments.ilp.receive import Receiver
from incoming_payments.ilp.stream import StreamMaxMoney
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing.replies import decode_reply
from incoming_payments.testing.simulation.fixtures import METHODS, PEER, POLICY, USD
from kits.stream_kit import Sender

Clock = Callable[[], datetime]
LEASE_S = 10


class Kind(enum.StrEnum):
    """The meaning of an answer for its client."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"  # the client has to repeat the request


@frozen(order=True)
class Answer:
    """The answer that a client has. `total` is the total of the payment in the answer, and `text` has the details."""

    kind: Kind
    text: str
    total: int = 0

    @property
    def is_final(self) -> bool:
        """Whether the client repeats its request no more."""
        return self.kind is not Kind.UNKNOWN

    def __str__(self) -> str:
        return f"{self.text} (total {self.total})" if self.total else self.text


@frozen
class StoreCall(Effect[Any]):
    """A call of the store in a form that is not an effect of the library. Faults use it."""

    method: ClassVar = "store"
    call: Callable[[MemoryStore], Any]


@frozen
class Handle(Effect[None]):
    """A consumer handles the events of a delivery, such as in its own database."""

    method: ClassVar = "consumer.handle"
    delivery: Delivery


@frozen(kw_only=True)
class Subject:
    """The code under exploration. The defaults are the code of the library."""

    store: Callable[[], MemoryStore] = MemoryStore
    receive_packet: Callable[..., Flow[bytes]] = receive_packet
    receive: Callable[..., Flow[Credit]] = receive
    complete: Callable[..., Flow[IncomingPayment]] = complete
    around: Callable[[Flow[Any]], Flow[Any]] = lambda flow: flow  # changes each flow


@frozen(kw_only=True)
class Setup:
    """A scenario: the requests, and the bounds of the search.

    Each process has a clock that differs by its item of `offsets` from the time `moments`. `prepare` writes the first
    rows into an empty store. `id` is the payment of the requests.
    """

    name: str
    requests: Sequence["Request"]
    moments: Sequence[datetime]
    prepare: Callable[[MemoryStore], None]
    id: PaymentId
    wallet: WalletAddress
    limit: int | None = None
    offsets: Sequence[timedelta] = (timedelta(0), timedelta(0))
    crashes: int = 1
    failures: int = 0
    has_approval: bool = False
    subject: Subject = field(factory=Subject)
    receiver: Receiver = field(factory=lambda: Receiver(METHODS))

    @property
    def is_exact(self) -> bool:
        """Whether all clocks show the same time, so that a refusal by one process holds in all others."""
        return len(set(self.offsets)) == 1


@frozen(kw_only=True)
class Request(abc.ABC):
    """A request of a client, which sends it at most `attempts` times, and repeats it after an unknown outcome.

    If `is_duplicated` is true, the network sends copies, even at the same time, and after an answer.
    """

    name: str
    attempts: int = 2
    is_duplicated: bool = False
    repeats_at_end: int = 1

    @abc.abstractmethod
    def start(self, setup: Setup, clock: Clock) -> Flow[Any]:
        """Return the flow for the request."""

    @abc.abstractmethod
    def read(self, setup: Setup, result: Any) -> Answer:
        """Return the answer that the client gets. `result` is the flow's return value, or its exception."""

    def brought(self, _setup: Setup) -> "tuple[str, int] | None":
        """Return the end of the credit id that the request may have, and the amount that it brings."""
        return None


def _failed(error: Exception) -> Answer:
    kind = Kind.UNKNOWN if isinstance(error, PortUnavailable | StoreError) else Kind.REFUSED
    return Answer(kind, type(error).__name__)


@frozen(kw_only=True)
class Packet(Request):
    """A STREAM packet. `sequence` identifies the packet, and a connector may have changed its `amount`."""

    amount: int
    sequence: int = 1
    offered: int = 100  # the amount for which the sender made the packet
    expires_at: datetime

    def start(self, setup: Setup, clock: Clock) -> Flow[bytes]:
        packet = encode(_prepared(setup.id, self))
        return setup.subject.receive_packet(packet, peer=PEER, receiver=setup.receiver, clock=clock)

    def read(self, setup: Setup, result: Any) -> Answer:
        if isinstance(result, Exception):
            return Answer(Kind.REFUSED, f"the flow raised {result!r}")
        reply = decode_reply(result)
        if not isinstance(reply, Fulfill):
            code = str(reply.code)
            return Answer(Kind.UNKNOWN if code[0] == "T" else Kind.REFUSED, code)
        said = Sender(METHODS.derive(setup.id)).read(reply)
        [total] = [frame.total_received for frame in said.frames if isinstance(frame, StreamMaxMoney)] or [0]
        return Answer(Kind.DONE, "fulfilled", total)

    def brought(self, setup: Setup) -> tuple[str, int]:
        return base64.b64encode(_prepared(setup.id, self).condition).decode("ascii"), self.amount


@frozen(kw_only=True)
class HostCredit(Request):
    """Money that the host has received on another rail, under the credit id `credit_id`."""

    amount: int
    credit_id: str

    def start(self, setup: Setup, clock: Clock) -> Flow[Credit]:
        return setup.subject.receive(setup.id, credit_id=self.credit_id, amount=Amount(self.amount, USD), clock=clock)

    def read(self, _setup: Setup, result: Any) -> Answer:
        if isinstance(result, Exception):
            return _failed(result)
        return Answer(Kind.DONE, f"credited {result.amount.value}", result.received.value)

    def brought(self, _setup: Setup) -> tuple[str, int]:
        return self.credit_id, self.amount


@frozen(kw_only=True)
class Complete(Request):
    """The client closes its payment."""

    def start(self, setup: Setup, clock: Clock) -> Flow[IncomingPayment]:
        return setup.subject.complete(setup.id, clock=clock)

    def read(self, _setup: Setup, result: Any) -> Answer:
        if isinstance(result, Exception):
            return _failed(result)
        return Answer(Kind.DONE, "completed", result.received.value)


@frozen(kw_only=True)
class Sweep(Request):
    """A sweep that announces expired payments."""

    def start(self, _setup: Setup, clock: Clock) -> Flow[int]:
        return announce_expired(clock())

    def read(self, _setup: Setup, result: Any) -> Answer:
        if isinstance(result, Exception):
            return _failed(result)
        return Answer(Kind.UNKNOWN, f"found {result}")  # the next sweep looks again


@frozen(kw_only=True)
class Create(Request):
    """The host creates a payment under the idempotency key `key`."""

    key: str

    def start(self, setup: Setup, clock: Clock) -> Flow[IncomingPayment]:
        return create_for_host(wallet_address=setup.wallet.url, idempotency_key=self.key, policy=POLICY, clock=clock)

    def read(self, _setup: Setup, result: Any) -> Answer:
        if isinstance(result, Exception):
            return _failed(result)
        return Answer(Kind.DONE, f"created {result.id}")


@frozen(kw_only=True)
class Consume(Request):
    """A consumer that claims one delivery, handles its events, and acknowledges them."""

    consumer: ConsumerName

    def start(self, _setup: Setup, clock: Clock) -> Flow[str]:
        return self._consume(clock)

    def _consume(self, clock: Clock) -> Flow[str]:
        deliveries = yield from claim_deliveries(self.consumer, limit=1, lease_s=LEASE_S, clock=clock)
        for delivery in deliveries:
            yield from Handle(delivery)
            leased = LeasedDelivery(
                consumer=delivery.consumer,
                payment_id=delivery.payment_id,
                first_version=delivery.first_version,
                attempt=delivery.attempt,
                lease=delivery.lease,
            )
            yield from acknowledge_delivery(leased, clock=clock)
        return "nothing is due" if not deliveries else "handled a delivery"

    def read(self, _setup: Setup, result: Any) -> Answer:
        if isinstance(result, Exception):
            return _failed(result)
        return Answer(Kind.UNKNOWN, result)  # the consumer claims again


@lru_cache  # the flow of a packet starts again for each choice
def _prepared(id: PaymentId, packet: Packet) -> Prepare:
    sender = Sender(METHODS.derive(id))
    prepare = sender.prepare(packet.offered, sequence=packet.sequence, expires_at=packet.expires_at)
    return evolve(prepare, amount=packet.amount)

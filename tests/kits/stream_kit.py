"""A STREAM sender for tests. It makes packets for one payment and reads the replies."""

import hashlib
import itertools
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from attrs import evolve, frozen

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import IncomingPayment
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.flows.machinery.run import run
from incoming_payments.flows.receive_packet import receive_packet
from incoming_payments.ilp import DerivedMethods, StreamCredentials
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Fulfill, PacketType, Prepare, Reject, encode
from incoming_payments.ilp.receive import Receiver
from incoming_payments.ilp.stream import Frame, StreamKeys, StreamMoney, StreamPacket, condition_of
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing.replies import decode_reply

SECRET: Final = b"a server secret only for the tests"
METHODS: Final = DerivedMethods("test.bank", [SECRET])
USD: Final = Asset("USD", 2)
PEER: Final = Peer("test.bank.connector", USD)
ONE_STREAM: Final = (StreamMoney(1, 1),)


class Sender:
    """The sender with these `credentials`. Each packet has a new sequence and a new nonce."""

    def __init__(self, credentials: StreamCredentials) -> None:
        self.credentials = credentials
        self.keys = StreamKeys(credentials.shared_secret)
        self._sequence = itertools.count(1)

    def prepare(
        self,
        amount: int,
        *,
        least: int = 0,
        frames: Sequence[Frame] = ONE_STREAM,
        sequence: int | None = None,
        kind: PacketType = PacketType.PREPARE,
        expires_at: datetime = NOW + timedelta(seconds=30),
        condition: bytes | None = None,
    ) -> Prepare:
        """Make a Prepare of `amount` with the minimum `least`. Another `condition` makes it a probe."""
        number = next(self._sequence) if sequence is None else sequence
        nonce = hashlib.sha256(f"{number} {amount} {self.credentials.ilp_address}".encode()).digest()[:12]
        data = self.keys.seal(StreamPacket(kind, number, least, frames), nonce=nonce)
        condition = condition_of(self.keys.fulfillment(data)) if condition is None else condition
        return Prepare(amount, expires_at, condition, self.credentials.ilp_address, data)

    def probe(self, amount: int, **options: Any) -> Prepare:
        """Make a Prepare that cannot be fulfilled."""
        return self.prepare(amount, **{"condition": bytes(32), "frames": (), **options})

    def read(self, reply: Fulfill | Reject) -> StreamPacket:
        """Decrypt the data of a reply."""
        return self.keys.open(reply.data)


@frozen
class Answer:
    """A reply, and its decrypted data if there is any."""

    reply: Fulfill | Reject
    said: StreamPacket | None

    @property
    def code(self) -> str:
        """Return `fulfilled`, or the error code."""
        return "fulfilled" if isinstance(self.reply, Fulfill) else str(self.reply.code)

    @property
    def frames(self) -> tuple[Frame, ...] | None:
        """Return the frames for the sender."""
        return None if self.said is None else self.said.frames


class Service:
    """A receiver with a memory store, one payment, a fixed time and a sender."""

    def __init__(self, created: Decision[IncomingPayment] | None = None, **terms: Any) -> None:
        self.store = MemoryStore()
        self.ports = Ports(store=self.store)
        self.receiver = Receiver(METHODS)
        self.now = NOW
        self.created = created or a_creation(**terms)
        self.id = self.created.answer.id
        self.store.insert(self.created)
        self.sender = Sender(METHODS.derive(self.id))

    @property
    def payment(self) -> IncomingPayment:
        """Return the stored payment."""
        return self.store.load(self.id)

    @property
    def received(self) -> int:
        """Return the received total, in minor units."""
        return self.payment.received.value

    def replace(self, **ports: Any) -> None:
        """Replace some ports."""
        self.ports = evolve(self.ports, **ports)

    def answer(self, packet: bytes, peer: Peer = PEER) -> bytes:
        """Return the encoded reply to a packet."""
        return run(receive_packet(packet, peer=peer, receiver=self.receiver, clock=lambda: self.now), self.ports)

    def send(self, prepare: Prepare, peer: Peer = PEER) -> Answer:
        """Return the reply to a Prepare, and check its condition, origin, type, amount and sequence."""
        reply = decode_reply(self.answer(encode(prepare), peer))
        if isinstance(reply, Fulfill):
            assert condition_of(reply.fulfillment) == prepare.condition
        else:
            assert reply.triggered_by == METHODS.prefix
        sealed = len(reply.data) > 16  # the amounts of an F08 are 16 bytes
        said = (
            self.sender.read(reply) if sealed and prepare.destination == self.sender.credentials.ilp_address else None
        )
        if said is not None:
            kind = PacketType.FULFILL if isinstance(reply, Fulfill) else PacketType.REJECT
            assert (said.kind, said.amount) == (kind, prepare.amount)
            assert said.sequence == self.sender.keys.open(prepare.data).sequence
        return Answer(reply, said)

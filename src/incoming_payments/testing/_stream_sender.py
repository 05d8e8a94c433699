"""The rules of a STREAM sender: what is next, and what does a reply mean? RFC 29 of the Interledger RFCs.

It neither waits nor sends; `testing.sender` does, and says what it is for.
"""

import base64
import enum
import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Self

from attrs import evolve, field, frozen

from incoming_payments.domain.amount import Asset
from incoming_payments.errors import InvalidValue, MalformedPacket
from incoming_payments.ilp.address import IlpAddress, ilp_address
from incoming_payments.ilp.packet import (
    ErrorCode,
    Fulfill,
    PacketType,
    Prepare,
    Reject,
    decode_reply,
    encode,
    read_amounts,
)
from incoming_payments.ilp.stream import (
    ConnectionAssetDetails,
    ConnectionClose,
    ConnectionNewAddress,
    Frame,
    StreamClose,
    StreamKeys,
    StreamMaxMoney,
    StreamMoney,
    StreamPacket,
    condition_of,
)
from incoming_payments.limits import SENDER_BACKOFF_S_MAX, SENDER_IN_FLIGHT_MAX, SENDER_PATIENCE_S_MAX, UINT64_MAX

LIFETIME_S: Final = 30.0  # how long a packet may take to be fulfilled
IN_FLIGHT: Final = 8  # the default for how many packets may be unanswered at a time
_BACKOFF_S: Final = 0.05  # before a packet is sent again for the first time; twice that the next time
_STREAM: Final = 1  # RFC 29 §3.3: the first one that a client opens


@frozen
class Payee:
    """Who is paid: the `address` and the `shared_secret` of an incoming payment."""

    address: IlpAddress = field(converter=ilp_address)
    shared_secret: bytes = field(repr=False)

    @classmethod
    def of(cls, resource: Mapping[str, Any]) -> Self:
        """The payee that an incoming payment's JSON names. Raises `InvalidValue` when it cannot be paid over ILP.

        >>> method = {"type": "ilp", "ilpAddress": "test.bank.abc", "sharedSecret": "AAAA"}
        >>> Payee.of({"id": "https://bank.example/incoming-payments/1", "methods": [method]})
        Payee(address='test.bank.abc')
        """
        for method in resource.get("methods", ()):
            if method["type"] == "ilp":
                secret = method["sharedSecret"]
                return cls(method["ilpAddress"], base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4)))
        raise InvalidValue("the payment has no ilp method: it is completed, or has expired", member="methods")


class Ending(enum.Enum):
    """Why nothing more is sent."""

    DONE = "done"  # all of it was delivered
    CLOSED = "closed"  # the payment takes nothing more
    REFUSED = "refused"  # a packet was refused for good
    SILENCE = "silence"  # nothing was fulfilled for longer than the sender's patience


@frozen
class Quote:
    """What a payment says before any money moves: of `amount`, `arrives` so much; it takes and has so much, in all.

    All in minor units of `asset`, which is the payment's.
    """

    amount: int
    arrives: int
    receive_max: int
    received: int
    asset: Asset | None


@frozen
class Books:
    """The sender's account of one payment, in minor units: `sent` and `delivered` by packets that were fulfilled.

    `packets` is how many those were, `repeats` how often one was sent again. `unknown` is the amount of packets that
    were never answered: they may have arrived or not. `ending` is `None` while there is more to do; `reason` tells
    more of it, in words.
    """

    amount: int
    sent: int = 0
    delivered: int = 0
    packets: int = 0
    repeats: int = 0
    unknown: int = 0
    ending: Ending | None = None
    reason: str = ""


@frozen
class Packet:
    """A Prepare of the sender's, to be sent now. A `probe` can be fulfilled by nobody: it only asks."""

    sequence: int
    prepare: Prepare
    probe: bool
    tries: int = 1

    @property
    def octets(self) -> bytes:
        """As it travels."""
        return encode(self.prepare)


class StreamSender:
    """Sends `amount` minor units to `payee`, in packets of at most `packet_max`, of which `in_flight_max` at a time.

    First one probe is sent, of `probe` units or the whole amount, and its answer is the `quote`. It ends with
    `SILENCE` when for `patience_s` nothing was fulfilled. Time and randomness are arguments. Raises `InvalidValue`.

    >>> import os
    >>> from incoming_payments import DerivedMethods, Peer, Ports, Receiver, receive_packet, run
    >>> from incoming_payments.stores.memory import MemoryStore
    >>> from incoming_payments.testing import NOW, a_creation
    >>> store, methods, created = MemoryStore(), DerivedMethods("test.bank", [bytes(32)]), a_creation(limit=2500)
    >>> store.insert(created)
    >>> peer, receiver = Peer("test.bank.connector", Asset("USD", 2)), Receiver(methods)
    >>> details = methods.derive(created.answer.id)
    >>> sender = StreamSender(Payee(details.ilp_address, details.shared_secret), 2500, packet_max=1000, now=NOW)
    >>> while packet := sender.next(now=NOW, nonce=os.urandom(12)):
    ...     flow = receive_packet(packet.octets, peer=peer, receiver=receiver, clock=lambda: NOW)
    ...     sender.answered(packet, run(flow, Ports(store=store)), now=NOW)
    >>> sender.quote
    Quote(amount=2500, arrives=2500, receive_max=2500, received=0, asset=Asset(code='USD', scale=2))
    >>> sender.books.delivered, sender.books.packets, sender.books.ending
    (2500, 3, <Ending.DONE: 'done'>)
    """

    def __init__(
        self,
        payee: Payee,
        amount: int,
        *,
        now: datetime,
        probe: int | None = None,
        packet_max: int = UINT64_MAX,
        in_flight_max: int = IN_FLIGHT,
        patience_s: float = SENDER_PATIENCE_S_MAX,
    ) -> None:
        for name, value, least, most in (
            ("amount", amount, 0, UINT64_MAX),
            ("probe", amount if probe is None else probe, 0, UINT64_MAX),
            ("packet_max", packet_max, 1, UINT64_MAX),
            ("in_flight_max", in_flight_max, 1, SENDER_IN_FLIGHT_MAX),
        ):
            if type(value) is not int or not least <= value <= most:
                raise InvalidValue(f"{name} must be an integer from {least} to {most}", member=name)
        self.quote: Quote | None = None
        self.books = Books(amount)
        self._payee = payee
        self._keys = StreamKeys(payee.shared_secret)
        self._probe_amount = amount if probe is None else probe
        self._packet_max = packet_max
        self._in_flight_max = in_flight_max
        self._patience = timedelta(seconds=patience_s)
        self._moved_at = now
        self._sequence = 0
        self._unanswered: dict[int, Packet] = {}
        self._waiting: dict[int, datetime] = {}  # of those unanswered: when to send them again

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to do: it has ended, and all packets that were sent are accounted for."""
        return self.books.ending is not None and not self._unanswered

    @property
    def resumes_at(self) -> datetime | None:
        """When `next` has a packet again without an answer before."""
        return min(self._waiting.values(), default=None)

    def next(self, *, now: datetime, nonce: bytes) -> Packet | None:
        """The packet to send at `now`; `None` when there is none until one is answered, or until `resumes_at`.

        `nonce` is 12 random bytes that are never used twice.
        """
        if self._waiting and min(self._waiting.values()) <= now:
            return self._repeat(min(self._waiting, key=self._waiting.__getitem__), now)
        if self.books.ending is not None or len(self._unanswered) >= self._in_flight_max:
            return None
        if self.quote is None:
            return None if self._unanswered else self._probe(now, nonce)
        under_way = sum(packet.prepare.amount for packet in self._unanswered.values())
        amount = min(self._packet_max, self.books.amount - self.books.sent - under_way)
        return self._money(amount, now, nonce) if amount else None

    def answered(self, packet: Packet, reply: bytes, *, now: datetime) -> None:
        """Take the `reply` to a packet: Fulfill or Reject, in bytes. What is neither counts as lost."""
        try:
            answer = decode_reply(reply)
        except MalformedPacket:
            self.lost(packet, now=now)
            return
        # RFC 27: the fulfillment is the preimage of the condition. Anything else proves nothing.
        if isinstance(answer, Fulfill) and condition_of(answer.fulfillment) != packet.prepare.condition:
            self.lost(packet, now=now)
        elif isinstance(answer, Reject) and answer.code[0] in "TR":  # temporary, or too late: it may be taken next time
            self.lost(packet, now=now, why=_words(answer))
        elif self._unanswered.pop(packet.sequence, None) is not None:  # else it was answered before, or given up
            self._waiting.pop(packet.sequence, None)
            if isinstance(answer, Fulfill):
                self._fulfilled(packet, answer, now)
            else:
                self._rejected(packet, answer, now)

    def lost(self, packet: Packet, *, now: datetime, why: str = "") -> None:
        """Note that there was no answer: whether the packet arrived is not known, so the same one is sent again."""
        if packet.sequence not in self._unanswered:
            return
        if now - self._moved_at < self._patience:
            pause_s = min(_BACKOFF_S * 2 ** (packet.tries - 1), SENDER_BACKOFF_S_MAX)
            self._waiting[packet.sequence] = now + timedelta(seconds=pause_s)
        else:
            self._give_up(packet.sequence)
            self._end(Ending.SILENCE, why)

    def stop(self, reason: str) -> None:
        """Send nothing more, not even what was not answered."""
        for sequence in list(self._unanswered):
            self._give_up(sequence)
        self._end(Ending.REFUSED, reason)

    def _give_up(self, sequence: int) -> None:
        packet = self._unanswered.pop(sequence)
        self._waiting.pop(sequence, None)
        if not packet.probe:
            self.books = evolve(self.books, unknown=self.books.unknown + packet.prepare.amount)

    def _end(self, ending: Ending, reason: str = "") -> None:
        """The first reason to end is the one that counts."""
        if self.books.ending is None:
            self.books = evolve(self.books, ending=ending, reason=reason)

    # --- what a reply means ---

    def _fulfilled(self, packet: Packet, fulfill: Fulfill, now: datetime) -> None:
        said = self._read(packet, fulfill)
        self._moved_at = now
        self.books = evolve(
            self.books,
            sent=self.books.sent + packet.prepare.amount,
            delivered=self.books.delivered + (said.amount if said else 0),
            packets=self.books.packets + 1,
        )
        if said is None:
            self._end(Ending.REFUSED, "a packet was fulfilled with no word of what arrived")
        elif self.books.sent == self.books.amount:
            self._end(Ending.DONE)

    def _rejected(self, packet: Packet, reject: Reject, now: datetime) -> None:
        said = self._read(packet, reject)
        if reject.code == ErrorCode.AMOUNT_TOO_LARGE:
            self._shrink(packet, reject, now)
        elif reject.code != ErrorCode.FINAL_APPLICATION_ERROR or said is None:
            self._end(Ending.REFUSED, _words(reject))
        elif any(isinstance(frame, StreamClose | ConnectionClose) for frame in said.frames):
            self._end(Ending.CLOSED, reject.message)
        elif packet.probe:
            self._quoted(packet, said, now)
        else:
            self._end(Ending.REFUSED, f"{said.amount} arrive of a packet of {packet.prepare.amount}")

    def _shrink(self, packet: Packet, reject: Reject, now: datetime) -> None:
        """Make packets smaller, as F08 asks for. What it says may be in the units of an account further on."""
        sent = packet.prepare.amount
        try:
            received, maximum = read_amounts(reject.data)
        except MalformedPacket:
            received, maximum = 2, 1
        smaller = sent * maximum // received if maximum < received else sent // 2  # the latter makes no sense
        if smaller < 1:
            self._end(Ending.REFUSED, _words(reject))
        elif now - self._moved_at >= self._patience:
            self._end(Ending.SILENCE, _words(reject))
        self._packet_max = max(min(self._packet_max, smaller), 1)
        self._probe_amount = min(self._probe_amount, smaller)

    def _quoted(self, packet: Packet, said: StreamPacket, now: datetime) -> None:
        takes = next((frame for frame in said.frames if isinstance(frame, StreamMaxMoney)), None)
        asset = next((frame for frame in said.frames if isinstance(frame, ConnectionAssetDetails)), None)
        self.quote = Quote(
            packet.prepare.amount,
            said.amount,
            takes.receive_max if takes else UINT64_MAX,
            takes.total_received if takes else 0,
            Asset(asset.asset_code, asset.asset_scale) if asset else None,
        )
        self._moved_at = now
        if not self.books.amount:
            self._end(Ending.DONE)

    def _read(self, packet: Packet, reply: Fulfill | Reject) -> StreamPacket | None:
        """What the receiver says to us alone, if it is its answer to this packet. RFC 29 §5.2."""
        try:
            said = self._keys.open(reply.data)
        except MalformedPacket:
            return None
        kind = PacketType.FULFILL if isinstance(reply, Fulfill) else PacketType.REJECT
        return said if (said.kind, said.sequence) == (kind, packet.sequence) else None

    # --- packets ---

    def _repeat(self, sequence: int, now: datetime) -> Packet:
        """The same packet with a later expiry, which makes no other of it: it is known by its condition."""
        del self._waiting[sequence]
        before = self._unanswered[sequence]
        prepare = evolve(before.prepare, expires_at=now + timedelta(seconds=LIFETIME_S))
        self.books = evolve(self.books, repeats=self.books.repeats + 1)
        return self._sent(evolve(before, prepare=prepare, tries=before.tries + 1))

    def _probe(self, now: datetime, nonce: bytes) -> Packet:
        # The hash of a hash of something random is the condition of nothing that anybody could show.
        nobodys = hashlib.sha256(nonce).digest()
        frames: list[Frame] = [ConnectionNewAddress(""), StreamMoney(_STREAM, 1)]
        return self._packet(self._probe_amount, frames, now, nonce, least=0, condition=nobodys)

    def _money(self, amount: int, now: datetime, nonce: bytes) -> Packet:
        return self._packet(amount, [StreamMoney(_STREAM, 1)], now, nonce, least=amount)

    def _packet(
        self,
        amount: int,
        frames: list[Frame],
        now: datetime,
        nonce: bytes,
        *,
        least: int,
        condition: bytes | None = None,
    ) -> Packet:
        self._sequence += 1
        data = self._keys.seal(StreamPacket(PacketType.PREPARE, self._sequence, least, frames), nonce=nonce)
        ours = condition or condition_of(self._keys.fulfillment(data))
        expires_at = now + timedelta(seconds=LIFETIME_S)
        prepare = Prepare(amount, expires_at, ours, self._payee.address, data)
        return self._sent(Packet(self._sequence, prepare, probe=condition is not None))

    def _sent(self, packet: Packet) -> Packet:
        self._unanswered[packet.sequence] = packet
        return packet


def _words(reject: Reject) -> str:
    return f"{reject.code} {reject.message}".rstrip()

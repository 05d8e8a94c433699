"""The rules of a STREAM sender without I/O, which decide about the next packet and about the effect of a reply.

The rules come from Interledger RFC 29. `testing.sender` sends the packets.
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
from incoming_payments.ilp import IlpAddress, ilp_address
from incoming_payments.ilp.packet import ErrorCode, Fulfill, PacketType, Prepare, Reject, encode
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
from incoming_payments.limits import SENDER_BACKOFF_S_MAX, SENDER_IN_FLIGHT_MAX, SENDER_PATIENCE_S_DEFAULT, UINT64_MAX
from incoming_payments.testing.replies import decode_reply, read_amounts

LIFETIME_S: Final = 30.0  # the time from the creation of a packet to its expiry
IN_FLIGHT: Final = 8  # the default limit on unanswered packets
_BACKOFF_S: Final = 0.05  # the pause before the first retry of a packet; each further retry waits twice as long
_STREAM: Final = 1  # the first stream that a client opens (RFC 29 §3.3)


@frozen
class Payee:
    """The receiver of the money: the `address` and the `shared_secret` of an incoming payment."""

    address: IlpAddress = field(converter=ilp_address)
    shared_secret: bytes = field(repr=False)

    @classmethod
    def of(cls, resource: Mapping[str, Any]) -> Self:
        """Return the payee of an incoming payment from its JSON. Raise `InvalidValue` if the payment has no ilp method.

        >>> method = {"type": "ilp", "ilpAddress": "test.bank.abc", "sharedSecret": "AAAA"}
        >>> Payee.of({"id": "https://bank.example/incoming-payments/1", "methods": [method]})
        Payee(address='test.bank.abc')
        """
        for method in resource.get("methods", ()):
            if method["type"] == "ilp":
                secret = method["sharedSecret"]
                return cls(method["ilpAddress"], base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4)))
        raise InvalidValue(
            "methods contains no ilp method, because the payment is completed or expired: create another payment",
            member="methods",
        )


class Ending(enum.Enum):
    """The reason why a sender has stopped."""

    DONE = "done"  # the whole amount was fulfilled
    CLOSED = "closed"  # the payment is completed or expired
    REFUSED = "refused"  # a packet was refused with a final error, or the caller has stopped the sender
    TIMEOUT = "timeout"  # no packet was fulfilled for `patience_s`


@frozen
class Quote:
    """The receiver's answer to a probe, which moves no money.

    If `amount` were sent, the receiver would get `arrives`. The payment accepts `receive_max` in total, and has
    `received` so far. `arrives`, `receive_max` and `received` are in minor units of `asset`, the asset of the payment.
    `asset` is `None` if the receiver did not report it.
    """

    amount: int
    arrives: int
    receive_max: int
    received: int
    asset: Asset | None


@frozen
class SenderTotals:
    """The sender's totals for one payment, in minor units.

    `amount` is the amount to send. `sent` is the sum of all fulfilled packets, and `delivered` is the sum that the
    receiver has reported for these packets. `packets` counts the fulfilled packets and `repeats` the retries. `unknown`
    is the sum of the packets that were never answered. The service may have credited these packets. `ending` is `None`
    until the sender stops. Then `reason` explains the ending in words.
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
    """A Prepare to send now. A `probe` has a condition that no receiver can fulfil, so a probe moves no money."""

    sequence: int
    prepare: Prepare
    probe: bool
    tries: int = 1

    @property
    def octets(self) -> bytes:
        """Return the encoded Prepare."""
        return encode(self.prepare)


class StreamSender:
    """A sender of `amount` minor units to `payee`. A packet has at most `packet_max` units.

    At most `in_flight_max` packets are in flight. The first packet is a probe of `probe` units, by default of the whole
    amount. The answer to the probe becomes the `quote`. The sender ends with `TIMEOUT` if no packet is fulfilled for
    `patience_s` seconds. Time and randomness are arguments. Raise `InvalidValue` if an argument is out of range.

    >>> import os
    >>> from incoming_payments import DerivedMethods, Peer, Ports, Receiver
    >>> from incoming_payments.flows.machinery.run import run
    >>> from incoming_payments.flows.receive_packet import receive_packet
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
    >>> sender.totals.delivered, sender.totals.packets, sender.totals.ending
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
        patience_s: float = SENDER_PATIENCE_S_DEFAULT,
    ) -> None:
        for name, value, least, most in (
            ("amount", amount, 0, UINT64_MAX),
            ("probe", amount if probe is None else probe, 0, UINT64_MAX),
            ("packet_max", packet_max, 1, UINT64_MAX),
            ("in_flight_max", in_flight_max, 1, SENDER_IN_FLIGHT_MAX),
        ):
            if type(value) is not int or not least <= value <= most:
                raise InvalidValue(f"{name} must be an integer from {least} to {most}, not {value!r}", member=name)
        self.quote: Quote | None = None
        self.totals = SenderTotals(amount)
        self._payee = payee
        self._keys = StreamKeys(payee.shared_secret)
        self._probe_amount = amount if probe is None else probe
        self._packet_max = packet_max
        self._in_flight_max = in_flight_max
        self._patience = timedelta(seconds=patience_s)
        self._progress_at = now
        self._sequence = 0
        self._unanswered: dict[int, Packet] = {}
        self._retry_at: dict[int, datetime] = {}  # the lost packets, with the times of their retries

    @property
    def has_ended(self) -> bool:
        """Return whether the sender has stopped and no packet is in flight."""
        return self.totals.ending is not None and not self._unanswered

    @property
    def resumes_at(self) -> datetime | None:
        """Return the earliest time at which `next` returns a retry, or `None` if no retry is pending."""
        return min(self._retry_at.values(), default=None)

    def next(self, *, now: datetime, nonce: bytes) -> Packet | None:
        """Return the packet to send at `now`, or `None` if the sender has to wait for an answer or for `resumes_at`.

        `nonce` is 12 random bytes. Never use the same bytes twice.
        """
        if self._retry_at and min(self._retry_at.values()) <= now:
            return self._repeat(min(self._retry_at, key=self._retry_at.__getitem__), now)
        if self.totals.ending is not None or len(self._unanswered) >= self._in_flight_max:
            return None
        if self.quote is None:
            return None if self._unanswered else self._probe(now, nonce)
        in_flight = sum(packet.prepare.amount for packet in self._unanswered.values())
        amount = min(self._packet_max, self.totals.amount - self.totals.sent - in_flight)
        return self._money(amount, now, nonce) if amount else None

    def answered(self, packet: Packet, reply: bytes, *, now: datetime) -> None:
        """Process the `reply` to a packet, the bytes of a Fulfill or a Reject. Other bytes count as a lost packet."""
        try:
            answer = decode_reply(reply)
        except MalformedPacket:
            self.lost(packet, now=now)
            return
        # The fulfillment is the preimage of the condition (RFC 27). Other bytes do not prove a credit.
        if isinstance(answer, Fulfill) and condition_of(answer.fulfillment) != packet.prepare.condition:
            self.lost(packet, now=now)
        elif (
            isinstance(answer, Reject) and answer.code[0] in "TR"
        ):  # after a temporary error or a timeout, a retry may succeed
            self.lost(packet, now=now, reason=_description(answer))
        # `None` means that the packet was already answered
        elif self._unanswered.pop(packet.sequence, None) is not None:
            self._retry_at.pop(packet.sequence, None)
            if isinstance(answer, Fulfill):
                self._fulfilled(packet, answer, now)
            else:
                self._rejected(packet, answer, now)

    def lost(self, packet: Packet, *, now: datetime, reason: str = "") -> None:
        """Handle a packet without an answer. The service may have credited the packet, so the sender repeats it."""
        if packet.sequence not in self._unanswered:
            return
        if now - self._progress_at < self._patience:
            pause_s = min(_BACKOFF_S * 2 ** (packet.tries - 1), SENDER_BACKOFF_S_MAX)
            self._retry_at[packet.sequence] = now + timedelta(seconds=pause_s)
        else:
            self._give_up(packet.sequence)
            self._end(Ending.TIMEOUT, reason)

    def stop(self, reason: str) -> None:
        """Stop at once, without retries. The amounts of all packets in flight become `unknown`."""
        for sequence in list(self._unanswered):
            self._give_up(sequence)
        self._end(Ending.REFUSED, reason)

    def _give_up(self, sequence: int) -> None:
        packet = self._unanswered.pop(sequence)
        self._retry_at.pop(sequence, None)
        if not packet.probe:
            self.totals = evolve(self.totals, unknown=self.totals.unknown + packet.prepare.amount)

    def _end(self, ending: Ending, reason: str = "") -> None:
        """Stop, and keep the reason if the sender has already stopped."""
        if self.totals.ending is None:
            self.totals = evolve(self.totals, ending=ending, reason=reason)

    # --- replies ---

    def _fulfilled(self, packet: Packet, fulfill: Fulfill, now: datetime) -> None:
        sealed = self._read(packet, fulfill)
        self._progress_at = now
        self.totals = evolve(
            self.totals,
            sent=self.totals.sent + packet.prepare.amount,
            delivered=self.totals.delivered + (sealed.amount if sealed else 0),
            packets=self.totals.packets + 1,
        )
        if sealed is None:
            self._end(Ending.REFUSED, "the Fulfill does not contain the STREAM packet that reports the received amount")
        elif self.totals.sent == self.totals.amount:
            self._end(Ending.DONE)

    def _rejected(self, packet: Packet, reject: Reject, now: datetime) -> None:
        sealed = self._read(packet, reject)
        if reject.code == ErrorCode.AMOUNT_TOO_LARGE:
            self._shrink(packet, reject, now)
        elif sealed and any(isinstance(frame, StreamClose | ConnectionClose) for frame in sealed.frames):
            self._end(Ending.CLOSED, reject.message)
        elif reject.code != ErrorCode.FINAL_APPLICATION_ERROR or sealed is None:
            self._end(Ending.REFUSED, _description(reject))
        elif packet.probe:
            self._quoted(packet, sealed, now)
        else:
            self._end(Ending.REFUSED, f"only {sealed.amount} of the {packet.prepare.amount} units of a packet arrived")

    def _shrink(self, packet: Packet, reject: Reject, now: datetime) -> None:
        """Reduce the packet size by the ratio of the two amounts in F08, which may be in another asset."""
        sent = packet.prepare.amount
        try:
            received, maximum = read_amounts(reject.data)
        except MalformedPacket:
            received, maximum = 2, 1
        # If F08 has no usable ratio, halve the size.
        smaller = sent * maximum // received if maximum < received else sent // 2
        if smaller < 1:
            self._end(Ending.REFUSED, _description(reject))
        elif now - self._progress_at >= self._patience:
            self._end(Ending.TIMEOUT, _description(reject))
        self._packet_max = max(min(self._packet_max, smaller), 1)
        self._probe_amount = min(self._probe_amount, smaller)

    def _quoted(self, packet: Packet, sealed: StreamPacket, now: datetime) -> None:
        money = next((frame for frame in sealed.frames if isinstance(frame, StreamMaxMoney)), None)
        asset = next((frame for frame in sealed.frames if isinstance(frame, ConnectionAssetDetails)), None)
        self.quote = Quote(
            packet.prepare.amount,
            sealed.amount,
            money.receive_max if money else UINT64_MAX,
            money.total_received if money else 0,
            Asset(asset.asset_code, asset.asset_scale) if asset else None,
        )
        self._progress_at = now
        if not self.totals.amount:
            self._end(Ending.DONE)

    def _read(self, packet: Packet, reply: Fulfill | Reject) -> StreamPacket | None:
        """Return the STREAM packet of `reply`, or `None` if the reply does not answer `packet` (RFC 29 §5.2)."""
        try:
            sealed = self._keys.open(reply.data)
        except MalformedPacket:
            return None
        kind = PacketType.FULFILL if isinstance(reply, Fulfill) else PacketType.REJECT
        return sealed if (sealed.kind, sealed.sequence) == (kind, packet.sequence) else None

    # --- packets ---

    def _repeat(self, sequence: int, now: datetime) -> Packet:
        """Return the packet with a later expiry. The condition, which identifies the packet, stays the same."""
        del self._retry_at[sequence]
        before = self._unanswered[sequence]
        prepare = evolve(before.prepare, expires_at=now + timedelta(seconds=LIFETIME_S))
        self.totals = evolve(self.totals, repeats=self.totals.repeats + 1)
        return self._sent(evolve(before, prepare=prepare, tries=before.tries + 1))

    def _probe(self, now: datetime, nonce: bytes) -> Packet:
        # The only known preimage is the nonce. The nonce is not a fulfillment, because it has 12 bytes instead of 32.
        unfulfillable = hashlib.sha256(nonce).digest()
        frames: list[Frame] = [ConnectionNewAddress(""), StreamMoney(_STREAM, 1)]
        return self._packet(self._probe_amount, frames, now, nonce, minimum=0, condition=unfulfillable)

    def _money(self, amount: int, now: datetime, nonce: bytes) -> Packet:
        return self._packet(amount, [StreamMoney(_STREAM, 1)], now, nonce, minimum=amount)

    def _packet(
        self,
        amount: int,
        frames: list[Frame],
        now: datetime,
        nonce: bytes,
        *,
        minimum: int,
        condition: bytes | None = None,
    ) -> Packet:
        self._sequence += 1
        data = self._keys.seal(StreamPacket(PacketType.PREPARE, self._sequence, minimum, frames), nonce=nonce)
        is_probe = condition is not None
        condition = condition or condition_of(self._keys.fulfillment(data))
        prepare = Prepare(amount, now + timedelta(seconds=LIFETIME_S), condition, self._payee.address, data)
        return self._sent(Packet(self._sequence, prepare, probe=is_probe))

    def _sent(self, packet: Packet) -> Packet:
        self._unanswered[packet.sequence] = packet
        return packet


def _description(reject: Reject) -> str:
    return f"{reject.code} {reject.message}".rstrip()

"""A `StreamSender` that a test advances packet by packet, and the replies that a test gives to it."""

from datetime import timedelta
from typing import Any, Final

from incoming_payments.ilp.packet import Fulfill, PacketType, Reject, encode
from incoming_payments.ilp.stream import Frame, StreamKeys, StreamPacket
from incoming_payments.limits import SENDER_PATIENCE_S_DEFAULT
from incoming_payments.testing import NOW
from incoming_payments.testing.sender import Packet, Payee, SenderTotals, StreamSender
from kits.stream_kit import Service

SECRET: Final = bytes(range(32))
PAYEE: Final = Payee("test.bank.abc", SECRET)
KEYS: Final = StreamKeys(SECRET)
TIMEOUT: Final = timedelta(seconds=SENDER_PATIENCE_S_DEFAULT)


def payee_of(service: Service) -> Payee:
    """Return the payee for the payment of `service`."""
    return Payee(service.sender.credentials.ilp_address, service.sender.credentials.shared_secret)


class Nonces:
    """Returns a new nonce at each call, in a fixed order."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(12)


class ManualSender:
    """A sender that a test advances packet by packet, with a clock of its own."""

    def __init__(self, amount: int, payee: Payee = PAYEE, **options: Any) -> None:
        self.now = NOW
        self.sender = StreamSender(payee, amount, now=NOW, **options)
        self._nonces = Nonces()

    @property
    def totals(self) -> SenderTotals:
        """Return the sender's totals."""
        return self.sender.totals

    def next(self) -> Packet:
        """Return the next packet, and fail if there is none."""
        packet = self.sender.next(now=self.now, nonce=self._nonces())
        assert packet is not None
        return packet

    def has_next(self) -> bool:
        """Return whether there is a packet to send. The packet is discarded."""
        return self.sender.next(now=self.now, nonce=self._nonces()) is not None

    def answer(self, packet: Packet, reply: Fulfill | Reject | bytes) -> None:
        """Give the reply to `packet` to the sender."""
        octets = reply if isinstance(reply, bytes) else encode(reply)
        self.sender.answered(packet, octets, now=self.now)

    def quoted(self) -> "ManualSender":
        """Answer the probe, and return `self`."""
        probe = self.next()
        self.answer(probe, rejection("F99", sealed(probe, PacketType.REJECT)))
        return self

    def run(self, service: Service) -> None:
        """Send all packets to `service`, and give the replies to the sender."""
        while packet := self.sender.next(now=self.now, nonce=self._nonces()):
            self.answer(packet, service.answer(packet.octets))


def sealed(
    packet: Packet, kind: PacketType, *frames: Frame, amount: int | None = None, sequence: int | None = None
) -> bytes:
    """Return the encrypted part of a reply to `packet`."""
    arrived = packet.prepare.amount if amount is None else amount
    stream_packet = StreamPacket(kind, packet.sequence if sequence is None else sequence, arrived, frames)
    return KEYS.seal(stream_packet, nonce=packet.sequence.to_bytes(12))


def fulfillment(packet: Packet, data: bytes | None = None) -> Fulfill:
    """Return the Fulfill for `packet`."""
    proof = KEYS.fulfillment(packet.prepare.data)
    return Fulfill(proof, sealed(packet, PacketType.FULFILL) if data is None else data)


def rejection(code: str, data: bytes = b"", message: str = "") -> Reject:
    """Return a Reject."""
    return Reject(code, "test.bank", message, data)

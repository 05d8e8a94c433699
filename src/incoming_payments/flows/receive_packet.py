"""Take an ILP packet: the STREAM receiver as one use case. RFC 27 and RFC 29 of the Interledger RFCs."""

from collections.abc import Callable
from datetime import datetime

from attrs import field, frozen

from incoming_payments.domain.payment import check_moment
from incoming_payments.errors import (
    IncomingPaymentsError,
    PacketExpired,
    PaymentNotFound,
    PaymentRefused,
    PolicyRefused,
    StoreError,
)
from incoming_payments.flows.effects import DrawRandomness, Flow, LoadPayment, UpdatePayment
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Reply, encode
from incoming_payments.ilp.receive import Arrival, Receiver, open_packet
from incoming_payments.ilp.stream import NONCE_BYTES


@frozen
class PacketAnswer:
    """The `reply` to a packet, in bytes, and for the host alone the `cause`, if the payment or the store refused it.

    A `StoreError` is trouble of its own; `AssetMismatch` and `CreditIdReused` are a peer's mistake, or worse.
    """

    reply: bytes = field(repr=False)
    cause: IncomingPaymentsError | None = None


def receive_packet(packet: bytes, *, peer: Peer, receiver: Receiver, clock: Callable[[], datetime]) -> Flow[bytes]:
    """Answer the ILP Prepare `packet` that `peer` sent, with a Fulfill or a Reject, in bytes.

    A Fulfill is answered once the money is booked, durably. The same packet again is fulfilled again and booked once.
    Whatever a peer sends, and whatever trouble the store has, is answered with a Reject; `ilp.receive` says which.

    `clock` says what time it is, in UTC. It is read when the packet comes, and again by the decision to book, inside
    the store's transaction and perhaps in another thread: nothing is booked for a packet that has waited until its
    sender gives it up, or until its payment has expired. Raises `InvalidValue` when what it says is not in UTC.

    ```python
    reply = run(receive_packet(packet, peer=peer, receiver=receiver, clock=lambda: datetime.now(UTC)), ports)
    ```
    """
    return (yield from answer_packet(packet, peer=peer, receiver=receiver, clock=clock)).reply


def answer_packet(
    packet: bytes, *, peer: Peer, receiver: Receiver, clock: Callable[[], datetime]
) -> Flow[PacketAnswer]:
    """As `receive_packet`, with the reason of a refusal beside the reply, for a host's log."""
    now = clock()
    check_moment(None, None, now)
    # The nonce is drawn first: once the money is booked, nothing is left that could fail.
    nonce = yield from DrawRandomness(NONCE_BYTES)
    arrived = open_packet(packet, peer=peer, receiver=receiver, nonce=nonce, now=now)
    if not isinstance(arrived, Arrival):
        return PacketAnswer(encode(arrived))
    try:
        return PacketAnswer(encode((yield from _settle(arrived, now, clock))))
    except (PaymentRefused, PaymentNotFound, PolicyRefused, PacketExpired, StoreError) as refusal:
        return PacketAnswer(encode(arrived.refused(refusal)), refusal)


def _settle(arrival: Arrival, now: datetime, clock: Callable[[], datetime]) -> Flow[Reply]:
    """The answer that the payment has for `arrival`. Raises what `Arrival.refused` has an answer for."""
    if not arrival.may_be_fulfilled:
        return arrival.quoted((yield from LoadPayment(arrival.payment_id)), now)
    id = arrival.credit_id
    payment = yield from UpdatePayment(arrival.payment_id, arrival.decide(id, clock), id)
    return arrival.fulfilled(payment, now)

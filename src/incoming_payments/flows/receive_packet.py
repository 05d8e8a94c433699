"""Take an ILP packet: the STREAM receiver as one use case. RFC 27 and RFC 29 of the Interledger RFCs."""

from datetime import datetime

from attrs import field, frozen

from incoming_payments.domain.payment import check_moment
from incoming_payments.errors import PaymentNotFound, PaymentRefused, PolicyRefused, StoreError
from incoming_payments.flows.effects import DrawRandomness, Flow, LoadPayment, UpdatePayment
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Reply, encode
from incoming_payments.ilp.receive import Arrival, Receiver, open_packet
from incoming_payments.ilp.stream import NONCE_BYTES


@frozen
class PacketAnswer:
    """The `reply` to a packet, in bytes. `cause` is the store's trouble behind a T00: for the host's log alone."""

    reply: bytes = field(repr=False)
    cause: StoreError | None = None


def receive_packet(packet: bytes, *, peer: Peer, receiver: Receiver, now: datetime) -> Flow[bytes]:
    """Answer the ILP Prepare `packet` that `peer` sent, with a Fulfill or a Reject, in bytes.

    A Fulfill is answered once the money is booked, durably. The same packet again is fulfilled again and booked once.
    Whatever a peer sends, and whatever trouble the store has, is answered with a Reject; `ilp.receive` says which.
    Raises `InvalidValue` when `now` is not in UTC.

    ```python
    reply = run(receive_packet(packet, peer=peer, receiver=receiver, now=datetime.now(UTC)), ports)
    ```
    """
    return (yield from answer_packet(packet, peer=peer, receiver=receiver, now=now)).reply


def answer_packet(packet: bytes, *, peer: Peer, receiver: Receiver, now: datetime) -> Flow[PacketAnswer]:
    """As `receive_packet`, with the store's trouble, if it was that, beside the reply."""
    check_moment(None, None, now)
    # The nonce is drawn first: once the money is booked, nothing is left that could fail.
    nonce = yield from DrawRandomness(NONCE_BYTES)
    arrived = open_packet(packet, peer=peer, receiver=receiver, nonce=nonce, now=now)
    if not isinstance(arrived, Arrival):
        return PacketAnswer(encode(arrived))
    try:
        return PacketAnswer(encode((yield from _settle(arrived, now))))
    except StoreError as trouble:
        return PacketAnswer(encode(arrived.refused(trouble)), trouble)


def _settle(arrival: Arrival, now: datetime) -> Flow[Reply]:
    """The answer that the payment has for `arrival`. Raises `StoreError`."""
    try:
        if arrival.brings_money:
            id = arrival.credit_id
            return arrival.fulfilled((yield from UpdatePayment(arrival.payment_id, arrival.decide(id, now), id)))
        return arrival.quoted((yield from LoadPayment(arrival.payment_id)), now)
    except (PaymentRefused, PaymentNotFound, PolicyRefused) as refusal:
        return arrival.refused(refusal)

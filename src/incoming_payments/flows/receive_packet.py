"""Take an ILP packet: the STREAM receiver as one use case. RFC 27 and RFC 29 of the Interledger RFCs."""

from datetime import datetime

from incoming_payments.domain.payment import check_moment
from incoming_payments.errors import PaymentNotFound, PaymentRefused, PolicyRefused, StoreError
from incoming_payments.flows.effects import DrawRandomness, Flow, LoadPayment, UpdatePayment
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Reply, encode
from incoming_payments.ilp.receive import Arrival, Receiver, open_packet
from incoming_payments.ilp.stream import NONCE_BYTES


def receive_packet(packet: bytes, *, peer: Peer, receiver: Receiver, now: datetime) -> Flow[bytes]:
    """Answer the ILP Prepare `packet` that `peer` sent, with a Fulfill or a Reject, in bytes.

    A Fulfill is answered once the money is booked, durably. The same packet again is fulfilled again and booked once.
    Whatever a peer sends, and whatever trouble the store has, is answered with a Reject; `ilp.receive` says which.
    Raises `InvalidValue` when `now` is not in UTC.

    ```python
    reply = run(receive_packet(packet, peer=peer, receiver=receiver, now=datetime.now(UTC)), ports)
    ```
    """
    check_moment(None, None, now)
    # The nonce is drawn first: once the money is booked, nothing is left that could fail.
    nonce = yield from DrawRandomness(NONCE_BYTES)
    arrived = open_packet(packet, peer=peer, receiver=receiver, nonce=nonce, now=now)
    return encode((yield from _settle(arrived, now)) if isinstance(arrived, Arrival) else arrived)


def _settle(arrival: Arrival, now: datetime) -> Flow[Reply]:
    """The answer that the payment has for `arrival`."""
    try:
        if arrival.brings_money:
            id = arrival.credit_id
            return arrival.fulfilled((yield from UpdatePayment(arrival.payment_id, arrival.decide(id, now), id)))
        return arrival.quoted((yield from LoadPayment(arrival.payment_id)), now)
    except (PaymentRefused, PaymentNotFound, PolicyRefused, StoreError) as refusal:
        return arrival.refused(refusal)

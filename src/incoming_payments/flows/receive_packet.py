"""Receive an ILP packet with the STREAM receiver, as one use case (Interledger RFC 27 and RFC 29)."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

from attrs import field, frozen

from incoming_payments.domain.approval import Approved, Approver
from incoming_payments.domain.checks import check_time
from incoming_payments.domain.payment import IncomingPayment
from incoming_payments.errors import (
    ApprovalPending,
    ApprovalRequired,
    IncomingPaymentsError,
    PacketExpired,
    PaymentNotFound,
    PaymentRefused,
    PolicyRefused,
    PortUnavailable,
    StoreError,
)
from incoming_payments.flows.approval import require_approval
from incoming_payments.flows.machinery.effects import DrawRandomness, Flow, LoadPayment, UpdatePayment, flow
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Reply, encode
from incoming_payments.ilp.receive import Arrival, Receiver, open_packet
from incoming_payments.ilp.stream import NONCE_BYTES
from incoming_payments.ports.approval import ProposedCredit

_REFUSALS: Final = (
    PaymentRefused,
    PaymentNotFound,
    PolicyRefused,
    ApprovalPending,
    PacketExpired,
    PortUnavailable,
    StoreError,
)


@frozen
class PacketAnswer:
    """The encoded `reply` to a packet, and its `cause` if the payment or a port refused it.

    `cause` is only for the log of the host. A `StoreError` or a `PortUnavailable` is a failure of a port.
    `AssetMismatch` and `CreditIdReused` point to a mistake of the peer, or to an attack.
    """

    reply: bytes = field(repr=False)
    cause: IncomingPaymentsError | None = None


@flow
def receive_packet(packet: bytes, *, peer: Peer, receiver: Receiver, clock: Callable[[], datetime]) -> Flow[bytes]:
    """Answer the ILP Prepare `packet` that `peer` sent. Return the encoded Fulfill or Reject.

    The flow returns a Fulfill only after the credit is durable. A repeated packet is fulfilled again and credited once.
    The flow answers every other packet, and every failure of the store, with a Reject. `ilp.receive` lists the Rejects.

    `clock` returns the time in UTC. The flow calls it when the packet arrives. The decision calls `clock` again inside
    the store's transaction, perhaps in another thread. So a packet is not credited if the packet or its payment expired
    while the packet waited for the store. Raises `InvalidValue` when `clock` returns a time that is not in UTC.

    ```python
    reply = run(receive_packet(packet, peer=peer, receiver=receiver, clock=lambda: datetime.now(UTC)), ports)
    ```
    """
    return (yield from receive_packet_with_cause(packet, peer=peer, receiver=receiver, clock=clock)).reply


@flow
def receive_packet_with_cause(
    packet: bytes, *, peer: Peer, receiver: Receiver, clock: Callable[[], datetime]
) -> Flow[PacketAnswer]:
    """Answer a packet like `receive_packet`, and also return the reason for a refusal, for the log of the host."""
    now = clock()
    check_time(now)
    # Draw the nonce first, so that no step can fail after the credit.
    nonce = yield from DrawRandomness(NONCE_BYTES)
    opened = open_packet(packet, peer=peer, receiver=receiver, nonce=nonce, now=now)
    if not isinstance(opened, Arrival):
        return PacketAnswer(encode(opened))
    try:
        return PacketAnswer(encode((yield from _reply_to(opened, now, clock))))
    except _REFUSALS as refusal:
        return PacketAnswer(encode(opened.refused(refusal)), refusal)


def _reply_to(arrival: Arrival, now: datetime, clock: Callable[[], datetime]) -> Flow[Reply]:
    """Return the reply that depends on the payment. Raise the refusals that `Arrival.refused` answers."""
    if not arrival.may_be_fulfilled:
        return arrival.quoted((yield from LoadPayment(arrival.payment_id)), now)
    return arrival.fulfilled((yield from _credited(arrival, clock)), now)


def _credited(arrival: Arrival, clock: Callable[[], datetime]) -> Flow[IncomingPayment]:
    """Credit the packet, and return the payment. If the host has an approval port, request the approval first.

    The driver raises `ApprovalRequired` if the host has the port and the payment accepts the packet. So the host does
    not have to decide about a packet that is refused anyway, carries no money, or is already credited.
    """
    id = arrival.credit_id
    decide = partial(arrival.decide, id, clock)
    try:
        return (yield from UpdatePayment(arrival.payment_id, decide(arrival.approved_by(Approver.NO_PORT)), id))
    except ApprovalRequired as required:
        payment = required.payment
    approval = yield from approval_of(arrival, payment)
    return (yield from UpdatePayment(arrival.payment_id, decide(approval), id))


def approval_of(arrival: Arrival, payment: IncomingPayment) -> Flow[Approved | IncomingPaymentsError]:
    """Return the proof that the host approves the money of `arrival`, or the error to raise.

    The decision raises this error, unless a copy of the packet was approved and credited in the meantime.
    """
    proposal = ProposedCredit(
        payment=payment,
        credit_id=arrival.credit_id,
        amount=arrival.amount,
        peer=arrival.peer,
        expires_at=arrival.expires_at,
        data=arrival.stream_data,
    )
    try:
        yield from require_approval(proposal)
    except IncomingPaymentsError as refusal:
        return refusal
    return arrival.approved_by(Approver.HOST)

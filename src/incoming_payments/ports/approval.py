"""The port with which a host approves payments and packets before the service stores them."""

import enum
from datetime import datetime
from typing import Protocol

from attrs import frozen

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.methods import IlpAddress
from incoming_payments.domain.payment import ClientId, CreditId, IncomingPayment, WalletAddressUrl


class Approval(enum.Enum):
    """The answer of the host to a request for approval."""

    APPROVED = "approved"
    PENDING = "pending"  # the host has not decided yet, and the client or the sender repeats its request later


@frozen
class ProposedPayment:
    """A payment that a client requests to create. It is not stored yet."""

    payment: IncomingPayment

    @property
    def client(self) -> ClientId:
        """The client that sent the request."""
        return self.payment.client

    @property
    def wallet_address(self) -> WalletAddressUrl:
        """The wallet address that will receive the money."""
        return self.payment.wallet_address

    @property
    def amount(self) -> Amount | None:
        """The `incomingAmount`, or `None` if the payment accepts any amount."""
        return self.payment.limit


@frozen(kw_only=True)
class ProposedCredit:
    """The money of one ILP packet for the stored `payment`, which is not credited yet.

    `credit_id` is the id of the credit, if the packet is credited. A copy of the packet has the same id. `peer` is the
    ILP address of the peer that sent the packet. `expires_at` is the time at which the packet expires. `data` are the
    bytes in the `StreamData` frames of the packet for stream 1, joined in the order of their offsets. The sender
    chooses these bytes, so they prove nothing.
    """

    payment: IncomingPayment
    credit_id: CreditId
    amount: Amount
    peer: IlpAddress
    expires_at: datetime
    data: bytes

    @property
    def client(self) -> ClientId:
        """The client that created the payment."""
        return self.payment.client

    @property
    def wallet_address(self) -> WalletAddressUrl:
        """The wallet address that receives the money."""
        return self.payment.wallet_address


Proposal = ProposedPayment | ProposedCredit


class ApprovalPort(Protocol):
    """The rules of the host for create requests of clients, and for packets.

    Each method returns an `Approval`, or raises `PolicyRefused` with a description for the client or the sender. Any
    other exception, any other answer and a late answer count as an outage, and never as an approval.
    """

    def approve_payment(self, proposed: ProposedPayment) -> Approval:
        """Decide about a payment before it is stored."""

    def approve_credit(self, proposed: ProposedCredit) -> Approval:
        """Decide about the money of a packet before it is credited."""


class AsyncApprovalPort(Protocol):
    """`ApprovalPort` with `async def` methods, which are cancelled at the timeout."""

    async def approve_payment(self, proposed: ProposedPayment) -> Approval: ...
    async def approve_credit(self, proposed: ProposedCredit) -> Approval: ...

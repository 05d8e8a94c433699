"""Receive payments over Open Payments, in the backend of an account servicing entity (ASE).

A host holds one `IncomingPayments`, or one `AsyncIncomingPayments`. This object has a method for each use case:
`handle` answers an HTTP request, `create` makes a payment for the host's own app, and `receive` credits money from any
payment rail. The host passes `Ports` (its store, wallet addresses, authorization server and payment methods) and a
`ServicePolicy`. `hosts` has adapters for WSGI and ASGI.

The flows behind the methods are public too; `run` and `arun` run them.
"""

from incoming_payments.domain.amount import Amount, Asset, Tolerance
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import Decision, state_of
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import (
    ClientId,
    Credit,
    CreditId,
    InactiveWalletAddress,
    IncomingPayment,
    PaymentId,
    WalletAddress,
    WalletAddressUrl,
    wallet_address_url,
)
from incoming_payments.domain.transitions import State
from incoming_payments.endpoints.open_payments import Request, Response, handle
from incoming_payments.endpoints.packets import HttpPeer, PacketPolicy, receive_packet_request
from incoming_payments.errors import (
    AuthorizationServerUnavailable,
    ConfigurationError,
    IncomingPaymentsError,
    PolicyRefused,
    PortUnavailable,
    StoreUnavailable,
)
from incoming_payments.flows.complete import complete
from incoming_payments.flows.expire import announce_expired
from incoming_payments.flows.machinery.effects import Flow
from incoming_payments.flows.machinery.ports import AsyncPorts, Ports
from incoming_payments.flows.machinery.run import arun, run
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import PacketAnswer, receive_packet, receive_packet_with_cause
from incoming_payments.gnap import (
    AccessRight,
    AccessToken,
    AccessTokenInfo,
    StaticIntrospector,
    TokenQuery,
    read_access,
    read_introspection,
)
from incoming_payments.ilp import DerivedMethods, Peer, Receiver
from incoming_payments.ports.approval import Approval, ProposedCredit, ProposedPayment
from incoming_payments.service import AsyncIncomingPayments, IncomingPayments

__all__ = [
    "AccessRight",
    "AccessToken",
    "AccessTokenInfo",
    "Amount",
    "Approval",
    "Asset",
    "AsyncIncomingPayments",
    "AsyncPorts",
    "AuthorizationServerUnavailable",
    "ClientId",
    "ConfigurationError",
    "Credit",
    "CreditId",
    "Decision",
    "DerivedMethods",
    "Event",
    "EventKind",
    "Flow",
    "HttpPeer",
    "IlpPaymentMethod",
    "InactiveWalletAddress",
    "IncomingPayment",
    "IncomingPayments",
    "IncomingPaymentsError",
    "PacketAnswer",
    "PacketPolicy",
    "PaymentId",
    "Peer",
    "PolicyRefused",
    "PortUnavailable",
    "Ports",
    "ProposedCredit",
    "ProposedPayment",
    "Receiver",
    "Request",
    "Response",
    "ServicePolicy",
    "State",
    "StaticIntrospector",
    "StoreUnavailable",
    "TokenQuery",
    "Tolerance",
    "WalletAddress",
    "WalletAddressUrl",
    "announce_expired",
    "arun",
    "complete",
    "handle",
    "read_access",
    "read_introspection",
    "receive",
    "receive_packet",
    "receive_packet_request",
    "receive_packet_with_cause",
    "run",
    "state_of",
    "wallet_address_url",
]

"""Receive payments over Open Payments, in the backend of an account servicing entity (ASE).

A host passes `Ports` (its store, wallet addresses, authorization server and payment methods) and a `ServicePolicy`. It
converts each HTTP request to a `Request`, and runs `handle` with `run` or `arun`. `receive` credits money from any
payment rail. `receive_packet` answers an ILP packet, and `handle_packet` an ILP packet over HTTP.
"""

from incoming_payments.api import Request, Response, handle
from incoming_payments.domain.amount import Amount, Asset, Tolerance
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import state_of
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import Credit, IncomingPayment, WalletAddress, wallet_address_url
from incoming_payments.domain.transitions import State
from incoming_payments.errors import (
    AuthorizationServerUnavailable,
    IncomingPaymentsError,
    PolicyRefused,
    PortUnavailable,
    StoreUnavailable,
)
from incoming_payments.flows.effects import Flow
from incoming_payments.flows.expire import announce_expired
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import PacketAnswer, answer_packet, receive_packet
from incoming_payments.flows.run import arun, run
from incoming_payments.gnap import (
    AccessRight,
    AccessToken,
    AccessTokenInfo,
    StaticIntrospector,
    read_access,
    read_introspection,
)
from incoming_payments.ilp import DerivedMethods, Peer, Receiver
from incoming_payments.ilp_http import HttpPeer, PacketPolicy, handle_packet
from incoming_payments.ports import AsyncPorts, Ports
from incoming_payments.service import AsyncIncomingPayments, IncomingPayments

__all__ = [
    "AccessRight",
    "AccessToken",
    "AccessTokenInfo",
    "Amount",
    "Asset",
    "AsyncIncomingPayments",
    "AsyncPorts",
    "AuthorizationServerUnavailable",
    "Credit",
    "DerivedMethods",
    "Event",
    "EventKind",
    "Flow",
    "HttpPeer",
    "IlpPaymentMethod",
    "IncomingPayment",
    "IncomingPayments",
    "IncomingPaymentsError",
    "PacketAnswer",
    "PacketPolicy",
    "Peer",
    "PolicyRefused",
    "PortUnavailable",
    "Ports",
    "Receiver",
    "Request",
    "Response",
    "ServicePolicy",
    "State",
    "StaticIntrospector",
    "StoreUnavailable",
    "Tolerance",
    "WalletAddress",
    "announce_expired",
    "answer_packet",
    "arun",
    "handle",
    "handle_packet",
    "read_access",
    "read_introspection",
    "receive",
    "receive_packet",
    "run",
    "state_of",
    "wallet_address_url",
]

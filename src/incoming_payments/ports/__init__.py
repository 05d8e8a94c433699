"""The ports: Protocols that a host implements, each in a sync and an async form.

Write plain `def` methods for `run`, and `async def` methods for `arun`. `arun` accepts both kinds.

A method returns its answer or raises an exception. It raises `PolicyRefused` when a rule of the host refuses, and a
`PortUnavailable`, such as `StoreUnavailable` or `AuthorizationServerUnavailable`, for a temporary failure.
`incoming_payments.testing` has contract tests for stores.
"""

from incoming_payments.ports.approval import (
    Approval,
    ApprovalPort,
    AsyncApprovalPort,
    Proposal,
    ProposedCredit,
    ProposedPayment,
)
from incoming_payments.ports.client_keys import AsyncClientKeys, ClientKeys
from incoming_payments.ports.erasure import AsyncErasure, Erasure
from incoming_payments.ports.feed import AsyncFeed, Feed, Render
from incoming_payments.ports.introspection import AsyncIntrospector, Introspector
from incoming_payments.ports.methods import AsyncMethodAllocator, MethodAllocator
from incoming_payments.ports.nonces import AsyncNonces, Nonces
from incoming_payments.ports.observer import (
    CreditDecided,
    DeliveryAttempted,
    Observation,
    Observer,
    PacketAnswered,
    RequestAnswered,
    StoreBatch,
    TokenIntrospected,
)
from incoming_payments.ports.quotas import AsyncQuotas, Quotas
from incoming_payments.ports.store import AsyncPaymentStore, Decide, PaymentStore
from incoming_payments.ports.wallet_addresses import AsyncWalletAddresses, WalletAddresses

__all__ = [
    "Approval",
    "ApprovalPort",
    "AsyncApprovalPort",
    "AsyncClientKeys",
    "AsyncErasure",
    "AsyncFeed",
    "AsyncIntrospector",
    "AsyncMethodAllocator",
    "AsyncNonces",
    "AsyncPaymentStore",
    "AsyncQuotas",
    "AsyncWalletAddresses",
    "ClientKeys",
    "CreditDecided",
    "Decide",
    "DeliveryAttempted",
    "Erasure",
    "Feed",
    "Introspector",
    "MethodAllocator",
    "Nonces",
    "Observation",
    "Observer",
    "PacketAnswered",
    "PaymentStore",
    "Proposal",
    "ProposedCredit",
    "ProposedPayment",
    "Quotas",
    "Render",
    "RequestAnswered",
    "StoreBatch",
    "TokenIntrospected",
    "WalletAddresses",
]

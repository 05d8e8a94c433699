"""The stores of payments, and every name that the author of another store needs.

`memory` is for tests and demonstrations, and `sqlite` is the durable default. This module has the Protocols of a store,
the values and decisions that it stores, the errors that it raises, and the checks that it makes before it writes.
`incoming_payments.testing.contract` tests any store.
"""

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision, without_metadata
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import (
    ClientId,
    Credit,
    CreditId,
    IncomingPayment,
    PaymentId,
    Progress,
    Terms,
    WalletAddressUrl,
)
from incoming_payments.domain.reference import Reference, reference_of
from incoming_payments.domain.transitions import State
from incoming_payments.errors import (
    BrokenDecision,
    ClockBehind,
    PaymentExists,
    PaymentNotFound,
    StoreError,
    StoreStopped,
    StoreUnavailable,
    StoreUnusable,
)
from incoming_payments.ports import (
    AsyncErasure,
    AsyncNonces,
    AsyncPaymentStore,
    Decide,
    Erasure,
    Nonces,
    PaymentStore,
)
from incoming_payments.stores.guard import (
    check_insert,
    check_nonce_capacity,
    check_nonce_time,
    check_update,
    checked_capacity,
    ended_at,
    sweep_at,
)

__all__ = [
    "Amount",
    "Asset",
    "AsyncErasure",
    "AsyncNonces",
    "AsyncPaymentStore",
    "BrokenDecision",
    "ClientId",
    "ClockBehind",
    "Credit",
    "CreditId",
    "Decide",
    "Decision",
    "Erasure",
    "Event",
    "EventKind",
    "IdempotencyKey",
    "IncomingPayment",
    "KeyedCreation",
    "Nonces",
    "PaymentExists",
    "PaymentId",
    "PaymentNotFound",
    "PaymentQuery",
    "PaymentStore",
    "Progress",
    "Reference",
    "State",
    "StoreError",
    "StoreStopped",
    "StoreUnavailable",
    "StoreUnusable",
    "Terms",
    "WalletAddressUrl",
    "check_insert",
    "check_nonce_capacity",
    "check_nonce_time",
    "check_update",
    "checked_capacity",
    "ended_at",
    "reference_of",
    "sweep_at",
    "without_metadata",
]

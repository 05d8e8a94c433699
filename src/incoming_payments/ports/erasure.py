"""The erasure of metadata."""

from datetime import datetime
from typing import Protocol

from incoming_payments.domain.payment import IncomingPayment, PaymentId


class Erasure(Protocol):
    """The erasure of the metadata of payments in one store.

    The rest of a payment stays: its other terms, its credits and its events. When a method returns, the metadata is
    gone from the store, including its indexes, unused space and logs. If the metadata may still be in a log, the method
    raises `StoreUnavailable`, and the next call finishes the erasure.
    """

    def erase(self, id: PaymentId) -> IncomingPayment:
        """Erase the metadata of the payment, and return the payment. Raise `PaymentNotFound` for an unknown id.

        A payment without metadata does not change.
        """

    def erase_ended(self, before: datetime) -> bool:
        """Erase the metadata of a batch of the payments that ended before `before`.

        Return whether no such metadata is left. `stores.guard.ended_at` is the time at which a payment ended.
        """


class AsyncErasure(Protocol):
    """`Erasure` with `async def` methods."""

    async def erase(self, id: PaymentId) -> IncomingPayment: ...
    async def erase_ended(self, before: datetime) -> bool: ...

"""The quotas of clients."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from incoming_payments.domain.payment import (
    ClientId,
    PaymentId,
)


class Quotas(Protocol):
    """The quotas of clients. Processes that serve the same URL must share them. `stores.quotas` is for one process.

    Each method is one atomic step.
    """

    def admit(self, client: ClientId, now: datetime) -> float | None:
        """Count a request of `client`, and return `None`, or the seconds until the next request is admitted."""

    def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]:
        """Count `id`, a new unpaid payment of `client`, and return `()`.

        If `id` would exceed the quota, change nothing, and return the counted unpaid payments, oldest first and at most
        `limits.QUOTA_UNPAID_MAX`. The service releases payments that are no longer unpaid, and tries again.
        """

    def release(self, client: ClientId, id: PaymentId) -> None:
        """Stop counting the payment `id` of `client`. Do nothing if it is not counted."""


class AsyncQuotas(Protocol):
    """`Quotas` with `async def` methods."""

    async def admit(self, client: ClientId, now: datetime) -> float | None: ...
    async def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]: ...
    async def release(self, client: ClientId, id: PaymentId) -> None: ...

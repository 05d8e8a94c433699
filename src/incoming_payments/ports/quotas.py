"""The quotas of clients."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from incoming_payments.domain.payment import (
    ClientId,
    PaymentId,
)


class Quotas(Protocol):
    """The quotas of clients.

    Processes that serve the same URL must share the quotas. `service.quotas` is for one process. `SqliteStore.quotas`
    is for all processes that open a file, and `PostgresStore.quotas` for all processes with the same database.
    `testing.quotas` has a test suite for your own port.

    Each method is one atomic step.
    """

    def admit(self, client: ClientId, now: datetime) -> float | None:
        """Count a request of `client`, and return `None`.

        If the quota is used up, count nothing, and return the seconds until a request can succeed.
        """

    def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]:
        """Count the new unpaid payment `id` of `client`, and return `()`.

        If this payment would exceed the quota, change nothing. In that case, return the counted unpaid payments, oldest
        first and at most `limits.QUOTA_UNPAID_MAX`. The service releases payments that are no longer unpaid, and tries
        again.

        A port that counts stored payments may leave a part of the check to the store: if another process stored the
        last payment after this call, `insert` raises `QuotaExceeded`.
        """

    def release(self, client: ClientId, id: PaymentId) -> None:
        """Stop counting the payment `id` of `client`. Do nothing if the payment is not counted."""


class AsyncQuotas(Protocol):
    """`Quotas` with `async def` methods."""

    async def admit(self, client: ClientId, now: datetime) -> float | None: ...
    async def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]: ...
    async def release(self, client: ClientId, id: PaymentId) -> None: ...

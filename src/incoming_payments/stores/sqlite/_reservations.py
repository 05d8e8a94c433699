"""The quota of unpaid payments. The store counts the payments themselves, so no stored number can differ from them.

A create reserves its payment before the host approves it, and the transaction that inserts the payment counts the
unpaid payments of the client. If there are too many, the insert is refused. So the quota is exact, although the
reservations of a process are only in its memory: a write for each of them would slow down every create.
"""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from incoming_payments.domain.payment import ClientId, IncomingPayment, PaymentId, id_time
from incoming_payments.domain.quotas import RecentClients
from incoming_payments.errors import QuotaExceeded
from incoming_payments.limits import QUOTA_CLIENTS_MAX, QUOTA_RESERVED_S_MAX
from incoming_payments.stores._rows import micros
from incoming_payments.stores.sqlite._rows import Batch, Rows

# The conditions of the index are repeated, because SQLite uses the index only for a query that has them.
_UNPAID: Final = (
    "FROM payments INDEXED BY payments_unpaid WHERE client = ? AND (expires_at IS NULL OR expires_at >= ?) "
    "AND received_amount = '0' AND closed_at IS NULL AND expiry_announced_at IS NULL AND client <> 'the host'"
)
_SELECT: Final = f"SELECT id {_UNPAID} ORDER BY id LIMIT ?"
_COUNT: Final = f"SELECT count(*) FROM (SELECT 1 {_UNPAID} LIMIT ?)"  # noqa: S608
_RESERVED_MAX: Final = timedelta(seconds=QUOTA_RESERVED_S_MAX)
_RETRY_S: Final = 1.0  # after this time, `reserve` finds the payments, and so the time at which the first one expires


class _Client:
    """The unpaid payments of one client: the number at the last count, and the payments that are not stored yet."""

    def __init__(self) -> None:
        self.stored: int | None = None
        self.reserved: dict[PaymentId, int] = {}

    def forget_lost(self, now: datetime) -> None:
        """Drop the reservations of creates that ended without a release, such as those of cancelled tasks."""
        for id in list(self.reserved):
            if now - id_time(id) > _RESERVED_MAX:
                del self.reserved[id]


class Reservations:
    """The reserved payments of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients = RecentClients(_Client, QUOTA_CLIENTS_MAX)

    def reserve(self, client: ClientId, id: PaymentId, limit: int) -> bool:
        """Reserve `id`, and return whether that was possible without reading the stored payments.

        A read for each create would make creates 9 % slower. So only a client that may be at its quota needs one.
        """
        with self._lock:
            known = self._clients.of(client)
            if known.stored is None or known.stored + len(known.reserved) >= limit:
                return False
            known.reserved[id] = limit
            return True

    def reserve_beside(
        self, client: ClientId, id: PaymentId, stored: Sequence[PaymentId], limit: int
    ) -> Sequence[PaymentId]:
        """Reserve `id` beside the unpaid payments that are `stored`, and return `()`.

        If they use up the `limit` together with the reserved payments, return both, oldest first.
        """
        with self._lock:
            known = self._clients.of(client)
            known.stored = len(stored)
            known.forget_lost(id_time(id))
            counted = {*stored, *known.reserved}
            if len(counted) >= limit:
                return sorted(counted)[:limit]
            known.reserved[id] = limit
            return ()

    def take(self, client: ClientId, id: PaymentId) -> int | None:
        """Remove the reservation of `id`, and return its limit, or `None` if the payment is not reserved."""
        with self._lock:
            known = self._clients.find(client)
            return None if known is None else known.reserved.pop(id, None)

    def checks(self, payment: IncomingPayment) -> Callable[[Batch], None]:
        """End the reservation of `payment`. Return a check for the transaction that inserts the payment.

        If the payment was reserved, and its client has too many unpaid payments, the check raises `QuotaExceeded`.
        """
        limit = self.take(payment.client, payment.id)

        def check(rows: Batch) -> None:
            if limit is None:
                return
            [stored] = rows.connection.execute(_COUNT, (payment.client, micros(payment.created_at), limit)).fetchone()
            with self._lock:
                self._clients.of(payment.client).stored = min(stored + 1, limit)
            if stored >= limit:
                text = (
                    "you have too many unpaid payments: complete a payment, or wait until a payment is paid or expires"
                )
                raise QuotaExceeded("too_many_unpaid_payments", text, retry_after_s=_RETRY_S)

        return check


def unpaid_payments(rows: Rows, client: ClientId, now: datetime, limit: int) -> Sequence[PaymentId]:
    """Return at most `limit` unpaid payments of `client` that have not expired by `now`, oldest first."""
    found = rows.connection.execute(_SELECT, (client, micros(now), limit)).fetchall()
    return [PaymentId(id) for (id,) in found]

"""Count the unpaid payments of a client in the file."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from incoming_payments.domain.payment import ClientId, IncomingPayment, PaymentId
from incoming_payments.stores._reservations import Reservations
from incoming_payments.stores._rows import micros
from incoming_payments.stores.sqlite._rows import Batch, Rows

# The conditions of the index are repeated, because SQLite uses the index only for a query that has them.
_UNPAID: Final = (
    "FROM payments INDEXED BY payments_unpaid WHERE client = ? AND (expires_at IS NULL OR expires_at >= ?) "
    "AND received_amount = '0' AND closed_at IS NULL AND expiry_announced_at IS NULL AND client <> 'the host'"
)
_SELECT: Final = f"SELECT id {_UNPAID} ORDER BY id LIMIT ?"
_COUNT: Final = f"SELECT count(*) FROM (SELECT 1 {_UNPAID} LIMIT ?)"  # noqa: S608


def checks(reservations: Reservations, payment: IncomingPayment) -> Callable[[Batch], None]:
    """End the reservation of `payment`. Return a check for the transaction that inserts the payment.

    If the payment was reserved, and its client has too many unpaid payments, the check raises `QuotaExceeded`.
    """
    limit = reservations.take(payment.client, payment.id)

    def check(rows: Batch) -> None:
        if limit is None:
            return
        [stored] = rows.connection.execute(_COUNT, (payment.client, micros(payment.created_at), limit)).fetchone()
        reservations.check(payment.client, stored, limit)

    return check


def unpaid_payments(rows: Rows, client: ClientId, now: datetime, limit: int) -> Sequence[PaymentId]:
    """Return at most `limit` unpaid payments of `client` that have not expired by `now`, oldest first."""
    found = rows.connection.execute(_SELECT, (client, micros(now), limit)).fetchall()
    return [PaymentId(id) for (id,) in found]

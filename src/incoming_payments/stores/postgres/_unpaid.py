"""Count the unpaid payments of a client, also in the transaction that inserts one of them.

Two processes may insert a payment of one client at the same time, and neither sees the payment of the other. So the
insert of a reserved payment first changes the row of its client in `quota_clients`, and then counts. Inserts of the
same client wait for each other, and those of other clients do not. The row is changed and not only locked, so that a
transaction with an older snapshot fails with 40001, and is repeated.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from incoming_payments.domain.payment import ClientId, IncomingPayment, PaymentId
from incoming_payments.stores._reservations import Reservations
from incoming_payments.stores._rows import micros
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Result, at_once, statement

_LOCK_CLIENT: Final = statement(
    "INSERT INTO incoming_payments.quota_clients AS old (client, full_at) VALUES (%s, %s) "
    "ON CONFLICT (client) DO UPDATE SET full_at = old.full_at"
)
_UNPAID: Final = (
    "FROM incoming_payments.payments WHERE client = %s AND is_unpaid AND (expires_at IS NULL OR expires_at >= %s)"
)
_SELECT: Final = statement(f"SELECT id {_UNPAID} ORDER BY id LIMIT %s")
_COUNT: Final = statement(f"SELECT count(*) FROM (SELECT 1 {_UNPAID} LIMIT %s) AS found")  # noqa: S608


class UnpaidCheck:
    """The check of the quota in the transaction that inserts `payment`. It ends the reservation of the payment."""

    def __init__(self, reservations: Reservations, payment: IncomingPayment) -> None:
        self._client = payment.client
        self._reservations = reservations
        self._limit = reservations.take(payment.client, payment.id)
        created_at = micros(payment.created_at)
        counts = [
            Query(_LOCK_CLIENT, (payment.client, created_at)),
            Query(_COUNT, (payment.client, created_at, self._limit)),
        ]
        self.queries = [] if self._limit is None else counts

    @property
    def counts(self) -> bool:
        """Whether the payment was reserved, so that the insert locks the row of its client."""
        return self._limit is not None

    def check(self, results: Sequence[Result]) -> None:
        """Raise `QuotaExceeded` if the payment was reserved, and its client has too many unpaid payments."""
        if self._limit is not None:
            self._reservations.check(self._client, results[-1].rows[0][0], self._limit)


def unpaid_payments(client: ClientId, now: datetime, limit: int) -> Operation[Sequence[PaymentId]]:
    """Find at most `limit` unpaid payments of `client` that have not expired by `now`, oldest first."""
    query = Query(_SELECT, (client, micros(now), limit))
    return lambda: at_once(Ending([query], lambda results: [id for (id,) in results[0].rows], writes=False))

"""The idempotency keys of created payments. The store writes the record of a key and its payment in one transaction."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import ClientId, IncomingPayment
from incoming_payments.limits import IDEMPOTENCY_KEYS_SWEPT_MAX
from incoming_payments.stores._rows import corrupt, micros, time_of
from incoming_payments.stores.sqlite._rows import Batch, Rows

_SELECT: Final = "SELECT fingerprint, payment_id, until FROM idempotency_keys WHERE client = ? AND key = ?"
_REPLACE: Final = (
    "INSERT OR REPLACE INTO idempotency_keys (client, key, fingerprint, payment_id, until) VALUES (?, ?, ?, ?, ?)"
)
_SWEEP: Final = (
    "DELETE FROM idempotency_keys WHERE (client, key) IN "
    "(SELECT client, key FROM idempotency_keys WHERE until < ? ORDER BY until LIMIT ?)"
)


def find_creation(rows: Rows, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
    """Return the record of the creation under `key` of `client`, or `None` if there is none or it has expired.

    Raises `StoreUnusable` when the row is not a valid record.
    """
    row = rows.connection.execute(_SELECT, (client, key)).fetchone()
    if row is None or row[2] < micros(now):
        return None
    fingerprint, payment, until = row
    try:
        return KeyedCreation(client, key, fingerprint, payment, time_of(until))
    except (ValueError, OverflowError) as error:
        raise corrupt(f"an idempotency key of {client}", error) from error


def insert_creation(
    rows: Batch, payment: IncomingPayment, decision: Decision[Any], check: Callable[[Batch], None]
) -> KeyedCreation | None:
    """Write a new payment, its events and its idempotency key, or return the earlier record of the key.

    Call `check` before the insert. Raises the errors of `check`, and `PaymentExists`, before it writes anything.
    """
    keyed, now = decision.keyed, payment.created_at
    if keyed is None:
        check(rows)
        rows.insert(payment, decision)
        return None
    earlier = find_creation(rows, keyed.client, keyed.key, now)
    if earlier is None:
        check(rows)
        rows.insert(payment, decision)
        rows.connection.execute(_SWEEP, (micros(now), IDEMPOTENCY_KEYS_SWEPT_MAX))
        row = keyed.client, keyed.key, keyed.fingerprint, keyed.payment, micros(keyed.until)
        rows.connection.execute(_REPLACE, row)
    return earlier

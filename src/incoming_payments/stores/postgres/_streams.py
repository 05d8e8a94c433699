"""Note for each consumer of the feed which payments have new events, in the transaction that stores the events.

A registration must not miss a change that is in flight: its transaction may have read the consumers before the
registration, and commit after it. So each transaction that stores events first locks one row of `feed_writers` with
FOR SHARE, and then reads the consumers. A registration commits the consumer first, and then changes all rows of
`feed_writers`. After that, every transaction that did not see the consumer has ended:

- A transaction that locked its row before waits for nothing, and the registration waits for its end.
- A transaction that locks its row later reads the consumers after that, and sees the new one.
- A transaction with a snapshot from before the change (REPEATABLE READ and SERIALIZABLE) fails with 40001, because its
  row has changed, and is repeated.

The rows are many, so the transactions rarely share one, and a registration soon finds each of them free. So the store
does not have to know which transactions are in flight. Distributed databases that speak the protocol of PostgreSQL lack
the functions that list these transactions, but have row locks.
"""

from collections.abc import Sequence
from typing import Final

from incoming_payments.domain.events import Event
from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.stores._rows import micros
from incoming_payments.stores.postgres._steps import Query, array, statement

_LOCK_WRITER: Final = statement("SELECT slot FROM incoming_payments.feed_writers WHERE slot = %s FOR SHARE")
# The rules of `domain.feed.admitted` and `Consumer.due_at`. While a registration has not reached a payment, all of its
# events count as new.
_MARK: Final = statement(
    "INSERT INTO incoming_payments.streams AS old (consumer, payment_id, acknowledged, head, due_at, is_open) "
    "SELECT name, payment.id, CASE WHEN scanned_to < payment.id THEN 0 ELSE min(version) - 1 END, max(version), "
    "min(at + CASE WHEN kind = 'credited' AND joins_credits THEN round(credit_delay_s * 1000000)::bigint ELSE 0 END), "
    "false FROM incoming_payments.consumers "
    "CROSS JOIN (VALUES (%s::uuid, %s::text)) AS payment (id, wallet_address) "
    "CROSS JOIN unnest(%s::bigint[], %s::text[], %s::bigint[]) AS added (version, kind, at) "
    "WHERE NOT is_removed AND (kinds IS NULL OR kind = ANY(kinds)) "
    "AND (wallet_addresses IS NULL OR payment.wallet_address = ANY(wallet_addresses)) "
    "GROUP BY name, scanned_to, payment.id ON CONFLICT (consumer, payment_id) DO UPDATE "
    "SET head = excluded.head, due_at = least(old.due_at, excluded.due_at)"
)


def mark(payment: IncomingPayment, events: Sequence[Event]) -> list[Query]:
    """Return the queries that note the new `events` of `payment`. The last one changes a row for each consumer.

    A stream without a row is handled up to the new events. The exceptions are payments that an incomplete registration
    has not reached. Lock the payment first, so that the events of a stream are noted in order.
    """
    columns = (
        array(event.version for event in events),
        array(event.kind.value for event in events),
        array(micros(event.at) for event in events),
    )
    return [Query(_LOCK_WRITER, (_slot(payment.id),)), Query(_MARK, (payment.id, payment.wallet_address, *columns))]


def _slot(id: PaymentId) -> int:
    """Return one of the 256 rows of `feed_writers`."""
    return int(id[-2:], 16)

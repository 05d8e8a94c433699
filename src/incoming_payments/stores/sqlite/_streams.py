"""Note for each consumer of the feed which payments have new events, in the transaction that stores the events."""

import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from incoming_payments.domain.events import Event
from incoming_payments.domain.feed import Consumer, admitted
from incoming_payments.domain.payment import IncomingPayment
from incoming_payments.errors import InvalidValue, StoreUnusable

SETTINGS: Final = "name, kinds, wallet_addresses, joins_credits, credit_delay_s, down_after_s, disable_after_s"
_SELECT: Final = f"SELECT scanned_to, {SETTINGS} FROM consumers WHERE is_removed = 0"  # noqa: S608
# If this statement named `due_at`, SQLite would write the index of that column for each event. The log would get twice
# as many pages.
_UPSERT: Final = (
    "INSERT INTO streams (consumer, payment_id, acknowledged, head, due_at, is_open) VALUES (?, ?, ?, ?, ?, 0) "
    "ON CONFLICT DO UPDATE SET head = excluded.head"
)
_HASTEN: Final = "UPDATE streams SET due_at = ? WHERE consumer = ? AND payment_id = ? AND due_at > ?"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def mark(connection: sqlite3.Connection, changes: Iterable[tuple[IncomingPayment, Sequence[Event]]]) -> bool:
    """Note for each consumer which streams have new events. Return whether there is such a stream.

    A consumer has handled all earlier events of a stream without a row. The exceptions are payments that an incomplete
    registration has not reached.
    """
    consumers = connection.execute(_SELECT).fetchall()
    if not consumers:
        return False
    by_payment: dict[str, tuple[IncomingPayment, list[Event]]] = {}
    for payment, events in changes:
        by_payment.setdefault(payment.id, (payment, []))[1].extend(events)
    rows = []
    for scanned_to, *settings in consumers:
        consumer = consumer_of(settings)
        for id, (payment, events) in by_payment.items():
            if new := admitted(consumer, events, payment.wallet_address):
                is_old = scanned_to is not None and id > scanned_to
                due_at = min(map(consumer.due_at, new))
                acknowledged = 0 if is_old else new[0].version - 1
                rows.append((consumer.name, id, acknowledged, new[-1].version, (due_at - _EPOCH) // _MICROSECOND))
    connection.executemany(_UPSERT, rows)
    connection.executemany(_HASTEN, [(due_at, name, id, due_at) for name, id, _, _, due_at in rows])
    return bool(rows)


def consumer_of(row: Sequence[Any]) -> Consumer:
    """Return the consumer with the columns `SETTINGS`. Raises `StoreUnusable` for an invalid value."""
    name, kinds, wallet_addresses, joins_credits, credit_delay_s, down_after_s, disable_after_s = row
    try:
        return Consumer(
            name=name,
            kinds=None if kinds is None else kinds.split(),
            wallet_addresses=None if wallet_addresses is None else wallet_addresses.split(),
            joins_credits=bool(joins_credits),
            credit_delay_s=credit_delay_s,
            down_after_s=down_after_s,
            disable_after_s=disable_after_s,
        )
    except InvalidValue as error:
        raise StoreUnusable(
            f"the row of the consumer {name} holds an invalid value ({error}): restore the database from a backup"
        ) from error


def settings_row(consumer: Consumer) -> tuple[Any, ...]:
    """Return the columns `SETTINGS`."""
    kinds, wallet_addresses = consumer.kinds, consumer.wallet_addresses
    return (
        consumer.name,
        None if kinds is None else " ".join(sorted(kinds)),
        None if wallet_addresses is None else " ".join(sorted(wallet_addresses)),
        int(consumer.joins_credits),
        float(consumer.credit_delay_s),
        consumer.down_after_s,
        consumer.disable_after_s,
    )

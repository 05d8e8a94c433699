"""The registration of consumers, and their removal. See `_streams` for the rule by which no change is missed.

A registration has three steps: `enroll` writes the consumer, `inform_writers` waits until all transactions in flight
know it, and `scan` passes over the old payments. A removal begins with the same two steps. Each call does the next part
of a step, so that it never holds back other transactions for long.
"""

from datetime import datetime
from typing import Final, NamedTuple

from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import Consumer, ConsumerName, Start
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import CONSUMERS_MAX, FEED_ROWS_MAX
from incoming_payments.stores._rows import micros
from incoming_payments.stores.postgres._consumers import SELECT_CONSUMER, SETTINGS, require, settings_row, unknown
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Steps, array, at_once, statement
from incoming_payments.stores.postgres._values import FIRST_ID

PAUSE_S: Final = 0.02  # the time after which `inform_writers` may find that another transaction has ended

_LOCK_REGISTRATIONS: Final = statement(
    "SELECT registration FROM incoming_payments.registrations WHERE id = 1 FOR UPDATE"
)
_NUMBER: Final = statement("UPDATE incoming_payments.registrations SET registration = %s WHERE id = 1")
# FOR UPDATE waits for the claims in flight, which hold the consumer.
_LOCK_CONSUMER: Final = statement(
    "SELECT is_removed, registration, is_known, scanned_to FROM incoming_payments.consumers WHERE name = %s FOR UPDATE"
)
_COUNT: Final = statement("SELECT count(*) FROM incoming_payments.consumers")
_INSERT: Final = statement(
    f"INSERT INTO incoming_payments.consumers ({SETTINGS}, registration, is_known, scanned_to, is_removed) "  # noqa: S608
    "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, false, %s, false)"
)
# A repeated call of a registration changes nothing.
_UPDATE: Final = statement(
    f"UPDATE incoming_payments.consumers SET ({SETTINGS}, registration) = (%s, %s, %s, %s, %s, %s, %s, %s) "  # noqa: S608
    f"WHERE name = %s AND ({SETTINGS}) IS DISTINCT FROM (%s, %s::text[], %s::text[], %s::boolean, %s::numeric, "
    "%s::numeric, %s::numeric) RETURNING registration"
)
_REMOVE: Final = statement(
    "UPDATE incoming_payments.consumers SET is_removed = true, registration = %s WHERE name = %s"
)
_INFORM: Final = statement(
    "UPDATE incoming_payments.feed_writers SET registration = %s WHERE slot IN (SELECT slot "
    "FROM incoming_payments.feed_writers WHERE registration < %s FOR UPDATE SKIP LOCKED)"
)
_COUNT_WRITERS: Final = statement("SELECT count(*) FROM incoming_payments.feed_writers WHERE registration < %s")
_SELECT_OLD: Final = statement(
    "SELECT id, version, wallet_address FROM incoming_payments.payments WHERE id > %s ORDER BY id LIMIT %s"
)
_LAST: Final = (
    "(SELECT version FROM incoming_payments.events WHERE payment_id = old.id AND kind = ANY(%s::text[]) {} "
    "ORDER BY version DESC LIMIT 1)"
)
_SELECT_HEADS: Final = statement(
    f"SELECT old.id, {_LAST.format('')} FROM unnest(%s::uuid[]) AS old (id)"  # noqa: S608
)
# For a consumer that excludes `credited` events, of which a payment may have very many.
_OTHERS: Final = "AND kind <> 'credited' AND version > 1"
_SELECT_OTHER_HEADS: Final = statement(
    f"SELECT old.id, coalesce({_LAST.format(_OTHERS)}, {_LAST.format('AND version = 1')}) "  # noqa: S608
    "FROM unnest(%s::uuid[]) AS old (id)"
)
# The row exists if an event was noted during the registration.
_INSERT_STREAMS: Final = statement(
    "INSERT INTO incoming_payments.streams AS old (consumer, payment_id, acknowledged, head, due_at, is_open) "
    "SELECT %s, id, 0, head, %s, false FROM unnest(%s::uuid[], %s::bigint[]) AS added (id, head) ORDER BY id "
    "ON CONFLICT (consumer, payment_id) DO UPDATE SET head = greatest(old.head, excluded.head)"
)
_SCANNED: Final = statement("UPDATE incoming_payments.consumers SET is_known = true, scanned_to = %s WHERE name = %s")
# If another process has completed the removal, the consumer may be registered again, and these statements do nothing.
_REMOVED: Final = "(SELECT name FROM incoming_payments.consumers WHERE name = %s AND is_removed)"
_DELETE_DELIVERIES: Final = statement(
    "DELETE FROM incoming_payments.deliveries WHERE (consumer, payment_id, first_version) IN (SELECT consumer, "  # noqa: S608
    f"payment_id, first_version FROM incoming_payments.deliveries WHERE consumer = {_REMOVED} LIMIT %s)"
)
_DELETE_STREAMS: Final = statement(
    "DELETE FROM incoming_payments.streams WHERE (consumer, payment_id) IN (SELECT consumer, payment_id "  # noqa: S608
    f"FROM incoming_payments.streams WHERE consumer = {_REMOVED} LIMIT %s)"
)
_DELETE_CONSUMER: Final = statement("DELETE FROM incoming_payments.consumers WHERE name = %s AND is_removed")


class Row(NamedTuple):
    """The state of the registration of a consumer."""

    is_removed: bool
    registration: int
    is_known: bool
    scanned_to: str | None


def enroll(consumer: Consumer, start: Start) -> Operation[int]:
    """Write the consumer. Return the number of the registration that the writers have to know."""
    return lambda: _enroll(consumer, start)


def _enroll(consumer: Consumer, start: Start) -> Steps[int]:
    last, locked, count = yield [
        Query(_LOCK_REGISTRATIONS),
        Query(_LOCK_CONSUMER, (consumer.name,)),
        Query(_COUNT),
    ]
    number, settings = last.rows[0][0] + 1, settings_row(consumer)
    if locked.rows:
        row = Row(*locked.rows[0])
        if row.is_removed:
            raise InvalidValue(
                f"the consumer {consumer.name} is being removed: complete the removal first", member="name"
            )
        update = Query(_UPDATE, (*settings, number, consumer.name, *settings))
        return Ending(
            [Query(_NUMBER, (number,)), update],
            lambda results: number if results[1].changed else row.registration,
            writes=True,
        )
    [(consumers,)] = count.rows
    if consumers >= CONSUMERS_MAX:
        raise InvalidValue(f"the feed has {consumers} consumers already: remove one of them", member="name")
    scanned_to = FIRST_ID if Start(start) is Start.BEGINNING else None
    insert = Query(_INSERT, (*settings, number, scanned_to))
    return Ending([Query(_NUMBER, (number,)), insert], lambda _: number, writes=True)


def inform_writers(number: int) -> Operation[bool]:
    """Return whether all transactions that do not know the registration `number` have ended."""
    queries = [Query(_INFORM, (number, number)), Query(_COUNT_WRITERS, (number,))]
    return lambda: at_once(Ending(queries, lambda results: results[1].rows == [(0,)], writes=True))


def scan(name: ConsumerName, now: datetime) -> Operation[bool]:
    """Note the streams of the next old payments, and return whether no old payment is left."""
    return lambda: _scan(name, now)


def _scan(name: ConsumerName, now: datetime) -> Steps[bool]:
    locked, found = yield [Query(_LOCK_CONSUMER, (name,)), Query(SELECT_CONSUMER, (name,))]
    consumer = require(name, found).consumer
    row = Row(*locked.rows[0])
    if row.scanned_to is None:
        writes = [] if row.is_known else [Query(_SCANNED, (None, name))]
        return Ending(writes, lambda _: True, writes=bool(writes))
    [page] = yield [Query(_SELECT_OLD, (row.scanned_to, FEED_ROWS_MAX))]
    wanted = consumer.wallet_addresses
    heads = {id: version for id, version, wallet in page.rows if wanted is None or wallet in wanted}
    if consumer.kinds is not None:
        [last] = yield [_select_heads(consumer.kinds, list(heads))]
        heads = {id: head for id, head in last.rows if head is not None}
    columns = array(heads), array(heads.values())
    is_done = len(page.rows) < FEED_ROWS_MAX
    scanned_to = None if is_done else page.rows[-1][0]
    writes = [
        Query(_INSERT_STREAMS, (name, micros(now), *columns)),
        Query(_SCANNED, (scanned_to, name)),
    ]
    return Ending(writes, lambda _: is_done, writes=True)


def _select_heads(kinds: frozenset[EventKind], ids: list[str]) -> Query:
    """Return a query. For each payment, it selects the version of the last event that has one of `kinds`."""
    texts = array(sorted(kinds))
    if EventKind.CREDITED in kinds:
        return Query(_SELECT_HEADS, (texts, array(ids)))
    return Query(_SELECT_OTHER_HEADS, (texts, texts, array(ids)))


def retire(name: ConsumerName) -> Operation[int]:
    """Mark the consumer as removed. Return the number of the registration that the writers have to know."""
    return lambda: _retire(name)


def _retire(name: ConsumerName) -> Steps[int]:
    last, locked = yield [Query(_LOCK_REGISTRATIONS), Query(_LOCK_CONSUMER, (name,))]
    if not locked.rows:
        raise unknown(name)
    row, number = Row(*locked.rows[0]), last.rows[0][0] + 1
    if row.is_removed:
        return Ending([], lambda _: row.registration, writes=False)
    return Ending([Query(_NUMBER, (number,)), Query(_REMOVE, (number, name))], lambda _: number, writes=True)


def clear(name: ConsumerName) -> Operation[bool]:
    """Delete the next rows of the removed consumer, and at last its own row. Return whether nothing is left."""
    return lambda: _clear(name)


def _clear(name: ConsumerName) -> Steps[bool]:
    values = (name, FEED_ROWS_MAX)
    _, *deleted = yield [
        Query(_LOCK_CONSUMER, (name,)),
        Query(_DELETE_DELIVERIES, values),
        Query(_DELETE_STREAMS, values),
    ]
    is_done = all(result.changed < FEED_ROWS_MAX for result in deleted)
    return Ending([Query(_DELETE_CONSUMER, (name,))] if is_done else [], lambda _: is_done, writes=True)

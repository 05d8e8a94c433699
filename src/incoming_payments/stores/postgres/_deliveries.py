"""The deliveries of the feed, except for claims. Each function returns an operation on rows that an index finds."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from incoming_payments.domain import feed
from incoming_payments.domain.feed import ConsumerName, Delivery, DeliveryRecord, LeasedDelivery
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import DeliveryNotFound
from incoming_payments.limits import FEED_ROWS_MAX
from incoming_payments.stores._feed_rows import LATER, RECORD, record_of
from incoming_payments.stores._rows import micros, optional_micros
from incoming_payments.stores.postgres._consumers import (
    LOCK_CONSUMER,
    SELECT_CONSUMER,
    check_turn,
    find,
    health_query,
    require,
)
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Result, Steps, array, at_once, statement
from incoming_payments.stores.postgres._values import FIRST_ID, is_id

_LOCK_LEASED: Final = statement(
    "SELECT attempts, last_version FROM incoming_payments.deliveries "
    "WHERE consumer = %s AND payment_id = %s AND first_version = %s AND lease = %s FOR UPDATE"
)
_SETTLE: Final = statement(
    "UPDATE incoming_payments.deliveries SET lease = NULL, attempts = %s, due_at = %s, ending = %s, ended_at = %s, "
    "error = coalesce(%s, error) WHERE consumer = %s AND payment_id = %s AND first_version = %s"
)
# These statements change nothing when the delivery is a dead letter that is sent again, because its stream is already
# past the delivery.
_OF_OPEN_STREAM: Final = "consumer = %s AND payment_id = %s AND is_open AND acknowledged < %s"
_CLOSE_HANDLED: Final = statement(
    f"DELETE FROM incoming_payments.streams WHERE {_OF_OPEN_STREAM} AND head <= %s"  # noqa: S608
)
_CLOSE: Final = statement(
    f"UPDATE incoming_payments.streams SET is_open = false, acknowledged = %s WHERE {_OF_OPEN_STREAM}"  # noqa: S608
)
_SELECT_RECORDS: Final = statement(
    f"SELECT {RECORD} FROM incoming_payments.deliveries WHERE payment_id = %s ORDER BY consumer, first_version"  # noqa: S608
)
_SELECT_DEAD: Final = statement(
    f"SELECT {RECORD} FROM incoming_payments.deliveries WHERE consumer = %s AND ending = 'dead' "  # noqa: S608
    "AND (ended_at, payment_id, first_version) > (%s::bigint, %s::uuid, %s::bigint) "
    "ORDER BY ended_at, payment_id, first_version LIMIT %s"
)
_REDELIVER: Final = statement(
    "UPDATE incoming_payments.deliveries SET ending = NULL, ended_at = NULL, attempts = 0, due_at = %s "
    "WHERE consumer = %s AND payment_id = %s AND first_version = %s AND ending = 'dead'"
)
_FORGET: Final = statement(
    "DELETE FROM incoming_payments.deliveries WHERE (consumer, payment_id, first_version) IN (SELECT consumer, "
    "payment_id, first_version FROM incoming_payments.deliveries WHERE ending = 'delivered' AND ended_at < %s LIMIT %s)"
)
_LOCK_WAITING: Final = statement(
    "SELECT payment_id, first_version FROM incoming_payments.deliveries "
    "WHERE consumer = %s AND due_at IS NOT NULL AND (lease IS NULL OR due_at <= %s) "
    "ORDER BY due_at, payment_id, first_version LIMIT %s FOR UPDATE"
)
_DROP_DELIVERIES: Final = statement(
    "DELETE FROM incoming_payments.deliveries USING unnest(%s::uuid[], %s::bigint[]) AS dropped (id, first) "
    "WHERE consumer = %s AND payment_id = id AND first_version = first"
)
_DROP_OPEN_STREAMS: Final = statement(
    "DELETE FROM incoming_payments.streams USING unnest(%s::uuid[], %s::bigint[]) AS dropped (id, first) "
    "WHERE consumer = %s AND payment_id = id AND is_open AND acknowledged < first"
)
_DROP_STREAMS: Final = statement(
    "DELETE FROM incoming_payments.streams WHERE (consumer, payment_id) IN (SELECT consumer, payment_id "
    "FROM incoming_payments.streams WHERE consumer = %s AND NOT is_open AND due_at <= %s "
    "ORDER BY due_at, payment_id LIMIT %s FOR UPDATE)"
)


def settle(
    delivery: Delivery | LeasedDelivery, result: feed.Result, now: datetime, wake: Callable[[], None], *, in_turn: bool
) -> Operation[bool]:
    """Store what follows from `result`. See `Feed.settle`. Raises `TurnNeeded` unless `in_turn` is true."""
    return lambda: _settle(delivery, result, now, wake, in_turn=in_turn)


def _settle(
    delivery: Delivery | LeasedDelivery, result: feed.Result, now: datetime, wake: Callable[[], None], *, in_turn: bool
) -> Steps[bool]:
    name, id = delivery.consumer, delivery.payment_id
    key = (name, id, delivery.first_version)
    leased, selected = yield [Query(_LOCK_LEASED, (*key, delivery.lease)), Query(SELECT_CONSUMER, (name,))]
    found = find(selected)
    if not leased.rows or found is None:
        return Ending([], lambda _: False, writes=False)
    attempts, last = leased.rows[0]
    settled = feed.settle(found.consumer, found.health, attempts, result, now)
    queries = []
    if settled.health != found.health:
        check_turn(in_turn=in_turn)
        # Decide again about the health that other results have left.
        [locked] = yield [Query(LOCK_CONSUMER, (name,))]
        found = require(name, locked)
        settled = feed.settle(found.consumer, found.health, attempts, result, now)
        queries.append(health_query(name, settled.health))
    ended_at = None if settled.ending is None else micros(now)
    values = (settled.attempts, optional_micros(settled.due_at), settled.ending, ended_at, settled.error)
    queries.append(Query(_SETTLE, (*values, *key)))
    if settled.ending is not None:
        queries += [Query(_CLOSE_HANDLED, (*key, last)), Query(_CLOSE, (last, *key))]

    def answer(results: list[Result]) -> bool:
        if settled.due_at is not None or results[-1].changed:
            wake()
        return True

    return Ending(queries, answer, writes=True)


def deliveries(payment: PaymentId) -> Operation[list[DeliveryRecord]]:
    """Read the deliveries of one payment."""
    queries = [Query(_SELECT_RECORDS, (payment,))] if is_id(payment) else []

    def answer(results: list[Result]) -> list[DeliveryRecord]:
        return [record_of(row) for result in results for row in result.rows]

    return lambda: at_once(Ending(queries, answer, writes=False))


def dead_letters(name: ConsumerName, after: DeliveryRecord | None, limit: int) -> Operation[list[DeliveryRecord]]:
    """Read dead letters, oldest first."""
    place: tuple[object, ...] = (-LATER, FIRST_ID, 0)
    if after is not None:
        place = (optional_micros(after.ended_at), after.payment_id, after.first_version)

    def answer(results: list[Result]) -> list[DeliveryRecord]:
        require(name, results[0])
        return list(map(record_of, results[1].rows))

    queries = [Query(SELECT_CONSUMER, (name,)), Query(_SELECT_DEAD, (name, *place, limit))]
    return lambda: at_once(Ending(queries, answer, writes=False))


def redeliver(name: ConsumerName, payment: PaymentId, first_version: int, now: datetime) -> Operation[None]:
    """Make a dead letter due again."""
    return lambda: _redeliver(name, payment, first_version, now)


def _redeliver(name: ConsumerName, payment: PaymentId, first_version: int, now: datetime) -> Steps[None]:
    redelivery = Query(_REDELIVER, (micros(now), name, payment, first_version))
    found, *changed = yield [Query(SELECT_CONSUMER, (name,)), *([redelivery] if is_id(payment) else [])]
    require(name, found)
    if not any(result.changed for result in changed):
        raise DeliveryNotFound(
            f"the consumer {name} has no dead letter of payment {payment} that begins with version {first_version}"
        )
    return Ending([], lambda _: None, writes=True)


def forget(before: datetime) -> Operation[bool]:
    """Delete the next acknowledged deliveries. See `Feed.forget`."""
    query = Query(_FORGET, (micros(before), FEED_ROWS_MAX))
    return lambda: at_once(Ending([query], lambda results: results[0].changed < FEED_ROWS_MAX, writes=True))


def skip(name: ConsumerName, now: datetime) -> Operation[bool]:
    """Drop the next waiting deliveries. See `Feed.skip`."""
    return lambda: _skip(name, now)


def _skip(name: ConsumerName, now: datetime) -> Steps[bool]:
    found, waiting = yield [
        Query(SELECT_CONSUMER, (name,)),
        Query(_LOCK_WAITING, (name, micros(now), FEED_ROWS_MAX)),
    ]
    require(name, found)
    columns = array(id for id, _ in waiting.rows), array(first for _, first in waiting.rows)
    queries = [
        Query(_DROP_DELIVERIES, (*columns, name)),
        Query(_DROP_OPEN_STREAMS, (*columns, name)),
        Query(_DROP_STREAMS, (name, micros(now), FEED_ROWS_MAX)),
    ]
    return Ending(
        queries,
        lambda results: max(len(waiting.rows), results[2].changed) < FEED_ROWS_MAX,
        writes=True,
    )

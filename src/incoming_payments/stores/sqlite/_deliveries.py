"""The deliveries of the feed. Each function is one job of the writer, or one read.

A function that raises an error of this library raises it before its first write. Each statement finds its rows by a
primary key or by an index, however many events the database holds.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, Final

from incoming_payments.domain import feed
from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import (
    Consumer,
    ConsumerName,
    Delivery,
    DeliveryRecord,
    Ending,
    FeedEvent,
    Lease,
    LeasedDelivery,
    Result,
)
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import DeliveryNotFound
from incoming_payments.limits import CLAIM_EVENTS_MAX, DELIVERY_EVENTS_MAX, FEED_ROWS_MAX
from incoming_payments.ports import Render
from incoming_payments.stores._rows import corrupt, micros, optional_micros, optional_time_of, time_of
from incoming_payments.stores.sqlite._consumers import OTHER_KINDS, find, placeholders, require, write_health
from incoming_payments.stores.sqlite._queue import DecideRaised
from incoming_payments.stores.sqlite._rows import Batch, Rows

_LATER: Final = 2**63 - 1  # the time at which a stream without waiting events is due

LEASE_BYTES: Final = 16
_HAS_LEASE: Final = (
    "SELECT count(*) FROM (SELECT 1 FROM deliveries INDEXED BY deliveries_leased "
    "WHERE consumer = ? AND lease IS NOT NULL AND due_at > ? LIMIT 1)"
)
_SELECT_DUE: Final = (
    "SELECT payment_id, first_version, last_version, payload, attempts FROM deliveries INDEXED BY deliveries_due "
    "WHERE consumer = ? AND due_at <= ? ORDER BY due_at LIMIT ?"
)
_SELECT_STREAMS: Final = (
    "SELECT payment_id, acknowledged, head FROM streams INDEXED BY streams_due "
    "WHERE consumer = ? AND is_open = 0 AND due_at <= ? ORDER BY due_at LIMIT ?"
)
_SELECT_EVENTS: Final = (
    "SELECT e.version, e.kind, e.at, e.received_amount, e.credit_id, e.peer, c.amount, asset_code, asset_scale, "
    "wallet_address FROM events AS e {} JOIN payments ON id = e.payment_id "
    "LEFT JOIN credits AS c ON c.payment_id = e.payment_id AND c.credit_id = e.credit_id "
    "WHERE e.payment_id = ? AND e.version BETWEEN ? AND ? AND {} ORDER BY e.version LIMIT ?"
)
_LEASE_AGAIN: Final = (
    "UPDATE deliveries SET lease = ?, due_at = ?, attempts = attempts + 1 "
    "WHERE consumer = ? AND payment_id = ? AND first_version = ?"
)
_INSERT_DELIVERY: Final = (
    "INSERT INTO deliveries (consumer, payment_id, first_version, last_version, payload, attempts, created_at, due_at, "
    "lease) VALUES (?, ?, ?, ?, ?, 1, ?, ?, ?)"
)
_OPEN_STREAM: Final = "UPDATE streams SET is_open = 1, due_at = ? WHERE consumer = ? AND payment_id = ?"
_DELETE_STREAM: Final = "DELETE FROM streams WHERE consumer = ? AND payment_id = ?"
_SELECT_LEASED: Final = (
    "SELECT attempts, last_version FROM deliveries "
    "WHERE consumer = ? AND payment_id = ? AND first_version = ? AND lease = ?"
)
_SETTLE: Final = (
    "UPDATE deliveries SET lease = NULL, attempts = ?, due_at = ?, ending = ?, ended_at = ?, "
    "error = coalesce(?, error) "
    "WHERE consumer = ? AND payment_id = ? AND first_version = ?"
)
# These statements change nothing when the delivery is a dead letter that is sent again, because its stream is already
# past the delivery.
_OF_OPEN_STREAM: Final = "WHERE consumer = ? AND payment_id = ? AND is_open = 1 AND acknowledged < ?"
_CLOSE_HANDLED: Final = f"DELETE FROM streams {_OF_OPEN_STREAM} AND head <= ?"  # noqa: S608
_CLOSE: Final = f"UPDATE streams SET is_open = 0, acknowledged = ? {_OF_OPEN_STREAM}"  # noqa: S608
_RECORD: Final = (
    "consumer, payment_id, first_version, last_version, attempts, created_at, due_at, ending, ended_at, error"
)
_SELECT_RECORDS: Final = f"SELECT {_RECORD} FROM deliveries WHERE payment_id = ? ORDER BY consumer, first_version"  # noqa: S608
_SELECT_DEAD: Final = (
    f"SELECT {_RECORD} FROM deliveries INDEXED BY deliveries_dead WHERE consumer = ? AND ending = 'dead' "  # noqa: S608
    "AND (ended_at, payment_id, first_version) > (?, ?, ?) ORDER BY ended_at, payment_id, first_version LIMIT ?"
)
_REDELIVER: Final = (
    "UPDATE deliveries SET ending = NULL, ended_at = NULL, attempts = 0, due_at = ? "
    "WHERE consumer = ? AND payment_id = ? AND first_version = ? AND ending = 'dead'"
)
_KEY: Final = "(consumer, payment_id, first_version)"
_FORGET: Final = (
    f"DELETE FROM deliveries WHERE {_KEY} IN (SELECT consumer, payment_id, first_version FROM deliveries "  # noqa: S608
    "INDEXED BY deliveries_delivered WHERE ending = 'delivered' AND ended_at < ? LIMIT ?)"
)
_SELECT_WAITING: Final = (
    "SELECT payment_id, first_version FROM deliveries INDEXED BY deliveries_due "
    "WHERE consumer = ? AND due_at IS NOT NULL AND (lease IS NULL OR due_at <= ?) LIMIT ?"
)
_DELETE_DELIVERY: Final = "DELETE FROM deliveries WHERE consumer = ? AND payment_id = ? AND first_version = ?"
_SKIP_STREAMS: Final = (
    "DELETE FROM streams WHERE (consumer, payment_id) IN (SELECT consumer, payment_id FROM streams "
    "INDEXED BY streams_due WHERE consumer = ? AND is_open = 0 AND due_at <= ? LIMIT ?)"
)

_Claim = tuple[Delivery | None, list[tuple[str, tuple[object, ...]]]]  # a delivery, and the statements that store it


def claim(
    rows: Batch, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
) -> list[Delivery]:
    """Lease due deliveries. See `Feed.claim`."""
    connection, at = rows.connection, micros(now)
    consumer, health, is_ready = require(rows, name)
    (leases,) = connection.execute(_HAS_LEASE, (name, at)).fetchone()
    count = feed.claimable(consumer, health, limit=limit, has_lease=bool(leases), now=now) if is_ready else 0
    claims: list[_Claim] = []
    events = 0
    errors: list[DecideRaised] = []
    with closing(_claims(rows, consumer, render, errors, now=now, until=until, limit=count)) as found:
        while count and events < CLAIM_EVENTS_MAX and (one := next(found, None)) is not None:
            claims.append(one)
            if one[0] is not None:
                count -= 1
                events += len(one[0].events)
    if errors and not claims:
        raise errors[0]
    for _, statements in claims:
        for statement, values in statements:
            connection.execute(statement, values)
    return [delivery for delivery, _ in claims if delivery is not None]


def _claims(
    rows: Batch,
    consumer: Consumer,
    render: Render,
    errors: list[DecideRaised],
    *,
    now: datetime,
    until: datetime,
    limit: int,
) -> Generator[_Claim, None, None]:
    """Yield at most `limit` deliveries that had an attempt before, and then the next delivery of each due stream.

    Pass over the streams for which `render` raises, and add the exceptions to `errors`.
    """
    connection, name, at = rows.connection, consumer.name, micros(now)
    for row in connection.execute(_SELECT_DUE, (name, at, limit)).fetchall():
        yield _next_attempt(rows, name, row, until)
    with closing(connection.execute(_SELECT_STREAMS, (name, at, FEED_ROWS_MAX))) as streams:
        for row in streams:
            try:
                first = _first_attempt(rows, consumer, row, render, now=now, until=until)
            except DecideRaised as raised:
                errors.append(raised)
            else:
                yield first


def _next_attempt(rows: Batch, name: ConsumerName, row: Sequence[Any], until: datetime) -> _Claim:
    """Return a delivery that had an attempt before, and the statement that leases it."""
    id, first, last, payload, attempts = row
    events = _events(rows, id, first, last, None, DELIVERY_EVENTS_MAX)
    if len(events) != last - first + 1:
        raise corrupt(f"a delivery of payment {id}", ValueError(f"events from {first} to {last} are missing"))
    delivery = Delivery(
        consumer=name,
        events=events,
        payload=payload,
        attempt=attempts + 1,
        lease=_lease(),
        leased_until=until,
    )
    return delivery, [(_LEASE_AGAIN, (delivery.lease, micros(until), name, id, first))]


def _first_attempt(
    rows: Batch, consumer: Consumer, row: Sequence[Any], render: Render, *, now: datetime, until: datetime
) -> _Claim:
    """Return the next delivery of a stream, and the statements that store it.

    If the filter has changed, it may admit none of the waiting events. The stream then has no delivery and ends.
    """
    id, acknowledged, head = row
    most = DELIVERY_EVENTS_MAX if consumer.joins_credits else 1
    waiting = _events(rows, id, acknowledged + 1, head, consumer.kinds, most)
    if not waiting or not consumer.admits(waiting[0].kind, waiting[0].wallet_address):
        return None, [(_DELETE_STREAM, (consumer.name, id))]
    events = feed.next_delivery(consumer, waiting)
    try:
        payload = render(events)
    except BaseException as error:
        raise DecideRaised(error) from error
    delivery = Delivery(
        consumer=consumer.name, events=events, payload=payload, attempt=1, lease=_lease(), leased_until=until
    )
    key, last = (consumer.name, id), delivery.last_version
    times = micros(now), micros(until)
    later = [micros(consumer.due_at(event)) for event in waiting[len(events) :]]
    # Without later events, `head` is greater only if the filter has changed. The next claim then ends the stream.
    due_at = min(later, default=micros(now) if head > last else _LATER)
    return delivery, [
        (_INSERT_DELIVERY, (*key, delivery.first_version, last, payload, *times, delivery.lease)),
        (_OPEN_STREAM, (due_at, *key)),
    ]


def settle(rows: Batch, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
    """Store what follows from `result`. See `Feed.settle`."""
    connection, name, id = rows.connection, delivery.consumer, delivery.payment_id
    key = (name, id, delivery.first_version)
    row = connection.execute(_SELECT_LEASED, (*key, delivery.lease)).fetchone()
    state = find(rows, name)
    if row is None or state is None:
        return False
    (consumer, health, _), (attempts, last) = state, row
    settled = feed.settle(consumer, health, attempts, result, now)
    ended_at = None if settled.ending is None else micros(now)
    values = (settled.attempts, optional_micros(settled.due_at), settled.ending, ended_at, settled.error)
    connection.execute(_SETTLE, (*values, *key))
    rows.makes_due |= settled.due_at is not None
    if settled.health != health:
        write_health(rows, name, settled.health)
    if settled.ending is not None:
        connection.execute(_CLOSE_HANDLED, (*key, last))
        rows.makes_due |= connection.execute(_CLOSE, (last, *key)).rowcount > 0
    return True


def deliveries(rows: Rows, payment: PaymentId) -> list[DeliveryRecord]:
    """Return the deliveries of one payment."""
    return [_record(row) for row in rows.connection.execute(_SELECT_RECORDS, (payment,))]


def dead_letters(rows: Rows, name: ConsumerName, after: DeliveryRecord | None, limit: int) -> list[DeliveryRecord]:
    """Return dead letters, oldest first."""
    require(rows, name)
    place: tuple[object, ...] = (-_LATER, "", 0)
    if after is not None:
        place = (optional_micros(after.ended_at), after.payment_id, after.first_version)
    return [_record(row) for row in rows.connection.execute(_SELECT_DEAD, (name, *place, limit))]


def redeliver(rows: Batch, name: ConsumerName, payment: PaymentId, first_version: int, now: datetime) -> None:
    """Make a dead letter due again."""
    require(rows, name)
    if not rows.connection.execute(_REDELIVER, (micros(now), name, payment, first_version)).rowcount:
        raise DeliveryNotFound(
            f"the consumer {name} has no dead letter of payment {payment} that begins with version {first_version}"
        )
    rows.makes_due = True


def forget(rows: Batch, before: datetime) -> bool:
    """Delete the next acknowledged deliveries. See `Feed.forget`."""
    return rows.connection.execute(_FORGET, (micros(before), FEED_ROWS_MAX)).rowcount < FEED_ROWS_MAX


def skip(rows: Batch, name: ConsumerName, now: datetime) -> bool:
    """Drop a batch of the deliveries and events that wait. See `Feed.skip`."""
    require(rows, name)
    connection, at = rows.connection, micros(now)
    waiting = connection.execute(_SELECT_WAITING, (name, at, FEED_ROWS_MAX)).fetchall()
    connection.executemany(_DELETE_DELIVERY, [(name, *key) for key in waiting])
    connection.executemany(_CLOSE_HANDLED, [(name, id, first, _LATER) for id, first in waiting])
    dropped = connection.execute(_SKIP_STREAMS, (name, at, FEED_ROWS_MAX)).rowcount
    return max(len(waiting), dropped) < FEED_ROWS_MAX


def _events(
    rows: Rows, id: PaymentId, first: int, last: int, kinds: frozenset[EventKind] | None, limit: int
) -> tuple[FeedEvent, ...]:
    """Return the first events of the payment from version `first` to `last` that have one of `kinds`.

    No query reads more than `limit` events.
    """
    found: list[Any] = []
    condition = "1" if kinds is None else f"e.kind IN ({placeholders(kinds)})"
    values = (id, first, last, *(kinds or ()), limit)
    if kinds is None or EventKind.CREDITED in kinds:
        found += _select_events(rows, "", condition, values)
    else:
        if first == 1:
            found += _select_events(rows, "", condition, (id, 1, 1, *kinds, limit))
        index, others = OTHER_KINDS
        found += _select_events(rows, index, f"{others} AND {condition}", values)
    return tuple(_feed_event(id, row) for row in found)


def _select_events(rows: Rows, index: str, condition: str, values: tuple[object, ...]) -> list[Any]:
    statement = _SELECT_EVENTS.format(index, condition)
    return rows.connection.execute(statement, values).fetchall()


def _feed_event(id: PaymentId, row: Sequence[Any]) -> FeedEvent:
    version, kind, at, received, credit_id, peer, amount, code, scale, wallet_address = row
    try:
        asset = Asset(code, scale)
        return FeedEvent(
            payment_id=id,
            version=version,
            kind=EventKind(kind),
            at=time_of(at),
            wallet_address=wallet_address,
            received=Amount.parse(received, asset),
            amount=None if amount is None else Amount.parse(amount, asset),
            credit_id=credit_id,
            peer=peer,
        )
    except (ValueError, OverflowError) as error:
        raise corrupt(f"event {version} of payment {id}", error) from error


def _record(row: Sequence[Any]) -> DeliveryRecord:
    consumer, payment_id, first, last, attempts, created_at, due_at, ending, ended_at, error = row
    try:
        return DeliveryRecord(
            consumer=consumer,
            payment_id=payment_id,
            first_version=first,
            last_version=last,
            attempts=attempts,
            created_at=time_of(created_at),
            due_at=optional_time_of(due_at),
            ending=None if ending is None else Ending(ending),
            ended_at=optional_time_of(ended_at),
            error=error,
        )
    except (ValueError, OverflowError) as problem:
        raise corrupt(f"a delivery of payment {payment_id}", problem) from problem


def _lease() -> Lease:
    return Lease(os.urandom(LEASE_BYTES))

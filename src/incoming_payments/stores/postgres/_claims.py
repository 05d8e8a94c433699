"""Lease due deliveries.

A claim locks due deliveries and streams with SKIP LOCKED. So claims of any number of processes share the work, and do
not wait for each other while there is enough for all. If all due streams are locked, the claim waits for one of them:
transactions that credit a payment without a pause hold the row of its stream most of the time.

Each statement finds its rows by an index that holds only what waits, however many events the database has. The events
of a stream are read after its row is locked: the row may be newer than the snapshot of the statement that locks it, and
name events that this snapshot lacks.
"""

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from attrs import field, frozen

from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import Consumer, ConsumerName, Delivery, FeedEvent, Lease, claimable, next_delivery
from incoming_payments.domain.payment import PaymentId
from incoming_payments.limits import CLAIM_EVENTS_MAX, DELIVERIES_CLAIMED_MAX, DELIVERY_EVENTS_MAX, FEED_ROWS_MAX
from incoming_payments.ports import Render
from incoming_payments.stores._feed_rows import LATER, LEASE_BYTES, feed_event_of
from incoming_payments.stores._rows import Row, corrupt, micros
from incoming_payments.stores.postgres._consumers import HOLD_CONSUMER, LOCK_CONSUMER, check_turn, require
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Result, Steps, array, statement
from incoming_payments.stores.postgres._values import FIRST_ID

_HAS_LEASE: Final = statement(
    "SELECT EXISTS (SELECT 1 FROM incoming_payments.deliveries "
    "WHERE consumer = %s AND lease IS NOT NULL AND due_at > %s)"
)
_LOCK_DUE: Final = statement(
    "SELECT payment_id, first_version, last_version, payload, attempts FROM incoming_payments.deliveries "
    "WHERE consumer = %s AND due_at <= %s ORDER BY due_at, payment_id, first_version LIMIT %s FOR UPDATE SKIP LOCKED"
)
_LOCK_STREAMS: Final = statement(
    "SELECT payment_id, acknowledged, head, due_at FROM incoming_payments.streams "
    "WHERE consumer = %s AND NOT is_open AND due_at <= %s AND (due_at, payment_id) > (%s::bigint, %s::uuid) "
    "ORDER BY due_at, payment_id LIMIT %s FOR UPDATE SKIP LOCKED"
)
_AWAIT_STREAM: Final = statement(
    "SELECT payment_id, acknowledged, head, due_at FROM incoming_payments.streams "
    "WHERE consumer = %s AND NOT is_open AND due_at <= %s ORDER BY due_at, payment_id LIMIT 1 FOR UPDATE"
)
_EVENT: Final = "SELECT * FROM incoming_payments.events WHERE payment_id = wanted.id"
_KIND: Final = "kind = ANY(%s::text[])"
_SELECT_EVENTS: Final = (
    "SELECT number, e.version, e.kind, e.at, e.received_amount, e.credit_id, e.peer, c.amount, asset_code, "
    "asset_scale, wallet_address FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[]) WITH ORDINALITY "
    "AS wanted (id, first, last, number) CROSS JOIN LATERAL ({} ORDER BY version LIMIT %s) AS e "
    "JOIN incoming_payments.payments AS p ON p.id = e.payment_id LEFT JOIN incoming_payments.credits AS c "
    "ON c.payment_id = e.payment_id AND c.credit_id = e.credit_id ORDER BY number, e.version LIMIT %s"
)
_SELECT_ALL: Final = statement(_SELECT_EVENTS.format(f"{_EVENT} AND version BETWEEN first AND last"))
_SELECT_KINDS: Final = statement(_SELECT_EVENTS.format(f"{_EVENT} AND version BETWEEN first AND last AND {_KIND}"))
# Passes over any number of `credited` events by an index of the others.
_SELECT_OTHERS: Final = statement(
    _SELECT_EVENTS.format(
        f"({_EVENT} AND version = 1 AND first = 1 AND {_KIND}) UNION ALL "
        f"({_EVENT} AND kind <> 'credited' AND version > 1 AND version BETWEEN first AND last AND {_KIND})"
    )
)
_EVENTS_READ_MAX: Final = CLAIM_EVENTS_MAX + DELIVERY_EVENTS_MAX  # the events of one read, which are in memory together

_LEASE_AGAIN: Final = statement(
    "UPDATE incoming_payments.deliveries SET lease = leased.lease, due_at = %s, attempts = attempts + 1 "
    "FROM unnest(%s::uuid[], %s::bigint[], %s::bytea[]) AS leased (payment_id, first_version, lease) "
    "WHERE consumer = %s AND deliveries.payment_id = leased.payment_id "
    "AND deliveries.first_version = leased.first_version"
)
_INSERT: Final = statement(
    "INSERT INTO incoming_payments.deliveries (consumer, attempts, created_at, due_at, payment_id, first_version, "
    "last_version, payload, lease) SELECT %s, 1, %s, %s, added.* "
    "FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bytea[], %s::bytea[]) AS added"
)
_OPEN_STREAMS: Final = statement(
    "UPDATE incoming_payments.streams SET is_open = true, due_at = opened.due_at "
    "FROM unnest(%s::uuid[], %s::bigint[]) AS opened (payment_id, due_at) "
    "WHERE consumer = %s AND streams.payment_id = opened.payment_id"
)
_DELETE_STREAMS: Final = statement(
    "DELETE FROM incoming_payments.streams WHERE consumer = %s AND payment_id = ANY(%s::uuid[])"
)


@frozen
class Claimed:
    """The outcome of a claim, or the exception of `render`."""

    deliveries: Sequence[Delivery] = ()
    error: BaseException | None = None

    def result(self) -> Sequence[Delivery]:
        """Return the deliveries. Raises the exception of `render` if there is nothing else."""
        if self.error is not None:
            raise self.error
        return self.deliveries


@frozen(kw_only=True)
class _Claim:
    """The arguments of a claim, and what it is about to write."""

    consumer: Consumer
    render: Render
    now: datetime
    until: datetime
    again: list[Delivery] = field(factory=list)
    new: list[Delivery] = field(factory=list)
    due_at: dict[PaymentId, int] = field(factory=dict)  # when the stream of a new delivery is due after it
    handled: list[PaymentId] = field(factory=list)  # streams in which the filter admits nothing
    errors: list[BaseException] = field(factory=list)

    def left(self, limit: int) -> int:
        """Return how many of `limit` deliveries the claim may still take."""
        deliveries = self.again + self.new
        events = sum(len(delivery.events) for delivery in deliveries)
        return limit - len(deliveries) if events < CLAIM_EVENTS_MAX else 0

    def _delivery(self, events: Sequence[FeedEvent], payload: bytes, attempt: int) -> Delivery:
        """Return a delivery with a new lease."""
        return Delivery(
            consumer=self.consumer.name,
            events=tuple(events),
            payload=payload,
            attempt=attempt,
            lease=Lease(os.urandom(LEASE_BYTES)),
            leased_until=self.until,
        )

    def repeat(self, row: Row, events: Sequence[FeedEvent]) -> None:
        """Add a delivery that had an attempt before."""
        id, first, last, payload, attempts = row
        if len(events) != last - first + 1:
            raise corrupt(f"a delivery of payment {id}", ValueError(f"events from {first} to {last} are missing"))
        self.again.append(self._delivery(events, payload, attempts + 1))

    def begin(self, id: PaymentId, head: int, waiting: Sequence[FeedEvent]) -> None:
        """Add the next delivery of a stream with the events `waiting`, the last of which may have the version `head`.

        If the filter has changed, it may admit none of the waiting events. The stream then has no delivery and ends.
        """
        if not waiting or not self.consumer.admits(waiting[0].kind, waiting[0].wallet_address):
            self.handled.append(id)
            return
        events = next_delivery(self.consumer, waiting)
        try:
            delivery = self._delivery(events, self.render(events), 1)
        except BaseException as error:  # noqa: BLE001 - it is raised if there is no other delivery
            self.errors.append(error)
            return
        later = [micros(self.consumer.due_at(event)) for event in waiting[len(events) :]]
        # Without later events, `head` is greater only if the filter has changed. The next claim then ends the stream.
        self.due_at[id] = min(later, default=micros(self.now) if head > delivery.last_version else LATER)
        self.new.append(delivery)

    def ending(self) -> Ending[Claimed]:
        """Return the queries that write the claim."""
        name, until = self.consumer.name, micros(self.until)
        queries = []
        if self.again:
            ids, first, _, _, leases = _columns(self.again)
            queries.append(Query(_LEASE_AGAIN, (until, ids, first, leases, name)))
        if self.new:
            queries.append(Query(_INSERT, (name, micros(self.now), until, *_columns(self.new))))
            queries.append(Query(_OPEN_STREAMS, (array(self.due_at), array(self.due_at.values()), name)))
        if self.handled:
            queries.append(Query(_DELETE_STREAMS, (name, array(self.handled))))
        error = self.errors[0] if self.errors and not queries else None
        return Ending(queries, lambda _: Claimed(self.again + self.new, error), writes=bool(queries))


def claim(
    name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int, in_turn: bool
) -> Operation[Claimed]:
    """Lease due deliveries. See `Feed.claim`. Raises `TurnNeeded` unless `in_turn` is true."""
    return lambda: _claim(name, render, now, until, max(0, min(limit, DELIVERIES_CLAIMED_MAX)), in_turn=in_turn)


def _claim(
    name: ConsumerName, render: Render, now: datetime, until: datetime, limit: int, *, in_turn: bool
) -> Steps[Claimed]:
    at = micros(now)
    held, due = yield [Query(HOLD_CONSUMER, (name,)), Query(_LOCK_DUE, (name, at, limit))]
    consumer, health, is_ready = require(name, held)
    has_lease = False
    if health.is_down(consumer, now):  # one delivery at a time, also if several processes claim
        check_turn(in_turn=in_turn)
        held, lease = yield [Query(LOCK_CONSUMER, (name,)), Query(_HAS_LEASE, (name, at))]
        consumer, health, is_ready = require(name, held)
        has_lease = lease.rows[0][0]
    limit = claimable(consumer, health, limit=limit, has_lease=has_lease, now=now) if is_ready else 0
    claim = _Claim(consumer=consumer, render=render, now=now, until=until)
    if rows := due.rows[:limit]:
        [found] = yield [_events_query([row[:3] for row in rows], None, DELIVERY_EVENTS_MAX)]
        for row, events in _events_of(rows, found):
            if claim.left(limit) > 0:
                claim.repeat(row, events)
    most = DELIVERY_EVENTS_MAX if consumer.joins_credits else 1
    after: Sequence[object] = (-LATER, FIRST_ID)
    seen = 0
    while (left := claim.left(limit)) > 0 and seen < FEED_ROWS_MAX:
        size = max(left, seen)  # a filter or `render` may exclude many streams
        [streams] = yield [Query(_LOCK_STREAMS, (name, at, *after, size))]
        if not (streams.rows or seen or claim.again):
            check_turn(in_turn=in_turn)
            [streams] = yield [Query(_AWAIT_STREAM, (name, at))]
        if not streams.rows:
            break
        ranges = [(id, acknowledged + 1, head) for id, acknowledged, head, _ in streams.rows]
        [found] = yield [_events_query(ranges, consumer.kinds, most)]
        for (id, _, head, due_at), waiting in _events_of(streams.rows, found):
            if claim.left(limit) > 0:
                claim.begin(id, head, waiting)
                after, seen = (due_at, id), seen + 1
    return claim.ending()


def _events_query(ranges: Sequence[tuple[PaymentId, int, int]], kinds: frozenset[EventKind] | None, most: int) -> Query:
    """Return the query for the first `most` events with one of `kinds` in each of `ranges`."""
    columns = [array(column) for column in zip(*ranges, strict=True)]
    limits = most, _EVENTS_READ_MAX
    if kinds is None:
        return Query(_SELECT_ALL, (*columns, *limits))
    texts = array(sorted(kinds))
    if EventKind.CREDITED in kinds:
        return Query(_SELECT_KINDS, (*columns, texts, *limits))
    return Query(_SELECT_OTHERS, (*columns, texts, texts, *limits))


def _events_of(ranges: Sequence[Row], found: Result) -> Iterator[tuple[Row, list[FeedEvent]]]:
    """Yield each row of `ranges`, which begins with a payment, and its events. Omit what the bounded read has cut."""
    events: dict[int, list[Row]] = {}
    for number, *event in found.rows:
        events.setdefault(number, []).append(tuple(event))
    is_cut = len(found.rows) == _EVENTS_READ_MAX
    complete = max(events) - 1 if is_cut else len(ranges)
    for number, row in enumerate(ranges[:complete], start=1):
        yield row, [feed_event_of(row[0], event) for event in events.get(number, [])]


def _columns(deliveries: Sequence[Delivery]) -> list[str]:
    rows = (
        (
            delivery.payment_id,
            delivery.first_version,
            delivery.last_version,
            rf"\x{delivery.payload.hex()}",
            rf"\x{delivery.lease.hex()}",
        )
        for delivery in deliveries
    )
    return [array(column) for column in zip(*rows, strict=True)]

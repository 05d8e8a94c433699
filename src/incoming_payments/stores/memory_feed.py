"""The feed of the memory store. Each method takes time linear in the number of all rows."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from attrs import evolve, frozen

from incoming_payments.domain.events import Event
from incoming_payments.domain.feed import (
    Consumer,
    ConsumerName,
    ConsumerState,
    Delivery,
    DeliveryRecord,
    Ending,
    FeedEvent,
    Health,
    Lease,
    LeasedDelivery,
    Result,
    Start,
    admitted,
    claimable,
    next_delivery,
    settle,
)
from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.errors import ConsumerNotFound, DeliveryNotFound, InvalidValue
from incoming_payments.limits import CONSUMERS_MAX, DELIVERIES_CLAIMED_MAX
from incoming_payments.ports import Render

T = TypeVar("T")
Key = str | tuple[str | int, ...]
_CONSUMERS: Final = ("consumers",)
_FAR: Final = datetime.max.replace(tzinfo=UTC)


@frozen
class _Member:
    """A consumer. A single row holds all consumers, so that a change of a payment finds them in one step."""

    consumer: Consumer
    health: Health


@frozen
class _Stream:
    """The row of a stream with events that the consumer has not handled, under ("stream", name, payment)."""

    acknowledged: int  # the consumer has handled the events up to this version
    head: int  # the version of the last event that the filter admits
    due_at: datetime
    is_open: bool = False  # a delivery has not ended


@frozen
class _Row:
    """The row of a delivery, under ("delivery", name, payment, first version)."""

    record: DeliveryRecord
    payload: bytes
    lease: Lease | None = None


class MemoryFeed:
    """The `Feed` of a `MemoryStore`, which owns the `lock` and the `rows`. Thread-safe.

    `render` of a claim and `wake` of a watch run under the lock of the store, so they must not call the store.
    """

    def __init__(self, lock: threading.Lock, rows: dict[Key, Any]) -> None:
        self._lock = lock
        self._rows = rows
        self._leases = itertools.count(1)
        self._watchers: dict[object, Callable[[], None]] = {}

    # --- for the store, under its lock ---

    def marks(self, payment: IncomingPayment, events: Collection[Event]) -> dict[Key, Any]:
        """Return the rows of the streams that get the new `events` of `payment`, to write with the events."""
        marks: dict[Key, Any] = {}
        for member in self._members().values():
            if new := _stream_of(member.consumer, payment, events):
                key = ("stream", member.consumer.name, payment.id)
                old = self._rows.get(key, new)
                marks[key] = evolve(old, head=new.head, due_at=min(old.due_at, new.due_at))
        return marks

    def wake(self) -> None:
        """Wake all watchers."""
        for wake in self._watchers.values():
            with contextlib.suppress(Exception):  # such as that of a closed event loop
                wake()

    # --- consumers ---

    def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """Register `consumer` in one step, and return true. See `Feed.register`."""
        with self._lock:
            members = self._members()
            if (member := members.get(consumer.name)) is not None:
                self._write(self._with(evolve(member, consumer=consumer)))
                return True
            if len(members) >= CONSUMERS_MAX:
                raise InvalidValue(f"the feed has {CONSUMERS_MAX} consumers already: remove one of them", member="name")
            changes = self._with(_Member(consumer, Health()))
            if Start(start) is Start.BEGINNING:
                for payment in self._all(IncomingPayment):
                    events = [self._rows[payment.id, version] for version in range(1, payment.version + 1)]
                    if stream := _stream_of(consumer, payment, events):
                        changes["stream", consumer.name, payment.id] = evolve(stream, due_at=now)
            self._write(changes)
            return True

    def remove(self, name: ConsumerName) -> bool:
        """Remove the consumer and its deliveries in one step, and return true."""
        with self._lock:
            self._member(name)
            changes: dict[Key, Any] = {_CONSUMERS: {key: row for key, row in self._members().items() if key != name}}
            changes |= {("stream", name, payment): None for payment, _ in self._streams(name)}
            changes |= {_key_of(row): None for row in self._deliveries(name)}
            self._write(changes)
            return True

    def consumers(self) -> Sequence[ConsumerState]:
        """Return the registered consumers, in the order of their names."""
        with self._lock:
            return [
                ConsumerState(
                    consumer=member.consumer,
                    health=member.health,
                    is_ready=True,
                    oldest_due_at=self._next_due(member.consumer.name),
                )
                for _, member in sorted(self._members().items())
            ]

    def set_enabled(self, name: ConsumerName, now: datetime, *, enabled: bool) -> None:
        """Disable the consumer, or enable it again. An enabled consumer continues where it was."""
        with self._lock:
            member = self._member(name)
            self._write(self._with(evolve(member, health=Health(disabled_at=None if enabled else now))))
            if enabled:
                self.wake()

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each change that makes a stream due. Return a function that ends this."""
        token = object()
        with self._lock:
            self._watchers[token] = wake

        def end() -> None:
            with self._lock:
                self._watchers.pop(token, None)

        return end

    # --- deliveries ---

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Lease at most `limit` due deliveries until `until`, and return them. See `Feed.claim`."""
        with self._lock:
            member = self._member(name)
            waiting = [row for row in self._deliveries(name) if row.record.ending is None]
            due = sorted(
                (row for row in waiting if _due_at(row) <= now), key=lambda row: (_due_at(row), row.record.payment_id)
            )
            has_lease = any(row.lease is not None and _due_at(row) > now for row in waiting)
            limit = max(0, min(limit, DELIVERIES_CLAIMED_MAX))
            limit = claimable(member.consumer, member.health, limit=limit, has_lease=has_lease, now=now)
            rows = due[:limit]
            changes: dict[Key, Any] = {}
            errors: list[BaseException] = []
            ready = sorted((stream.due_at, payment, stream) for payment, stream in self._ready(name))
            for due_at, payment, stream in ready:
                if due_at > now or len(rows) >= limit:
                    break
                run, later = self._next_run(member.consumer, payment, stream)
                if not run:
                    changes["stream", name, payment] = None
                    continue
                try:
                    rows.append(_new_row(name, run, render(run), now))
                except BaseException as error:  # noqa: BLE001 - it is raised if there is no other delivery
                    errors.append(error)
                    continue
                end_at = now if stream.head > run[-1].version else _FAR  # the filter may have changed
                later_at = min(map(member.consumer.due_at, later), default=end_at)
                changes["stream", name, payment] = evolve(stream, is_open=True, due_at=later_at)
            if errors and not rows and not changes:
                raise errors[0]
            deliveries = [self._leased(row, until, changes) for row in rows]
            self._write(changes)
            return deliveries

    def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
        """Store what follows from `result`, and return true. If the lease is lost, return false."""
        with self._lock:
            row = self._rows.get(("delivery", delivery.consumer, delivery.payment_id, delivery.first_version))
            if row is None or row.lease != delivery.lease:
                return False
            member = self._member(delivery.consumer)
            settled = settle(member.consumer, member.health, row.record.attempts, result, now)
            record = evolve(
                row.record,
                attempts=settled.attempts,
                due_at=settled.due_at,
                ending=settled.ending,
                ended_at=None if settled.ending is None else now,
                error=settled.error or row.record.error,
            )
            changes = self._with(evolve(member, health=settled.health))
            changes[_key_of(row)] = evolve(row, record=record, lease=None)
            if settled.ending is not None:
                changes |= self._moved_on(record)
            self._write(changes)
            return True

    def next_due(self, name: ConsumerName) -> datetime | None:
        """Return the time at which the next delivery is due, or `None`."""
        with self._lock:
            member = self._member(name)
            return self._next_due(name) if member.health.disabled_at is None else None

    def skip(self, name: ConsumerName, now: datetime) -> bool:
        """Drop the deliveries and events that wait, in one step, and return true. See `Feed.skip`."""
        with self._lock:
            self._member(name)
            ready = self._ready(name)
            changes: dict[Key, Any] = {("stream", name, id): None for id, stream in ready if stream.due_at <= now}
            for row in self._deliveries(name):
                if row.record.ending is None and (row.lease is None or _due_at(row) <= now):
                    changes[_key_of(row)] = None
                    if self._is_open_one(row.record):
                        changes["stream", name, row.record.payment_id] = None
            self._write(changes)
            return True

    def deliveries(self, payment: PaymentId) -> Sequence[DeliveryRecord]:
        """Return the deliveries of one payment, by consumer and version."""
        with self._lock:
            records = [row.record for row in self._all(_Row) if row.record.payment_id == payment]
            return sorted(records, key=lambda record: (record.consumer, record.first_version))

    def dead_letters(self, name: ConsumerName, after: DeliveryRecord | None, limit: int) -> Sequence[DeliveryRecord]:
        """Return at most `limit` dead letters of the consumer that follow `after`, oldest first."""
        with self._lock:
            self._member(name)
            records = [row.record for row in self._deliveries(name) if row.record.ending is Ending.DEAD]
            following = [record for record in records if after is None or _place(record) > _place(after)]
            return sorted(following, key=_place)[:limit]

    def redeliver(self, name: ConsumerName, payment: PaymentId, first_version: int, now: datetime) -> None:
        """Make a dead letter due again. Its attempts count from the beginning. Raises `DeliveryNotFound`."""
        with self._lock:
            self._member(name)
            row = self._rows.get(("delivery", name, payment, first_version))
            if row is None or row.record.ending is not Ending.DEAD:
                text = f"the consumer {name} has no dead letter of payment {payment} that begins with version"
                raise DeliveryNotFound(f"{text} {first_version}")
            record = evolve(row.record, attempts=0, due_at=now, ending=None, ended_at=None)
            self._write({_key_of(row): evolve(row, record=record)})

    def forget(self, before: datetime) -> bool:
        """Delete the acknowledged deliveries that ended before `before` in one step, and return true."""
        with self._lock:
            rows = [row for row in self._all(_Row) if row.record.ending is Ending.DELIVERED]
            self._write({_key_of(row): None for row in rows if _place(row.record)[0] < before})
            return True

    # --- under the lock ---

    def _write(self, changes: dict[Key, Any]) -> None:
        """Write all `changes` in one step. `None` deletes a row. Wake the watchers if a delivery may be due."""
        self._rows.update(changes)  # a KeyboardInterrupt cannot split this
        for key, row in changes.items():
            if row is None:
                self._rows.pop(key, None)
        if any(_wakes(row) for row in changes.values()):
            self.wake()

    def _all(self, kind: type[T]) -> list[T]:
        return [row for row in self._rows.values() if isinstance(row, kind)]

    def _members(self) -> dict[ConsumerName, _Member]:
        return dict(self._rows.get(_CONSUMERS, {}))

    def _with(self, member: _Member) -> dict[Key, Any]:
        """Return the changes that store `member`."""
        return {_CONSUMERS: {**self._members(), member.consumer.name: member}}

    def _member(self, name: ConsumerName) -> _Member:
        member = self._members().get(name)
        if member is None:
            text = f"the feed has no consumer {name}: correct the name, or start its relay, which registers it"
            raise ConsumerNotFound(text)
        return member

    def _deliveries(self, name: ConsumerName) -> list[_Row]:
        return [row for row in self._all(_Row) if row.record.consumer == name]

    def _streams(self, name: ConsumerName) -> Iterator[tuple[PaymentId, _Stream]]:
        for key, row in self._rows.items():
            if isinstance(row, _Stream) and key[1] == name:
                yield PaymentId(str(key[2])), row

    def _ready(self, name: ConsumerName) -> list[tuple[PaymentId, _Stream]]:
        return [(payment, stream) for payment, stream in self._streams(name) if not stream.is_open]

    def _next_due(self, name: ConsumerName) -> datetime | None:
        times = [stream.due_at for _, stream in self._ready(name)]
        times += [_due_at(row) for row in self._deliveries(name) if row.record.ending is None]
        return min(times, default=None)

    def _next_run(self, consumer: Consumer, id: PaymentId, stream: _Stream) -> tuple[Sequence[FeedEvent], ...]:
        """Return the events of the next delivery, and the waiting events after them."""
        events = [self._event(id, version) for version in range(stream.acknowledged + 1, stream.head + 1)]
        waiting = [event for event in events if consumer.admits(event.kind, event.wallet_address)]
        run = next_delivery(consumer, waiting) if waiting else ()
        return run, waiting[len(run) :]

    def _event(self, id: PaymentId, version: int) -> FeedEvent:
        event: Event = self._rows[id, version]
        amount = None if event.credit_id is None else self._rows[id, event.credit_id].amount
        return FeedEvent.of(event, self._rows[id].wallet_address, amount)

    def _leased(self, row: _Row, until: datetime, changes: dict[Key, Any]) -> Delivery:
        """Return the next attempt of a delivery, and add its row to `changes`."""
        record = evolve(row.record, attempts=row.record.attempts + 1, due_at=until)
        lease = Lease(next(self._leases).to_bytes(8))
        changes[_key_of(row)] = evolve(row, record=record, lease=lease)
        versions = range(record.first_version, record.last_version + 1)
        return Delivery(
            consumer=record.consumer,
            events=tuple(self._event(record.payment_id, version) for version in versions),
            payload=row.payload,
            attempt=record.attempts,
            lease=lease,
            leased_until=until,
        )

    def _is_open_one(self, record: DeliveryRecord) -> bool:
        """Return whether the delivery is the open one of its stream, and not a dead letter that was sent again."""
        stream = self._rows.get(("stream", record.consumer, record.payment_id))
        return stream is not None and stream.is_open and stream.acknowledged < record.first_version

    def _moved_on(self, record: DeliveryRecord) -> dict[Key, Any]:
        """Return the row of the stream after its open delivery has ended."""
        if not self._is_open_one(record):
            return {}
        key = ("stream", record.consumer, record.payment_id)
        last, stream = record.last_version, self._rows[key]
        return {key: None if stream.head <= last else evolve(stream, acknowledged=last, is_open=False)}


def _stream_of(consumer: Consumer, payment: IncomingPayment, events: Collection[Event]) -> _Stream | None:
    """Return the row of a stream in which only `events` wait, or `None` if the filter admits none of them."""
    if not (found := admitted(consumer, events, payment.wallet_address)):
        return None
    return _Stream(found[0].version - 1, found[-1].version, min(consumer.due_at(event) for event in found))


def _new_row(name: ConsumerName, run: Sequence[FeedEvent], payload: bytes, now: datetime) -> _Row:
    record = DeliveryRecord(
        consumer=name,
        payment_id=run[0].payment_id,
        first_version=run[0].version,
        last_version=run[-1].version,
        attempts=0,
        created_at=now,
    )
    return _Row(record, payload)


def _key_of(row: _Row) -> Key:
    return ("delivery", row.record.consumer, row.record.payment_id, row.record.first_version)


def _due_at(row: _Row) -> datetime:
    return row.record.due_at or _FAR


def _place(record: DeliveryRecord) -> tuple[datetime, PaymentId, int]:
    """Return the place of a delivery in the list of those that have ended."""
    return record.ended_at or _FAR, record.payment_id, record.first_version


def _wakes(row: object) -> bool:
    """Return whether a changed row may be due, now or later."""
    is_open = isinstance(row, _Row) and row.record.ending is None and row.lease is None
    return is_open or (isinstance(row, _Stream) and not row.is_open)

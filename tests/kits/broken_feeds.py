"""Feeds that each break one promise on purpose, so that tests can prove that the contract suite detects it."""

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from attrs import evolve

from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.feed import (
    Consumer,
    ConsumerName,
    Delivered,
    Delivery,
    DeliveryRecord,
    Ending,
    Failed,
    FeedEvent,
    Health,
    LeasedDelivery,
    Released,
    Result,
    Start,
)
from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.errors import InvalidValue
from incoming_payments.ports import PaymentStore, Render
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.memory_feed import _CONSUMERS, Key, MemoryFeed, _Row, _Stream
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.stores.sqlite._feed import SqliteFeed
from incoming_payments.testing.feed import FeedContract

# --- leases ---


class AcknowledgesAtClaim(MemoryFeed):
    """Loses the deliveries of a consumer that crashes between claim and acknowledgement."""

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Acknowledge what is claimed."""
        claimed = super().claim(name, render, now=now, until=until, limit=limit)
        for delivery in claimed:
            self.settle(delivery, Delivered(), now)
        return claimed


class GivesTwoLeases(MemoryFeed):
    """Leases a delivery that has a lease."""

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Let each lease end at once."""
        claimed = super().claim(name, render, now=now, until=now, limit=limit)
        return [evolve(delivery, leased_until=until) for delivery in claimed]


class ClaimsWithoutTheLock(MemoryFeed):
    """Reads what is due, and leases it in another step."""

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Claim on a copy of the rows, and write the changed rows later."""
        rows = dict(self._rows)
        claimed = MemoryFeed(self._lock, rows).claim(name, render, now=now, until=until, limit=limit)
        time.sleep(0.001)
        self._rows.update({key: row for key, row in rows.items() if self._rows.get(key) is not row})
        return claimed


class LetsOldHoldersSettle(MemoryFeed):
    """Does not compare the lease."""

    def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
        """Take the lease of the row."""
        row = self._rows.get(("delivery", delivery.consumer, delivery.payment_id, delivery.first_version))
        return super().settle(evolve(delivery, lease=row.lease) if row else delivery, result, now)


class NeverEndsLeases(MemoryFeed):
    """Waits for the holder of a lease for ever."""

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Lease for a year."""
        later = until + timedelta(days=365)
        claimed = super().claim(name, render, now=now, until=later, limit=limit)
        return [evolve(delivery, leased_until=until) for delivery in claimed]


class CountsReleases(MemoryFeed):
    """Counts a lease without an attempt."""

    def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
        """Store a release as a failure."""
        return super().settle(delivery, Failed(error="", retry_at=now) if result == Released() else result, now)


class ForgetsErrors(MemoryFeed):
    """Keeps the error of the last attempt only if that one failed."""

    def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
        """Remove the error of an earlier attempt."""
        is_settled = super().settle(delivery, result, now)
        key: Key = ("delivery", delivery.consumer, delivery.payment_id, delivery.first_version)
        if not isinstance(result, Failed):
            self._rows[key] = evolve(self._rows[key], record=evolve(self._rows[key].record, error=None))
        return is_settled


class LosesRetries(MemoryFeed):
    """Takes a failure as the end."""

    def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
        """Acknowledge a failed delivery."""
        return super().settle(delivery, Delivered() if isinstance(result, Failed) else result, now)


# --- wake-ups ---


class NeverWakes(MemoryFeed):
    """Loses each wake-up."""

    def wake(self) -> None:
        """Wake no watcher."""


class WakesForChangesOnly(MemoryFeed):
    """Loses the wake-up for a retry."""

    def _write(self, changes: dict[Key, Any]) -> None:
        """Write without a wake."""
        watchers, self._watchers = self._watchers, {}
        super()._write(changes)
        self._watchers = watchers


class WakesTheFirst(MemoryFeed):
    """Stops at the first watcher that raises."""

    def wake(self) -> None:
        """Wake the watchers until one raises."""
        with contextlib.suppress(Exception):
            for wake in self._watchers.values():
                wake()


class WakesFormerWatchers(MemoryFeed):
    """Wakes watchers that were removed."""

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Return a function that does nothing."""
        super().watch(wake)
        return lambda: None


# --- filters ---


class HidesLaterEvents(MemoryFeed):
    """Drops a change whose first event is excluded."""

    def marks(self, payment: IncomingPayment, events: Collection[Event]) -> dict[Key, Any]:
        """Look at the first event only."""
        [first, *_] = events
        marks = super().marks(payment, events)
        return {key: row for key, row in marks.items() if self._admits(key, first, payment)}

    def _admits(self, key: Key, event: Event, payment: IncomingPayment) -> bool:
        return bool(self._member(ConsumerName(str(key[1]))).consumer.admits(event.kind, payment.wallet_address))


class SendsExcludedEvents(MemoryFeed):
    """Filters what makes a stream due, but not what a claim finds."""

    def _next_run(self, consumer: Consumer, id: PaymentId, stream: _Stream) -> Any:
        """Forget the filter."""
        return super()._next_run(evolve(consumer, kinds=None, wallet_addresses=None), id, stream)


class IgnoresWalletAddresses(MemoryFeed):
    """Filters by kind only."""

    def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """Drop the wallet addresses."""
        return super().register(evolve(consumer, wallet_addresses=None), start, now)


class StopsAtExcludedStreams(MemoryFeed):
    """Returns nothing when the filter excludes all that waits in the first stream."""

    def _next_run(self, consumer: Consumer, id: PaymentId, stream: _Stream) -> Any:
        """Return the waiting events, even if there are none to return."""
        waiting = [self._event(id, version) for version in range(stream.acknowledged + 1, stream.head + 1)]
        run, later = super()._next_run(consumer, id, stream)
        return run or waiting, later


# --- ranges and payloads ---


class GrowsRanges(MemoryFeed):
    """Adds later credits to a delivery that had an attempt."""

    def _leased(self, row: _Row, until: datetime, changes: dict[Key, Any]) -> Delivery:
        """Extend the range to the last credit."""
        last, id = row.record.last_version, row.record.payment_id
        while (event := self._rows.get((id, last + 1))) is not None and event.kind is EventKind.CREDITED:
            last += 1
        return super()._leased(evolve(row, record=evolve(row.record, last_version=last)), until, changes)


class RendersAgain(MemoryFeed):
    """Renders each attempt."""

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Replace the stored payload."""
        claimed = super().claim(name, render, now=now, until=until, limit=limit)
        return [evolve(delivery, payload=render(delivery.events)) for delivery in claimed]


class LosesEventsOfOpenStreams(MemoryFeed):
    """Does not note events that arrive while a delivery of their stream is open."""

    def marks(self, payment: IncomingPayment, events: Collection[Event]) -> dict[Key, Any]:
        """Leave out open streams."""
        marks = super().marks(payment, events)
        return {key: row for key, row in marks.items() if not row.is_open}


class OpensStreamsTwice(MemoryFeed):
    """Begins a delivery while an earlier one of the same stream is open."""

    def _ready(self, name: ConsumerName) -> list[tuple[PaymentId, _Stream]]:
        """Pass over the versions of the open delivery."""
        found = []
        for payment, stream in self._streams(name):
            rows = [row.record for row in self._deliveries(name) if row.record.payment_id == payment]
            last = max([stream.acknowledged, *(record.last_version for record in rows)])
            if last < stream.head:
                found.append((payment, evolve(stream, acknowledged=last)))
        return found


class JoinsNothing(MemoryFeed):
    """Makes a delivery of each credit."""

    def _next_run(self, consumer: Consumer, id: PaymentId, stream: _Stream) -> Any:
        """Return the first event."""
        return super()._next_run(evolve(consumer, joins_credits=False), id, stream)


class LeasesBeforeItRenders(MemoryFeed):
    """Keeps the lease when the renderer raises."""

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Render after the claim."""
        claimed = super().claim(name, lambda _: b"", now=now, until=until, limit=limit)
        return [evolve(delivery, payload=render(delivery.events)) for delivery in claimed]


class BlocksBehindRenderers(MemoryFeed):
    """Lets a renderer that raises for one stream hold back all others."""

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Raise the first exception."""
        errors: list[Exception] = []

        def noting(events: Sequence[FeedEvent]) -> bytes:
            try:
                return render(events)
            except Exception as error:
                errors.append(error)
                raise

        claimed = super().claim(name, noting, now=now, until=until, limit=limit)
        if errors:
            raise errors[0]
        return claimed


# --- dead letters ---


class BlocksBehindDeadLetters(MemoryFeed):
    """Keeps the stream of a dead letter open."""

    def _moved_on(self, record: DeliveryRecord) -> dict[Key, Any]:
        """Move on after an acknowledgement only."""
        return {} if record.ending is Ending.DEAD else super()._moved_on(record)


class MovesStreamsBack(MemoryFeed):
    """Moves the stream of a redelivered letter to the versions after the letter."""

    def _is_open_one(self, record: DeliveryRecord) -> bool:
        """Return whether the stream has a row."""
        return ("stream", record.consumer, record.payment_id) in self._rows


class RedeliversEverything(MemoryFeed):
    """Sends an acknowledged delivery again."""

    def redeliver(self, name: ConsumerName, payment: PaymentId, first_version: int, now: datetime) -> None:
        """Take each delivery for a dead letter."""
        row = self._rows.get(("delivery", name, payment, first_version))
        if row is not None:
            self._rows["delivery", name, payment, first_version] = evolve(
                row, record=evolve(row.record, ending=Ending.DEAD, ended_at=now)
            )
        super().redeliver(name, payment, first_version, now)


class ListsDeadLettersLastFirst(MemoryFeed):
    """Lists the newest dead letter first."""

    def dead_letters(self, name: ConsumerName, after: DeliveryRecord | None, limit: int) -> Sequence[DeliveryRecord]:
        """Reverse the page."""
        return super().dead_letters(name, after, limit)[::-1]


class ForgetsDeadLetters(MemoryFeed):
    """Deletes dead letters with the acknowledged deliveries."""

    def forget(self, before: datetime) -> bool:
        """Delete each delivery that has ended."""
        for row in self._all(_Row):
            if row.record.ending is Ending.DEAD:
                del self._rows["delivery", row.record.consumer, row.record.payment_id, row.record.first_version]
        return super().forget(before)


# --- consumers ---


class LeavesDeliveries(MemoryFeed):
    """Removes a consumer without its deliveries and its place."""

    def remove(self, name: ConsumerName) -> bool:
        """Remove the row of the consumer."""
        with self._lock:
            self._member(name)
            others = {other: member for other, member in self._members().items() if other != name}
            self._write({_CONSUMERS: others})
            return True


class MissesChangesDuringRegistration(MemoryFeed):
    """Looks for old events, and registers the consumer in another step."""

    def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """Register on a copy of the rows, and write the new rows later."""
        rows = dict(self._rows)
        is_done = MemoryFeed(self._lock, rows).register(consumer, start, now)
        time.sleep(0.01)
        with self._lock:
            self._rows.update({key: row for key, row in rows.items() if key not in self._rows})
        return is_done


class RegistersAnew(MemoryFeed):
    """Moves a consumer that is registered again to the beginning."""

    def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """Remove the consumer first."""
        if consumer.name in self._members():
            self.remove(consumer.name)
        return super().register(consumer, start, now)


class KeepsOldSettings(MemoryFeed):
    """Ignores the settings of a second registration."""

    def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """Register a new consumer only."""
        return consumer.name in self._members() or super().register(consumer, start, now)


class RefusesNoConsumer(MemoryFeed):
    """Has no limit on the number of consumers."""

    def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """Take the limit for a success."""
        with contextlib.suppress(InvalidValue):
            super().register(consumer, start, now)
        return True


class StopsWhileDisabled(MemoryFeed):
    """Does not note the events that a disabled consumer misses."""

    def marks(self, payment: IncomingPayment, events: Collection[Event]) -> dict[Key, Any]:
        """Leave out disabled consumers."""
        marks = super().marks(payment, events)
        return {key: row for key, row in marks.items() if self._is_enabled(key)}

    def _is_enabled(self, key: Key) -> bool:
        return self._member(ConsumerName(str(key[1]))).health.disabled_at is None


class CountsAttemptsWhileDown(MemoryFeed):
    """Knows no consumer that is down."""

    def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """Drop the rule."""
        return super().register(evolve(consumer, down_after_s=None), start, now)


class ForgetsHealth(MemoryFeed):
    """Does not disable a consumer."""

    def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
        """Store the result without the health."""
        answer = super().settle(delivery, result, now)
        if member := self._members().get(delivery.consumer):
            self._write(self._with(evolve(member, health=Health())))
        return answer


class SkipsLeases(MemoryFeed):
    """Drops deliveries that have a holder."""

    def skip(self, name: ConsumerName, now: datetime) -> bool:
        """Let each lease end first."""
        for row in self._deliveries(name):
            if row.record.ending is None:
                key = ("delivery", name, row.record.payment_id, row.record.first_version)
                self._rows[key] = evolve(row, lease=None)
        return super().skip(name, now)


class IgnoresTheDelay(MemoryFeed):
    """Sends the first credit at once."""

    def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """Drop the delay."""
        return super().register(evolve(consumer, credit_delay_s=0), start, now)


class WaitsForAllStreams(MemoryFeed):
    """Begins a delivery only when no other stream has an open one."""

    def _ready(self, name: ConsumerName) -> list[tuple[PaymentId, _Stream]]:
        """Return nothing while a stream is open."""
        return [] if any(stream.is_open for _, stream in self._streams(name)) else super()._ready(name)


class IgnoresTheLimit(MemoryFeed):
    """Claims everything that is due."""

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Claim at least one delivery."""
        return super().claim(name, render, now=now, until=until, limit=max(limit, 1))


# --- on SQLite: promises that need two processes ---


class LosesClaimsOfDeadProcesses(SqliteFeed):
    """Acknowledges in the file at the claim."""

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Acknowledge what is claimed."""
        claimed = super().claim(name, render, now=now, until=until, limit=limit)
        for delivery in claimed:
            super().settle(delivery, Delivered(), now)
        return claimed

    def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:  # noqa: ARG002 - the port
        """Claim success."""
        return True


class LeasesInTheProcess(SqliteFeed):
    """Keeps its leases in memory, so that another process claims the same deliveries."""

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Let the leases in the file end at once."""
        claimed = super().claim(name, render, now=now, until=now, limit=limit)
        return [evolve(delivery, leased_until=until) for delivery in claimed]


class CachesConsumers(SqliteFeed):
    """Lists the consumers that this process has registered."""

    def consumers(self) -> Sequence[Any]:
        """Return none of the others."""
        return []


def memory_store(feed: type[MemoryFeed]) -> type[MemoryStore]:
    """Return the memory store with this feed."""

    class Store(MemoryStore):
        """A store whose feed is broken."""

        def __init__(self) -> None:
            super().__init__()
            self.feed = feed(self._lock, self._rows)

    return Store


def sqlite_store(feed: type[SqliteFeed]) -> type[SqliteStore]:
    """Return the store on SQLite with this feed."""

    class Store(SqliteStore):
        """A store whose feed is broken."""

        @property
        def feed(self) -> SqliteFeed:
            return feed(self, self._engine)

    return Store


class BrokenContract(FeedContract):
    """A suite that pytest does not collect, and that does not wait long for a wake."""

    feed_class: type[MemoryFeed] | type[SqliteFeed] = MemoryFeed
    wake_s = 0.2

    def make_store(self, directory: Path) -> PaymentStore:
        """Return a store with the broken feed."""
        if issubclass(self.feed_class, SqliteFeed):
            return sqlite_store(self.feed_class)(directory / "payments.db")
        return memory_store(self.feed_class)()

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - a hook
        """Return another store on the file."""
        return self.make_store(directory)

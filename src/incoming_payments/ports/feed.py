"""The feed of events for consumers."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from incoming_payments.domain.feed import (
    Consumer,
    ConsumerName,
    ConsumerState,
    Delivery,
    DeliveryRecord,
    FeedEvent,
    LeasedDelivery,
    Result,
    Start,
)
from incoming_payments.domain.payment import PaymentId

Render = Callable[[Sequence[FeedEvent]], bytes]


class Feed(Protocol):
    """The feed of the events in one store. Each method is atomic, and returns when its result is durable.

    The events of one payment are a stream. The transaction that stores events also marks their stream as due, for each
    consumer that wants one of them. So a claim finds due streams by an index, however many events the store holds.

    A method that takes the name of a consumer raises `ConsumerNotFound` for an unknown name.
    """

    def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """Register `consumer`, and return whether the registration is complete.

        A registration that starts with old events works in batches, so that it never holds back other writes for long.
        Call the method again until it returns true. The consumer gets no deliveries before that. No change that is
        stored during the registration is missed.

        If the consumer exists, replace its settings, and keep its place in the feed. The new filter also holds for
        the events that wait, but not for deliveries that exist. Raises `InvalidValue` when the store has
        `limits.CONSUMERS_MAX` consumers.
        """

    def remove(self, name: ConsumerName) -> bool:
        """Remove the consumer and its deliveries in batches. Return whether the removal is complete.

        From the first call on, the consumer gets no deliveries.
        """

    def consumers(self) -> Sequence[ConsumerState]:
        """Return the registered consumers, in the order of their names."""

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Lease at most `limit` due deliveries until `until`, and return them.

        A delivery is due when its stream is due, when its retry is due, or when its lease has ended. For a new
        delivery, call `render` with its events, and store the answer and the range of versions with the lease. Later
        attempts get the same bytes and the same events. Pass over events that the filter excludes.

        `render` must be fast, because it may run in the transaction, and must not call the store. If it raises, pass
        over the stream, so that the stream does not hold back others. If nothing else is due, raise its exception.
        """

    def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
        """Store what follows from `result` (see `domain.feed.settle`), and return true.

        If the delivery no longer has this lease, store nothing and return false. When a delivery ends, the later events
        of its stream become due.
        """

    def next_due(self, name: ConsumerName) -> datetime | None:
        """Return the time at which the next delivery is due, or `None`. The time may have passed."""

    def set_enabled(self, name: ConsumerName, now: datetime, *, enabled: bool) -> None:
        """Disable the consumer, or enable it again. An enabled consumer continues where it was."""

    def skip(self, name: ConsumerName, now: datetime) -> bool:
        """Drop a batch of the deliveries and events that wait. Return whether no delivery or event is left.

        These are the open deliveries that are not leased, their streams, and the streams that were due by `now`. Of
        such a stream, drop all events that its payment has at the time of the call.
        """

    def deliveries(self, payment: PaymentId) -> Sequence[DeliveryRecord]:
        """Return the deliveries of one payment, by consumer and version."""

    def dead_letters(self, name: ConsumerName, after: DeliveryRecord | None, limit: int) -> Sequence[DeliveryRecord]:
        """Return at most `limit` dead letters of the consumer that follow `after`, oldest first."""

    def redeliver(self, name: ConsumerName, payment: PaymentId, first_version: int, now: datetime) -> None:
        """Make a dead letter due again. Its next attempt has the number 1.

        The delivery may arrive after later events of its stream. Raises `DeliveryNotFound`.
        """

    def forget(self, before: datetime) -> bool:
        """Delete a batch of the acknowledged deliveries that ended before `before`.

        Return whether no such delivery is left.
        """

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each change of this process that makes a stream due. Return a function that ends this.

        The feed calls `wake` in any thread. `wake` must be fast, and must not call the store.
        """


class AsyncFeed(Protocol):
    """`Feed` with `async def` methods, except `watch`."""

    async def register(self, consumer: Consumer, start: Start, now: datetime) -> bool: ...
    async def remove(self, name: ConsumerName) -> bool: ...
    async def consumers(self) -> Sequence[ConsumerState]: ...
    async def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]: ...
    async def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool: ...
    async def next_due(self, name: ConsumerName) -> datetime | None: ...
    async def set_enabled(self, name: ConsumerName, now: datetime, *, enabled: bool) -> None: ...
    async def skip(self, name: ConsumerName, now: datetime) -> bool: ...
    async def deliveries(self, payment: PaymentId) -> Sequence[DeliveryRecord]: ...
    async def dead_letters(
        self, name: ConsumerName, after: DeliveryRecord | None, limit: int
    ) -> Sequence[DeliveryRecord]: ...
    async def redeliver(self, name: ConsumerName, payment: PaymentId, first_version: int, now: datetime) -> None: ...
    async def forget(self, before: datetime) -> bool: ...
    def watch(self, wake: Callable[[], None]) -> Callable[[], None]: ...

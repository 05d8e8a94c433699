"""The feed in one PostgreSQL database, for threads and for asyncio."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol, TypeVar

from incoming_payments.domain.feed import (
    Consumer,
    ConsumerName,
    ConsumerState,
    Delivery,
    DeliveryRecord,
    LeasedDelivery,
    Result,
    Start,
)
from incoming_payments.domain.payment import PaymentId
from incoming_payments.ports import Render
from incoming_payments.stores.postgres._claims import claim
from incoming_payments.stores.postgres._consumers import TurnNeeded, consumers, next_due, set_enabled
from incoming_payments.stores.postgres._deliveries import dead_letters, deliveries, forget, redeliver, settle, skip
from incoming_payments.stores.postgres._engine import AsyncEngine, Engine
from incoming_payments.stores.postgres._registrations import PAUSE_S, clear, enroll, inform_writers, retire, scan
from incoming_payments.stores.postgres._session import BEGIN_READ_COMMITTED
from incoming_payments.stores.postgres._steps import Operation

T = TypeVar("T")


class _OfConsumer(Protocol[T]):
    def __call__(self, *, in_turn: bool) -> Operation[T]: ...


class PostgresFeed:
    """The `Feed` port in the database of `store`. The port keeps the store open.

    All processes share the consumers. Every method may raise the errors of the store. See `ports.feed.Feed` for the
    methods. A method that works in batches also returns false while it waits for transactions in flight.
    """

    async_class = "the feed of an AsyncPostgresStore"

    def __init__(self, store: object, engine: Engine) -> None:
        self._store = store  # the engine is closed with the store
        self._engine = engine

    def _run(self, operation: Operation[T]) -> T:
        return self._engine.run(operation, BEGIN_READ_COMMITTED)

    def _run_of(self, name: ConsumerName, operation: _OfConsumer[T]) -> T:
        """Run an operation of a consumer, in the turn of the consumer if it has to lock its row."""
        try:
            return self._run(operation(in_turn=False))
        except TurnNeeded:
            return self._engine.run_in_turn(("consumer", name), operation(in_turn=True), BEGIN_READ_COMMITTED)

    def _inform_writers(self, number: int) -> bool:
        is_known = self._run(inform_writers(number))
        if not is_known:
            time.sleep(PAUSE_S)
        return is_known

    def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """See `Feed.register`."""
        is_known = self._inform_writers(self._run(enroll(consumer, start)))
        is_ready = is_known and self._run(scan(consumer.name, now))
        if is_ready:
            self._engine.watchers.wake()
        return is_ready

    def remove(self, name: ConsumerName) -> bool:
        """See `Feed.remove`."""
        return self._inform_writers(self._run(retire(name))) and self._run(clear(name))

    def consumers(self) -> Sequence[ConsumerState]:
        """See `Feed.consumers`."""
        return self._run(consumers())

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """See `Feed.claim`. `render` runs in a thread of the store."""
        return self._run_of(name, partial(claim, name, render, now=now, until=until, limit=limit)).result()

    def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
        """See `Feed.settle`."""
        operation = partial(settle, delivery, result, now, self._engine.watchers.wake)
        return self._run_of(delivery.consumer, operation)

    def next_due(self, name: ConsumerName) -> datetime | None:
        """See `Feed.next_due`."""
        return self._run(next_due(name))

    def set_enabled(self, name: ConsumerName, now: datetime, *, enabled: bool) -> None:
        """See `Feed.set_enabled`."""
        self._run(set_enabled(name, now, enabled=enabled))
        if enabled:
            self._engine.watchers.wake()

    def skip(self, name: ConsumerName, now: datetime) -> bool:
        """See `Feed.skip`."""
        return self._run(skip(name, now))

    def deliveries(self, payment: PaymentId) -> Sequence[DeliveryRecord]:
        """See `Feed.deliveries`."""
        return self._run(deliveries(payment))

    def dead_letters(self, name: ConsumerName, after: DeliveryRecord | None, limit: int) -> Sequence[DeliveryRecord]:
        """See `Feed.dead_letters`."""
        return self._run(dead_letters(name, after, limit))

    def redeliver(self, name: ConsumerName, payment: PaymentId, first_version: int, now: datetime) -> None:
        """See `Feed.redeliver`."""
        self._run(redeliver(name, payment, first_version, now))
        self._engine.watchers.wake()

    def forget(self, before: datetime) -> bool:
        """See `Feed.forget`."""
        return self._run(forget(before))

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """See `Feed.watch`."""
        return self._engine.watchers.watch(wake)


class AsyncPostgresFeed:
    """`PostgresFeed` for asyncio, in the database of an `AsyncPostgresStore`."""

    def __init__(self, store: object, engine: AsyncEngine) -> None:
        self._store = store  # the engine is closed with the store
        self._engine = engine

    async def _run(self, operation: Operation[T]) -> T:
        return await self._engine.run(operation, BEGIN_READ_COMMITTED)

    async def _run_of(self, name: ConsumerName, operation: _OfConsumer[T]) -> T:
        """Do for asyncio what `PostgresFeed._run_of` does."""
        try:
            return await self._run(operation(in_turn=False))
        except TurnNeeded:
            return await self._engine.run_in_turn(("consumer", name), operation(in_turn=True), BEGIN_READ_COMMITTED)

    async def _inform_writers(self, number: int) -> bool:
        is_known = await self._run(inform_writers(number))
        if not is_known:
            await asyncio.sleep(PAUSE_S)
        return is_known

    async def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """Await the result of `PostgresFeed.register`."""
        is_known = await self._inform_writers(await self._run(enroll(consumer, start)))
        is_ready = is_known and await self._run(scan(consumer.name, now))
        if is_ready:
            self._engine.watchers.wake()
        return is_ready

    async def remove(self, name: ConsumerName) -> bool:
        """Await the result of `PostgresFeed.remove`."""
        return await self._inform_writers(await self._run(retire(name))) and await self._run(clear(name))

    async def consumers(self) -> Sequence[ConsumerState]:
        """Await the result of `PostgresFeed.consumers`."""
        return await self._run(consumers())

    async def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Await the result of `PostgresFeed.claim`. `render` runs in the event loop."""
        operation = partial(claim, name, render, now=now, until=until, limit=limit)
        return (await self._run_of(name, operation)).result()

    async def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
        """Await the result of `PostgresFeed.settle`."""
        operation = partial(settle, delivery, result, now, self._engine.watchers.wake)
        return await self._run_of(delivery.consumer, operation)

    async def next_due(self, name: ConsumerName) -> datetime | None:
        """Await the result of `PostgresFeed.next_due`."""
        return await self._run(next_due(name))

    async def set_enabled(self, name: ConsumerName, now: datetime, *, enabled: bool) -> None:
        """Await the result of `PostgresFeed.set_enabled`."""
        await self._run(set_enabled(name, now, enabled=enabled))
        if enabled:
            self._engine.watchers.wake()

    async def skip(self, name: ConsumerName, now: datetime) -> bool:
        """Await the result of `PostgresFeed.skip`."""
        return await self._run(skip(name, now))

    async def deliveries(self, payment: PaymentId) -> Sequence[DeliveryRecord]:
        """Await the result of `PostgresFeed.deliveries`."""
        return await self._run(deliveries(payment))

    async def dead_letters(
        self, name: ConsumerName, after: DeliveryRecord | None, limit: int
    ) -> Sequence[DeliveryRecord]:
        """Await the result of `PostgresFeed.dead_letters`."""
        return await self._run(dead_letters(name, after, limit))

    async def redeliver(self, name: ConsumerName, payment: PaymentId, first_version: int, now: datetime) -> None:
        """Await the result of `PostgresFeed.redeliver`."""
        await self._run(redeliver(name, payment, first_version, now))
        self._engine.watchers.wake()

    async def forget(self, before: datetime) -> bool:
        """Await the result of `PostgresFeed.forget`."""
        return await self._run(forget(before))

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """See `Feed.watch`."""
        return self._engine.watchers.watch(wake)

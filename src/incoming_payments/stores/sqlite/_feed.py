"""The feed in one SQLite file, for threads and for asyncio. Each method is one job of the writer, or one read."""

from collections.abc import Callable, Sequence
from datetime import datetime

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
from incoming_payments.limits import DELIVERIES_CLAIMED_MAX
from incoming_payments.ports import Render
from incoming_payments.stores.sqlite._consumers import consumers, next_due, register, remove, set_enabled
from incoming_payments.stores.sqlite._deliveries import (
    claim,
    dead_letters,
    deliveries,
    forget,
    redeliver,
    settle,
    skip,
)
from incoming_payments.stores.sqlite._engine import Engine


class SqliteFeed:
    """The `Feed` port in the file of `store`. The port keeps the store open.

    All processes that open the file share the consumers. Every method may raise the errors of the store. See
    `ports.feed.Feed` for the methods.
    """

    async_class = "the feed of an AsyncSqliteStore"

    def __init__(self, store: object, engine: Engine) -> None:
        self._store = store  # the engine is closed with the store
        self._engine = engine

    def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """See `Feed.register`."""
        return self._engine.write(lambda rows: register(rows, consumer, start, now))

    def remove(self, name: ConsumerName) -> bool:
        """See `Feed.remove`."""
        return self._engine.write(lambda rows: remove(rows, name))

    def consumers(self) -> Sequence[ConsumerState]:
        """See `Feed.consumers`."""
        return self._engine.read(consumers)

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """See `Feed.claim`."""
        return self._engine.write(lambda rows: claim(rows, name, render, now=now, until=until, limit=_bounded(limit)))

    def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
        """See `Feed.settle`."""
        return self._engine.write(lambda rows: settle(rows, delivery, result, now))

    def next_due(self, name: ConsumerName) -> datetime | None:
        """See `Feed.next_due`."""
        return self._engine.read(lambda rows: next_due(rows, name))

    def set_enabled(self, name: ConsumerName, now: datetime, *, enabled: bool) -> None:
        """See `Feed.set_enabled`."""
        self._engine.write(lambda rows: set_enabled(rows, name, now, enabled=enabled))

    def skip(self, name: ConsumerName, now: datetime) -> bool:
        """See `Feed.skip`."""
        return self._engine.write(lambda rows: skip(rows, name, now))

    def deliveries(self, payment: PaymentId) -> Sequence[DeliveryRecord]:
        """See `Feed.deliveries`."""
        return self._engine.read(lambda rows: deliveries(rows, payment))

    def dead_letters(self, name: ConsumerName, after: DeliveryRecord | None, limit: int) -> Sequence[DeliveryRecord]:
        """See `Feed.dead_letters`."""
        return self._engine.read(lambda rows: dead_letters(rows, name, after, limit))

    def redeliver(self, name: ConsumerName, payment: PaymentId, first_version: int, now: datetime) -> None:
        """See `Feed.redeliver`."""
        self._engine.write(lambda rows: redeliver(rows, name, payment, first_version, now))

    def forget(self, before: datetime) -> bool:
        """See `Feed.forget`."""
        return self._engine.write(lambda rows: forget(rows, before))

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """See `Feed.watch`."""
        return self._engine.watch(wake)


class AsyncSqliteFeed:
    """`SqliteFeed` for asyncio, in the file of an `AsyncSqliteStore`."""

    def __init__(self, store: object, engine: Engine) -> None:
        self._store = store  # the engine is closed with the store
        self._engine = engine

    async def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """Await the result of `SqliteFeed.register`."""
        return await self._engine.write_in_loop(lambda rows: register(rows, consumer, start, now))

    async def remove(self, name: ConsumerName) -> bool:
        """Await the result of `SqliteFeed.remove`."""
        return await self._engine.write_in_loop(lambda rows: remove(rows, name))

    async def consumers(self) -> Sequence[ConsumerState]:
        """Await the result of `SqliteFeed.consumers`."""
        return await self._engine.read_in_loop(consumers)

    async def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Await the result of `SqliteFeed.claim`."""
        return await self._engine.write_in_loop(
            lambda rows: claim(rows, name, render, now=now, until=until, limit=_bounded(limit))
        )

    async def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
        """Await the result of `SqliteFeed.settle`."""
        return await self._engine.write_in_loop(lambda rows: settle(rows, delivery, result, now))

    async def next_due(self, name: ConsumerName) -> datetime | None:
        """Await the result of `SqliteFeed.next_due`."""
        return await self._engine.read_in_loop(lambda rows: next_due(rows, name))

    async def set_enabled(self, name: ConsumerName, now: datetime, *, enabled: bool) -> None:
        """Await the result of `SqliteFeed.set_enabled`."""
        await self._engine.write_in_loop(lambda rows: set_enabled(rows, name, now, enabled=enabled))

    async def skip(self, name: ConsumerName, now: datetime) -> bool:
        """Await the result of `SqliteFeed.skip`."""
        return await self._engine.write_in_loop(lambda rows: skip(rows, name, now))

    async def deliveries(self, payment: PaymentId) -> Sequence[DeliveryRecord]:
        """Await the result of `SqliteFeed.deliveries`."""
        return await self._engine.read_in_loop(lambda rows: deliveries(rows, payment))

    async def dead_letters(
        self, name: ConsumerName, after: DeliveryRecord | None, limit: int
    ) -> Sequence[DeliveryRecord]:
        """Await the result of `SqliteFeed.dead_letters`."""
        return await self._engine.read_in_loop(lambda rows: dead_letters(rows, name, after, limit))

    async def redeliver(self, name: ConsumerName, payment: PaymentId, first_version: int, now: datetime) -> None:
        """Await the result of `SqliteFeed.redeliver`."""
        await self._engine.write_in_loop(lambda rows: redeliver(rows, name, payment, first_version, now))

    async def forget(self, before: datetime) -> bool:
        """Await the result of `SqliteFeed.forget`."""
        return await self._engine.write_in_loop(lambda rows: forget(rows, before))

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """See `Feed.watch`."""
        return self._engine.watch(wake)


def _bounded(limit: int) -> int:
    return max(0, min(limit, DELIVERIES_CLAIMED_MAX))

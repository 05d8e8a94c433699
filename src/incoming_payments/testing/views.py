"""Sync views of async stores, feeds and nonces, so that the same contract suites test both kinds."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from incoming_payments.domain.events import Event
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
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import ClientId, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import StoreUnusable
from incoming_payments.ports import AsyncFeed, AsyncNonces, AsyncPaymentStore, AsyncQuotas, Decide, Render

T = TypeVar("T")


class SyncView:
    """A `PaymentStore` that calls an `AsyncPaymentStore` in its own event loop and thread.

    `open` opens the async store in that loop. `close`, if given, closes the async store in that loop. Calls from
    several threads run as concurrent tasks. Use the view as a context manager, or call `close` at the end.

    >>> import tempfile
    >>> from incoming_payments.stores.sqlite import AsyncSqliteStore
    >>> from incoming_payments.testing import a_creation
    >>> async def open_store() -> AsyncSqliteStore:
    ...     return AsyncSqliteStore(f"{directory}/payments.db")
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with SyncView(open_store, AsyncSqliteStore.close) as store:
    ...         created = a_creation()
    ...         store.insert(created)
    ...         store.load(created.answer.id) == created.answer
    True
    """

    def __init__(
        self,
        open: Callable[[], Awaitable[AsyncPaymentStore]],
        close: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        self._close = close
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sync-view", daemon=True)
        self._thread.start()
        try:
            self._store = self.run(_awaited(open))
        except BaseException:
            self._stop()
            raise

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` in the store's event loop, and return its result. Raises `StoreUnusable` after `close`."""
        if self._loop.is_closed():
            coroutine.close()
            raise StoreUnusable("the view of the store is closed: open another view")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    @property
    def store(self) -> AsyncPaymentStore:
        """Return the async store. Use it only in coroutines that you pass to `run`."""
        return self._store

    @property
    def feed(self) -> "SyncFeed":
        """Return a view of the feed of the async store, if the store has the property `feed`."""
        feed: AsyncFeed = self._store.feed  # type: ignore[attr-defined] # not part of the port
        return SyncFeed(self, feed)

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Call `insert` of the async store."""
        return self.run(self._store.insert(decision))

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        """Call `find_creation` of the async store."""
        return self.run(self._store.find_creation(client, key, now))

    def load(self, id: PaymentId) -> IncomingPayment:
        """Call `load` of the async store."""
        return self.run(self._store.load(id))

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Call `update` of the async store."""
        return self.run(self._store.update(id, decide, credit_id))

    def events(self, id: PaymentId) -> Sequence[Event]:
        """Call `events` of the async store."""
        return self.run(self._store.events(id))

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Call `find_expired` of the async store."""
        return self.run(self._store.find_expired(now, limit))

    def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        """Call `find_payments` of the async store."""
        return self.run(self._store.find_payments(query))

    def close(self) -> None:
        """Close the store and its event loop. Further calls do nothing."""
        if self._loop.is_closed():
            return
        close, store = self._close, self._store
        try:
            if close is not None:
                self.run(_awaited(lambda: close(store)))
        finally:
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _stop(self) -> None:
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _awaited(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


class SyncNonces:
    """A `Nonces` port that calls `nonces`, an `AsyncNonces`, in the event loop of `view`.

    For the nonces of an async store, write `SyncNonces(view, view.store.nonces)`.
    """

    def __init__(self, view: SyncView, nonces: AsyncNonces) -> None:
        self._view = view
        self._nonces = nonces

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Call `use` of the async port."""
        return self._view.run(self._nonces.use(key, until, now))

    def close(self) -> None:
        """Close the view, its store and its event loop."""
        self._view.close()


class SyncQuotas:
    """A `Quotas` port that calls `quotas`, an `AsyncQuotas`, in the event loop of `view`."""

    def __init__(self, view: SyncView, quotas: AsyncQuotas) -> None:
        self._view = view
        self._quotas = quotas

    def admit(self, client: ClientId, now: datetime) -> float | None:
        """Call `admit` of the async port."""
        return self._view.run(self._quotas.admit(client, now))

    def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]:
        """Call `reserve` of the async port."""
        return self._view.run(self._quotas.reserve(client, id))

    def release(self, client: ClientId, id: PaymentId) -> None:
        """Call `release` of the async port."""
        self._view.run(self._quotas.release(client, id))


class SyncFeed:
    """A `Feed` port that calls `feed`, an `AsyncFeed`, in the event loop of `view`.

    For a feed that is not the property `feed` of its store, write `SyncFeed(view, feed)`.
    """

    def __init__(self, view: SyncView, feed: AsyncFeed) -> None:
        self._view = view
        self._feed = feed

    def register(self, consumer: Consumer, start: Start, now: datetime) -> bool:
        """Call `register` of the async feed."""
        return self._view.run(self._feed.register(consumer, start, now))

    def remove(self, name: ConsumerName) -> bool:
        """Call `remove` of the async feed."""
        return self._view.run(self._feed.remove(name))

    def consumers(self) -> Sequence[ConsumerState]:
        """Call `consumers` of the async feed."""
        return self._view.run(self._feed.consumers())

    def claim(
        self, name: ConsumerName, render: Render, *, now: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """Call `claim` of the async feed."""
        return self._view.run(self._feed.claim(name, render, now=now, until=until, limit=limit))

    def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
        """Call `settle` of the async feed."""
        return self._view.run(self._feed.settle(delivery, result, now))

    def next_due(self, name: ConsumerName) -> datetime | None:
        """Call `next_due` of the async feed."""
        return self._view.run(self._feed.next_due(name))

    def set_enabled(self, name: ConsumerName, now: datetime, *, enabled: bool) -> None:
        """Call `set_enabled` of the async feed."""
        self._view.run(self._feed.set_enabled(name, now, enabled=enabled))

    def skip(self, name: ConsumerName, now: datetime) -> bool:
        """Call `skip` of the async feed."""
        return self._view.run(self._feed.skip(name, now))

    def deliveries(self, payment: PaymentId) -> Sequence[DeliveryRecord]:
        """Call `deliveries` of the async feed."""
        return self._view.run(self._feed.deliveries(payment))

    def dead_letters(self, name: ConsumerName, after: DeliveryRecord | None, limit: int) -> Sequence[DeliveryRecord]:
        """Call `dead_letters` of the async feed."""
        return self._view.run(self._feed.dead_letters(name, after, limit))

    def redeliver(self, name: ConsumerName, payment: PaymentId, first_version: int, now: datetime) -> None:
        """Call `redeliver` of the async feed."""
        self._view.run(self._feed.redeliver(name, payment, first_version, now))

    def forget(self, before: datetime) -> bool:
        """Call `forget` of the async feed."""
        return self._view.run(self._feed.forget(before))

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `watch` of the async feed, which is not async."""
        return self._feed.watch(wake)

"""The connections of one store in one process, and the updates in flight, for threads and for asyncio.

A transaction runs in a thread or a task of the store. So the end of a caller, by an interrupt or by cancellation, never
stops a transaction in the middle, and never leaves a lock or a connection behind.
"""

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from attrs import frozen
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from incoming_payments.domain.feed import Delivery, LeasedDelivery
from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.errors import BrokenDecision, IncomingPaymentsError, StoreError, StoreUnavailable, StoreUnusable
from incoming_payments.limits import STORE_BUSY_S_MAX, STORE_QUEUE_MAX
from incoming_payments.observers.reporter import Reporter
from incoming_payments.ports import Decide, StoreBatch
from incoming_payments.stores.postgres._acknowledging import Acknowledgement, aacknowledging, acknowledging
from incoming_payments.stores.postgres._connections import AsyncConnection, Connection
from incoming_payments.stores.postgres._drivers import AsyncPool, Pool, atransact, transact
from incoming_payments.stores.postgres._errors import again
from incoming_payments.stores.postgres._groups import Groups
from incoming_payments.stores.postgres._migrations import check_schema
from incoming_payments.stores.postgres._operations import Job, update
from incoming_payments.stores.postgres._references import prepare_reference
from incoming_payments.stores.postgres._session import ARGUMENTS, BEGIN
from incoming_payments.stores.postgres._steps import Operation, Statement
from incoming_payments.stores.postgres._values import checked_id
from incoming_payments.stores.postgres._watchers import Watchers
from incoming_payments.stores.postgres._workers import Wait, Workers

T = TypeVar("T")
J = TypeVar("J")
_LIFETIME_S = 50 * 60  # some databases end each connection after an hour


@frozen
class Settings:
    """The settings of an engine. `conninfo` is the result of `connection_string`."""

    conninfo: str
    connections: int
    prepares: bool
    reference: str | None = None
    report: Reporter | None = None

    def pool(self) -> dict[str, Any]:
        """Return the arguments of a pool of psycopg."""
        return {
            "conninfo": self.conninfo,
            "kwargs": ARGUMENTS,
            "min_size": 1,
            "max_size": self.connections,
            "max_waiting": STORE_QUEUE_MAX,
            "max_lifetime": _LIFETIME_S,
            "reconnect_timeout": STORE_BUSY_S_MAX,
            "name": "incoming-payments",
        }


class Engine:
    """The engine of a store for threads. Raises `StoreUnavailable` when a thread cannot be started."""

    def __init__(self, settings: Settings) -> None:
        check_schema(settings.conninfo)
        self._settings = settings
        self.watchers = Watchers()
        self._begin()
        _engines.add(self)
        try:
            self.reference = self.run(prepare_reference(settings.reference))
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        self._groups: Groups[Job] = Groups()
        self._turns: Groups[Wait[Any]] = Groups()
        self._workers = Workers(self._settings.connections)
        self._pool: Pool = ConnectionPool(**self._settings.pool(), connection_class=Connection, open=True)

    def after_fork_in_child(self) -> None:
        """Open a pool of this process. The threads and the connections belong to the parent."""
        _of_parents.append(self._pool)
        self._begin()

    def run(self, operation: Operation[T], begin: Statement = BEGIN) -> T:
        """Return the answer of `operation`, once it is durable."""
        return self._workers.run(
            partial(transact, self._pool, operation, prepares=self._settings.prepares, begin=begin)
        )

    def run_in_turn(
        self, turn: Hashable, operation: Operation[T], begin: Statement = BEGIN, waiting_max: int | None = None
    ) -> T:
        """Return what `run` returns. Operations with the same `turn` follow each other, and need one connection."""
        called_s = time.monotonic()

        def work() -> T:
            if time.monotonic() - called_s > STORE_BUSY_S_MAX:
                raise _crowded()
            return transact(self._pool, operation, prepares=self._settings.prepares, begin=begin)

        wait = Wait(work)
        self._add(self._turns, turn, wait, partial(self._run_turn, turn), waiting_max or STORE_QUEUE_MAX)
        return wait.result()

    def _run_turn(self, turn: Hashable) -> bool:
        waits = self._turns.take(turn, 1)
        for wait in waits:
            wait.run()
        return bool(waits)

    def _add(self, groups: Groups[J], key: Hashable, job: J, work: Callable[[], bool], waiting_max: int) -> None:
        """Add a job to a group. A worker calls `work` until it returns false, unless another worker has the group."""

        def begin() -> None:
            if groups.begin(key):
                self._workers.repeat(work)

        try:
            groups.add(key, job, waiting_max)
            self._workers.start(begin)
        except StoreError:
            groups.discard(key, job)
            raise

    def acknowledging(self, delivery: Delivery | LeasedDelivery) -> AbstractContextManager[Connection]:
        """See `PostgresStore.acknowledging`. All of it runs in the thread of the caller."""
        return acknowledging(self._pool, Acknowledgement(delivery, self.watchers.wake, self._settings.prepares))

    def submit(self, operation: Operation[Any], begin: Statement = BEGIN) -> None:
        """Run `operation` some time later, and ignore its errors. Raises `StoreUnusable` and `StoreUnavailable`."""

        def work() -> None:
            with contextlib.suppress(Exception):
                transact(self._pool, operation, prepares=self._settings.prepares, begin=begin)

        self._workers.start(work)

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None) -> T:
        """Return the answer of `decide`, once the decision is durable."""
        settled = threading.Lock()
        settled.acquire()
        job = Job(decide, credit_id, settled.release)
        self._add(self._groups, checked_id(id), job, partial(self._run_group, id), STORE_QUEUE_MAX)
        settled.acquire()
        answer: T = job.outcome()
        return answer

    def _run_group(self, id: PaymentId) -> bool:
        jobs = self._groups.take(id)
        if jobs:
            self._commit(id, jobs)
        return bool(jobs)

    def _commit(self, id: PaymentId, jobs: Sequence[Job]) -> None:
        began_s, outcome = time.perf_counter(), "committed"
        try:
            transact(self._pool, update(id, jobs, self.watchers.wake), prepares=self._settings.prepares)
        except BaseException as error:  # noqa: BLE001 - it is raised in the threads of the callers
            if _must_split(jobs, error):
                for job in jobs:
                    self._commit(id, [job])
                return
            outcome = _fail(jobs, error)
        _finish(jobs, self._settings.report, outcome, began_s)

    def close(self, *, wait: bool = True) -> None:
        """Finish the waiting updates, and close the connections. Further calls do nothing.

        If `wait` is false, wait for no thread of the store: the garbage collector may call this in any thread.
        """
        _engines.discard(self)  # a child of a later fork must not open this store again
        self._workers.end(wait=wait)
        self._pool.close()


class AsyncEngine:
    """The engine of a store for asyncio. All calls come from the event loop that makes the first call."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.watchers = Watchers()
        self._groups: Groups[Job] = Groups()
        # A lock exists while somebody has or awaits it.
        self._turns: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._pool: AsyncPool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self.reference = settings.reference

    async def open(self) -> AsyncPool:
        """Await the pool, which the first call opens after it has checked the database. Raises `StoreError`."""
        self._check_loop()
        while self._pool is None:
            if self._opening is None or self._opening.done():
                self._check_open()
                self._opening = self._start(self._open())
            await asyncio.shield(self._opening)
        self._check_open()
        return self._pool

    async def _open(self) -> None:
        await asyncio.to_thread(check_schema, self._settings.conninfo)
        pool: AsyncPool = AsyncConnectionPool(**self._settings.pool(), connection_class=AsyncConnection, open=False)
        await pool.open()
        try:
            self.reference = await self._transact(pool, prepare_reference(self._settings.reference))
        except BaseException:
            await pool.close()
            raise
        self._pool = pool

    async def run(self, operation: Operation[T], begin: Statement = BEGIN) -> T:
        """Await the answer of `operation`, once it is durable."""
        pool = await self.open()
        return await asyncio.shield(self._start(self._transact(pool, operation, begin)))

    async def run_in_turn(self, turn: Hashable, operation: Operation[T], begin: Statement = BEGIN) -> T:
        """Await what `run` returns. Operations with the same `turn` follow each other, and need one connection."""
        pool = await self.open()
        return await asyncio.shield(self._start(self._transact_in_turn(pool, turn, operation, begin)))

    async def _transact_in_turn(self, pool: AsyncPool, turn: Hashable, operation: Operation[T], begin: Statement) -> T:
        lock = self._turns.setdefault(turn, asyncio.Lock())
        try:
            async with asyncio.timeout(STORE_BUSY_S_MAX):
                await lock.acquire()
        except TimeoutError:
            raise _crowded() from None
        try:
            return await self._transact(pool, operation, begin)
        finally:
            lock.release()

    @asynccontextmanager
    async def acknowledging(self, delivery: Delivery | LeasedDelivery) -> AsyncIterator[AsyncConnection]:
        """See `PostgresStore.acknowledging`. All of it runs in the task of the caller."""
        pool = await self.open()
        acknowledgement = Acknowledgement(delivery, self.watchers.wake, self._settings.prepares)
        async with aacknowledging(pool, acknowledgement) as connection:
            yield connection

    def submit(self, operation: Operation[Any], begin: Statement = BEGIN) -> None:
        """Run `operation` some time later, and ignore its errors."""
        self._start(self.run(operation, begin))

    async def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None) -> T:
        """Await the answer of `decide`, once the decision is durable."""
        pool = await self.open()
        settled = asyncio.get_running_loop().create_future()
        job = Job(decide, credit_id, partial(_settle, settled))
        self._groups.add(checked_id(id), job, STORE_QUEUE_MAX)
        if self._groups.begin(id):
            self._start(self._run_group(pool, id))
        await settled
        answer: T = job.outcome()
        return answer

    async def _transact(self, pool: AsyncPool, operation: Operation[T], begin: Statement = BEGIN) -> T:
        return await atransact(pool, operation, prepares=self._settings.prepares, begin=begin)

    async def _run_group(self, pool: AsyncPool, id: PaymentId) -> None:
        while jobs := self._groups.take(id):
            await self._commit(pool, id, jobs)

    async def _commit(self, pool: AsyncPool, id: PaymentId, jobs: Sequence[Job]) -> None:
        began_s, outcome = time.perf_counter(), "committed"
        try:
            await self._transact(pool, update(id, jobs, self.watchers.wake))
        except BaseException as error:  # noqa: BLE001 - it is raised in the tasks of the callers
            if _must_split(jobs, error):
                for job in jobs:
                    await self._commit(pool, id, [job])
                return
            outcome = _fail(jobs, error)
        _finish(jobs, self._settings.report, outcome, began_s)

    def _start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run `work` in a task of the engine, which no caller cancels."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()  # a caller that was cancelled does not read it, and asyncio would log it

    def _check_loop(self) -> None:
        """Raise `StoreUnusable` in another event loop, in which the pool could not replace a lost connection."""
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise StoreUnusable(
                "the store belongs to another event loop, in which it was opened: open a store in each event loop, and "
                "close it before the loop ends"
            )

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnusable("the store is closed: open another store")

    async def close(self) -> None:
        """Finish the waiting updates, and close the connections. Further calls do nothing."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        if self._pool is not None:
            await self._pool.close()


def _crowded() -> StoreUnavailable:
    return StoreUnavailable("too many calls are already waiting for this one: repeat the call later")


def _must_split(jobs: Sequence[Job], error: BaseException) -> bool:
    """Return whether the values of one job may be the reason why the others failed."""
    return isinstance(error, BrokenDecision) and len(jobs) > 1


def _fail(jobs: Sequence[Job], error: BaseException) -> str:
    """Give `error` to all `jobs`, and return its code."""
    for job in jobs:
        job.error = again(error)
    return error.code if isinstance(error, IncomingPaymentsError) else "internal_error"


def _finish(jobs: Sequence[Job], report: Reporter | None, outcome: str, began_s: float) -> None:
    """Give the outcome to the callers, and report the commit to the observer."""
    duration_s = time.perf_counter() - began_s
    for job in jobs:
        job.settle()
    if report is not None:
        with contextlib.suppress(BaseException):  # a `SystemExit` of the observer must not end this thread
            report(StoreBatch(size=len(jobs), outcome=outcome, duration_s=duration_s))


def _settle(settled: "asyncio.Future[None]") -> None:
    if not settled.done():  # the caller was cancelled
        settled.set_result(None)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_of_parents: list[object] = []  # what a fork has copied: a child must not touch the connections of its parent


def _after_fork_in_child() -> None:
    for engine in list(_engines):
        engine.after_fork_in_child()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows does not fork
    os.register_at_fork(after_in_child=_after_fork_in_child)

"""The durable default: payments in one SQLite file, for threads, for asyncio, and for several processes at once.

Write-ahead log, `synchronous=FULL`: an answer means the disk has it. One thread a store writes, many updates
to a commit.
"""

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from incoming_payments.domain.events import Event
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import NONCES_MAX, STORE_BUSY_S_MAX
from incoming_payments.ports import Decide
from incoming_payments.stores._sqlite_engine import Engine
from incoming_payments.stores._sqlite_file import DatabaseFile
from incoming_payments.stores._sqlite_rows import Asked, Batch, Rows
from incoming_payments.stores._sqlite_writer import DecideRaised, Job
from incoming_payments.stores.guard import check_insert, check_update

T = TypeVar("T")


class SqliteStore:
    """A `PaymentStore` in the SQLite file `path`, which is created or brought up to date when this is constructed.

    `busy_s` is how many seconds a call waits while another process holds the file, at most
    `limits.STORE_BUSY_S_MAX`.

    Every method may raise `StoreUnavailable` (too many calls waiting, locked for longer than `busy_s`, disk
    full or failing, file read-only): repeat the same call, service is back when the disk is. And
    `StoreUnusable`, at construction too: not a database, somebody else's, of a newer schema, damaged, or this
    store is closed. The constructor raises `ConfigurationError` for a path or `busy_s` that cannot be meant.

    A store opened before `os.fork` works in parent and child, each with a thread and connections of its own: the
    fork waits until none is in use. Keep the file on a local disk: locks of network file systems do not hold.

    >>> import tempfile
    >>> from incoming_payments.testing import a_creation
    >>> with tempfile.TemporaryDirectory() as directory, SqliteStore(f"{directory}/payments.db") as store:
    ...     created = a_creation()
    ...     store.insert(created)
    ...     store.load(created.answer.id) == created.answer
    True
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_s: float = STORE_BUSY_S_MAX) -> None:
        self._engine = _open(path, busy_s=busy_s)
        weakref.finalize(self, self._engine.close_unattended)

    def insert(self, decision: Decision[IncomingPayment]) -> None:
        """Store a new payment with its events. Raises `PaymentExists` when the id is taken."""
        self._write(_insertion(decision))

    def load(self, id: PaymentId) -> IncomingPayment:
        """The payment as last stored, by this process or another. Raises `PaymentNotFound`."""
        return self._engine.read(lambda rows: rows.payment(id))

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Load, decide and store as one transaction, and return the decision's answer when it is on the disk.

        `decide` runs in the thread that writes, so it must not call the store, and may be called more than
        once. Raises `PaymentNotFound`, and whatever `decide` raises.
        """
        return self._write(_updating(id, decide, credit_id), asks=(id, credit_id))

    def events(self, id: PaymentId) -> Sequence[Event]:
        """The events of one payment, oldest first. Raises `PaymentNotFound`."""
        return self._engine.read(lambda rows: rows.events(id))

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """At most `limit` payments that expired before `now` and were not announced, the longest expired first."""
        return self._engine.read(lambda rows: rows.expired(now, limit))

    @property
    def nonces(self) -> "SqliteNonces":
        """The `Nonces` port that remembers in this file, for all processes that open it."""
        return SqliteNonces(self)

    def close(self) -> None:
        """Finish what is queued and close the file. May be called again; anything else raises `StoreUnusable` then."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, work: Callable[[Batch], T], *, asks: Asked | None = None) -> T:
        job = Job(work, asks=asks)
        self._engine.submit(job)
        return job.wait()


class AsyncSqliteStore:
    """`SqliteStore` for asyncio: the same file, arguments and errors, and nothing that blocks the event loop.

    The constructor does block, for as long as it takes to create or check the file. One store may serve
    several loops. A cancelled call may happen all the same.
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_s: float = STORE_BUSY_S_MAX) -> None:
        self._engine = _open(path, busy_s=busy_s)
        weakref.finalize(self, self._engine.close_unattended)

    async def insert(self, decision: Decision[IncomingPayment]) -> None:
        """As `SqliteStore.insert`."""
        await self._write(_insertion(decision))

    async def load(self, id: PaymentId) -> IncomingPayment:
        """As `SqliteStore.load`."""
        return await self._read(lambda rows: rows.payment(id))

    async def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """As `SqliteStore.update`; `decide` runs in the thread that writes, not in the event loop's."""
        return await self._write(_updating(id, decide, credit_id), asks=(id, credit_id))

    async def events(self, id: PaymentId) -> Sequence[Event]:
        """As `SqliteStore.events`."""
        return await self._read(lambda rows: rows.events(id))

    async def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """As `SqliteStore.find_expired`."""
        return await self._read(lambda rows: rows.expired(now, limit))

    @property
    def nonces(self) -> "AsyncSqliteNonces":
        """As `SqliteStore.nonces`."""
        return AsyncSqliteNonces(self)

    async def close(self) -> None:
        """As `SqliteStore.close`."""
        await asyncio.to_thread(self._engine.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _write(self, work: Callable[[Batch], T], *, asks: Asked | None = None) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._engine.submit(Job(work, future, asks=asks))
        return future

    async def _read(self, query: Callable[[Rows], T]) -> T:
        return await asyncio.wrap_future(self._engine.read_elsewhere(query))


class SqliteNonces:
    """A `Nonces` port in the file of `store`, which it keeps open; the processes on that file agree.

    It holds at most `capacity` keys and refuses more with `StoreUnavailable`. Raises `InvalidValue` for less than one.

    >>> import tempfile
    >>> from incoming_payments.testing import NOW
    >>> with tempfile.TemporaryDirectory() as directory, SqliteStore(f"{directory}/payments.db") as store:
    ...     [store.nonces.use("0" * 64, NOW, NOW) for _ in range(2)]
    [True, False]
    """

    def __init__(self, store: SqliteStore, capacity: int = NONCES_MAX) -> None:
        self._store = store
        self._capacity = _checked_capacity(capacity)

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Whether `key` is used for the first time; `True` when that is on the disk. Raises as the store does."""
        return self._store._write(_using(key, until, now, self._capacity))  # noqa: SLF001 - a part of the store


class AsyncSqliteNonces:
    """`SqliteNonces` for asyncio, in the file of an `AsyncSqliteStore`."""

    def __init__(self, store: AsyncSqliteStore, capacity: int = NONCES_MAX) -> None:
        self._store = store
        self._capacity = _checked_capacity(capacity)

    async def use(self, key: str, until: datetime, now: datetime) -> bool:
        """As `SqliteNonces.use`."""
        return await self._store._write(_using(key, until, now, self._capacity))  # noqa: SLF001 - a part of the store


def _checked_capacity(capacity: int) -> int:
    if capacity < 1:
        raise InvalidValue("capacity is how many keys are held: at least 1", member="capacity")
    return capacity


def _using(key: str, until: datetime, now: datetime, capacity: int) -> Callable[[Batch], bool]:
    return lambda rows: rows.use_nonce(key, until, now, capacity)


def _open(path: str | os.PathLike[str], *, busy_s: float) -> Engine:
    return Engine(DatabaseFile(path, busy_s=busy_s))


def _insertion(decision: Decision[Any]) -> Callable[[Batch], None]:
    payment = check_insert(decision)
    return lambda rows: rows.insert(payment, decision)


def _updating(id: PaymentId, decide: Decide[T], credit_id: CreditId | None) -> Callable[[Batch], T]:
    return partial(_update, id, decide, credit_id)


def _update(id: PaymentId, decide: Decide[T], credit_id: CreditId | None, rows: Batch) -> T:
    before = rows.payment(id)
    earlier = None if credit_id is None else rows.credit(before, credit_id)
    try:
        decision = decide(before, earlier)
    except BaseException as error:
        raise DecideRaised(error) from error
    after = check_update(before, credit_id, earlier, decision)
    if after is not None:
        rows.update(before, after, decision)
    return decision.answer

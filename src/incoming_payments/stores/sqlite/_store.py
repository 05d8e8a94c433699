"""The stores on one SQLite file, for threads and for asyncio, and their nonces."""

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Self, TypeVar

from incoming_payments.domain.events import Event
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import ClientId, CreditId, IncomingPayment, PaymentId
from incoming_payments.limits import NONCES_DEFAULT, STORE_BUSY_S_MAX
from incoming_payments.observers.reporter import Reporter
from incoming_payments.ports import Decide, Observer
from incoming_payments.stores._references import checked_member
from incoming_payments.stores._reservations import Reservations
from incoming_payments.stores.guard import check_insert, check_update, checked_capacity
from incoming_payments.stores.sqlite._backup import back_up
from incoming_payments.stores.sqlite._engine import Engine
from incoming_payments.stores.sqlite._erasure import AsyncSqliteErasure, SqliteErasure
from incoming_payments.stores.sqlite._feed import AsyncSqliteFeed, SqliteFeed
from incoming_payments.stores.sqlite._file import DatabaseFile
from incoming_payments.stores.sqlite._keys import find_creation, insert_creation
from incoming_payments.stores.sqlite._list import Scan
from incoming_payments.stores.sqlite._queue import DecideRaised
from incoming_payments.stores.sqlite._quotas import AsyncSqliteQuotas, SqliteQuotas
from incoming_payments.stores.sqlite._reindex import begin_reindex, reindex
from incoming_payments.stores.sqlite._reservations import checks
from incoming_payments.stores.sqlite._rows import Batch, Rows
from incoming_payments.stores.sqlite._watch import OnStop

T = TypeVar("T")


class _Store:
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_s: float = STORE_BUSY_S_MAX,
        on_stop: OnStop | None = None,
        observer: Observer | None = None,
        reference: str | None = None,
    ) -> None:
        report = None if observer is None else Reporter(observer)
        self._file = DatabaseFile(path, busy_s=busy_s, on_stop=on_stop, reference=reference)
        self._engine = Engine(self._file, report)
        self._reservations = Reservations()
        weakref.finalize(self, self._engine.close, wait=False)

    @property
    def reference(self) -> str | None:
        """The member of the metadata by which `find_payments` finds payments, as it was when the database was opened.

        The member is `None` if the database indexes none, or does not index all payments yet.
        """
        return self._file.reference


class SqliteStore(_Store):
    """A `PaymentStore` in the SQLite file `path`, which the constructor creates when it does not exist.

    While another process locks the file, a call waits for at most `busy_s` seconds. The greatest allowed value is
    `limits.STORE_BUSY_S_MAX`. The log (`-wal`), the index of the log (`-shm`) and a lock file (`-lock`) are in the same
    directory as the database.

    Every method may raise:

    - `StoreUnavailable`: too many calls wait, the file is locked for longer than `busy_s`, or the disk is full or
      cannot be read. Repeat the same call later.
    - `StoreStopped`: a write to the disk failed, or the files were removed, replaced or shortened. After that, the
      store refuses every call, in every process that has the file open. End these processes and start again, and then
      repeat the call: its change may be on the disk. The store calls `on_stop` once with this error, in any thread,
      so that a program can end.
    - `StoreUnusable`: the file is not a database, belongs to another application, has another schema version, lacks a
      table or is damaged, or the store is closed.

    The constructor raises the same errors, and `ConfigurationError` for an invalid `path`, `busy_s` or `observer`. The
    observer gets a `StoreBatch` for each commit.

    `reference` names the member of the metadata by which `find_payments` finds payments, such as `externalRef`. In a
    new database, the first store that names a member decides for all processes. `None` accepts the member of the
    database. Another member raises `ConfigurationError`, until `reindex` has run.

    A store that is opened before `os.fork` works in both parent and child (see `_engine`). Keep the file on a local
    disk, because locks of network file systems are unreliable.

    >>> import tempfile
    >>> from incoming_payments.testing import a_creation
    >>> with tempfile.TemporaryDirectory() as directory, SqliteStore(f"{directory}/payments.db") as store:
    ...     created = a_creation()
    ...     store.insert(created)
    ...     store.load(created.answer.id) == created.answer
    True
    """

    async_class = "AsyncSqliteStore"

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Store a new payment with its events and its idempotency key, or return the earlier record of the key.

        Raises `PaymentExists` when a payment with this id exists, and `QuotaExceeded` when the `quotas` of this store
        counted the payment, but another process has stored the last one that the client may have.
        """
        return self._write(_insertion(decision, self._reservations))

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        """Return the record of the creation under `key` of `client`, or `None` if there is none or it has expired."""
        return self._engine.read(lambda rows: find_creation(rows, client, key, now))

    def load(self, id: PaymentId) -> IncomingPayment:
        """Return the payment as last stored, by this process or another. Raises `PaymentNotFound`."""
        return self._engine.read(lambda rows: rows.payment(id))

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Load, decide and store in one transaction, and return the decision's answer when it is on the disk.

        `decide` runs in the transaction, in the thread that writes. If the store repeats the transaction, it calls
        `decide` again. `decide` must not call the store: such a call raises `StoreUnavailable`. A signal handler must
        not call the store either, because the interrupted call may hold a lock. An interrupt, such as
        `KeyboardInterrupt`, ends the call, but not the update. The update may be committed before or after the
        interrupt, so repeat the call.

        Raises `PaymentNotFound`, and the exceptions of `decide`.
        """
        return self._write(partial(_update, id, decide, credit_id))

    def events(self, id: PaymentId) -> Sequence[Event]:
        """Return the events of one payment, oldest first. Raises `PaymentNotFound`."""
        return self._engine.read(lambda rows: rows.events(id))

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Return at most `limit` payments that expired before `now` and were not announced, longest expired first."""
        return self._engine.read(lambda rows: rows.expired(now, limit))

    def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        """Return the page that `query` describes, newest first.

        Usually, every page takes the same time, even far from the front of the list. If the query filters by state, or
        by client without a wallet address, a page can take longer, because the store skips the payments that do not
        match. The store then uses several reads, and returns a payment that changes between two reads only once.
        """
        scan = Scan(query)
        while not scan.is_done:
            self._engine.read(scan.read)
        return scan.page

    @property
    def nonces(self) -> "SqliteNonces":
        """The `Nonces` port that keeps its record in this file, for all processes that open the file."""
        return SqliteNonces(self)

    @property
    def feed(self) -> SqliteFeed:
        """The `Feed` port of the events in this file, for all processes that open the file."""
        return SqliteFeed(self, self._engine)

    def quotas(self, *, requests_per_minute: int | None = None, unpaid_payments: int | None = None) -> SqliteQuotas:
        """Return a `Quotas` port that counts in this file, for all processes that open the file.

        `None` means no quota. See `MemoryQuotas` for the quotas, and `SqliteQuotas` for the precision of the counts.
        Raises `ConfigurationError` for an invalid argument.
        """
        return SqliteQuotas(self, self._engine, self._reservations, requests_per_minute, unpaid_payments)

    @property
    def erasure(self) -> SqliteErasure:
        """The `Erasure` port of this file."""
        return SqliteErasure(self, self._engine)

    def reindex(self, reference: str | None) -> None:
        """Index the member `reference` of the metadata of all payments, or no member if `reference` is `None`.

        The method works in batches, so that other calls and processes continue. Until it has ended, no payment is found
        by its reference. A repeated call continues an interrupted one. Other processes index the new member for new
        payments. To find payments by it, they have to open the database again. Raises `ConfigurationError` for an
        invalid name.
        """
        checked = checked_member(reference)
        self._write(lambda rows: begin_reindex(rows, checked))
        while not self._write(reindex):
            pass
        self._file.reference = checked

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Write a copy of the database to the new file `target`, and read it back to verify it.

        The copy is one file. It holds all data that the store acknowledged before the call. The store works during the
        copy, but its log grows until the copy is complete. Never copy the files of an open database by other means.
        Such a copy in the same process also releases SQLite's locks, so commits are lost without an error. Raises
        `BackupFailed` when `target` exists or cannot be written, or when the data read back differs from the database.
        No new file is then left at `target`.
        """
        self._engine.read(lambda rows: back_up(rows.connection, target, self._engine.check_answer))

    def close(self) -> None:
        """Finish the queued updates and close the file. Every later call except `close` raises `StoreUnusable`."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, work: Callable[[Batch], T]) -> T:
        return self._engine.write(work)


class AsyncSqliteStore(_Store):
    """`SqliteStore` for asyncio: the same file, arguments and errors.

    The constructor waits for the disk in the thread of the event loop. While the disk is fast, `load` waits in this
    thread too. Slow loads and all other calls wait in other threads. One store may serve several loops. A cancelled
    call may still be committed.
    """

    async def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Await the result of `SqliteStore.insert`."""
        return await self._write(_insertion(decision, self._reservations))

    async def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        """Await the result of `SqliteStore.find_creation`."""
        return await self._read(lambda rows: find_creation(rows, client, key, now))

    async def load(self, id: PaymentId) -> IncomingPayment:
        """Await the result of `SqliteStore.load`."""
        query = partial(_load, id)
        # A read in the thread of the loop saves a third of the processor time of a signed get
        # (docs/reports/speed.md).
        payment = self._engine.read_at_once(query)
        return await self._read(query) if payment is None else payment

    async def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Await the result of `SqliteStore.update`."""
        return await self._write(partial(_update, id, decide, credit_id))

    async def events(self, id: PaymentId) -> Sequence[Event]:
        """Await the result of `SqliteStore.events`."""
        return await self._read(lambda rows: rows.events(id))

    async def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Await the result of `SqliteStore.find_expired`."""
        return await self._read(lambda rows: rows.expired(now, limit))

    async def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        """Await the result of `SqliteStore.find_payments`."""
        scan = Scan(query)
        while not scan.is_done:
            await self._read(scan.read)
        return scan.page

    @property
    def nonces(self) -> "AsyncSqliteNonces":
        """See `SqliteStore.nonces`."""
        return AsyncSqliteNonces(self)

    @property
    def feed(self) -> AsyncSqliteFeed:
        """See `SqliteStore.feed`."""
        return AsyncSqliteFeed(self, self._engine)

    def quotas(
        self, *, requests_per_minute: int | None = None, unpaid_payments: int | None = None
    ) -> AsyncSqliteQuotas:
        """See `SqliteStore.quotas`."""
        return AsyncSqliteQuotas(self, self._engine, self._reservations, requests_per_minute, unpaid_payments)

    @property
    def erasure(self) -> AsyncSqliteErasure:
        """See `SqliteStore.erasure`."""
        return AsyncSqliteErasure(self, self._engine)

    async def reindex(self, reference: str | None) -> None:
        """Await the result of `SqliteStore.reindex`."""
        checked = checked_member(reference)
        await self._write(lambda rows: begin_reindex(rows, checked))
        while not await self._write(reindex):
            pass
        self._file.reference = checked

    async def backup(self, target: str | os.PathLike[str]) -> None:
        """Await the result of `SqliteStore.backup`, which runs in another thread."""
        await self._read(lambda rows: back_up(rows.connection, target, self._engine.check_answer))

    async def close(self) -> None:
        """Await the result of `SqliteStore.close`."""
        await asyncio.to_thread(self._engine.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _write(self, work: Callable[[Batch], T]) -> "asyncio.Future[T]":
        return self._engine.write_in_loop(work)

    async def _read(self, query: Callable[[Rows], T]) -> T:
        return await self._engine.read_in_loop(query)


class SqliteNonces:
    """A `Nonces` port in the file of `store`. The port keeps the store open.

    All processes that open the file share the nonces. The file holds at most `capacity` keys. A further key raises
    `StoreUnavailable`. Raises `InvalidValue` for a capacity below one.
    """

    async_class = "the nonces of an AsyncSqliteStore"

    def __init__(self, store: SqliteStore, capacity: int = NONCES_DEFAULT) -> None:
        self._store = store
        self._capacity = checked_capacity(capacity)

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Write `key` to the disk, and return whether it is used for the first time.

        Raises the errors of the store.
        """
        return self._store._write(lambda rows: rows.use_nonce(key, until, now, self._capacity))  # noqa: SLF001


class AsyncSqliteNonces:
    """`SqliteNonces` for asyncio, in the file of an `AsyncSqliteStore`."""

    def __init__(self, store: AsyncSqliteStore, capacity: int = NONCES_DEFAULT) -> None:
        self._store = store
        self._capacity = checked_capacity(capacity)

    async def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Await the result of `SqliteNonces.use`."""
        return await self._store._write(lambda rows: rows.use_nonce(key, until, now, self._capacity))  # noqa: SLF001


def _load(id: PaymentId, rows: Rows) -> IncomingPayment:
    return rows.payment(id)


def _insertion(decision: Decision[Any], reservations: Reservations) -> Callable[[Batch], KeyedCreation | None]:
    payment = check_insert(decision)
    check = checks(reservations, payment)
    return lambda rows: insert_creation(rows, payment, decision, check)


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

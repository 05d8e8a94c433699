"""The stores on a PostgreSQL database, for threads and for asyncio, and their nonces."""

import asyncio
import time
import weakref
from collections.abc import Hashable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Final, Self, TypeVar

import psycopg

from incoming_payments.domain.events import Event
from incoming_payments.domain.feed import Delivery, LeasedDelivery
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import ClientId, CreditId, IncomingPayment, PaymentId
from incoming_payments.limits import NONCES_DEFAULT, STORE_CONNECTIONS_DEFAULT
from incoming_payments.observers.reporter import Reporter
from incoming_payments.ports import Decide, Observer
from incoming_payments.stores._references import checked_member
from incoming_payments.stores._reservations import Reservations
from incoming_payments.stores._rows import Row
from incoming_payments.stores.guard import check_insert, checked_capacity
from incoming_payments.stores.postgres import _operations as operations
from incoming_payments.stores.postgres._engine import AsyncEngine, Engine, Settings
from incoming_payments.stores.postgres._erasure import AsyncPostgresErasure, PostgresErasure
from incoming_payments.stores.postgres._feed import AsyncPostgresFeed, PostgresFeed
from incoming_payments.stores.postgres._list import Scan
from incoming_payments.stores.postgres._nonces import use_nonce
from incoming_payments.stores.postgres._quotas import AsyncPostgresQuotas, PostgresQuotas
from incoming_payments.stores.postgres._reindex import PAUSE_S, begin_reindex, find_running, is_quiet, reindex
from incoming_payments.stores.postgres._session import BEGIN_READ_COMMITTED, checked_connections, connection_string
from incoming_payments.stores.postgres._steps import Operation
from incoming_payments.stores.postgres._unpaid import UnpaidCheck
from incoming_payments.stores.postgres._watchers import Watchers

T = TypeVar("T")
_INSERTS_WAITING_MIN: Final = (
    8  # inserts of one client that may wait for each other; each occupies a thread of the host
)


def _settings(
    conninfo: str, connections: int, prepares: bool, observer: Observer | None, reference: str | None
) -> Settings:
    return Settings(
        conninfo=connection_string(conninfo),
        connections=checked_connections(connections),
        prepares=prepares,
        reference=checked_member(reference),
        report=None if observer is None else Reporter(observer),
    )


class PostgresStore:
    """A `PaymentStore` in the PostgreSQL database `conninfo`, for threads and any number of processes.

    Run `migrate` first, which creates the tables. `conninfo` is a connection string or a URL of PostgreSQL. With
    several hosts, the store connects to the one that accepts writes.

    The store has at most `connections` connections, and as many threads. Updates of different payments run in parallel
    on different connections. While an update of a payment is in flight, later updates of this payment in this process
    wait, and then share a transaction and its commit.

    If `prepares` is true, the server parses each statement once for each connection. Set it to false behind a pooler in
    transaction mode that does not support prepared statements, such as pgbouncer before 1.21.

    Every method may raise:

    - `StoreUnavailable`: the server does not answer, a row is locked for longer than `limits.STORE_BUSY_S_MAX` seconds,
      too many calls wait, or the outcome of a commit is unknown. Repeat the same call later.
    - `StoreUnusable`: the tables are missing or have another version, a row is damaged, the role lacks rights, or the
      store is closed.

    The constructor raises the same errors, and `ConfigurationError` for an invalid argument. The observer gets a
    `StoreBatch` for each commit of updates.

    `reference` names the member of the metadata by which `find_payments` finds payments, such as `externalRef`. In a
    new database, the first store that names a member decides for all processes. `None` accepts the member of the
    database. Another member raises `ConfigurationError`, until `reindex` has run.
    """

    async_class = "AsyncPostgresStore"

    def __init__(
        self,
        conninfo: str,
        *,
        connections: int = STORE_CONNECTIONS_DEFAULT,
        prepares: bool = True,
        observer: Observer | None = None,
        reference: str | None = None,
    ) -> None:
        self._reservations = Reservations()
        self._engine = Engine(_settings(conninfo, connections, prepares, observer, reference))
        self._inserts_waiting_max = max(_INSERTS_WAITING_MIN, connections // 2)
        weakref.finalize(self, self._engine.close, wait=False)

    @property
    def reference(self) -> str | None:
        """The member of the metadata by which `find_payments` finds payments, as it was when the store was opened.

        The member is `None` if the database indexes none, or does not index all payments yet.
        """
        return self._engine.reference

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Store a new payment with its events and its idempotency key, or return the earlier record of the key.

        Raises `PaymentExists` when a payment with this id exists, and `QuotaExceeded` when the `quotas` of this store
        have reserved the payment, and its client has too many unpaid payments.
        """
        turn, operation = _insertion(decision, self._reservations, self._engine.watchers)
        if turn is None:
            return self._engine.run(operation)
        return self._engine.run_in_turn(turn, operation, waiting_max=self._inserts_waiting_max)

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        """Return the record of the creation under `key` of `client`, or `None` if there is none or it has expired."""
        return self._engine.run(operations.find_creation(client, key, now))

    def load(self, id: PaymentId) -> IncomingPayment:
        """Return the payment as last stored, by this process or another. Raises `PaymentNotFound`."""
        return self._engine.run(operations.load(id))

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Load, decide and store in one transaction, and return the decision's answer when it is durable.

        `decide` runs in the transaction, in a thread of the store, when the payment is locked. If the store repeats the
        transaction, it calls `decide` again. `decide` must not call the store: such a call raises `StoreUnavailable`.
        An interrupt, such as `KeyboardInterrupt`, ends the call, but not the update. The update may be committed before
        or after the interrupt, so repeat the call.

        Raises `PaymentNotFound`, and the exceptions of `decide`.
        """
        return self._engine.update(id, decide, credit_id)

    def events(self, id: PaymentId) -> Sequence[Event]:
        """Return the events of one payment, oldest first. Raises `PaymentNotFound`."""
        return self._engine.run(operations.read_events(id))

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Return at most `limit` payments that expired before `now` and were not announced, longest expired first."""
        return self._engine.run(operations.find_expired(now, limit))

    def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        """Return the page that `query` describes, newest first.

        Usually, every page takes the same time, even far from the front of the list. If the query filters by state, or
        by client without a wallet address, a page can take longer, because the store skips the payments that do not
        match. The store then uses several transactions.
        """
        scan = Scan(query)
        while not scan.is_done:
            self._engine.run(scan.read())
        return scan.page

    @property
    def nonces(self) -> "PostgresNonces":
        """The `Nonces` port that keeps its record in this database, for all processes."""
        return PostgresNonces(self)

    @property
    def feed(self) -> PostgresFeed:
        """The `Feed` port of the events in this database, for all processes."""
        return PostgresFeed(self, self._engine)

    def acknowledging(self, delivery: Delivery | LeasedDelivery) -> AbstractContextManager[psycopg.Connection[Row]]:
        """Acknowledge `delivery` in one transaction with your own tables in this database.

        The context manager locks the delivery, and returns a connection of psycopg in a READ COMMITTED transaction.
        The end of the block settles the delivery and commits. An exception in the block rolls everything back, and the
        lease stays as it is. Let a handler write in the block, and then return `Acknowledged()`.

        `commit` and `rollback` of the connection raise `psycopg.ProgrammingError`. `connection.transaction()` sets a
        savepoint. The server ends the transaction after `limits.STORE_STATEMENT_S_MAX` seconds in one statement, or
        between two. The block occupies one of the `connections` of the store, and must not call the store.

        Raises `LeaseLost` before the block if the delivery no longer has this lease. Raises `StoreUnavailable` if the
        commit fails, or if its outcome is unknown. Then handle the delivery again. This is safe, because a delivery
        that is already acknowledged raises `LeaseLost`. A deferred constraint of your tables raises the error of
        psycopg.
        """
        return self._engine.acknowledging(delivery)

    def quotas(self, *, requests_per_minute: int | None = None, unpaid_payments: int | None = None) -> PostgresQuotas:
        """Return a `Quotas` port that counts in this database, for all processes.

        `None` means no quota. See `MemoryQuotas` for the quotas, and `PostgresQuotas` for the precision of the counts.
        Raises `ConfigurationError` for an invalid argument.
        """
        return PostgresQuotas(self, self._engine, self._reservations, requests_per_minute, unpaid_payments)

    @property
    def erasure(self) -> PostgresErasure:
        """The `Erasure` port of this database."""
        return PostgresErasure(self, self._engine)

    def reindex(self, reference: str | None) -> None:
        """Index the member `reference` of the metadata of all payments, or no member if `reference` is `None`.

        The method works in batches, so that other calls and processes continue. It first waits for the transactions
        that run when it is called. Until it has ended, no payment is found by its reference. A repeated call continues
        an interrupted one. Other processes index the new member for new payments. To find payments by it, they have to
        open their stores again. Raises `ConfigurationError` for an invalid name.
        """
        checked = checked_member(reference)
        self._engine.run(begin_reindex(checked))
        running = self._engine.run(find_running())
        while not self._engine.run(is_quiet(running)):
            time.sleep(PAUSE_S)
        while not self._engine.run(reindex()):
            pass
        self._engine.reference = checked

    def close(self) -> None:
        """Finish the waiting updates, and close the connections. Every later call raises `StoreUnusable`."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncPostgresStore:
    """`PostgresStore` for asyncio: the same database, arguments and errors.

    The store connects at the first call, which raises what the constructor of `PostgresStore` raises. One store serves
    one event loop, and raises `StoreUnusable` in another. A cancelled call may still be committed.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        connections: int = STORE_CONNECTIONS_DEFAULT,
        prepares: bool = True,
        observer: Observer | None = None,
        reference: str | None = None,
    ) -> None:
        self._reservations = Reservations()
        self._engine = AsyncEngine(_settings(conninfo, connections, prepares, observer, reference))

    @property
    def reference(self) -> str | None:
        """See `PostgresStore.reference`. Before the first call, this is the argument of the constructor."""
        return self._engine.reference

    async def open(self) -> None:
        """Connect, and check the database. Raises what the constructor of `PostgresStore` raises."""
        await self._engine.open()

    async def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Await the result of `PostgresStore.insert`."""
        turn, operation = _insertion(decision, self._reservations, self._engine.watchers)
        return await (self._engine.run(operation) if turn is None else self._engine.run_in_turn(turn, operation))

    async def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        """Await the result of `PostgresStore.find_creation`."""
        return await self._engine.run(operations.find_creation(client, key, now))

    async def load(self, id: PaymentId) -> IncomingPayment:
        """Await the result of `PostgresStore.load`."""
        return await self._engine.run(operations.load(id))

    async def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Await the result of `PostgresStore.update`. `decide` runs in the event loop."""
        return await self._engine.update(id, decide, credit_id)

    async def events(self, id: PaymentId) -> Sequence[Event]:
        """Await the result of `PostgresStore.events`."""
        return await self._engine.run(operations.read_events(id))

    async def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Await the result of `PostgresStore.find_expired`."""
        return await self._engine.run(operations.find_expired(now, limit))

    async def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        """Await the result of `PostgresStore.find_payments`."""
        scan = Scan(query)
        while not scan.is_done:
            await self._engine.run(scan.read())
        return scan.page

    @property
    def nonces(self) -> "AsyncPostgresNonces":
        """See `PostgresStore.nonces`."""
        return AsyncPostgresNonces(self)

    @property
    def feed(self) -> AsyncPostgresFeed:
        """See `PostgresStore.feed`."""
        return AsyncPostgresFeed(self, self._engine)

    def acknowledging(
        self, delivery: Delivery | LeasedDelivery
    ) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Row]]:
        """Return an async context manager that does what `PostgresStore.acknowledging` does."""
        return self._engine.acknowledging(delivery)

    def quotas(
        self, *, requests_per_minute: int | None = None, unpaid_payments: int | None = None
    ) -> AsyncPostgresQuotas:
        """See `PostgresStore.quotas`."""
        return AsyncPostgresQuotas(self, self._engine, self._reservations, requests_per_minute, unpaid_payments)

    @property
    def erasure(self) -> AsyncPostgresErasure:
        """See `PostgresStore.erasure`."""
        return AsyncPostgresErasure(self, self._engine)

    async def reindex(self, reference: str | None) -> None:
        """Await the result of `PostgresStore.reindex`."""
        checked = checked_member(reference)
        await self._engine.run(begin_reindex(checked))
        running = await self._engine.run(find_running())
        while not await self._engine.run(is_quiet(running)):  # noqa: ASYNC110 - other processes end the transactions
            await asyncio.sleep(PAUSE_S)
        while not await self._engine.run(reindex()):
            pass
        self._engine.reference = checked

    async def close(self) -> None:
        """Await the result of `PostgresStore.close`."""
        await self._engine.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class PostgresNonces:
    """A `Nonces` port in the database of `store`. The port keeps the store open.

    All processes share the nonces. The database holds at most `capacity` keys, and some more when many calls come at
    once. A further key raises `StoreUnavailable`. Raises `InvalidValue` for a capacity below one.
    """

    async_class = "the nonces of an AsyncPostgresStore"

    def __init__(self, store: PostgresStore, capacity: int = NONCES_DEFAULT) -> None:
        self._store = store
        self._capacity = checked_capacity(capacity)

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Write `key`, and return whether it is used for the first time. Raises the errors of the store."""
        operation = use_nonce(key, until, now, self._capacity)
        return self._store._engine.run(operation, BEGIN_READ_COMMITTED)  # noqa: SLF001


class AsyncPostgresNonces:
    """`PostgresNonces` for asyncio, in the database of an `AsyncPostgresStore`."""

    def __init__(self, store: AsyncPostgresStore, capacity: int = NONCES_DEFAULT) -> None:
        self._store = store
        self._capacity = checked_capacity(capacity)

    async def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Await the result of `PostgresNonces.use`."""
        operation = use_nonce(key, until, now, self._capacity)
        return await self._store._engine.run(operation, BEGIN_READ_COMMITTED)  # noqa: SLF001


def _insertion(
    decision: Decision[IncomingPayment], reservations: Reservations, watchers: Watchers
) -> tuple[Hashable, Operation[KeyedCreation | None]]:
    """Return the turn of the insert, which names the row that it locks, and the operation.

    Without turns, the inserts of one client could occupy all connections while they wait for each other.
    """
    payment, keyed = check_insert(decision), decision.keyed
    unpaid = UnpaidCheck(reservations, payment)
    turn = ("client", payment.client) if unpaid.counts else keyed and ("key", keyed.client, keyed.key)
    return turn, operations.insert(payment, decision, unpaid, watchers.wake)

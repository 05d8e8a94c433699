"""The quotas of clients in one SQLite file, which all processes share."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from incoming_payments.domain.payment import ClientId, PaymentId, id_time
from incoming_payments.domain.quotas import MINUTE, RecentClients, check_quotas, excess_s, used_until
from incoming_payments.limits import QUOTA_CLIENTS_MAX, QUOTA_COUNTS_SWEPT_MAX, QUOTA_UNSENT_PERCENT_MAX
from incoming_payments.stores._rows import micros, time_of
from incoming_payments.stores.sqlite._engine import Engine
from incoming_payments.stores.sqlite._queue import Job
from incoming_payments.stores.sqlite._reservations import Reservations, unpaid_payments
from incoming_payments.stores.sqlite._rows import Batch, Rows

_SELECT: Final = "SELECT full_at FROM request_counts WHERE client = ?"
_REPLACE: Final = "INSERT OR REPLACE INTO request_counts (client, full_at) VALUES (?, ?)"
_SWEEP: Final = (
    "DELETE FROM request_counts WHERE client IN "
    "(SELECT client FROM request_counts WHERE full_at < ? ORDER BY full_at LIMIT ?)"
)

Send = Callable[[Callable[[Batch], None]], None]


class _Usage:
    """The requests of one client, as this process knows them. `unsent` are not in the file yet."""

    def __init__(self) -> None:
        self.full_at: datetime | None = None
        self.unsent = 0


class _Requests:
    """The requests of each client in a minute. Thread-safe.

    A process counts in memory. It exchanges counts with the other processes through the file: with the first request of
    a client, and then once for each `limits.QUOTA_UNSENT_PERCENT_MAX` percent of the quota. No request waits for this
    exchange. So the processes together may admit more requests than the quota. `full_at` in the file keeps the excess
    as a debt: the client has to wait longer afterwards, so the rate over a longer time does not exceed the quota.
    """

    def __init__(self, quota: int, send: Send) -> None:
        self._share = MINUTE / quota
        self._unsent_max = max(1, quota * QUOTA_UNSENT_PERCENT_MAX // 100)
        self._send = send
        self._lock = threading.Lock()
        self._used = RecentClients(_Usage, QUOTA_CLIENTS_MAX)

    def admit(self, client: ClientId, now: datetime) -> float | None:
        """Count a request and return `None`, or return the seconds until a request can succeed."""
        with self._lock:
            usage = self._used.of(client)
            is_new = usage.full_at is None
            usage.full_at = used_until(usage.full_at, now, debt=MINUTE)
            wait_s = excess_s(usage.full_at, now, self._share)
            if wait_s > 0:
                return wait_s
            usage.full_at += self._share
            usage.unsent += 1
            if not is_new and usage.unsent < self._unsent_max:
                return None
            count, usage.unsent = usage.unsent, 0
        self._send(partial(self._exchange, client, count, now))
        return None

    def _exchange(self, client: ClientId, count: int, now: datetime, rows: Batch) -> None:
        """Add `count` requests to the file, and learn of the requests that other processes have added."""
        row = rows.connection.execute(_SELECT, (client,)).fetchone()
        full_at = used_until(time_of(row[0]) if row else None, now, debt=MINUTE) + count * self._share
        rows.connection.execute(_REPLACE, (client, micros(full_at)))
        rows.connection.execute(_SWEEP, (micros(now), QUOTA_COUNTS_SWEPT_MAX))
        with self._lock:
            usage = self._used.of(client)
            usage.full_at = max(usage.full_at or full_at, full_at + usage.unsent * self._share)


class _Quotas(ABC):
    def __init__(
        self,
        store: object,
        engine: Engine,
        reservations: Reservations,
        requests_per_minute: int | None,
        unpaid_payments: int | None,
    ) -> None:
        check_quotas(requests_per_minute, unpaid_payments)
        self._store = store  # the engine is closed with the store
        self._engine = engine
        self._reservations = reservations
        self._unpaid_max = unpaid_payments
        self._requests = None if requests_per_minute is None else _Requests(requests_per_minute, self._send)

    @abstractmethod
    def _send(self, work: Callable[[Batch], None]) -> None:
        """Queue `work` for the writer, and do not wait for it."""

    def _admit(self, client: ClientId, now: datetime) -> float | None:
        return None if self._requests is None else self._requests.admit(client, now)


class SqliteQuotas(_Quotas):
    """The `Quotas` port of `SqliteStore.quotas`. The port keeps the store open.

    All processes that open the file share the quotas. Give each of them the same quotas.

    - Unpaid payments are counted exactly. `insert` of the store raises `QuotaExceeded` if another process has used up
      the quota since `reserve` counted.
    - Each further process may exceed the quota of requests by 10 %, but at least by one request, and by the requests
      that arrive during a commit. The client has to wait longer for these requests afterwards. If a process is lost, up
      to 10 % of the quota is not counted.
    """

    async_class = "the quotas of an AsyncSqliteStore"

    def admit(self, client: ClientId, now: datetime) -> float | None:
        """Count a request and return `None`, or return the seconds until a request can succeed."""
        return self._admit(client, now)

    def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]:
        """Reserve the unpaid payment `id`, or return the unpaid payments that use up the quota, oldest first."""
        limit = self._unpaid_max
        if limit is None or self._reservations.reserve(client, id, limit):
            return ()
        stored = self._engine.read(_stored(client, id, limit))
        return self._reservations.reserve_beside(client, id, stored, limit)

    def release(self, client: ClientId, id: PaymentId) -> None:
        """End the reservation of `id`. A stored payment stays counted while it is unpaid."""
        self._reservations.take(client, id)

    def _send(self, work: Callable[[Batch], None]) -> None:
        self._engine.submit(Job(work))


class AsyncSqliteQuotas(_Quotas):
    """`SqliteQuotas` for asyncio, in the file of an `AsyncSqliteStore`."""

    async def admit(self, client: ClientId, now: datetime) -> float | None:
        """See `SqliteQuotas.admit`. The call never waits."""
        return self._admit(client, now)

    async def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]:
        """Await the result of `SqliteQuotas.reserve`."""
        limit = self._unpaid_max
        if limit is None or self._reservations.reserve(client, id, limit):
            return ()
        stored = await self._engine.read_in_loop(_stored(client, id, limit))
        return self._reservations.reserve_beside(client, id, stored, limit)

    async def release(self, client: ClientId, id: PaymentId) -> None:
        """See `SqliteQuotas.release`. The call never waits."""
        self._reservations.take(client, id)

    def _send(self, work: Callable[[Batch], None]) -> None:
        # A job of the loop is committed together with the nonce of the request.
        self._engine.write_in_loop(work).add_done_callback(_ignore)


def _stored(client: ClientId, id: PaymentId, limit: int) -> Callable[[Rows], Sequence[PaymentId]]:
    created_by = id_time(id) + timedelta(milliseconds=1)  # the time in an id is cut to milliseconds
    return lambda rows: unpaid_payments(rows, client, created_by, limit)


def _ignore(future: "asyncio.Future[Any]") -> None:
    """Ignore a failed commit, because the requests of the same time fail with the same error."""
    _ = future.cancelled() or future.exception()

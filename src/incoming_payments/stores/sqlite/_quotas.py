"""The quotas of clients in one SQLite file, which all processes share."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from incoming_payments.domain.payment import ClientId, PaymentId, id_time
from incoming_payments.domain.quotas import check_quotas, used_until
from incoming_payments.limits import QUOTA_COUNTS_SWEPT_MAX
from incoming_payments.stores._request_counts import DEBT, RequestCounts
from incoming_payments.stores._reservations import Reservations
from incoming_payments.stores._rows import micros, time_of
from incoming_payments.stores.sqlite._engine import Engine
from incoming_payments.stores.sqlite._queue import Job
from incoming_payments.stores.sqlite._reservations import unpaid_payments
from incoming_payments.stores.sqlite._rows import Batch, Rows

_SELECT: Final = "SELECT full_at FROM request_counts WHERE client = ?"
_REPLACE: Final = "INSERT OR REPLACE INTO request_counts (client, full_at) VALUES (?, ?)"
_SWEEP: Final = (
    "DELETE FROM request_counts WHERE client IN "
    "(SELECT client FROM request_counts WHERE full_at < ? ORDER BY full_at LIMIT ?)"
)


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
        self._requests = None if requests_per_minute is None else RequestCounts(requests_per_minute)

    @abstractmethod
    def _send(self, work: Callable[[Batch], None]) -> None:
        """Queue `work` for the writer, and do not wait for it."""

    def _admit(self, client: ClientId, now: datetime) -> float | None:
        if self._requests is None:
            return None
        wait_s, used = self._requests.admit(client, now)
        if used is not None:
            self._send(partial(_exchange, self._requests, client, used, now))
        return wait_s


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


def _exchange(requests: RequestCounts, client: ClientId, used: timedelta, now: datetime, rows: Batch) -> None:
    """Add requests to the file, and learn of the requests that other processes have added."""
    row = rows.connection.execute(_SELECT, (client,)).fetchone()
    full_at = used_until(time_of(row[0]) if row else None, now, debt=DEBT) + used
    rows.connection.execute(_REPLACE, (client, micros(full_at)))
    rows.connection.execute(_SWEEP, (micros(now), QUOTA_COUNTS_SWEPT_MAX))
    requests.learn(client, full_at)


def _stored(client: ClientId, id: PaymentId, limit: int) -> Callable[[Rows], Sequence[PaymentId]]:
    created_by = id_time(id) + timedelta(milliseconds=1)  # the time in an id is cut to milliseconds
    return lambda rows: unpaid_payments(rows, client, created_by, limit)


def _ignore(future: "asyncio.Future[Any]") -> None:
    """Ignore a failed commit, because the requests of the same time fail with the same error."""
    _ = future.cancelled() or future.exception()

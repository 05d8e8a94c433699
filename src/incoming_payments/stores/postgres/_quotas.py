"""The quotas of clients in one PostgreSQL database, which all processes share."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from incoming_payments.domain.payment import ClientId, PaymentId, id_time
from incoming_payments.domain.quotas import MINUTE, check_quotas
from incoming_payments.limits import QUOTA_COUNTS_SWEPT_MAX
from incoming_payments.stores._request_counts import DEBT, RequestCounts
from incoming_payments.stores._reservations import Reservations
from incoming_payments.stores._rows import micros, time_of
from incoming_payments.stores.postgres._engine import AsyncEngine, Engine
from incoming_payments.stores.postgres._session import BEGIN_READ_COMMITTED
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Result, at_once, statement
from incoming_payments.stores.postgres._unpaid import unpaid_payments

# The loss of some counts in a crash of the server admits a few requests more, which is less than a sync costs.
_WITHOUT_SYNC: Final = statement("SELECT set_config('synchronous_commit', 'off', true)")
# The rule of `domain.quotas.used_until`, and the time that the new requests add.
_ADD: Final = statement(
    "INSERT INTO incoming_payments.quota_clients AS old (client, full_at) VALUES (%s, %s) "
    "ON CONFLICT (client) DO UPDATE SET full_at = least(greatest(old.full_at, %s::bigint), %s::bigint) + %s::bigint "
    "RETURNING full_at"
)
_SWEEP: Final = statement(
    "DELETE FROM incoming_payments.quota_clients WHERE client IN (SELECT client FROM incoming_payments.quota_clients "
    "WHERE full_at < %s ORDER BY full_at LIMIT %s FOR UPDATE SKIP LOCKED)"
)
_MICROSECOND: Final = timedelta(microseconds=1)

AnyEngine = TypeVar("AnyEngine", Engine, AsyncEngine)


class _Quotas(Generic[AnyEngine]):
    def __init__(
        self,
        store: object,
        engine: AnyEngine,
        reservations: Reservations,
        requests_per_minute: int | None,
        unpaid_payments: int | None,
    ) -> None:
        check_quotas(requests_per_minute, unpaid_payments)
        self._store = store  # the engine is closed with the store
        self._engine: AnyEngine = engine
        self._reservations = reservations
        self._unpaid_max = unpaid_payments
        self._requests = None if requests_per_minute is None else RequestCounts(requests_per_minute)

    def _admit(self, client: ClientId, now: datetime) -> float | None:
        if self._requests is None:
            return None
        wait_s, used = self._requests.admit(client, now)
        if used is not None:
            self._engine.submit(_exchange(self._requests, client, used, now), BEGIN_READ_COMMITTED)
        return wait_s


class PostgresQuotas(_Quotas[Engine]):
    """The `Quotas` port of `PostgresStore.quotas`. The port keeps the store open.

    All processes share the quotas. Give each of them the same quotas.

    - Unpaid payments are counted exactly. `insert` of the store raises `QuotaExceeded` if another process has inserted
      the last unpaid payment that a client may have, after `reserve` has counted. Inserts of one client wait for each
      other while they count.
    - Each further process may exceed the quota of requests by 10 %, but at least by one request, and by the requests
      that arrive before the counts are exchanged. The client has to wait longer for these requests afterwards. If a
      process is lost, up to 10 % of the quota is not counted. If the server is lost, the requests of the last second
      are not counted.
    """

    async_class = "the quotas of an AsyncPostgresStore"

    def admit(self, client: ClientId, now: datetime) -> float | None:
        """Count a request and return `None`, or return the seconds until a request can succeed."""
        return self._admit(client, now)

    def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]:
        """Reserve the unpaid payment `id`, or return the unpaid payments that use up the quota, oldest first."""
        limit = self._unpaid_max
        if limit is None or self._reservations.reserve(client, id, limit):
            return ()
        stored = self._engine.run(_stored(client, id, limit))
        return self._reservations.reserve_beside(client, id, stored, limit)

    def release(self, client: ClientId, id: PaymentId) -> None:
        """End the reservation of `id`. A stored payment stays counted while it is unpaid."""
        self._reservations.take(client, id)


class AsyncPostgresQuotas(_Quotas[AsyncEngine]):
    """`PostgresQuotas` for asyncio, in the database of an `AsyncPostgresStore`."""

    async def admit(self, client: ClientId, now: datetime) -> float | None:
        """See `PostgresQuotas.admit`. The call never waits."""
        return self._admit(client, now)

    async def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]:
        """Await the result of `PostgresQuotas.reserve`."""
        limit = self._unpaid_max
        if limit is None or self._reservations.reserve(client, id, limit):
            return ()
        stored = await self._engine.run(_stored(client, id, limit))
        return self._reservations.reserve_beside(client, id, stored, limit)

    async def release(self, client: ClientId, id: PaymentId) -> None:
        """See `PostgresQuotas.release`. The call never waits."""
        self._reservations.take(client, id)


def _stored(client: ClientId, id: PaymentId, limit: int) -> Operation[Sequence[PaymentId]]:
    created_by = id_time(id) + timedelta(milliseconds=1)  # the time in an id is cut to milliseconds
    return unpaid_payments(client, created_by, limit)


def _exchange(requests: RequestCounts, client: ClientId, used: timedelta, now: datetime) -> Operation[None]:
    """Add requests to the database, and learn of the requests that other processes have added."""
    at, most, added = micros(now), micros(now + MINUTE + DEBT), used // _MICROSECOND
    queries = [
        Query(_WITHOUT_SYNC),
        Query(_ADD, (client, at + added, at, most, added)),
        Query(_SWEEP, (at, QUOTA_COUNTS_SWEPT_MAX)),
    ]

    def answer(results: list[Result]) -> None:
        requests.learn(client, time_of(results[1].rows[0][0]))

    return lambda: at_once(Ending(queries, answer, writes=True))

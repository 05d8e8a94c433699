"""Acknowledge a delivery in one transaction with the tables of the host.

The transaction is that of `Feed.settle`. The block of the host runs between the statements that lock the delivery and
those that settle it. So the writes of the host and the acknowledgement are durable together, or not at all.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Final

import psycopg
from attrs import frozen
from psycopg.pq import TransactionStatus

from incoming_payments.domain.feed import Delivered, Delivery, LeasedDelivery
from incoming_payments.errors import LeaseLost
from incoming_payments.stores.postgres._connections import AsyncConnection, Connection, lent
from incoming_payments.stores.postgres._deliveries import settle
from incoming_payments.stores.postgres._drivers import AsyncPool, Pool, await_, complete, is_stale, wait
from incoming_payments.stores.postgres._errors import Attempts, explain
from incoming_payments.stores.postgres._session import BEGIN_READ_COMMITTED, check_writable, settings
from incoming_payments.stores.postgres._steps import Query, Result, Steps, advance, statement
from incoming_payments.stores.postgres._wire import AnyConnection, Waits, Wire

# The host's statements may need to read a whole table. `complete` sets the settings again.
_ALLOW_SCANS: Final = statement("SET LOCAL enable_seqscan TO DEFAULT")


@frozen
class Acknowledgement:
    """A delivery to acknowledge. After that, the store calls `wake` if the stream of the delivery is due again."""

    delivery: Delivery | LeasedDelivery
    wake: Callable[[], None]
    prepares: bool

    def begin(self, connection: AnyConnection, left_s: float) -> Waits["_Locked"]:
        """Begin the transaction and lock the delivery. Raises `LeaseLost`."""
        steps = settle(self.delivery, Delivered(), datetime.now(UTC), self.wake, in_turn=True)()
        queries = [Query(BEGIN_READ_COMMITTED), settings(left_s), *next(steps), Query(_ALLOW_SCANS)]
        wire = Wire(connection, prepares=self.prepares)
        try:
            results = yield from wire.exchange(queries)
        finally:
            wire.close()
        check_writable(results[1])
        locked = results[2:-1]
        if not all(result.rows for result in locked):
            raise LeaseLost(
                f"the lease of a delivery of payment {self.delivery.payment_id} to the consumer "
                f"{self.delivery.consumer} is lost: let this exception end the handler, because the delivery was "
                "settled, or will come again"
            )
        return _Locked(steps, locked)

    def end(self, connection: AnyConnection, locked: "_Locked") -> Waits[bool]:
        """Settle the delivery and commit."""
        move = advance(locked.steps, locked.results)
        return complete(connection, [], locked.steps, move, Attempts(), prepares=self.prepares)


@frozen
class _Locked:
    """The steps of the transaction after the lock, and the results of the lock."""

    steps: Steps[bool]
    results: list[Result]


@contextmanager
def acknowledging(pool: Pool, acknowledgement: Acknowledgement) -> Iterator[Connection]:
    """Yield a connection in the transaction of `acknowledgement`. See `PostgresStore.acknowledging`."""
    with ExitStack() as stack:
        connection, locked = _begin(pool, acknowledgement, stack)
        with lent(connection):
            yield connection
        _check_block(connection)
        try:
            wait(connection, acknowledgement.end(connection, locked))
        except psycopg.Error as error:
            if is_stale(error):
                pool.drain()
            raise _explained(error) from error


def _begin(pool: Pool, acknowledgement: Acknowledgement, stack: ExitStack) -> tuple[Connection, _Locked]:
    """Begin the transaction. `stack` returns the connection to the pool."""
    attempts = Attempts()
    while True:
        try:
            with ExitStack() as attempt:
                connection = attempt.enter_context(pool.connection(attempts.left_s))
                locked = wait(connection, acknowledgement.begin(connection, attempts.left_s))
                stack.push(attempt.pop_all())
                return connection, locked
        except psycopg.Error as error:
            if is_stale(error):
                pool.drain()
            pause_s = attempts.pause_after(error)
        time.sleep(pause_s)


@asynccontextmanager
async def aacknowledging(pool: AsyncPool, acknowledgement: Acknowledgement) -> AsyncIterator[AsyncConnection]:
    """Do for asyncio what `acknowledging` does for threads."""
    async with AsyncExitStack() as stack:
        connection, locked = await _abegin(pool, acknowledgement, stack)
        with lent(connection):
            yield connection
        _check_block(connection)
        try:
            await await_(connection, acknowledgement.end(connection, locked))
        except psycopg.Error as error:
            if is_stale(error):
                await pool.drain()
            raise _explained(error) from error


async def _abegin(
    pool: AsyncPool, acknowledgement: Acknowledgement, stack: AsyncExitStack
) -> tuple[AsyncConnection, _Locked]:
    attempts = Attempts()
    while True:
        try:
            async with AsyncExitStack() as attempt:
                connection = await attempt.enter_async_context(pool.connection(attempts.left_s))
                locked = await await_(connection, acknowledgement.begin(connection, attempts.left_s))
                stack.push_async_exit(attempt.pop_all())
                return connection, locked
        except psycopg.Error as error:
            if is_stale(error):
                await pool.drain()
            pause_s = attempts.pause_after(error)
        await asyncio.sleep(pause_s)


def _check_block(connection: AnyConnection) -> None:
    """Raise `psycopg.ProgrammingError` if the block has ended its transaction, or hidden the error of a statement."""
    status = connection.info.transaction_status
    if status is TransactionStatus.IDLE:
        raise psycopg.ProgrammingError(
            "the block has ended its transaction, and the delivery is not acknowledged: send neither COMMIT nor "
            "ROLLBACK, because the store ends the transaction"
        )
    if status is TransactionStatus.INERROR:
        raise psycopg.ProgrammingError(
            "the block has hidden the error of a statement, so the transaction was rolled back: let the exception "
            "pass, or use connection.transaction() around a statement that may fail"
        )


def _explained(error: psycopg.Error) -> Exception:
    """Return the error to raise. A deferred constraint of the host's tables may be violated at COMMIT."""
    return error if isinstance(error, psycopg.IntegrityError) else explain(error)

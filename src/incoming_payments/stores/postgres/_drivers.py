"""Run the operations of `_steps` in transactions, for threads and for asyncio.

BEGIN, the settings and the first queries are one message to the server, and the last queries and COMMIT another. If a
query fails, the server skips the rest of its message, so COMMIT never follows a failed query.

`wait` and `complete` also serve the transactions of `_acknowledging`.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Final, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from incoming_payments.stores.postgres._connections import AsyncConnection, Connection
from incoming_payments.stores.postgres._errors import Attempts, OutcomeUnknown, is_read_only
from incoming_payments.stores.postgres._session import BEGIN, COMMIT, check_writable, settings
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Statement, Steps, advance
from incoming_payments.stores.postgres._wire import AnyConnection, Overdue, Waits, Wire

T = TypeVar("T")
Pool = ConnectionPool[Connection]
AsyncPool = AsyncConnectionPool[AsyncConnection]
_CANCEL_S: Final = 2.0  # seconds to reach the server with the request to cancel a statement


def transact(pool: Pool, operation: Operation[T], *, prepares: bool, begin: Statement = BEGIN) -> T:
    """Return the answer of `operation` once it is durable. Raises its errors, and `StoreError`."""
    attempts = Attempts()
    while True:
        try:
            with pool.connection(attempts.left_s) as connection:
                return wait(connection, _run(connection, operation, begin, attempts, prepares=prepares))
        except (psycopg.Error, UnicodeError) as error:
            if is_stale(error):
                pool.drain()
            pause_s = attempts.pause_after(error)
        time.sleep(pause_s)


async def atransact(pool: AsyncPool, operation: Operation[T], *, prepares: bool, begin: Statement = BEGIN) -> T:
    """Await the answer of `operation`, as `transact` returns it."""
    attempts = Attempts()
    while True:
        try:
            async with pool.connection(attempts.left_s) as connection:
                return await await_(connection, _run(connection, operation, begin, attempts, prepares=prepares))
        except (psycopg.Error, UnicodeError) as error:
            if is_stale(error):
                await pool.drain()
            pause_s = attempts.pause_after(error)
        await asyncio.sleep(pause_s)


def wait(connection: Connection, exchanges: Waits[T]) -> T:
    """Return the result of `exchanges` on `connection`. Close the connection if an answer is overdue."""
    try:
        return connection.wait(exchanges)
    except Overdue:
        with contextlib.suppress(psycopg.Error):
            connection.cancel_safe(timeout=_CANCEL_S)
        connection.close()
        raise


async def await_(connection: AsyncConnection, exchanges: Waits[T]) -> T:
    """Await the result of `exchanges`, as `wait` returns it."""
    try:
        return await connection.wait(exchanges)
    except Overdue:
        with contextlib.suppress(psycopg.Error):
            await connection.cancel_safe(timeout=_CANCEL_S)
        await connection.close()
        raise


def is_stale(error: Exception) -> bool:
    """Return whether all connections may lead to a server that is not the primary any more, or is frozen."""
    return isinstance(error, Overdue) or is_read_only(error)


def _run(
    connection: AnyConnection, operation: Operation[T], begin: Statement, attempts: Attempts, *, prepares: bool
) -> Waits[T]:
    """Run `operation` in one transaction, and return its answer. Raises its errors, and `psycopg.Error`."""
    steps = operation()
    return (yield from complete(connection, [Query(begin)], steps, advance(steps), attempts, prepares=prepares))


def complete(
    connection: AnyConnection,
    first: Sequence[Query],
    steps: Steps[T],
    move: Sequence[Query] | Ending[T],
    attempts: Attempts,
    *,
    prepares: bool,
) -> Waits[T]:
    """Set the settings, run `steps` to their end, and commit. Return the answer.

    `first` are the queries before the settings, and `move` is what `steps` has yielded or returned last. Raises the
    errors of `steps`, and `psycopg.Error`.
    """
    warnings: list[str | None] = []

    def note(notice: psycopg.errors.Diagnostic) -> None:  # its values exist only during this call
        if notice.severity_nonlocalized == "WARNING":
            warnings.append(notice.message_primary)

    connection.add_notice_handler(note)
    wire = Wire(connection, prepares=prepares)
    try:
        queries = [*first, settings(attempts.left_s)]
        while not isinstance(move, Ending):
            results = yield from wire.exchange([*queries, *move])
            if queries:
                check_writable(results[len(first)])
            move = advance(steps, results[len(queries) :])
            queries = []
        attempts.refusals, attempts.may_be_committed = move.refusals, move.writes
        results = yield from wire.exchange([*queries, *move.queries, Query(COMMIT)])
        if queries:
            check_writable(results[len(first)])
        if warnings or results[-1].status != "COMMIT":
            # If the wait for the standby was cancelled, COMMIT succeeds with a warning.
            raise OutcomeUnknown(f"COMMIT ended with {results[-1].status} and the warnings {warnings}")
        return move.answer(results[len(queries) : -1])
    finally:
        wire.close()
        connection.remove_notice_handler(note)

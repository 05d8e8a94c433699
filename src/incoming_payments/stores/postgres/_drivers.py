"""Run the operations of `_steps` in transactions, for threads and for asyncio.

BEGIN, the settings and the first queries are one message to the server, and the last queries and COMMIT another. If a
query fails, the server skips the rest of its message, so COMMIT never follows a failed query.
"""

import asyncio
import contextlib
import time
from typing import Final, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from incoming_payments.stores._rows import Row
from incoming_payments.stores.postgres._errors import Attempts, OutcomeUnknown, is_read_only
from incoming_payments.stores.postgres._session import BEGIN, COMMIT, check_writable, settings
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Statement, advance
from incoming_payments.stores.postgres._wire import AnyConnection, Overdue, Waits, Wire

T = TypeVar("T")
Connection = psycopg.Connection[Row]
AsyncConnection = psycopg.AsyncConnection[Row]
Pool = ConnectionPool[Connection]
AsyncPool = AsyncConnectionPool[AsyncConnection]
_CANCEL_S: Final = 2.0  # seconds to reach the server with the request to cancel a statement


def transact(pool: Pool, operation: Operation[T], *, prepares: bool, begin: Statement = BEGIN) -> T:
    """Return the answer of `operation` once it is durable. Raises its errors, and `StoreError`."""
    attempts = Attempts()
    while True:
        try:
            with pool.connection(attempts.left_s) as connection:
                try:
                    return connection.wait(_run(connection, operation, begin, attempts, prepares=prepares))
                except Overdue:
                    with contextlib.suppress(psycopg.Error):
                        connection.cancel_safe(timeout=_CANCEL_S)
                    connection.close()
                    raise
        except (psycopg.Error, UnicodeError) as error:
            if _is_stale(error):
                pool.drain()
            pause_s = attempts.pause_after(error)
        time.sleep(pause_s)


async def atransact(pool: AsyncPool, operation: Operation[T], *, prepares: bool, begin: Statement = BEGIN) -> T:
    """Await the answer of `operation`, as `transact` returns it."""
    attempts = Attempts()
    while True:
        try:
            async with pool.connection(attempts.left_s) as connection:
                try:
                    return await connection.wait(_run(connection, operation, begin, attempts, prepares=prepares))
                except Overdue:
                    with contextlib.suppress(psycopg.Error):
                        await connection.cancel_safe(timeout=_CANCEL_S)
                    await connection.close()
                    raise
        except (psycopg.Error, UnicodeError) as error:
            if _is_stale(error):
                await pool.drain()
            pause_s = attempts.pause_after(error)
        await asyncio.sleep(pause_s)


def _is_stale(error: Exception) -> bool:
    """Return whether all connections may lead to a server that is not the primary any more, or is frozen."""
    return isinstance(error, Overdue) or is_read_only(error)


def _run(
    connection: AnyConnection, operation: Operation[T], begin: Statement, attempts: Attempts, *, prepares: bool
) -> Waits[T]:
    """Return the answer of `operation` from one transaction. Raises its errors, and `psycopg.Error`."""
    warnings: list[str | None] = []

    def note(notice: psycopg.errors.Diagnostic) -> None:  # its values exist only during this call
        if notice.severity_nonlocalized == "WARNING":
            warnings.append(notice.message_primary)

    connection.add_notice_handler(note)
    wire = Wire(connection, prepares=prepares)
    try:
        queries = [Query(begin), settings(attempts.left_s)]
        steps = operation()
        move = advance(steps)
        while not isinstance(move, Ending):
            results = yield from wire.exchange([*queries, *move])
            if queries:
                check_writable(results[1])
            move = advance(steps, results[len(queries) :])
            queries = []
        attempts.refusals, attempts.may_be_committed = move.refusals, move.writes
        results = yield from wire.exchange([*queries, *move.queries, Query(COMMIT)])
        if queries:
            check_writable(results[1])
        if warnings or results[-1].status != "COMMIT":
            # If the wait for the standby was cancelled, COMMIT succeeds with a warning.
            raise OutcomeUnknown(f"COMMIT ended with {results[-1].status} and the warnings {warnings}")
        return move.answer(results[len(queries) : -1])
    finally:
        wire.close()
        connection.remove_notice_handler(note)

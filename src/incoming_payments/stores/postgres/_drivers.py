"""Run the operations of `_steps` in transactions, for threads and for asyncio.

BEGIN, the settings and the first queries are one message to the server, and the last queries and COMMIT another. If a
query fails, the server skips the rest of its message, so COMMIT never follows a failed query.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from incoming_payments.stores._rows import Row
from incoming_payments.stores.postgres._errors import Attempts, OutcomeUnknown, is_read_only
from incoming_payments.stores.postgres._session import BEGIN, COMMIT, SETTINGS, check_writable, settings
from incoming_payments.stores.postgres._steps import Ending, Operation, Result, Statement, advance

T = TypeVar("T")
Connection = psycopg.Connection[Row]
AsyncConnection = psycopg.AsyncConnection[Row]
Pool = ConnectionPool[Connection]
AsyncPool = AsyncConnectionPool[AsyncConnection]
_COMMITTED: Final = "COMMIT"


def transact(pool: Pool, operation: Operation[T], begin: Statement = BEGIN) -> T:
    """Return the answer of `operation` once it is durable. Raises its errors, and `StoreError`."""
    attempts = Attempts()
    while True:
        try:
            with pool.connection(attempts.left_s) as connection:
                return _run(connection, operation, begin, attempts)
        except (psycopg.Error, UnicodeError) as error:
            pause_s = attempts.pause_after(error)
            if is_read_only(error):
                pool.drain()
        time.sleep(pause_s)


async def atransact(pool: AsyncPool, operation: Operation[T], begin: Statement = BEGIN) -> T:
    """Await the answer of `operation`, as `transact` returns it."""
    attempts = Attempts()
    while True:
        try:
            async with pool.connection(attempts.left_s) as connection:
                return await _arun(connection, operation, begin, attempts)
        except (psycopg.Error, UnicodeError) as error:
            pause_s = attempts.pause_after(error)
            if is_read_only(error):
                await pool.drain()
        await asyncio.sleep(pause_s)


def _run(connection: Connection, operation: Operation[T], begin: Statement, attempts: Attempts) -> T:
    """Return the answer of `operation` from one transaction. Raises `psycopg.Error`."""
    notices: list[psycopg.errors.Diagnostic] = []
    connection.add_notice_handler(notices.append)
    try:
        with connection.pipeline() as pipeline:
            connection.execute(begin)
            session = connection.execute(SETTINGS, settings(attempts.left_s))
            steps = operation()
            move = advance(steps)
            while not isinstance(move, Ending):
                cursors = [connection.execute(*query) for query in move]
                pipeline.sync()
                check_writable(session)
                move = advance(steps, [Result(_rows(cursor), cursor.rowcount) for cursor in cursors])
            attempts.refusals = move.refusals
            cursors = [connection.execute(*query) for query in move.queries]
            attempts.may_be_committed = move.writes
            commit = connection.execute(COMMIT)
        check_writable(session)
        _check_commit(commit.statusmessage, notices)
        return move.answer([Result(_rows(cursor), cursor.rowcount) for cursor in cursors])
    finally:
        connection.remove_notice_handler(notices.append)


async def _arun(connection: AsyncConnection, operation: Operation[T], begin: Statement, attempts: Attempts) -> T:
    """Await what `_run` returns."""
    notices: list[psycopg.errors.Diagnostic] = []
    connection.add_notice_handler(notices.append)
    try:
        async with connection.pipeline() as pipeline:
            await connection.execute(begin)
            session = await connection.execute(SETTINGS, settings(attempts.left_s))
            steps = operation()
            move = advance(steps)
            while not isinstance(move, Ending):
                cursors = [await connection.execute(*query) for query in move]
                await pipeline.sync()
                check_writable(session)
                move = advance(steps, [Result(await _arows(cursor), cursor.rowcount) for cursor in cursors])
            attempts.refusals = move.refusals
            cursors = [await connection.execute(*query) for query in move.queries]
            attempts.may_be_committed = move.writes
            commit = await connection.execute(COMMIT)
        check_writable(session)
        _check_commit(commit.statusmessage, notices)
        return move.answer([Result(await _arows(cursor), cursor.rowcount) for cursor in cursors])
    finally:
        connection.remove_notice_handler(notices.append)


def _rows(cursor: psycopg.Cursor[Row]) -> list[Row]:
    return cursor.fetchall() if cursor.description else []


async def _arows(cursor: psycopg.AsyncCursor[Row]) -> list[Row]:
    return await cursor.fetchall() if cursor.description else []


def _check_commit(status: str | None, notices: Sequence[psycopg.errors.Diagnostic]) -> None:
    """Raise `OutcomeUnknown` unless COMMIT succeeded without a warning.

    If the wait for the standby was cancelled, COMMIT succeeds with a warning.
    """
    warnings = [notice for notice in notices if notice.severity_nonlocalized == "WARNING"]
    if warnings or status != _COMMITTED:
        texts = [notice.message_primary for notice in warnings]
        raise OutcomeUnknown(f"COMMIT ended with {status}, and the warnings {texts}")

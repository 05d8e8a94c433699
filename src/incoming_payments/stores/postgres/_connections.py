"""The connections of the pools.

In the block of `acknowledging`, a host uses a connection in a transaction that the store ends.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from incoming_payments.stores._rows import Row


class Connection(psycopg.Connection[Row]):
    """A connection of psycopg. While it is lent to a host, `commit` and `rollback` raise `psycopg.ProgrammingError`."""

    is_lent = False

    def commit(self) -> None:
        """See `psycopg.Connection.commit`."""
        _check_not_lent(self)
        super().commit()

    def rollback(self) -> None:
        """See `psycopg.Connection.rollback`."""
        _check_not_lent(self)
        super().rollback()


class AsyncConnection(psycopg.AsyncConnection[Row]):
    """`Connection` for asyncio."""

    is_lent = False

    async def commit(self) -> None:
        """See `psycopg.AsyncConnection.commit`."""
        _check_not_lent(self)
        await super().commit()

    async def rollback(self) -> None:
        """See `psycopg.AsyncConnection.rollback`."""
        _check_not_lent(self)
        await super().rollback()


@contextmanager
def lent(connection: Connection | AsyncConnection) -> Iterator[None]:
    """Lend `connection` to a host."""
    connection.is_lent = True
    try:
        yield
    finally:
        connection.is_lent = False


def _check_not_lent(connection: Connection | AsyncConnection) -> None:
    if connection.is_lent:
        raise psycopg.ProgrammingError(
            "the store commits or rolls back this transaction at the end of the block: do not call commit or rollback; "
            "raise an exception to roll back"
        )

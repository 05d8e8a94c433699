"""SQLite stores that a test can break: the statements of their open connections fail from then on."""

import sqlite3
from typing import Any

from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore


class BreakableSqlite:
    """Keeps the connections that a store opens, so that `break_connections` can make their statements fail."""

    def __init__(self, store: SqliteStore | AsyncSqliteStore) -> None:
        self._connections: list[sqlite3.Connection] = []
        file: Any = store._engine._file
        open = file._open

        def keep(*arguments: Any, **settings: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = open(*arguments, **settings)
            self._connections.append(connection)
            return connection

        file._open = keep

    def break_connections(self) -> None:
        """Interrupt every statement of the connections that are open now. Later connections work."""
        for connection in self._connections:
            try:
                connection.set_progress_handler(lambda: 1, 1)
            except sqlite3.ProgrammingError:
                continue  # the store has closed it already

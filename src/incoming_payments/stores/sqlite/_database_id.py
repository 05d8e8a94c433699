"""The id of a database, which shows whether the log beside the database belongs to it.

SQLite applies each log that it finds beside a database. The log of another database would damage the database, for
example when a backup replaces the database and the old log stays. So each database has a random id, and each backup
gets a new one. The lock file holds the id of the database that the log belongs to.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

ID_BYTES: Final = 16
UNKNOWN: Final = b""

_CREATE: Final = "CREATE TABLE IF NOT EXISTS database_id (id BLOB NOT NULL) STRICT"
_INSERT: Final = "INSERT INTO database_id (id) VALUES (?)"
_SELECT: Final = "SELECT id FROM database_id"


def ensure_id(connection: sqlite3.Connection) -> bytes:
    """Return the id of the database. Create the id if the database has none."""
    with connection:  # commits or rolls back
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_CREATE)
        row = connection.execute(_SELECT).fetchone()
        if row is None:
            row = (os.urandom(ID_BYTES),)
            connection.execute(_INSERT, row)
    return bytes(row[0])


def renew_id(connection: sqlite3.Connection) -> None:
    """Write a new id to the database of `connection`, which is a copy of another database."""
    connection.execute(_CREATE)
    connection.execute("DELETE FROM database_id")
    connection.execute(_INSERT, (os.urandom(ID_BYTES),))


def has_id(path: Path, id: bytes) -> bool:
    """Return whether the database has `id`, or cannot be read without its log. This function does not change the log.

    This process must have no connection open, because this function would release the locks of that connection.
    """
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        try:
            return bool(connection.execute(_SELECT).fetchone() == (id,))
        except sqlite3.DatabaseError as error:
            # A process that was killed during a checkpoint may have written only half of a page. The log has the whole
            # page.
            return "no such table" not in str(error)

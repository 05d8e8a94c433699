"""The move of a database to PostgreSQL: a mark in the file, which makes every process refuse to write.

The mark is the schema version of the file. A process reads this version in each transaction that writes, and when it
opens the file. So the mark also stops processes that had the file open before, and those of other releases. The table
`moves` says where the rows go. Only a file that has begun a move has this table.
"""

import sqlite3
from pathlib import Path
from typing import Final, Literal

from attrs import frozen

from incoming_payments.errors import StoreUnusable
from incoming_payments.stores.sqlite._schema import VERSION

# The mark: this number is added to the version of the tables.
_MOVED: Final = 1_000_000
_CREATE: Final = (
    "CREATE TABLE IF NOT EXISTS moves (copy_id TEXT NOT NULL, target TEXT NOT NULL, "
    "state TEXT NOT NULL CHECK (state IN ('copying', 'complete', 'abandoned'))) STRICT"
)
_HAS_TABLE: Final = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'moves'"
_SELECT: Final = "SELECT copy_id, target, state FROM moves"


@frozen
class Move:
    """A move of this file to the database `target`, a URL without a password."""

    copy_id: str
    target: str
    state: Literal["copying", "complete", "abandoned"]


def is_moved(version: int) -> bool:
    """Return whether a file with this schema version refuses writes."""
    return version > _MOVED


def own_version(version: int) -> int:
    """Return the version of the tables in a file with the schema version `version`."""
    return version - _MOVED if is_moved(version) else version


def read_move(connection: sqlite3.Connection) -> Move | None:
    """Return the last move of the file, or `None` if there was none."""
    if not connection.execute(_HAS_TABLE).fetchone()[0]:
        return None
    row = connection.execute(_SELECT).fetchone()
    return None if row is None else Move(*row)


def write_move(connection: sqlite3.Connection, move: Move) -> None:
    """Store `move` in the transaction of the caller. The file accepts writes only if the move is abandoned."""
    connection.execute(_CREATE)
    connection.execute("DELETE FROM moves")
    connection.execute("INSERT INTO moves (copy_id, target, state) VALUES (?, ?, ?)", _row(move))
    version = VERSION if move.state == "abandoned" else _MOVED + VERSION
    connection.execute(f"PRAGMA user_version = {version}")


def _row(move: Move) -> tuple[str, str, str]:
    return move.copy_id, move.target, move.state


def moved(connection: sqlite3.Connection, path: Path) -> StoreUnusable:
    """Return the error for a file that is being moved, or was moved."""
    move = read_move(connection)
    if move is not None and move.state == "complete":
        return StoreUnusable(f"the payments of {path} were moved to {move.target}: open that database in its place")
    target = "PostgreSQL" if move is None else move.target
    return StoreUnusable(
        f"the payments of {path} are being copied to {target}, so the file refuses writes: complete the copy "
        "with `incoming-payments copy-to-postgres`, or abandon it with `--abandon`"
    )

"""Read a file that is being moved to PostgreSQL, and change its mark (see `_moves`)."""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Self

from incoming_payments.limits import STORE_BUSY_S_MAX
from incoming_payments.stores.sqlite._engine import Engine
from incoming_payments.stores.sqlite._file import DatabaseFile
from incoming_payments.stores.sqlite._moves import Move, read_move, write_move
from incoming_payments.stores.sqlite._rows import Batch, Rows


class MovingFile:
    """The file at `path`, whether it is being moved or not. Methods raise the errors of a store.

    At the end of a `with` block, a file that was moved loses its log, unless another store has it open. The audit and
    other programs can then read the file alone. `is_one_file` is true if the log is gone.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = DatabaseFile(path, busy_s=STORE_BUSY_S_MAX, may_be_moved=True)
        self._engine = Engine(self._file)
        self.path = self._file.path
        self.is_one_file = False

    def move(self) -> Move | None:
        """Return the last move of the file, or `None` if there was none."""
        return self._engine.read(lambda rows: read_move(rows.connection))

    def change(self, decide: Callable[[Move | None], Move]) -> Move:
        """Replace the last move by the result of `decide`, and return the result. Raises the errors of `decide`."""
        return self._engine.write(partial(_change, decide))

    def rows(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows of a `SELECT`."""

        def query(rows: Rows) -> list[tuple[Any, ...]]:
            return rows.connection.execute(statement, values).fetchall()

        return self._engine.read(query)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        move = self.move() if error is None else None
        self._engine.close()
        if move is not None and move.state == "complete":
            self.is_one_file = _leave_one_file(self.path)


def _change(decide: Callable[[Move | None], Move], rows: Batch) -> Move:
    before = read_move(rows.connection)
    after = decide(before)
    if after != before:
        write_move(rows.connection, after)
    return after


def _leave_one_file(path: Path) -> bool:
    """Remove the log of a database, and return true, unless a store or another program has the database open."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection, Path(f"{path}-lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            connection.execute("PRAGMA journal_mode = DELETE")
        except (BlockingIOError, sqlite3.OperationalError):  # the second error is that of another program
            return False
    return True

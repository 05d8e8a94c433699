"""Checkpoints copy the log into the database. The lock file shows which copied pages are known to be on the disk.

SQLite syncs the database only after it has copied the whole log. While a reader needs an older state, or another
process commits, a checkpoint copies a part, and the next checkpoint syncs both. A process that is killed in that sync
may have got its error. The next process would copy and sync the later part again, take the earlier one for synced, and
begin the log again. So a store that finds a sync of that kind unfinished stops. At the next start SQLite recovers the
log, and copies all of it again: see `_opening`.
"""

import fcntl
import sqlite3
from typing import NamedTuple

from incoming_payments.stores.sqlite._errors import explain
from incoming_payments.stores.sqlite._lock_file import Checkpoints
from incoming_payments.stores.sqlite._watch import FileWatch


class Copied(NamedTuple):
    """What a checkpoint has done."""

    frames: int  # of the log
    is_all: bool  # whether all of them are in the database and synced


class AnotherCopies(sqlite3.OperationalError):
    """Another process makes a checkpoint."""

    sqlite_errorcode = sqlite3.SQLITE_BUSY


def copy_log(connection: sqlite3.Connection, watch: FileWatch) -> Copied:
    """Copy the log into the database.

    The caller holds SQLite's write lock on another connection. SQLite has a mode that takes the lock itself. But while
    another process has the lock, that mode copies frames as well, and does not sync them.

    Raises `AnotherCopies`; any `sqlite3.Error`, after it has stopped the store if data may be lost; `StoreStopped` when
    a process was killed in a sync that an earlier checkpoint needs.
    """
    return _checkpoint(connection, watch, "PASSIVE")


def empty_log(connection: sqlite3.Connection, watch: FileWatch) -> Copied:
    """Copy the log into the database, and shorten it to nothing. Returns and raises as `copy_log`.

    SQLite takes the write lock.
    """
    return _checkpoint(connection, watch, "TRUNCATE")


def _checkpoint(connection: sqlite3.Connection, watch: FileWatch, mode: str) -> Copied:
    if watch.is_stopped:  # it writes nothing, also when it is closed
        raise watch.refusal()
    with open(watch.log_path, "rb", buffering=0) as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process; SQLite does not use this lock
        except BlockingIOError:
            raise AnotherCopies("another process copies the log into the database") from None
        if watch.is_open:
            watch.check_mark()  # now: the mark of a store that stops removes the state of the checkpoints
        before, after = watch.lock.checkpoints(), Checkpoints.COPIED
        if before is Checkpoints.SYNCING:
            raise watch.stop("a process was killed while it brought the database to the disk")
        watch.lock.write_checkpoints(Checkpoints.COPIED if before is Checkpoints.SYNCED else Checkpoints.SYNCING)
        try:
            busy, frames, copied = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            if not busy and frames == copied:
                after = Checkpoints.SYNCED
        except sqlite3.Error as error:
            explain(error, watch)
            raise
        finally:
            if not watch.is_stopped:  # otherwise the sync has failed, and the state must show it
                watch.lock.write_checkpoints(after)
    return Copied(frames, is_all=after is Checkpoints.SYNCED)

"""Checkpoints copy the log into the database. The lock file shows which copied pages are known to be on the disk.

SQLite syncs the database only after it has copied the whole log. While a reader needs an older state, a checkpoint
copies only a part of the log, and the next checkpoint syncs both parts. If the sync of both parts fails, the earlier
part may be lost, although the index of the log shows that part as copied. The system may have reported
this failure only to a process that was killed during that sync. Other processes would then read the old pages, or sync
only the later part and overwrite the log. So before each write and each answer, a store looks for an unfinished sync,
and stops if it finds one. While a sync is in progress, reads wait for its end. At the next start SQLite recovers the
log, and copies the whole log again (see `_opening`).
"""

import fcntl
import sqlite3
from typing import NamedTuple

from incoming_payments.stores.sqlite._errors import explain
from incoming_payments.stores.sqlite._lock_file import Checkpoints
from incoming_payments.stores.sqlite._watch import KILLED_IN_SYNC, FileWatch


class Copied(NamedTuple):
    """The result of a checkpoint."""

    frames: int  # the number of frames in the log
    is_all: bool  # whether all frames are in the database, and the database is synced


class AnotherCopies(sqlite3.OperationalError):
    """Another process makes a checkpoint."""

    sqlite_errorcode = sqlite3.SQLITE_BUSY


def copy_log(connection: sqlite3.Connection, watch: FileWatch) -> Copied:
    """Copy the log into the database.

    The caller must hold SQLite's write lock on another connection. SQLite has a checkpoint mode that takes the lock
    itself. But while another process has the lock, this mode copies frames and does not sync the copies.

    Raises `AnotherCopies` while another process makes a checkpoint. Raises `sqlite3.Error` for any other failure. If
    the failure means that data may be lost, the store stops first. Raises `StoreStopped` when a process was killed in a
    sync that an earlier checkpoint needs.
    """
    return _checkpoint(connection, watch, "PASSIVE")


def empty_log(connection: sqlite3.Connection, watch: FileWatch) -> Copied:
    """Copy the log into the database, and empty the log. Returns and raises the same as `copy_log`.

    SQLite takes the write lock. While another process has the lock, SQLite copies and syncs without the lock. If that
    sync failed, a transaction of the other process could use lost pages. So this function does nothing unless an
    earlier checkpoint has synced all pages that it has copied.
    """
    return _checkpoint(connection, watch, "TRUNCATE")


def _checkpoint(connection: sqlite3.Connection, watch: FileWatch, mode: str) -> Copied:
    with open(watch.log_path, "rb", buffering=0) as log:
        try:
            # The lock ends with the process. SQLite does not use this lock.
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AnotherCopies("another process is copying the log into the database") from None
        before, after = watch.lock.checkpoints(), Checkpoints.COPIED
        if watch.is_open:
            watch.check_mark()  # check the mark after reading the state, because a store that stops removes the state
        if before is Checkpoints.SYNCING:
            raise watch.stop(KILLED_IN_SYNC)
        if before is Checkpoints.COPIED and mode == "TRUNCATE":
            return Copied(0, is_all=False)
        during = Checkpoints.COPIED if before is Checkpoints.SYNCED else Checkpoints.SYNCING
        watch.lock.write_checkpoints(during)
        try:
            busy, frames, copied = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            if not busy and frames == copied:
                after = Checkpoints.SYNCED
        except sqlite3.Error as error:
            after = during  # keep this state if an interrupt ends `explain` before it has stopped the store
            explain(error, watch)
            after = Checkpoints.COPIED
            raise
        finally:
            if not watch.is_stopped:  # after a stop, the state must still show the failed sync
                watch.lock.write_checkpoints(after)
    return Copied(frames, is_all=after is Checkpoints.SYNCED)

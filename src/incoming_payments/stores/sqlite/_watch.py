"""Stop a store when its disk fails or its files change, before it acknowledges data that may not be on the disk.

The kernel reports a failed write once, and then treats the data as written. A second `fsync` succeeds, and every
process that reads the file gets the data from memory. So after a failed write or sync, no process can trust the file
until its contents are on the disk. The store follows these rules:

- After a failed write, sync or truncation the store stops. It refuses every call, and never writes again.
- The stop applies to every process that has the file open. Each process finds a mark in the lock file beside the
  database.
- The store also stops when one of its files is removed, replaced or shortened while it is open.
- Before its first answer, each process writes the log to the disk (see `_opening`).
- A checkpoint whose sync may be unfinished stops the store (see `_checkpoint`).
- A process that is killed in the middle of a commit leaves that commit in the log. The other processes do not see that
  commit, but a process that later recovers the log sees it. A credit of that commit, which another process has refused
  in the meantime, would then appear. So each connection writes its tag to the lock file when it commits. If the lock
  file has the tag of another connection, the connection also writes the first page of the database. This page
  overwrites an unfinished commit in the log.
"""

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from incoming_payments.errors import StoreStopped
from incoming_payments.limits import STORE_BUSY_S_MAX
from incoming_payments.observers.log import LogEvent, log_event
from incoming_payments.stores.sqlite import _disk
from incoming_payments.stores.sqlite._lock_file import Checkpoints, LockFile, Text

logger = logging.getLogger("incoming_payments.stores.sqlite")

_POLL_S: Final = 0.001
KILLED_IN_SYNC: Final = "a process was killed while it brought the database to the disk"
OnStop = Callable[[StoreStopped], object]


class FileWatch:
    """A watch over the files of one database, for one open store. Methods of a stopped store raise `StoreStopped`."""

    def __init__(self, path: Path, on_stop: OnStop | None = None) -> None:
        # Paths are text, because each commit and read calls `os.stat`, which takes twice as long with a `Path`.
        self.path = str(path)
        self.directory = os.path.dirname(self.path)
        self.log_path = f"{path}-wal"
        self.index_path = f"{path}-shm"
        self.lock = LockFile(f"{path}-lock")
        self.paths = self.path, self.log_path, self.lock.path
        self._on_stop = on_stop
        self._database: _disk.Identity | None = None
        self._database_bytes = 0
        self._index: _disk.Identity | None = None  # the index of the log, or `None` while no connection is open
        self._why: str | None = None  # the reason why the store has stopped
        self._guard = threading.Lock()  # the lock for `_why` and `lock`

    @property
    def is_stopped(self) -> bool:
        """Whether the store has stopped."""
        return self._why is not None

    @property
    def is_open(self) -> bool:
        """Whether the store has been opened."""
        return self._database is not None

    def after_fork_in_child(self) -> None:
        """Replace the guard, because a thread of the parent may have held it."""
        self._guard = threading.Lock()

    def close(self) -> None:
        """Release the lock. A stopped store keeps the lock until its process ends."""
        with self._guard:
            if not self.is_stopped:
                self.lock.close()

    def stop(self, why: str) -> StoreStopped:
        """Stop this store and every other store that has the database open. Returns the error to raise."""
        with self._guard:
            if self._why is not None:
                return self.refusal()
            # If this write fails too, the other processes get an error from the disk themselves.
            with contextlib.suppress(OSError):
                self.lock.shorten_text(Text.STOPPED)
            self._why = why  # set last, so that an interrupted call can be repeated
        # If the store is still being opened, its constructor raises the error, so `on_stop` is not called.
        if self._on_stop is not None and self.is_open:
            try:
                self._on_stop(self.refusal())
            except BaseException as error:  # noqa: BLE001 - the writer must still answer its callers
                log_event(logger, logging.ERROR, LogEvent.ON_STOP_FAILED, "on_stop has failed", error=error)
        return self.refusal()

    def refusal(self) -> StoreStopped:
        """Return the error that every call of a stopped store raises."""
        return StoreStopped(
            f"the store of {self.path} has stopped: {self._why}. The store accepts no more calls. "
            "Check the disk and the files, end every process that uses the database, and start again"
        )

    def note_database(self) -> None:
        """Remember which file the path names. From now on, the path must always name that file."""
        found = os.stat(self.path)
        self._database, self._database_bytes = _disk.identity(found), found.st_size

    def note_index(self) -> None:
        """Remember the index of the log. A connection is open from now until `forget_index`."""
        self._index = _disk.identity(os.stat(self.index_path))

    def forget_index(self) -> None:
        """Accept another index, because SQLite removes the index with the last connection."""
        self._index = None

    def check_mark(self) -> None:
        """Raise `StoreStopped` when a store on this database has stopped."""
        if self._why is not None:
            raise self.refusal()
        if not self.lock.is_in_use():
            raise self.stop("another process that uses the database has stopped its store")

    def check_answer(self, *, may_wait: bool = True) -> None:
        """Raise `StoreStopped` when the data that was read may be older than the data on the disk.

        A checkpoint in progress may have lost pages that an earlier checkpoint copied, so wait until the current
        checkpoint has ended. If the process of the checkpoint has stopped or was killed, refuse the answer. Raises
        `BlockingIOError` when the checkpoint takes longer than `limits.STORE_BUSY_S_MAX`, or at once if `may_wait` is
        false. A thread must not call this function during its own checkpoint.
        """
        deadline = time.monotonic() + STORE_BUSY_S_MAX
        while self._may_lack_pages():
            with open(self.log_path, "rb", buffering=0) as log:
                try:
                    # The process of the checkpoint holds the lock until the checkpoint ends.
                    fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    if not may_wait or time.monotonic() >= deadline:
                        raise
                else:  # read the state again while the lock keeps other checkpoints from beginning
                    if self._may_lack_pages():
                        raise self.stop(KILLED_IN_SYNC)
                    return
            time.sleep(_POLL_S)

    def _may_lack_pages(self) -> bool:
        state = self.lock.checkpoints()  # read the state before the mark, because a store that stops removes the state
        self.check_mark()
        return state is Checkpoints.SYNCING

    def check(self, *, may_wait: bool = True) -> None:
        """Raise `StoreStopped` when a store has stopped, or when a file was removed, replaced or shortened.

        The lock file must be in place too, because it shows a new process that the database is open. `may_wait` is that
        of `check_answer`.
        """
        self.check_answer(may_wait=may_wait)
        if not self.lock.is_in_place():
            raise self.stop(f"{self.lock.path} was removed or replaced while the database was open")
        self.check_index()
        self.check_database()

    def check_index(self) -> None:
        """Raise `StoreStopped` when the index of the log was removed or replaced while a connection is open.

        A process that opens the database then creates another index. Neither process then sees the locks and the
        commits of the other.
        """
        index = None if self._index is None else _disk.stat(self.index_path)
        if self._index is not None and (index is None or _disk.identity(index) != self._index):
            raise self.stop(f"{self.index_path} was removed or replaced while the database was open")

    def check_database(self) -> None:
        """Raise `StoreStopped` when the database was removed, replaced or shortened."""
        known_bytes = self._database_bytes  # read first, because another thread may update the size
        database = _disk.stat(self.path)
        if database is None or _disk.identity(database) != self._database:
            raise self.stop(f"{self.path} was removed or replaced while it was open")
        if database.st_size < known_bytes:
            raise self.stop(f"{self.path} was shortened while it was open")
        self._database_bytes = database.st_size

    def is_new_committer(self, tag: bytes) -> bool:
        """Write `tag` to the lock file, and return whether the file had another tag.

        The caller must hold SQLite's write lock. Raises `StoreStopped` when a store on this database has stopped,
        because its mark removes the tag.
        """
        if self.lock.tag() == tag:
            return False
        self.check_mark()
        self.lock.write_tag(tag)
        self.check_mark()  # a store may have stopped since the first check
        return True

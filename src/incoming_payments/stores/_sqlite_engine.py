"""Who does the work on a database file: one thread that writes, with group commit, and pooled readers.

Many updates share one commit: the writer takes all that are waiting, decides and writes them one after the other in one transaction, commits
once, and only then answers. So an answer is durable, and the more callers wait, the less each pays for the disk.

What goes wrong costs as few as it can. What a decision raises goes to its caller, and the others commit. An error about one job's own statements
rolls the batch back and runs it again job by job, which decisions being pure allows, so that one bad job cannot fail the others. An error
of the disk rolls the batch back and fails all of it, as trying again at once would only make everybody wait; the next batch opens a new connection.
"""

import asyncio
import ctypes
import os
import queue
import sqlite3
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from incoming_payments.errors import BrokenDecision, IncomingPaymentsError, StoreUnavailable, StoreUnusable
from incoming_payments.limits import STORE_BATCH_MAX, STORE_QUEUE_MAX, STORE_READERS_MAX
from incoming_payments.stores._sqlite_file import DatabaseFile, blames_the_statement
from incoming_payments.stores._sqlite_rows import Rows

T = TypeVar("T")
Work = Callable[[Rows], T]


class DecideFailed(Exception):  # noqa: N818 - a message to the writer, not an error of its own
    """What a caller's own function raised, whatever it was: for that caller and nobody else."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Job(Generic[T]):
    """Work for the writer, and where its outcome goes: to a waiting thread, or to a future of an event loop.

    Lighter than `concurrent.futures.Future`, whose condition variable costs as much as a statement.
    """

    __slots__ = ("_done", "answer", "error", "future", "work")
    answer: T

    def __init__(self, work: Work[T], future: asyncio.Future[T] | None = None) -> None:
        self.work = work
        self.error: BaseException | None = None
        self.future = future
        self._done = threading.Lock()
        if future is None:
            self._done.acquire()

    def release(self) -> None:
        """Let the waiting thread go on."""
        self._done.release()

    def wait(self) -> T:
        """The outcome, once it is durable. May be interrupted; the job is done all the same."""
        self._done.acquire()
        error = self.error
        if error is None:
            return self.answer
        try:
            raise error
        finally:
            del error, self  # or the exception's traceback and this frame would keep each other alive

    def settle(self) -> None:
        """Hand the outcome to the future, in its loop. A cancelled one is not interested any more."""
        future = self.future
        if future is None or future.done():
            return
        if self.error is None:
            future.set_result(self.answer)
        else:
            future.set_exception(self.error)


class Engine:
    """The threads and connections of one store in one process. Nothing is started or opened before it is needed."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._closed = False
        self._begin_anew()
        _engines.add(self)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()  # held for a few instructions only, never while waiting
        self._writer: tuple[threading.Thread, queue.SimpleQueue[Job[Any] | None]] | None = None
        self._idle: list[tuple[sqlite3.Connection, Rows]] = []
        self._executor: ThreadPoolExecutor | None = None
        self._open: set[sqlite3.Connection] = set()

    # --- writing ---

    def submit(self, job: Job[Any]) -> None:
        """Queue `job` for the writer. Raises `StoreUnavailable` when too many wait, `StoreUnusable` when closed."""
        with self._lock:
            self._require_open()
            if self._writer is None:
                self._start_writer()
            _, jobs = self._writer
            if jobs.qsize() >= STORE_QUEUE_MAX:
                raise StoreUnavailable(f"{STORE_QUEUE_MAX} updates are waiting already: try again later")
            jobs.put(job)

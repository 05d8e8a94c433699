"""The threads and connections of one store in one process: a writer, pooled readers, and their end.

A process that forks leaves its children nothing of these: SQLite forbids to use, and even to close, a
connection there. A child begins anew, with a writer and connections of its own.
"""

import os
import queue
import sqlite3
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from incoming_payments.errors import IncomingPaymentsError, StoreUnavailable, StoreUnusable
from incoming_payments.limits import STORE_QUEUE_MAX, STORE_READERS_MAX
from incoming_payments.stores._sqlite_file import DatabaseFile
from incoming_payments.stores._sqlite_rows import Rows
from incoming_payments.stores._sqlite_writer import Job, serve

T = TypeVar("T")
Jobs = queue.SimpleQueue[Job[Any] | None]


class Engine:
    """What does the work of one store. Threads are started and connections opened when they are first needed."""

    _writer: tuple[threading.Thread, Jobs] | None
    _idle: list[tuple[sqlite3.Connection, Rows]]
    _executor: ThreadPoolExecutor | None

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._closed = False
        self._begin()
        _engines.add(self)

    def submit(self, job: Job[Any]) -> None:
        """Queue `job` for the writer. Raises `StoreUnavailable` when too many wait, `StoreUnusable` when closed."""
        with self._lock:
            self._check_open()
            if self._writer is None:
                self._writer = self._start_writer()
            _, jobs = self._writer
            if jobs.qsize() >= STORE_QUEUE_MAX:
                raise StoreUnavailable(f"{STORE_QUEUE_MAX} updates are waiting already: repeat the call later")
            jobs.put(job)

    def read(self, query: Callable[[Rows], T]) -> T:
        """The answer of `query` on a connection of its own. Raises what it raises, SQLite's errors as `StoreError`."""
        connection, rows = self._borrow()
        try:
            answer = query(rows)
        except IncomingPaymentsError:
            self._give_back(connection, rows)
            raise
        except BaseException as error:
            self._file.disconnect(connection)
            if isinstance(error, Exception):
                raise self._file.explain(error) from error
            raise
        self._give_back(connection, rows)
        return answer

    def read_elsewhere(self, query: Callable[[Rows], T]) -> "Future[T]":
        """`read` in another thread. Raises `StoreUnusable` when closed."""
        with self._lock:
            self._check_open()
            if self._executor is None:
                self._executor = ThreadPoolExecutor(STORE_READERS_MAX, "incoming-payments-read")
            return self._executor.submit(self.read, query)

    def close(self, *, wait_for_readers: bool = True) -> None:
        """Finish what is queued and close everything. Later calls do nothing, but wait for the same."""
        with self._lock:
            is_first, self._closed = not self._closed, True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            self._file.disconnect(connection)
        if self._executor is not None:
            self._executor.shutdown(wait=wait_for_readers)
        # The writer closes last: SQLite takes its log away with the last connection, but not when two close at once.
        if self._writer is not None and is_first:
            self._writer[1].put(None)
        if self._writer is not None and self._writer[0] is not threading.current_thread():
            self._writer[0].join()

    def close_unattended(self) -> None:
        """`close` for a store that was dropped, or at exit: the garbage collector may call this in any thread."""
        self.close(wait_for_readers=False)

    def begin_anew(self) -> None:
        """In the child of a fork, before anything else runs there: leave everything of the parent's alone."""
        self._file.forget_connections()
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()  # held for a few instructions, never while waiting
        self._writer = None
        self._idle = []
        self._executor = None

    def _start_writer(self) -> tuple[threading.Thread, Jobs]:
        # A daemon, so that a process that forgets to close can end: what was answered is on the disk.
        jobs: Jobs = queue.SimpleQueue()
        thread = threading.Thread(target=serve, args=(self._file, jobs), name="incoming-payments-write", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreUnavailable(f"the thread that writes could not be started ({error})") from error
        return thread, jobs

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnusable(f"the store of {self._file.path} is closed: open another")

    def _borrow(self) -> tuple[sqlite3.Connection, Rows]:
        with self._lock:
            self._check_open()
            if self._idle:
                return self._idle.pop()
        try:
            connection = self._file.connect_reader()
        except sqlite3.Error as error:
            raise self._file.explain(error) from error
        return connection, Rows(connection)

    def _give_back(self, connection: sqlite3.Connection, rows: Rows) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < STORE_READERS_MAX:
                self._idle.append((connection, rows))
                return
        self._file.disconnect(connection)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _begin_anew() -> None:
    for engine in _engines:
        engine.begin_anew()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows does not fork
    os.register_at_fork(after_in_child=_begin_anew)

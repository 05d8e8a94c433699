"""The threads and connections of one store in one process: one writer and a pool of readers.

Every connection is closed before a fork. A child inherits the memory in which SQLite notes the locks on the file, but
not the locks. With an open connection, the child would assume that it holds these locks, and its commits could be lost.
So before a fork each store finishes the queued updates, waits for its reads, and closes every connection. After the
fork, parent and child open new connections when they need them.
"""

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from incoming_payments.errors import IncomingPaymentsError, StoreUnavailable, StoreUnusable
from incoming_payments.limits import STORE_READERS_MAX, STORE_TRUNCATE_MS_MAX
from incoming_payments.observers.reporter import Reporter
from incoming_payments.stores.sqlite._file import DatabaseFile
from incoming_payments.stores.sqlite._queue import Job
from incoming_payments.stores.sqlite._rows import Batch, Rows
from incoming_payments.stores.sqlite._slow_reads import SlowReads
from incoming_payments.stores.sqlite._writer import Writer

T = TypeVar("T")


class Engine:
    """The engine of one store. It starts threads and opens connections when it first needs them."""

    def __init__(self, file: DatabaseFile, report: Reporter | None = None) -> None:
        self._file = file
        self._report = report
        self._closed = False
        self._begin()
        with _forking:  # no fork may happen between these two lines
            file.prepare()
            _engines.add(self)

    def _begin(self) -> None:
        # The lock is re-entrant, because the garbage collector may close the store in a thread that holds the lock.
        self._lock = threading.RLock()
        self._state_changed = threading.Condition(self._lock)
        self._fork_pending = False
        self.is_paused = False  # no connection is open, and none can be opened
        self._are_reads_held = False
        self._is_over = False  # the store is closed, and its writer has ended
        self._reading: dict[object, Rows | None] = {}  # the reads in progress, and the connection of each
        self._writer: Writer | None = None
        self._idle: list[Rows] = []
        self._slow_reads = SlowReads()
        self._executor: ThreadPoolExecutor | None = None
        self._watchers: dict[object, Callable[[], None]] = {}

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each commit that makes a stream of the feed due. Return a function that ends this."""

        token = object()

        def end() -> None:
            with self._lock:
                self._watchers.pop(token, None)

        with self._lock:
            self._watchers[token] = wake
        return end

    def _wake(self) -> None:
        for wake in list(self._watchers.values()):
            with contextlib.suppress(Exception):  # such as that of a closed event loop; the writer has to continue
                wake()

    def submit(self, job: Job[Any]) -> None:
        """Queue `job`. Raises `StoreUnavailable` when too many jobs wait, `StoreUnusable` when the store is closed."""
        with self._lock:
            self._await_open()
            if self._writer is None:
                self._writer = Writer(self._file, self._report, self.without_reads, self._wake)
            self._writer.jobs.put(job)

    def write(self, work: Callable[[Batch], T]) -> T:
        """Return the answer of `work` in a transaction of the writer, once it is durable. Raises its errors."""
        job = Job(work)
        self.submit(job)
        return job.wait()

    def write_in_loop(self, work: Callable[[Batch], T]) -> "asyncio.Future[T]":
        """Return a future of the running event loop that gets the outcome of `write`."""
        job = Job(work, asyncio.get_running_loop())
        self.submit(job)
        return job.future

    def read(self, query: Callable[[Rows], T]) -> T:
        """Return the answer of `query` on a connection of its own.

        Raises the exceptions of `query`, and raises `StoreError` for an error of SQLite. Repeats `query` while another
        process locks the file.
        """

        def await_turn() -> None:
            self._state_changed.wait_for(lambda: not self._are_reads_held)
            self._await_open()

        return self._read(await_turn, lambda rows: self._file.patiently(lambda: query(rows)), may_wait=True)

    def read_at_once(self, query: Callable[[Rows], T]) -> T | None:
        """Read in the thread of an event loop. Return `None` when the caller has to use `read_elsewhere`.

        The function returns `None` when no connection is open and idle, when another process locks the file, while a
        checkpoint makes reads wait, when a fork is pending, when reads are held back, and after slow reads (see
        `SlowReads`). In all other cases, the loop waits for one read.
        """
        began_s = time.monotonic()

        def refuse_to_wait() -> None:
            if (
                self._closed
                or self._fork_pending
                or self._are_reads_held
                or not self._idle
                or not self._slow_reads.may_read(began_s)
            ):
                raise StoreUnavailable("the read would have to wait")

        try:
            return self._read(refuse_to_wait, query, may_wait=False)
        except StoreUnavailable:
            return None  # a thread outside the event loop can wait for the file
        finally:
            self._slow_reads.add(began_s, time.monotonic())

    @contextlib.contextmanager
    def without_reads(self) -> Iterator[None]:
        """Hold back new reads, and wait at most `limits.STORE_TRUNCATE_MS_MAX` for the current reads."""
        with self._lock:
            self._are_reads_held = True
            self._state_changed.wait_for(lambda: not self._reading, STORE_TRUNCATE_MS_MAX / 1000)
        try:
            yield
        finally:
            with self._lock:
                self._are_reads_held = False
                self._state_changed.notify_all()

    def _read(self, check_turn: Callable[[], None], query: Callable[[Rows], T], *, may_wait: bool) -> T:
        """Return the answer of `query`, unless `check_turn`, which holds the lock, raises an error.

        An interrupt, such as `KeyboardInterrupt`, may come at any line. A read that never ended would make every later
        fork wait for ever. So the read begins and ends in the `try`. Ending it a second time does nothing.
        """
        read = object()
        try:
            try:
                answer = self._answer(read, check_turn, query, may_wait)
            except IncomingPaymentsError:
                self._end_reading(read)
                raise
            self._end_reading(read)
        except IncomingPaymentsError:
            raise
        except BaseException as error:
            self._end_reading(read, broken=True)
            if isinstance(error, Exception):
                raise self._file.explain(error) from error
            raise
        return answer

    def _answer(self, read: object, check_turn: Callable[[], None], query: Callable[[Rows], T], may_wait: bool) -> T:
        with self._lock:
            check_turn()
            self._reading[read] = self._idle.pop() if self._idle else None
        self._file.watch.check(may_wait=may_wait)
        rows = self._reading[read]
        if rows is None:
            rows = self._reading[read] = Rows(self._file.connect_reader())
        answer = query(rows)
        self._file.watch.check_answer(may_wait=may_wait)
        return answer

    def check_answer(self) -> None:
        """Raise `StoreStopped` when the data that was read may be older than the data on the disk."""
        self._file.watch.check_answer()

    def read_elsewhere(self, query: Callable[[Rows], T]) -> "Future[T]":
        """Run `read` in another thread. Raises `StoreUnusable` when the store is closed."""
        with self._lock:
            self._await_open()
            if self._executor is None:
                self._executor = ThreadPoolExecutor(STORE_READERS_MAX, "incoming-payments-read")
            return self._executor.submit(self.read, query)

    async def read_in_loop(self, query: Callable[[Rows], T]) -> T:
        """Await the answer of `query`, which runs in another thread."""
        return await asyncio.wrap_future(self.read_elsewhere(query))

    def close(self, *, wait: bool = True) -> None:
        """Finish the queued updates and close everything. A second call only waits for the first call.

        If `wait` is false, wait for no other thread except the writer. The garbage collector may call this in any
        thread.
        """
        with self._lock:
            # A fork in progress closes every connection itself. So if `wait` is false, do not wait for the end of the
            # fork.
            self._state_changed.wait_for(lambda: not self._fork_pending or not wait)
            self._closed = True
            self._close_idle()
            writer, executor = self._writer, self._executor
        if executor is not None:
            executor.shutdown(wait=wait)
        # The writer closes its connection last, because SQLite removes the log when the last connection is closed, but
        # not when two connections are closed at once.
        if writer is not None:
            writer.end()
        # If the garbage collector closes the store in the thread of its own writer, the store keeps the lock until the
        # process ends.
        if writer is None or not writer.is_this_thread:
            with self._lock:
                self._is_over = True
                self._close_file()

    def before_fork(self) -> None:
        """Wait until no connection is in use, close all connections, and open none until the fork is done."""
        with self._lock:
            self._fork_pending = True
            self._state_changed.wait_for(lambda: not self._reading)
            self._close_idle()
        if self._writer is not None:
            self._writer.end()
        self._writer = None
        with self._lock:  # `close` may have waited for the same writer, and can release the file now
            self._file.release()
        self.is_paused = True

    def after_fork_in_parent(self) -> None:
        """Let the waiting calls continue."""
        with self._lock:
            self._fork_pending = self.is_paused = False
            self._state_changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Forget the threads and connections of the parent, which the child does not have."""
        self._file.watch.after_fork_in_child()
        self._begin()

    def _await_open(self) -> None:
        """Wait until no fork is pending. Raises `StoreUnusable` when the store is closed.

        Raises `StoreUnavailable` if the call comes from inside a job, because the job would wait for its own thread.
        """
        if self._writer is not None and self._writer.is_this_thread:
            raise StoreUnavailable("this thread is running an update: repeat the call after the update")
        self._state_changed.wait_for(lambda: not self._fork_pending)
        if self._closed:
            raise StoreUnusable(f"the store of {self._file.path} is closed: open another store")

    def _end_reading(self, read: object, *, broken: bool = False) -> None:
        with self._lock:
            rows = self._reading.pop(read, None)
            if rows is None:
                pass
            elif broken or self._closed or len(self._idle) >= STORE_READERS_MAX:
                self._file.disconnect(rows.connection)
            else:
                # Keep the connection open, because a load that opens a connection takes over ten times as long.
                self._idle.append(rows)
            self._state_changed.notify_all()
            self._close_file()

    def _close_file(self) -> None:
        """Close the file when no connection needs its locks: the writer has ended, and no read is left."""
        if self._is_over and not self._reading:
            self._file.close()

    def _close_idle(self) -> None:
        for rows in self._idle:
            self._file.disconnect(rows.connection)
        self._idle = []


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_paused: list[Engine] = []  # the engines that the current fork has paused
_forking = threading.RLock()  # held during a fork, so that only one thread forks at a time


def _before_fork() -> None:
    _forking.acquire()
    interrupt: BaseException | None = None
    for engine in list(_engines):
        _paused.append(engine)  # first, so that the engine continues after the fork even if the pause fails
        while not engine.is_paused:
            try:
                engine.before_fork()
            except BaseException as error:  # noqa: BLE001 - the fork continues, so every connection must be closed
                interrupt = error
    if interrupt is not None:
        raise interrupt


def _after_fork_in_parent() -> None:
    while _paused:
        _paused.pop().after_fork_in_parent()
    _forking.release()


def _after_fork_in_child() -> None:
    global _forking  # noqa: PLW0603 - a thread of the parent may hold the old lock
    _forking = threading.RLock()
    _paused.clear()
    for engine in list(_engines):
        engine.after_fork_in_child()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows does not fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)

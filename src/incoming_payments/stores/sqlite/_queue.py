"""The queue of the thread that writes: jobs from threads and event loops, and the outcome of each."""

import asyncio
import contextlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from incoming_payments.limits import STORE_BATCH_MAX
from incoming_payments.stores.sqlite._rows import Batch, Lookup

T = TypeVar("T")
Work = Callable[[Batch], T]


class Job(Generic[T]):
    """Work for the writer. Its outcome goes to a waiting thread, or to a future of an event loop.

    `lookup` names the rows that the work reads, where they are known. A lock and four slots, and not a
    `concurrent.futures.Future`: that has a condition variable, which costs as much as an SQL statement.
    """

    __slots__ = ("_done", "answer", "error", "future", "lookup", "work")
    answer: T

    def __init__(
        self, work: Work[T], future: "asyncio.Future[T] | None" = None, *, lookup: Lookup | None = None
    ) -> None:
        self.work = work
        self.lookup = lookup
        self.error: BaseException | None = None
        self.future = future
        if future is None:
            self._done = threading.Lock()
            self._done.acquire()

    def wait(self) -> T:
        """Return or raise the outcome, once it is durable. An interrupt ends the waiting and not the job."""
        self._done.acquire()
        error = self.error
        if error is None:
            return self.answer
        try:
            raise error
        finally:
            del error, self  # otherwise the exception's traceback and this frame keep each other alive

    def release(self) -> None:
        """Wake the waiting thread."""
        self._done.release()

    def settle(self) -> None:
        """Hand the outcome to the future, in the thread of its loop. Does nothing when the future is cancelled."""
        if self.future is None or self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.answer)
        elif isinstance(self.error, StopIteration):  # a future cannot carry one
            self.future.set_exception(RuntimeError("decide raised StopIteration"))
        else:
            self.future.set_exception(self.error)


class Jobs:
    """The jobs that wait for one writer, and the wake-up that starts it.

    A thread wakes the writer for each of its jobs, and an event loop once a turn. So the jobs of one turn share a
    batch, and the writer does not run against the loop in the middle of it. Once awake, the writer takes all jobs. A
    job whose loop was closed before the end of its turn is done with the next job, or when the queue ends.
    """

    def __init__(self) -> None:
        self._waiting: deque[Job[Any] | None] = deque()
        self._wake_ups: SimpleQueue[None] = SimpleQueue()
        self._loop_in_turn: asyncio.AbstractEventLoop | None = None  # wakes the writer at the end of its turn

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, job: Job[Any] | None) -> None:
        """Queue `job`: one with a future in the thread of its loop. `None` ends the queue."""
        loop = None if job is None or job.future is None else job.future.get_loop()
        # In this order: an interrupt between the two lines must not leave a loop that never wakes the writer.
        if loop is not None and self._loop_in_turn is not loop:
            loop.call_soon(self._end_turn)
            self._loop_in_turn = loop
        self._waiting.append(job)
        if loop is None:
            self._wake_up()

    def take(self, *, patiently: bool) -> list[Job[Any] | None]:
        """Wait for jobs and return as many as fit in a batch. With `patiently`, wait until no more arrive."""
        while not self._waiting:
            self._wake_ups.get()
        if patiently:
            self._let_others_put()
        # Only the writer takes jobs, so those that are counted are still there.
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), STORE_BATCH_MAX))]

    def _end_turn(self) -> None:
        self._loop_in_turn = None
        self._wake_up()

    def _wake_up(self) -> None:
        # The writer looks for jobs after each wake-up, so one that it has not seen yet is enough.
        if self._wake_ups.empty():
            self._wake_ups.put(None)

    def _let_others_put(self) -> None:
        """Yield the interpreter's lock while more jobs arrive, so that the next commit has them too.

        Callers that were just answered call again. Without this the writer competes with them for the interpreter's
        lock, and its batches are half as large.
        """
        seen, waiting = -1, len(self)
        while seen < waiting < STORE_BATCH_MAX:
            time.sleep(0)
            seen, waiting = waiting, len(self)


def deliver(jobs: Sequence[Job[Any]]) -> None:
    """Hand each job's outcome to its caller."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[Job[Any]]] = defaultdict(list)
    for job in jobs:
        if job.future is None:
            job.release()
        else:
            by_loop[job.future.get_loop()].append(job)
    for loop, answered in by_loop.items():
        # Waking a loop costs a system call, so it is woken once a batch. No caller waits in a closed loop.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, answered)


def _settle(jobs: Sequence[Job[Any]]) -> None:
    for job in jobs:
        job.settle()

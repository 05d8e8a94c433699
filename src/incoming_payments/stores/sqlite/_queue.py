"""The queue of the thread that writes. Threads and event loops add jobs, and each job gets an outcome."""

import asyncio
import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from incoming_payments.errors import StoreUnavailable
from incoming_payments.limits import STORE_BATCH_MAX, STORE_QUEUE_MAX
from incoming_payments.stores.sqlite._rows import Batch

T = TypeVar("T")


class DecideRaised(Exception):
    """The exception of a caller's own function. Only that caller gets the exception."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Job(Generic[T]):
    """Work for the writer. The outcome goes to `future` in the event loop `loop`, or to a waiting thread.

    The writer sets `answer` or `error` before the commit, and settles the job after it.
    """

    answer: T

    def __init__(self, work: Callable[[Batch], T], loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.work = work
        self.error: BaseException | None = None
        self.loop = loop
        if loop is not None:
            self.future: asyncio.Future[T] = loop.create_future()
        else:
            # Do not use an `Event` or a `Future`: an interrupt in the waiting thread could leave its inner lock locked,
            # and the writer would wait for ever.
            self._unsettled = threading.Lock()
            self._unsettled.acquire()

    def wait(self) -> T:
        """Return the answer or raise the error, once the outcome is durable.

        An interrupt ends the wait, but not the job.
        """
        self._unsettled.acquire()
        if self.error is not None:
            raise self.error
        return self.answer

    def settle(self) -> None:
        """Give the outcome to the caller. A future that is not cancelled gets the outcome in the thread of its loop."""
        if self.loop is None:
            self._unsettled.release()
        elif self.future.done():
            return
        elif self.error is None:
            self.future.set_result(self.answer)
        elif isinstance(self.error, StopIteration):  # a task cannot raise StopIteration
            self.future.set_exception(RuntimeError("decide raised StopIteration"))
        else:
            self.future.set_exception(self.error)


class Jobs:
    """The jobs that wait for one writer.

    A thread wakes the writer for each job. An event loop wakes the writer once, at the end of an iteration of the loop.
    If the writer and the loop ran at the same time, both would be slower, and 64 packets would take 30 % longer.
    If the loop ends in that iteration, the job waits until another job is added.
    """

    def __init__(self) -> None:
        self._waiting: deque[Job[Any]] = deque()
        self._wake_ups: SimpleQueue[None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None  # this loop wakes the writer when its iteration ends
        self._is_at_end = False

    def put(self, job: Job[Any]) -> None:
        """Add `job`. A job of a loop is added in the thread of that loop.

        Raises `StoreUnavailable` when too many jobs wait.
        """
        if len(self._waiting) >= STORE_QUEUE_MAX:
            raise StoreUnavailable(f"{STORE_QUEUE_MAX} updates are already waiting: repeat the call later")
        if job.loop is not None and self._loop is not job.loop:
            job.loop.call_soon(self._end_turn)
            # Set `_loop` last, so that after an interrupt before this line the next job calls `call_soon` again.
            self._loop = job.loop
        self._waiting.append(job)
        if job.loop is None:
            self._wake()

    def end(self) -> None:
        """Let the writer end after the waiting jobs. Do not add a job after this call."""
        self._is_at_end = True
        self._wake()

    def take(self) -> list[Job[Any]]:
        """Wait for jobs, and return as many as fit in a batch, or none if `end` was called and no job is left."""
        while not self._waiting and not self._is_at_end:
            self._wake_ups.get()
        return list(self.take_more(0))

    def take_more(self, taken: int) -> Iterator[Job[Any]]:
        """Yield waiting jobs until the batch, which already has `taken` jobs, is full. Never wait."""
        while taken < STORE_BATCH_MAX and self._waiting:
            yield self._waiting.popleft()
            taken += 1

    def _end_turn(self) -> None:
        self._loop = None
        self._wake()

    def _wake(self) -> None:
        if self._wake_ups.empty():  # one wake-up is enough, because the writer then looks for jobs
            self._wake_ups.put(None)


def deliver(jobs: Sequence[Job[Any]]) -> None:
    """Give each job's outcome to its caller."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[Job[Any]]] = defaultdict(list)
    for job in jobs:
        if job.loop is None:
            job.settle()
        else:
            by_loop[job.loop].append(job)
    for loop, settled in by_loop.items():
        # Wake every loop once per batch. With one wake-up per job, 64 tasks take up to 50 % longer. A closed event loop
        # has no waiting caller.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, settled)


def _settle(jobs: Sequence[Job[Any]]) -> None:
    for job in jobs:
        job.settle()

"""The queue of the thread that writes: jobs from threads and event loops, and the outcome of each."""

import asyncio
import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from incoming_payments.limits import STORE_BATCH_MAX
from incoming_payments.stores.sqlite._rows import Batch, CreditKey

T = TypeVar("T")


class Job(Generic[T]):
    """Work for the writer. Its outcome goes to `future`, which belongs to an event loop, or to a waiting thread.

    `credit` is the credit that the work looks up, if there is one. The writer sets `answer` or `error` before the
    commit, and settles the job after it.
    """

    answer: T

    def __init__(
        self, work: Callable[[Batch], T], future: "asyncio.Future[T] | None" = None, *, credit: CreditKey | None = None
    ) -> None:
        self.work = work
        self.credit = credit
        self.error: BaseException | None = None
        self.future = future
        # A lock takes 0.2 us, and a `concurrent.futures.Future` 1.9 us (timeit).
        self._unsettled = threading.Lock()
        self._unsettled.acquire()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of the caller, or `None` for a thread."""
        return None if self.future is None else self.future.get_loop()

    def wait(self) -> T:
        """Return or raise the outcome, once it is durable. An interrupt ends the wait, but not the job."""
        self._unsettled.acquire()
        if self.error is None:
            return self.answer
        try:
            raise self.error
        finally:
            del self  # the traceback of the error refers to this frame: a cycle would keep the caller's values alive

    def settle(self) -> None:
        """Give the outcome to the caller: to a future in the thread of its loop. A cancelled future gets nothing."""
        if self.future is None:
            self._unsettled.release()
        elif self.future.done():
            return
        elif self.error is None:
            self.future.set_result(self.answer)
        elif isinstance(self.error, StopIteration):  # a task cannot raise one
            self.future.set_exception(RuntimeError("decide raised StopIteration"))
        else:
            self.future.set_exception(self.error)


class Jobs:
    """The jobs that wait for one writer. `None` ends the queue."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self.put = self._waiting.put

    def __len__(self) -> int:
        return self._waiting.qsize()

    def take(self, *, patiently: bool) -> list[Job[Any] | None]:
        """Wait for jobs, and return as many as fit in a batch.

        With `patiently`, release the GIL until no more jobs arrive, so that the next commit includes these jobs.
        Callers that got their answers call again. Without this, 16 threads take 1.1 to 1.4 times as long.
        """
        first = self._waiting.get()
        seen, waiting = -1, len(self)
        while patiently and seen < waiting < STORE_BATCH_MAX - 1:
            time.sleep(0)
            seen, waiting = waiting, len(self)
        # Only the writer takes jobs, so `get` does not block here.
        return [first, *(self._waiting.get() for _ in range(min(len(self), STORE_BATCH_MAX - 1)))]


def deliver(jobs: Sequence[Job[Any]]) -> None:
    """Give each job's outcome to its caller."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[Job[Any]]] = defaultdict(list)
    for job in jobs:
        if job.loop is None:
            job.settle()
        else:
            by_loop[job.loop].append(job)
    for loop, settled in by_loop.items():
        # One wake-up a batch: with one a job, 64 tasks take up to 1.5 times as long. No caller waits in a closed loop.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, settled)


def _settle(jobs: Sequence[Job[Any]]) -> None:
    for job in jobs:
        job.settle()

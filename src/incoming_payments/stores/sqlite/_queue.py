"""The queue of the thread that writes: jobs from threads and event loops, and the outcome of each."""

import asyncio
import contextlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from incoming_payments.errors import StoreUnavailable
from incoming_payments.limits import STORE_BATCH_MAX, STORE_QUEUE_MAX
from incoming_payments.stores.sqlite._rows import Batch, CreditKey

T = TypeVar("T")

# Turns of a loop in which it waits for more jobs: the first few even if none arrive.
_TURNS_MIN: Final = 4
_TURNS_MAX: Final = 16
_ENOUGH: Final = 16  # jobs: with more of them, a commit costs each only little


class Job(Generic[T]):
    """Work for the writer. Its outcome goes to `future`, in the event loop `loop`, or to a waiting thread.

    `credit` is the credit that the work looks up, if there is one. The writer sets `answer` or `error` before the
    commit, and settles the job after it.
    """

    __slots__ = ("_unsettled", "answer", "credit", "error", "future", "loop", "work")

    answer: T

    def __init__(
        self,
        work: Callable[[Batch], T],
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        credit: CreditKey | None = None,
    ) -> None:
        self.work = work
        self.credit = credit
        self.error: BaseException | None = None
        self.loop = loop
        if loop is not None:
            self.future: asyncio.Future[T] = loop.create_future()
        else:
            # A lock takes 0.2 us, and a `concurrent.futures.Future` 1.9 us (timeit).
            self._unsettled = threading.Lock()
            self._unsettled.acquire()

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
        if self.loop is None:
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
    """The jobs that wait for one writer. `None` ends the queue.

    A thread wakes the writer for each job, and an event loop once, at the end of its turn. Otherwise the writer runs
    against the loop in the middle of the turn, and 64 packets take 1.3 times as long. A job of a loop that
    ends in this turn waits for the next job.

    Callers that got their answers call again. So while fewer jobs wait than are `expected`, the loop takes some more
    turns first: 16 creates in flight, with tokens introspected over HTTP, take 0.8 of the processor time then.
    """

    def __init__(self) -> None:
        self._waiting: deque[Job[Any] | None] = deque()
        self._wake_ups: SimpleQueue[None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None  # it wakes the writer when its turn ends
        self.expected = 0  # about as many jobs as the last batches had

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, job: Job[Any] | None) -> None:
        """Add `job`. A job of a loop is added in the thread of that loop. Raises `StoreUnavailable` for too many."""
        loop = None
        if job is not None:
            loop = job.loop
            if len(self._waiting) >= STORE_QUEUE_MAX:
                raise StoreUnavailable(f"{STORE_QUEUE_MAX} updates are waiting already: repeat the call later")
        if loop is not None and self._loop is not loop:
            loop.call_soon(self._end_turn, loop, 0, _TURNS_MAX)
            self._loop = loop  # in this order: an interrupt in between must not silence the loop
        self._waiting.append(job)
        if loop is None:
            self._wake()

    def take(self) -> list[Job[Any] | None]:
        """Wait for jobs, and return as many as fit in a batch.

        With fewer jobs of threads than `expected`, release the GIL until no more arrive, so that the next commit
        includes these jobs. Without this, 16 threads take 1.1 to 1.4 times as long.
        """
        while not self._waiting:
            self._wake_ups.get()
        seen, waiting, last = -1, len(self), self._waiting[-1]
        while seen < waiting < self.expected and last is not None and last.loop is None:
            time.sleep(0)
            seen, waiting = waiting, len(self)
        # Only the writer takes jobs, so they are all there.
        batch = [self._waiting.popleft() for _ in range(min(len(self), STORE_BATCH_MAX))]
        self.expected = max(len(batch), self.expected - 1)
        return batch

    def take_more(self, taken: int) -> Iterator[Job[Any]]:
        """Yield waiting jobs until the batch, which already has `taken` jobs, is full. Never wait."""
        while taken < STORE_BATCH_MAX and self._waiting and (job := self._waiting[0]) is not None:
            self._waiting.popleft()
            yield job
            taken += 1
        self.expected = max(taken, self.expected)

    def _end_turn(self, loop: asyncio.AbstractEventLoop, seen: int, turns: int) -> None:
        """Wake the writer, or do that in a later turn. `seen` jobs waited in the last turn, and `turns` are left."""
        waiting = len(self)
        is_early = turns > _TURNS_MAX - _TURNS_MIN or (turns and seen < waiting)
        if is_early and self.expected > 1 and waiting < _ENOUGH:
            loop.call_soon(self._end_turn, loop, waiting, turns - 1)
        else:
            self._loop = None
            self._wake()

    def _wake(self) -> None:
        if self._wake_ups.empty():  # one is enough: the writer looks for jobs after it
            self._wake_ups.put(None)


def deliver(jobs: Sequence[Job[Any]]) -> None:
    """Give each job's outcome to its caller."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[Job[Any]]] = defaultdict(list)
    for job in jobs:
        loop = job.loop
        if loop is None:
            job.settle()
        else:
            by_loop[loop].append(job)
    for loop, settled in by_loop.items():
        # One wake-up a batch: with one a job, 64 tasks take up to 1.5 times as long. No caller waits in a closed loop.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, settled)


def _settle(jobs: Sequence[Job[Any]]) -> None:
    for job in jobs:
        job.settle()

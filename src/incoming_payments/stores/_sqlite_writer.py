"""Group commit: many updates in one transaction, each with an outcome of its own.

The writer takes all jobs that wait, runs them one after the other in one transaction, commits once, and only
then answers. So an answer is durable, and the more callers there are, the less each pays for the disk. And for the
interpreter's lock, which the writer and the callers take from each other: the rows that the jobs of a batch ask for are
read together before the first of them runs, and all that they decide is written together after the last.

What goes wrong costs as few as it can. What a caller's own function raises goes to that caller, and the
others commit. An error about what one job wrote rolls the batch back and runs it again job by job, as
decisions change nothing themselves, so that one bad job cannot fail the others for ever. An error of the disk
rolls the batch back and fails all of it: to try again at once would only make everybody wait longer to hear
the same. The next batch opens a new connection, so service is back when the disk is.
"""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.limits import STORE_BATCH_MAX
from incoming_payments.stores._sqlite_file import DatabaseFile, blames_the_statement
from incoming_payments.stores._sqlite_rows import Asked, Batch

T = TypeVar("T")
Work = Callable[[Batch], T]


class DecideRaised(Exception):
    """What a caller's own function raised, whatever it was: for that caller and nobody else."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Job(Generic[T]):
    """Work for the writer, and where its outcome goes: to a waiting thread, or to a future of an event loop.

    `asks` is what the work will ask for, if that is known. Lighter than `concurrent.futures.Future`, whose condition
    variable costs as much as a statement does.
    """

    __slots__ = ("_done", "answer", "asks", "error", "future", "work")
    answer: T

    def __init__(self, work: Work[T], future: "asyncio.Future[T] | None" = None, *, asks: Asked | None = None) -> None:
        self.work = work
        self.asks = asks
        self.error: BaseException | None = None
        self.future = future
        if future is None:
            self._done = threading.Lock()
            self._done.acquire()

    def wait(self) -> T:
        """The outcome, once it is durable. An interrupt ends the waiting and not the job."""
        self._done.acquire()
        return self._outcome()

    def release(self) -> None:
        """Let the waiting thread go on."""
        self._done.release()

    def settle(self) -> None:
        """Hand the outcome to the future, in the thread of its loop. A cancelled one wants to know no more."""
        if self.future is None or self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.answer)
        elif isinstance(self.error, StopIteration):  # a future cannot carry one
            self.future.set_exception(RuntimeError("decide raised StopIteration"))
        else:
            self.future.set_exception(self.error)

    def _outcome(self) -> T:
        error = self.error
        if error is None:
            return self.answer
        try:
            raise error
        finally:
            del error, self  # or the exception's traceback and this frame would keep each other alive


class Jobs:
    """The jobs that wait for one writer, and the bell that wakes it.

    A thread rings for each of its jobs, and an event loop once a turn: so those of one turn share a batch, and the
    writer does not run against the loop in the middle of it. Once awake it takes what is there, whoever rang: a job
    whose loop is gone before it could ring is done with the next one, or at the end.
    """

    def __init__(self) -> None:
        self._waiting: deque[Job[Any] | None] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._turning: asyncio.AbstractEventLoop | None = None  # rings when its turn is over

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, job: Job[Any] | None) -> None:
        """Queue `job`: one with a future in the thread of its loop. `None` is the last that is ever put."""
        loop = None if job is None or job.future is None else job.future.get_loop()
        # The loop is told before that is noted, or an interrupt in between would silence it for good.
        if loop is not None and self._turning is not loop:
            loop.call_soon(self._end_turn)
            self._turning = loop
        self._waiting.append(job)
        if loop is None:
            self._ring()

    def take(self, *, patiently: bool) -> list[Job[Any] | None]:
        """As many as a batch may have, once there are any: `patiently`, when no more are coming just now."""
        while not self._waiting:
            self._bell.get()
        if patiently:
            self._let_others_ask()
        # Nobody else takes from them, so as many as are counted are there.
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), STORE_BATCH_MAX))]

    def _end_turn(self) -> None:
        self._turning = None
        self._ring()

    def _ring(self) -> None:
        # Whoever hears a bell looks for jobs after it, so one that was not heard yet is enough.
        if self._bell.empty():
            self._bell.put(None)

    def _let_others_ask(self) -> None:
        """Give way for as long as more callers come: those just answered ask again, and had better share a commit.

        Without this the writer would run against them for the interpreter's lock, in batches half as large.
        """
        seen, waiting = -1, len(self)
        while seen < waiting < STORE_BATCH_MAX:
            time.sleep(0)
            seen, waiting = waiting, len(self)


def serve(file: DatabaseFile, jobs: Jobs) -> None:
    """Work off `jobs`, batch by batch, until a `None`."""
    writer = _Writer(file)
    serving, crowded = True, False
    while serving:
        batch = jobs.take(patiently=crowded)
        first, serving = batch[0], batch[-1] is not None
        writer.run([job for job in batch if job is not None])
        # Threads ask one by one. A loop asks for all of a turn at once, and to give way to it only makes it wait.
        crowded = len(batch) > 1 and first is not None and first.future is None
        del batch, first  # keep nobody's values alive while waiting
    writer.disconnect()


class _Writer:
    """The one connection that writes, opened when it is needed and dropped when it has failed."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._batch: Batch | None = None
        self._has_begun = False  # whether what went wrong can be one job's fault

    def run(self, jobs: Sequence[Job[object]]) -> None:
        """Commit what `jobs` do, together if possible, and give each its outcome. Raises nothing."""
        try:
            self._transact(jobs)
        except BaseException as error:  # noqa: BLE001 - nothing that one job does may end the thread all others need
            self.disconnect()
            if self._has_begun and len(jobs) > 1 and blames_the_statement(error):
                for job in jobs:
                    self.run([job])
                return
            for job in jobs:
                job.error = self._file.explain(error)
                job.error.__cause__ = error
        _answer(jobs)

    def disconnect(self) -> None:
        """Close the connection, if there is one. That rolls back."""
        if self._connection is not None:
            self._file.disconnect(self._connection)
        self._connection = self._batch = None

    def _transact(self, jobs: Sequence[Job[object]]) -> None:
        self._has_begun = False
        if self._connection is None or self._batch is None:
            self._connection = self._file.connect_writer()
            self._batch = Batch(self._connection)
        batch = self._batch
        self._file.begin(self._connection)
        self._has_begun = True
        asked = [job.asks for job in jobs if job.asks is not None]
        if len(asked) > 1:
            batch.fetch(asked)
        for job in jobs:
            job.error = None
            try:
                job.answer = job.work(batch)
            except DecideRaised as raised:
                job.error = raised.error
            except IncomingPaymentsError as error:  # raised before the first write: there is nothing to take back
                job.error = error
        batch.flush()
        self._connection.execute("COMMIT")
        batch.clear()


def _answer(jobs: Sequence[Job[object]]) -> None:
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[Job[object]]] = defaultdict(list)
    for job in jobs:
        if job.future is None:
            job.release()
        else:
            by_loop[job.future.get_loop()].append(job)
    for loop, answered in by_loop.items():
        # Waking a loop costs a system call, so it is woken once a batch. A closed one has nobody waiting.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, answered)


def _settle(jobs: Sequence[Job[object]]) -> None:
    for job in jobs:
        job.settle()

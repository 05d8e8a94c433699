"""Group commit: many updates in one transaction, each with its own outcome.

The writer takes all waiting jobs, runs them one after the other in one transaction, commits once, and only then
answers. So an answer is durable, and concurrent callers share the cost of one disk sync. Jobs that arrive while the
writer waits for SQLite's write lock belong to the same batch. This makes 1.2 times as many creates a second, with two
processes and 16 creates in flight (benchmark `http`).

A failure costs as few callers as possible:

- An exception of a caller's own function goes to that caller. The others commit.
- An error about the values of one job rolls the batch back, and runs it again job by job. Decisions change nothing
  themselves, so they can run twice.
- An error of the disk rolls the batch back and fails all of it: another attempt would only make callers wait longer for
  the same answer. The next batch opens a new connection.
- A lost write stops the store: see `_watch`.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from incoming_payments.errors import BrokenDecision, IncomingPaymentsError, StoreStopped, StoreUnavailable
from incoming_payments.limits import STORE_LOG_BYTES_MAX, STORE_LOG_FRAMES_MAX, STORE_TRUNCATE_MS_MAX
from incoming_payments.log import LogEvent, log_event
from incoming_payments.observers.reporter import Reporter
from incoming_payments.ports import StoreBatch
from incoming_payments.stores.sqlite._file import DatabaseFile, blames_the_statement, is_interrupt
from incoming_payments.stores.sqlite._log_watch import LogWatch
from incoming_payments.stores.sqlite._queue import Job, Jobs, deliver
from incoming_payments.stores.sqlite._rows import Batch

logger = logging.getLogger("incoming_payments.stores.sqlite")


class DecideRaised(Exception):
    """Carries any exception of a caller's own function to that caller alone."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Writer:
    """The one connection that writes, opened when it is needed and dropped when it has failed.

    The thread of `serve` does the jobs of the queue. A thread that waits for its own job may do that job itself while
    no other one waits: see `is_idle`. Then an interrupt, such as `KeyboardInterrupt`, may end `run` at any point. The
    next job finds that, and drops the connection, which rolls back. The thread of `serve` does that job and opens the
    next connection: it handles no signals, so no descriptor stays open.
    """

    def __init__(
        self,
        file: DatabaseFile,
        report: Reporter | None = None,
        without_reads: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.jobs = Jobs()
        self._file = file
        self._report = report
        self._without_reads = without_reads
        self._open: _Connection | None = None
        self._is_at_jobs = False  # whether a failure can be the fault of one job
        self._turn = threading.Lock()  # of the thread that works
        self._at_work: int | None = None  # the identity of that thread, also after an interrupt has ended its work
        self._serving: int | None = None  # the identity of the thread of `serve`
        self._failure: BaseException | None = None  # while it is handled

    def serve(self) -> None:
        """Do the jobs of the queue, batch by batch, until a `None`."""
        serving, self._serving = True, threading.get_ident()
        while serving:
            batch = self.jobs.take()
            serving = batch[-1] is not None
            self.run([job for job in batch if job is not None])
            self.keep_log_short()
            del batch  # keep no caller's values alive while waiting
        self.disconnect()

    @property
    def is_idle(self) -> bool:
        """Whether a caller should do its job in its own thread. The caller may have to wait for a commit even so.

        Without the hand-over to the writer's thread and back, a durable credit takes 0.75 of the time. When several
        callers wait, one commit for all is faster. A checkpoint would delay the caller, so it is left to the thread.
        """
        open = self._open
        is_clean = open is not None and self._at_work is None and not open.needs_checkpoint
        return is_clean and not (len(self.jobs) or self.jobs.expected > 1)

    @property
    def is_this_thread(self) -> bool:
        """Whether the calling thread does the work: then a job has called."""
        return self._turn.locked() and self._at_work == threading.get_ident()

    def run(self, jobs: list[Job[Any]]) -> None:
        """Commit the work of `jobs`, together if possible, and give each its outcome. Append later jobs to them."""
        with self._turn:
            self._begin_work()
            self._run(jobs, may_add=True)
            self._at_work = None

    def run_here(self, job: Job[Any]) -> bool:
        """Do `job` in the thread of its caller, and return whether that was possible. Raises only interrupts."""
        thread = threading.get_ident()
        with self._turn:
            if self._open is None or self._at_work is not None:
                return False
            self._at_work = thread  # since it has the turn, CPython has handled no signal: see `is_this_thread`
            self._run([job])
            self._at_work = None
        return True

    def disconnect(self) -> None:
        """Close the connection, if there is one. That rolls back."""
        with self._turn:
            self._begin_work()
            self._disconnect()
            self._at_work = None

    def _begin_work(self) -> None:
        """Begin the turn of this thread. If an interrupt ended the last turn, handle its failure, and disconnect."""
        interrupted, self._at_work = self._at_work is not None, threading.get_ident()
        if interrupted:
            if self._failure is not None:
                self._file.explain(self._failure)
            self._disconnect()
            self._failure = None

    def _run(self, jobs: list[Job[Any]], *, may_add: bool = False) -> None:
        begin_s, outcome = time.perf_counter(), "committed"
        try:
            self._transact(jobs, may_add=may_add)
        except BaseException as error:  # one job must not end the thread that all others need
            self._failure = error  # first of all, because an interrupt may end this
            explained = self._file.explain(error)
            self._disconnect()
            self._failure = None
            if self._at_work != self._serving and is_interrupt(error):
                raise
            if self._is_at_jobs and len(jobs) > 1 and blames_the_statement(error):
                for job in jobs:
                    self._run([job])
                return
            if not self._is_at_jobs and isinstance(explained, BrokenDecision):  # the commit may have succeeded
                explained = StoreUnavailable(f"an update ended before its outcome was known ({error!r}): repeat it")
            outcome = explained.code
            for job in jobs:
                job.error = type(explained)(explained.description)
                job.error.__cause__ = error
        duration_s = time.perf_counter() - begin_s
        deliver(jobs)
        if self._report is not None and jobs:
            self._report(StoreBatch(size=len(jobs), outcome=outcome, duration_s=duration_s))

    def _disconnect(self) -> None:
        if self._open is not None:
            if self._open.log.stops is not None:  # if an interrupt has ended the first call
                self._file.watch.stop(self._open.log.stops)
            # This checkpoint reports its errors. SQLite's own checkpoint at the close of the last connection does not.
            if not self._file.watch.is_stopped:
                self._checkpoint(self._open, "PASSIVE")
            self._open.log.close()
            self._file.disconnect(self._open.connection)
        self._open = None

    def _transact(self, jobs: list[Job[Any]], *, may_add: bool) -> None:
        self._is_at_jobs = False
        if self._open is None:
            self._open = self._connect()
        connection, batch, log = self._open.connection, self._open.batch, self._open.log
        version = self._file.begin(connection, log)
        if version != self._open.data_version:
            self._file.check_version(connection)
            batch.forget()
            self._open.data_version = version
        if may_add:
            jobs += self.jobs.take_more(len(jobs))
        self._is_at_jobs = True
        if len(jobs) > 1:
            batch.prefetch([job.credit for job in jobs if job.credit is not None])
        for job in jobs:
            job.error = None
            try:
                job.answer = job.work(batch)
            except DecideRaised as raised:
                job.error = raised.error
            except IncomingPaymentsError as error:  # raised before the first write: there is nothing to undo
                job.error = error
        batch.flush()
        self._is_at_jobs = False
        self._open.log_bytes = self._file.commit(connection, log)
        self._open.commits += 1
        batch.clear()

    def _connect(self) -> "_Connection":
        connection = self._file.connect_writer()
        try:
            return _Connection(connection, LogWatch(self._file.watch))
        except BaseException:
            self._file.disconnect(connection)
            raise

    def keep_log_short(self) -> None:
        """Copy the log into the database when it is long enough. The callers have their answers by then."""
        with self._turn:
            self._begin_work()
            open = self._open
            if open is not None and open.log_bytes >= open.truncate_at_bytes:
                # Copy and sync most of the log while reads go on.
                is_short = self._checkpoint(open, "PASSIVE") and self._empty_log(open)
                open.truncate_at_bytes = STORE_LOG_BYTES_MAX + (0 if is_short else open.log_bytes)
                if is_short:
                    open.log.forget()
            elif open is not None and open.needs_checkpoint:
                self._checkpoint(open, "PASSIVE")
            self._at_work = None

    def _empty_log(self, open: "_Connection") -> bool:
        """Copy the rest of the log and empty it, and return whether that is done.

        While readers overlap, SQLite can write the log from its beginning only if it waits for them. Those of this
        process are held back, because one that begins at once after another one would keep SQLite out.
        """
        with self._without_reads():
            return self._checkpoint(open, "TRUNCATE", wait_ms=STORE_TRUNCATE_MS_MAX)

    def _checkpoint(self, open: "_Connection", mode: str, *, wait_ms: int = 0) -> bool:
        """Make a checkpoint, and return whether it did all of its work. A lost write stops the store."""
        frames, done = 0, False
        try:
            open.connection.rollback()
            open.log.check_names()  # another process may have begun the log again, unknown to this one
            if wait_ms:
                open.connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
            busy, frames, _ = self._file.checkpoint(open.connection, mode)
            if wait_ms:
                open.connection.execute("PRAGMA busy_timeout = 0")
            done = not busy
        except Exception as error:  # noqa: BLE001 - it must not end the thread that all callers need
            self._failure = error  # first of all, because an interrupt may end this
            if not isinstance(self._file.explain(error), StoreStopped):
                text = "the log could not be copied into the database: %s"
                log_event(logger, logging.WARNING, LogEvent.CHECKPOINT_FAILED, text, error)
        open.plan_checkpoint(frames)
        return done


class _Connection:
    """The connection of a writer, with its related objects."""

    def __init__(self, connection: sqlite3.Connection, log: LogWatch) -> None:
        self.connection = connection
        self.log = log
        self.batch = Batch(connection)
        self.data_version = 0  # changes when another connection has changed the database
        self.log_bytes = 0  # the size of the log, of which SQLite may use only the beginning
        self.truncate_at_bytes = STORE_LOG_BYTES_MAX
        self.commits = 0  # since the last checkpoint
        self.checkpoint_at_commits = 16  # at first

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the log is so long that it should be copied into the database."""
        return self.commits >= self.checkpoint_at_commits or self.log_bytes >= self.truncate_at_bytes

    def plan_checkpoint(self, frames: int) -> None:
        """Plan the next checkpoint for a log of about `STORE_LOG_FRAMES_MAX` frames. The last found `frames`."""
        due = max(self.commits, 1) * STORE_LOG_FRAMES_MAX // max(frames, 1)
        self.checkpoint_at_commits = max(1, min(due, 2 * self.checkpoint_at_commits))
        self.commits = 0

"""The worker processes of `serve`, and their supervisor, which replaces lost workers."""

import itertools
import logging
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from incoming_payments.limits import SHUTDOWN_S_MAX, TASKS_STOP_S_MAX, WORKER_SILENT_S_MAX
from incoming_payments.observers.log import LogEvent, log_event
from incoming_payments.server.listeners import Listeners
from incoming_payments.server.watchdog import tell_watchdog

logger = logging.getLogger(__name__)

Work = Callable[[int, Listeners, Callable[[], None]], int]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM)
# Seconds between two ticks. Lost workers are replaced only at a tick, so repeated crashes cost little.
_TICK_S: Final = 1.0
# Seconds in which the workers must end their requests and their tasks, and close the database.
_STOP_S_MAX: Final = SHUTDOWN_S_MAX + TASKS_STOP_S_MAX + 2.0


def hold_signals() -> None:
    """Block signals until `run_workers` handles them.

    Call this function before you install the signal handlers that the workers inherit.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def run_workers(listeners: Sequence[Listeners], work: Work, on_hangup: Callable[[], None], *, drain_s: int = 0) -> int:
    """Run `work` in a process for each of `listeners` until a signal stops them, and return the exit status.

    `work` gets the number of its worker (from 0), its listeners, and a heartbeat function. `work` must call this
    function once a second. `work` stops on SIGTERM, and returns the exit status of its process. `work` runs with the
    signal handlers and open files of the caller. The caller must have no other threads. A single worker runs in the
    calling process, without a supervisor, and its heartbeat goes to the watchdog of systemd. With several workers, the
    supervisor sends the heartbeats to the watchdog.

    The calling process supervises the workers:

    - SIGTERM and SIGINT (Ctrl-C) stop all workers. The status is 0, or 1 if a worker is killed or fails meanwhile. The
      drain of a worker takes `drain_s` seconds. The supervisor kills a worker that has not stopped some 20 seconds
      after its drain. It passes each further signal to the workers as SIGTERM, which ends their drain.
    - SIGHUP calls `on_hangup`, so that later workers have the new settings. All workers get the signal too.
    - A worker that a signal has killed, or that has ended with status 0, is replaced after a second.
    - A worker that sends no heartbeat for `limits.WORKER_SILENT_S_MAX` seconds is killed, and then replaced. The time
      for which the machine or the supervisor is suspended does not count.
    - A worker that ends with another status has already written the reason. The supervisor then stops all other
      workers, with status 1.

    When the supervisor itself is killed, the workers stop.
    """
    hold_signals()
    if len(listeners) == 1:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return work(0, listeners[0], tell_watchdog)
    return _Supervisor(listeners, work, on_hangup, drain_s + _STOP_S_MAX).run()


class _Supervisor:
    """Starts and replaces workers. Signals wait until `sigwait` takes them one by one, so signals interrupt no step."""

    def __init__(
        self, listeners: Sequence[Listeners], work: Work, on_hangup: Callable[[], None], stop_s_max: float
    ) -> None:
        self._listeners = listeners
        self._work = work
        self._on_hangup = on_hangup
        self._stop_s_max = stop_s_max
        self._numbers: dict[int, int] = {}  # the numbers of the workers, by their process ids
        self._lost: list[int] = []  # the numbers of the workers to replace
        self._is_stopping = False
        self._stop_by_s = 0.0  # a time in seconds of `time.monotonic`
        self._status = 0
        # A byte for each worker, in memory that all processes share. A worker sets its byte, and each tick clears it.
        self._beats = mmap.mmap(-1, len(listeners))
        # For each worker, the number of ticks since its last heartbeat. A suspended supervisor has no ticks, so a
        # suspension does not count.
        self._silent = [0] * len(listeners)
        # The write end closes when this process ends, even if SIGKILL ends it.
        self._read_end, self._write_end = os.pipe()

    def run(self) -> int:
        """Start the workers, and return the exit status when all of them have ended."""
        for ours in (signal.SIGCHLD, signal.SIGALRM):
            signal.signal(ours, _do_nothing)  # install a handler, because `sigwait` does not receive ignored signals
        for number in range(len(self._listeners)):
            self._start(number)
        _start_ticks()
        while self._numbers or self._lost:
            self._handle(signal.sigwait(_SIGNALS))
        return self._status

    def _start(self, number: int) -> None:
        """Start the worker `number`, unless all workers are stopping."""
        if self._is_stopping:
            return
        try:
            pid = os.fork()
        except OSError as error:
            text = (
                "worker %d could not be started (%s), so the service stops: allow the service more processes or memory"
            )
            log_event(logger, logging.ERROR, LogEvent.WORKER_LOST, text, number, error.strerror)
            self._stop(status=1)
            return
        if pid == 0:
            sys.exit(self._run_worker(number))
        self._numbers[pid], self._silent[number] = number, 0

    def _run_worker(self, number: int) -> int:
        """Run `work` in the new process."""
        own = self._listeners[number]
        for listener in itertools.chain.from_iterable(self._listeners):
            if listener not in own:
                # If a worker kept the listeners of the other workers, the port would stay open after those workers have
                # ended.
                listener.close()
        os.close(self._write_end)
        threading.Thread(target=_stop_at_end_of, args=[self._read_end], name="end-of-supervisor", daemon=True).start()
        for ours in (signal.SIGCHLD, signal.SIGALRM):
            signal.signal(ours, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        status = self._work(number, own, partial(self._beats.__setitem__, number, 1))
        hold_signals()  # a second SIGTERM would kill this process while Python ends
        return status

    def _handle(self, number: int) -> None:
        if number == signal.SIGCHLD:  # one or more workers have ended
            for pid in list(self._numbers):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._note_end(pid, self._numbers.pop(pid), os.waitstatus_to_exitcode(status))
        elif number == signal.SIGALRM:
            self._tick()
        elif number != signal.SIGHUP:
            self._stop(status=0)
        elif not self._is_stopping:
            self._on_hangup()
            self._signal(signal.SIGHUP)

    def _tick(self) -> None:
        """Replace lost workers, and kill silent workers. After a stop, kill workers that take too long."""
        tell_watchdog()
        if not self._is_stopping:
            lost, self._lost = self._lost, []
            for number in lost:
                self._start(number)
            for pid, number in self._numbers.items():
                self._listen_to(pid, number)
        elif time.monotonic() >= self._stop_by_s:
            text = "workers %s have not stopped after %d seconds, so the service kills them"
            numbers = ", ".join(map(str, sorted(self._numbers.values())))
            log_event(logger, logging.ERROR, LogEvent.WORKER_LOST, text, numbers, self._stop_s_max)
            self._signal(signal.SIGKILL)

    def _listen_to(self, pid: int, number: int) -> None:
        """Kill the worker if it has sent no heartbeat for too long.

        The supervisor then handles the end of the worker as usual.
        """
        self._silent[number] = 0 if self._beats[number] else self._silent[number] + 1
        self._beats[number] = 0
        if self._silent[number] == WORKER_SILENT_S_MAX:
            text = "worker %d (process %d) has sent no heartbeat for %d seconds, so the service kills it"
            log_event(logger, logging.ERROR, LogEvent.WORKER_LOST, text, number, pid, WORKER_SILENT_S_MAX)
            os.kill(pid, signal.SIGKILL)

    def _note_end(self, pid: int, number: int, status: int) -> None:
        """Plan the replacement of an ended worker, or stop the other workers.

        `status` is negative if a signal ended the worker.
        """
        if self._is_stopping:
            self._status = max(self._status, min(abs(status), 1))
        elif status > 0:
            text = "worker %d (process %d) ended with status %d, so the service stops"
            log_event(logger, logging.ERROR, LogEvent.WORKER_LOST, text, number, pid, status)
            self._stop(status=1)
        else:
            how = f"was killed by signal {-status} ({signal.strsignal(-status)})" if status else "was stopped"
            text = "worker %d (process %d) %s: a new worker replaces it"
            log_event(logger, logging.ERROR, LogEvent.WORKER_LOST, text, number, pid, how)
            if not self._lost:
                _start_ticks()
            self._lost.append(number)

    def _stop(self, *, status: int) -> None:
        self._status = max(status, self._status)
        self._signal(signal.SIGTERM)
        if not self._is_stopping:
            self._is_stopping, self._lost = True, []
            self._stop_by_s = time.monotonic() + self._stop_s_max
            for listener in itertools.chain.from_iterable(self._listeners):
                listener.close()  # the port accepts connections until the workers close their copies too

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._numbers:
            os.kill(pid, number)  # safe, because a worker that has ended keeps its process id until `waitpid`


def _start_ticks() -> None:
    """Send SIGALRM to this process every `_TICK_S` seconds."""
    signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)


def _do_nothing(*_: object) -> None:
    """Do nothing, because `sigwait` receives the signals."""


def _stop_at_end_of(read_end: int) -> None:
    """Stop this process when the write end of the pipe closes."""
    os.read(read_end, 1)
    os.kill(os.getpid(), signal.SIGTERM)

"""The worker processes of `serve`, and their supervisor, which replaces a lost one."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from incoming_payments.log import LogEvent, log_event

logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_PAUSE_S: Final = 1.0  # before the replacement of a worker: one that ends at once must not take all of the processor


def run_workers(count: int, work: Callable[[int], int], on_hangup: Callable[[], None]) -> int:
    """Run `work` in `count` processes until a signal stops them, and return the exit status of the program.

    `work` gets the number of its worker, from 0. It stops on SIGTERM, and returns the exit status of its process. It
    runs with the signal handlers and the open files of the caller, which must have no other threads. A single worker
    runs in the calling process.

    The calling process supervises the others:

    - SIGTERM and SIGINT (Ctrl-C) stop all of them, with status 0.
    - SIGHUP calls `on_hangup`, so that later workers have the new settings, and goes to all workers.
    - A worker that a signal has killed, or that has ended with status 0, is replaced after a second.
    - A worker that ends with another status has written its reason. It stops all others, with status 1.

    When the supervisor itself is killed, the workers stop.
    """
    if count == 1:
        return work(0)
    return _Supervisor(work, on_hangup).run(count)


class _Supervisor:
    """Handles signals one after the other, by `sigwait`. So no handler interrupts it in the middle of a step."""

    def __init__(self, work: Callable[[int], int], on_hangup: Callable[[], None]) -> None:
        self._work = work
        self._on_hangup = on_hangup
        self._numbers: dict[int, int] = {}  # of the workers, by their process ids
        self._is_stopping = False
        self._status = 0

    def run(self, count: int) -> int:
        """Start the workers, and return the exit status when all of them have ended."""
        self._usual_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._lifeline, self._kept_open = os.pipe()  # the second end closes when the supervisor ends
        for number in range(count):
            self._start(number)
        while self._numbers:
            self._handle(signal.sigwait(_SIGNALS))
        return self._status

    def _start(self, number: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            text = "worker %d could not be started (%s), so the service stops"
            log_event(logger, logging.ERROR, LogEvent.WORKER_LOST, text, number, error.strerror)
            self._stop(status=1)
            return
        if pid == 0:
            os.close(self._kept_open)
            threading.Thread(target=_stop_at_end_of, args=[self._lifeline], name="lifeline", daemon=True).start()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._usual_mask)
            sys.exit(self._work(number))
        self._numbers[pid] = number

    def _handle(self, signal_number: int) -> None:
        if signal_number == signal.SIGCHLD:
            for pid in list(self._numbers):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._replace(pid, self._numbers.pop(pid), os.waitstatus_to_exitcode(status))
        elif signal_number == signal.SIGHUP:
            self._on_hangup()
            self._signal(signal.SIGHUP)
        else:
            self._stop(status=0)

    def _replace(self, pid: int, number: int, status: int) -> None:
        """Start another worker in place of an ended one, or stop the others. `status` is negative for a signal."""
        if self._is_stopping or status > 0:
            self._stop(status=min(abs(status), 1))
            return
        how = "ended" if status == 0 else f"was killed by signal {-status} ({signal.strsignal(-status)})"
        text = "worker %d (process %d) %s: another takes its place"
        log_event(logger, logging.ERROR, LogEvent.WORKER_LOST, text, number, pid, how)
        time.sleep(_PAUSE_S)
        self._start(number)

    def _stop(self, *, status: int) -> None:
        self._status = max(status, self._status)
        if not self._is_stopping:
            self._is_stopping = True
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._numbers:
            os.kill(pid, number)  # a worker that has ended keeps its process id until `waitpid`


def _stop_at_end_of(lifeline: int) -> None:
    """Stop this process when the other end of the pipe `lifeline` closes."""
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)

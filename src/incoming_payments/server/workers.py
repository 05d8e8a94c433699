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
_PAUSE_S: Final = 1.0  # before a worker is replaced, so that a worker that always ends at once takes little time


def run_workers(count: int, work: Callable[[int], int], on_hangup: Callable[[], None]) -> int:
    """Run `work` in `count` processes until a signal stops them, and return the exit status of the program.

    `work` gets the number of its worker, from 0. It stops on SIGTERM, and returns the exit status of its process. It
    runs with the caller's signal handlers and open files. The caller must have no other threads. A single worker runs
    in the calling process.

    The calling process supervises the others:

    - SIGTERM and SIGINT (Ctrl-C) stop all of them. The status is 0, or 1 if a worker is killed or fails meanwhile.
    - SIGHUP calls `on_hangup`, so that later workers have the new settings, and goes to all workers.
    - A worker that a signal has killed, or that has ended with status 0, is replaced after a second.
    - A worker that ends with another status has written its reason. It stops all others, with status 1.

    When the supervisor itself is killed, the workers stop.
    """
    if count == 1:
        return work(0)
    return _Supervisor(work, on_hangup).run(count)


class _Supervisor:
    """Starts and replaces workers. Signals wait until `sigwait` takes them one by one, so none interrupts a step."""

    def __init__(self, work: Callable[[int], int], on_hangup: Callable[[], None]) -> None:
        self._work = work
        self._on_hangup = on_hangup
        self._numbers: dict[int, int] = {}  # of the workers, by their process ids
        self._is_stopping = False
        self._status = 0

    def run(self, count: int) -> int:
        """Start the workers, and return the exit status when all of them have ended."""
        self._usual_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._read_end, self._write_end = os.pipe()  # the write end closes when the supervisor ends, also by SIGKILL
        for number in range(count):
            self._start(number)
        while self._numbers:
            self._handle(signal.sigwait(_SIGNALS))
        return self._status

    def _start(self, number: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            text = "worker %d could not be started (%s), so the service stops: allow it more processes or memory"
            log_event(logger, logging.ERROR, LogEvent.WORKER_LOST, text, number, error.strerror)
            self._stop(status=1)
            return
        if pid == 0:
            os.close(self._write_end)
            threading.Thread(target=_stop_at_end_of, args=[self._read_end], name="supervisor", daemon=True).start()
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
        if self._is_stopping:
            self._stop(status=min(abs(status), 1))
            return
        if status > 0:
            text = "worker %d (process %d) ended with status %d, so the service stops"
            log_event(logger, logging.ERROR, LogEvent.WORKER_LOST, text, number, pid, status)
            self._stop(status=1)
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
            os.kill(pid, number)  # until `waitpid`, a worker that has ended keeps its process id


def _stop_at_end_of(read_end: int) -> None:
    """Stop this process when the write end of the pipe closes."""
    os.read(read_end, 1)
    os.kill(os.getpid(), signal.SIGTERM)

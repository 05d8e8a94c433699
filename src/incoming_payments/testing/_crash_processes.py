"""The processes of the crash kit. The parent imports the library once, and forks the workers."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from json import loads
from typing import IO, Any, Final

from attrs import frozen

from incoming_payments.testing._crash_worker import Plan

_WORKER: Final = "incoming_payments.testing._crash_worker"
_REPLY_BYTES_MAX: Final = 64


@frozen
class Worker:
    """A worker process. The process id is valid until `Parent.wait`, although the worker may have ended."""

    pid: int
    reports: Iterator[list[Any]]
    _channel: socket.socket

    def begin(self) -> None:
        """Start the work of the worker, after it has reported that it is ready."""
        self._channel.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Send SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


class Parent:
    """The process that forks the workers. A fork is much faster than an import of the library."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    @contextmanager
    def worker(self, plan: Plan, silence_s: float) -> Iterator[Worker]:
        """Fork a worker. Its iterator of reports raises `TimeoutError` after `silence_s` seconds of silence."""
        channel, other = socket.socketpair()
        with channel, channel.makefile("rb") as lines:
            channel.settimeout(silence_s)
            with other:
                socket.send_fds(self._control, [plan.text.encode()], [other.fileno()])
            worker = Worker(self._reply(), map(loads, lines), channel)
            try:
                yield worker
            except BaseException:
                worker.kill()
                self.wait(worker)
                raise

    def wait(self, worker: Worker) -> int:
        """Wait until `worker` has ended, and return its status."""
        self._control.send(str(worker.pid).encode())
        return self._reply()

    def _reply(self) -> int:
        reply = self._control.recv(_REPLY_BYTES_MAX)
        if not reply:
            raise ConnectionResetError
        return int(reply)


@contextmanager
def parent_process(log: IO[bytes]) -> Iterator[Parent]:
    """Start the parent of workers. The parent and its workers write their output to `log`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.curdir for entry in sys.path)}
    control, other = socket.socketpair()
    with other:
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", _WORKER, str(other.fileno())],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
        )
    with process, control:  # the parent ends when `control` is closed
        yield Parent(control)

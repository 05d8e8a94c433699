"""The service that is killed: a folder with its configuration and SQLite file, and the process that serves it."""

import contextlib
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from incoming_payments.server.command import main
from incoming_payments.server.init import CONFIGURATION
from kits.processes import COMMAND, ROOT, free_port, is_running

DATABASE: Final = "payments.sqlite3"
_DEADLINE_S: Final = 60.0  # for a slow machine


def environment() -> dict[str, str]:
    """Return the environment of processes that are killed.

    It has no coverage: that would slow the processes down, and a killed process loses its data.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
    return {**ours, "PYTHONPATH": str(ROOT / "tests"), "PYTHONUNBUFFERED": "1"}


def start(
    module: str, *arguments: object, log: Path, env: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start a module of this folder as a process, and append its output to `log`."""
    command = [sys.executable, "-m", f"campaigns.crash.{module}", *map(str, arguments)]
    return _popen(command, log, env)


def _popen(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        env = env or environment()
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)


class Service:
    """One service. Tests kill its processes and start it again. `faults` are names in `crash.faults`."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 1,
        environment: Mapping[str, str] | None = None,
        database_url: str | None = None,
    ) -> None:
        self.folder = folder
        self._environment = environment
        self.port = free_port()
        self.log = folder / "service.log"
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.redirect_stdout(io.StringIO()):
            database = [] if database_url is None else ["--database-url", database_url]
            assert main(["init", str(folder), "--port", str(self.port), *database]) == 0
            configuration = folder / CONFIGURATION
            rights = configuration.read_text("utf-8").replace(
                '["create", "read"]', '["create", "read", "complete", "list"]'
            )
            configuration.write_text(rights.replace("# workers = 1", f"workers = {workers}"), "utf-8")

    @property
    def database(self) -> Path:
        """Return the path of the SQLite file."""
        return self.folder / DATABASE

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """Return the process that was started last."""
        assert self._process is not None
        return self._process

    def start(self, *faults: str) -> None:
        """Start `serve`, with `faults` if there are any. The process does not listen yet."""
        serve = ("serve", "--config", self.folder / CONFIGURATION)
        if faults:
            self._process = start("faults", ",".join(faults), *serve, log=self.log)
        else:
            self._process = _popen([*COMMAND, *map(str, serve)], self.log, self._environment)

    def listens(self) -> bool:
        """Wait until the process listens or has ended, and return whether it listens."""
        deadline = time.monotonic() + _DEADLINE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return True
        return False

    def up(self, *faults: str) -> "Service":
        """Start the process, unless it runs, and wait until it listens."""
        if not self.is_running:
            self.start(*faults)
        assert self.listens(), self.log_text()
        return self

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def kill(self, *, if_alive: bool = False) -> None:
        """Send SIGKILL to the process and its workers. The process must be alive, except with `if_alive`."""
        status = self.process.poll()
        assert if_alive or status is None, (status, self.log_text())
        workers = self.workers()
        self.process.kill()
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):  # the supervisor has just waited for the end of this one
                os.kill(pid, signal.SIGKILL)
        self.process.wait(_DEADLINE_S)
        while any(map(is_running, workers)):
            time.sleep(0.001)

    def workers(self) -> list[int]:
        """Return the process ids of the workers; none if the service has one process. Needs Linux."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text("ascii").split()] if children.exists() else []

    def stop(self) -> None:
        """Send SIGTERM, and wait for the end."""
        if self.is_running:
            self.process.terminate()
            self.process.wait(_DEADLINE_S)

    def wait(self) -> int:
        """Wait for the end, and return the exit status."""
        return self.process.wait(_DEADLINE_S)

    def log_text(self) -> str:
        """Return the log of the service."""
        return self.log.read_text("utf-8")

    def copy(self, to: Path) -> Path:
        """Copy the database and its log to the folder `to`, so that reading the copy does not change the original."""
        to.mkdir()
        for suffix in ("", "-wal"):
            source = self.database.with_name(f"{DATABASE}{suffix}")
            if source.exists():
                shutil.copy(source, to / source.name)
        return to / DATABASE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(_DEADLINE_S)

"""The service that is killed: a folder with its configuration and database, and the process that serves it."""

import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from incoming_payments.server.command import main
from incoming_payments.server.init import CONFIGURATION
from kits.processes import COMMAND, ROOT, free_port

DATABASE: Final = "payments.sqlite3"
_DEADLINE_S: Final = 60.0  # for a slow machine


def environment() -> dict[str, str]:
    """For processes that are killed: coverage would slow them down, and what it found be lost."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
    return {**ours, "PYTHONPATH": str(ROOT / "tests"), "PYTHONUNBUFFERED": "1"}


def start(module: str, *arguments: object, log: Path) -> "subprocess.Popen[bytes]":
    """A process of a module in this folder; what it says is added to `log`."""
    command = [sys.executable, "-m", f"campaigns.crash.{module}", *map(str, arguments)]
    return _popen(command, log)


def _popen(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        env = env or environment()
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)


class Service:
    """One service; its process comes and goes. `spoilt_by` names what `crash.deadly` is to do to it."""

    def __init__(self, folder: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._environment = environment
        self.port = free_port()
        self.log = folder / "service.log"
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["init", str(folder), "--port", str(self.port)]) == 0

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.folder / DATABASE

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The one that was started last."""
        assert self._process is not None
        return self._process

    def start(self, *spoilt_by: str) -> None:
        """Start `serve`, as it is or with what `crash.deadly` does to it. It does not listen yet."""
        serve = ("serve", "--config", self.folder / CONFIGURATION)
        if spoilt_by:
            self._process = start("deadly", ",".join(spoilt_by), *serve, log=self.log)
        else:
            self._process = _popen([*COMMAND, *map(str, serve)], self.log, self._environment)

    def listens(self) -> bool:
        """Wait until it does, or is dead."""
        deadline = time.monotonic() + _DEADLINE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return True
        return False

    def up(self, *spoilt_by: str) -> "Service":
        """Start, and listen."""
        self.start(*spoilt_by)
        assert self.listens(), self.said()
        return self

    def kill(self) -> None:
        """SIGKILL. It was alive until then."""
        status = self.process.poll()
        assert status is None, (status, self.said())
        self.process.kill()
        self.process.wait(_DEADLINE_S)

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(_DEADLINE_S)

    def wait(self) -> int:
        """How it ended."""
        return self.process.wait(_DEADLINE_S)

    def said(self) -> str:
        """Its log."""
        return self.log.read_text("utf-8")

    def copy(self, to: Path) -> Path:
        """The file and its log as they lie there, so that to look at them changes nothing."""
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

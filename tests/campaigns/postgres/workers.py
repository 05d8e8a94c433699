"""The worker processes of a campaign, which are killed and started again."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import psycopg

from campaigns.crash.service import environment
from campaigns.postgres.worker import END
from kits.postgres_cluster import Server

STORES: Final = ("threads", "asyncio", "threads", "unprepared")  # of the four workers
_END_S_MAX: Final = 120.0


class Workers:
    """Worker processes, which open their stores by the connection string `conninfo`."""

    def __init__(self, folder: Path, conninfo: str, stores: Sequence[str] = STORES) -> None:
        self._folder = folder
        self._conninfo = conninfo
        self._stores = {f"worker-{number}": store for number, store in enumerate(stores)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the workers."""
        return list(self._stores)

    def start(self) -> None:
        """Start the workers that do not run."""
        for name, store in self._stores.items():
            process = self._processes.get(name)
            if process is not None and process.poll() is None:
                continue
            assert process is None or process.returncode < 0, self.log_text(name)
            arguments = (store, self._conninfo, str(self._folder), name)
            command = [sys.executable, "-m", "campaigns.postgres.worker", *arguments]
            with self._log(name).open("ab") as log:
                self._processes[name] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
                )

    def kill(self, *names: str) -> None:
        """Send SIGKILL to workers."""
        for name in names:
            self._processes[name].kill()
        for name in names:
            self._processes[name].wait()

    def end(self) -> None:
        """Let all workers settle their calls, wait until they have ended, and check that they succeeded."""
        self.start()
        (self._folder / END).touch()
        deadline = time.monotonic() + _END_S_MAX
        for name, process in self._processes.items():
            status = process.wait(max(0, deadline - time.monotonic()))
            assert status == 0, self.log_text(name)

    def log_text(self, name: str) -> str:
        """Return the output of a worker."""
        return self._log(name).read_text("utf-8")

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(*self._processes)


def await_credits(server: Server, workers: Workers, count: int = 20) -> None:
    """Wait until `server` has stored `count` more credits."""
    deadline, first = time.monotonic() + _END_S_MAX, None
    while True:
        assert time.monotonic() < deadline, {name: workers.log_text(name)[-2000:] for name in workers.names}
        with suppress(psycopg.OperationalError):
            [(stored,)] = server.execute("SELECT count(*) FROM incoming_payments.credits")
            first = stored if first is None else first
            if stored - first >= count:
                return
        time.sleep(0.02)


def print_report(figures: Mapping[str, object], violations: Sequence[tuple[str, str]]) -> int:
    """Print the figures and the violations, and return the exit status."""
    for name, figure in figures.items():
        print(f"{name:<28}{figure:>10}")
    print(f"{'violations':<28}{len(violations):>10}")
    for kind, detail in violations[:20]:
        print(f"  {kind}: {detail}")
    return 1 if violations else 0

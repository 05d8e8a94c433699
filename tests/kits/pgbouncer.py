"""pgbouncer in transaction mode, which Debian's package `pgbouncer` brings."""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from kits.postgres import execute

PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
_SETTINGS = """
[databases]
{name} = host={host} port={port} dbname={name} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
"""


@contextmanager
def pgbouncer(conninfo: str, *, connections: int = 3) -> Iterator[str]:
    """Yield the connection string of a pooler that has some connections to the database for all of its clients."""
    assert PROGRAM is not None
    server = conninfo_to_dict(conninfo)
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = free.getsockname()[1]
    host, port = server.get("host", "127.0.0.1"), server.get("port", 5432)
    settings = {"name": server["dbname"], "user": server.get("user", getpass.getuser()), "host": host, "port": port}
    user = "pgserver" if os.geteuid() == 0 else None  # pgbouncer refuses to run as root
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        path = Path(directory, "pgbouncer.ini")
        path.write_text(_SETTINGS.format(**settings, listen=listen, connections=connections), "utf-8")
        process = subprocess.Popen(
            [PROGRAM, "-q", path], user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            pooled = make_conninfo(conninfo, host="127.0.0.1", port=listen)
            _await(pooled)
            yield pooled
        finally:
            process.kill()
            process.wait()


def _await(conninfo: str) -> None:
    for _ in range(500):
        with contextlib.suppress(psycopg.OperationalError):
            execute(conninfo, "SELECT 1")
            return
        time.sleep(0.02)
    raise TimeoutError("pgbouncer does not answer")

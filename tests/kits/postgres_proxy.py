"""A proxy between a store and PostgreSQL that cuts a connection at its COMMIT."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from psycopg.conninfo import conninfo_to_dict, make_conninfo

Cut = Literal["before", "after", "garbled"]
_COMMIT = b"COMMIT\0"


class Proxy:
    """A server on 127.0.0.1 that passes bytes between its clients and PostgreSQL.

    Set `cut` to cut the next connection that sends COMMIT: before PostgreSQL gets the message, after PostgreSQL has
    answered it, or after an answer that is no message of the protocol. The store must send COMMIT as text, so open it
    with `prepares=False`.
    """

    def __init__(self, conninfo: str) -> None:
        self._upstream = conninfo_to_dict(conninfo)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.conninfo = make_conninfo(conninfo, host="127.0.0.1", port=self._listener.getsockname()[1])
        self.cut: Cut | None = None
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = self._connect()
                is_cut = threading.Event()
                threading.Thread(target=self._forward, args=(client, server, is_cut), daemon=True).start()
                threading.Thread(target=_return, args=(server, client, is_cut), daemon=True).start()

    def _connect(self) -> socket.socket:
        host, port = str(self._upstream.get("host", "")), int(self._upstream.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _forward(self, client: socket.socket, server: socket.socket, is_cut: threading.Event) -> None:
        with contextlib.suppress(OSError), client, server:
            while data := client.recv(65536):
                cut = self.cut if _COMMIT in data else None
                if cut is not None:
                    self.cut, self.cuts = None, self.cuts + 1
                    is_cut.set()
                if cut == "before":
                    break
                if cut == "garbled":
                    client.sendall(b"\xff" * 40)
                server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)


def _return(server: socket.socket, client: socket.socket, is_cut: threading.Event) -> None:
    """Pass the answers of the server to the client until the connection is cut."""
    with contextlib.suppress(OSError), client:
        while (data := server.recv(65536)) and not is_cut.is_set():
            client.sendall(data)
        client.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(conninfo: str) -> Iterator[Proxy]:
    """Yield a proxy of the server."""
    proxy = Proxy(conninfo)
    try:
        yield proxy
    finally:
        proxy.close()

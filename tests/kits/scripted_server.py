"""A server on loopback that answers each request as a test says, down to its bytes and its silence."""

import contextlib
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

from attrs import define, field


@define
class Exchange:
    """One request as received. The script of the test answers it on `connection`."""

    connection: socket.socket
    head: str
    body: bytes
    ended: threading.Event

    def answer(self, content: object, status: int = 200, *fields: str) -> None:
        """Send a whole answer with `content`, bytes or JSON."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *fields]
        self.send("\r\n".join([*lines, "", ""]).encode() + body)

    def send(self, content: bytes) -> None:
        """Send bytes as they are."""
        self.connection.sendall(content)

    def drip(self, content: bytes) -> None:
        """Send `content` byte by byte, and so slowly that every read succeeds but the whole takes long."""
        for octet in content:
            if self.ended.wait(0.05):
                return
            self.send(bytes([octet]))

    def json(self) -> Any:
        """Return the body of the request as JSON."""
        return json.loads(self.body)


@define
class ScriptedServer:
    """A server that calls `script` for each request, with the number of the request from 0 on."""

    url: str
    script: Callable[[Exchange, int], None]
    requests: list[Exchange] = field(factory=list)
    connections: int = 0


@contextlib.contextmanager
def scripted_server(
    script: Callable[[Exchange, int], None], *, tls: ssl.SSLContext | None = None
) -> Iterator[ScriptedServer]:
    """Run a server, and end it with all its connections. A connection closes after its script raised `OSError`."""
    ended = threading.Event()
    threads: list[threading.Thread] = []
    sockets: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))
    scheme = "https" if tls else "http"
    server = ScriptedServer(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/introspect", script)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            server.connections += 1
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()

    def serve(accepted: socket.socket) -> None:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            stack.enter_context(accepted)
            connection = stack.enter_context(tls.wrap_socket(accepted, server_side=True)) if tls else accepted
            sockets.append(connection)
            while not ended.is_set() and (exchange := _read(connection, ended)) is not None:
                server.requests.append(exchange)
                server.script(exchange, len(server.requests) - 1)

    threads.append(threading.Thread(target=accept))
    threads[0].start()
    try:
        yield server
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        threads[0].join()
        for connection in sockets:
            with contextlib.suppress(OSError):  # it is closed already
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # below TLS
        for thread in threads:
            thread.join()


def _read(connection: socket.socket, ended: threading.Event) -> Exchange | None:
    received = b""
    while chunk := connection.recv(65_536):
        received += chunk
        head, end, body = received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if received.startswith(b"\x16"):  # the first byte of TLS
            return Exchange(connection, "", received, ended)
        if end and len(body) >= (int(length[1]) if length else 0):
            return Exchange(connection, head.decode("latin-1"), body, ended)
    return None

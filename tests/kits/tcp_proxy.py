"""A TCP proxy on the loopback interface that delays connections, and cuts them at chosen moments.

Put the proxy between a client and a server to test lost answers: the client then cannot know whether the server has
acted.
"""

import socket
import threading
import time
from contextlib import ExitStack, suppress
from enum import Enum
from typing import Final, Self

from attrs import field, frozen

_CHUNK_BYTES: Final = 65536
_CONNECT_S_MAX: Final = 10.0


class Moment(Enum):
    """When to cut a connection after the client has sent certain bytes."""

    BEFORE_REQUEST = "the server never gets these bytes"
    BEFORE_ANSWER = "the server gets the bytes, and its answer is discarded"


@frozen(eq=False)
class _Connection:
    client: socket.socket
    server: socket.socket
    # Set when the next answer of the server is discarded, and the connection cut.
    ends_at_answer: threading.Event = field(factory=threading.Event)

    def cut(self) -> None:
        """End both directions. The threads of the connection then close the sockets."""
        for side in (self.client, self.server):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


class TcpProxy:
    """A proxy for the server on `127.0.0.1:upstream`. It listens on `port` while its context is open.

    All methods may be called from any thread. `cuts` counts the connections that were cut at a pattern or a number of
    bytes.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.cuts = 0
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._threads: set[threading.Thread] = set()
        self._delay_s = 0.0
        self._bytes_left: int | None = None
        self._pattern: tuple[bytes, Moment] | None = None
        self._is_refusing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._listener.close()
        while True:
            self.cut_all()
            with self._lock:
                threads = list(self._threads)
            if not threads:
                return
            for thread in threads:
                thread.join(0.1)

    def delay(self, seconds: float) -> None:
        """Delay each piece of data by `seconds` from now on, in both directions."""
        self._delay_s = seconds

    def cut_all(self) -> int:
        """Cut all connections, and return how many there were."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.cut()
        return len(connections)

    def cut_after(self, count: int) -> None:
        """Forward `count` more bytes, both directions together. Then cut the connection that has the next byte."""
        with self._lock:
            self._bytes_left = count

    def cut_at(self, pattern: bytes, moment: Moment) -> None:
        """Cut the next connection on which the client sends `pattern`. The other connections stay."""
        with self._lock:
            self._pattern = pattern, moment

    def refuse(self) -> None:
        """Refuse new connections from now on."""
        self._is_refusing = True

    def admit(self) -> None:
        """Admit new connections again."""
        self._is_refusing = False

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=self._run, args=(target, *arguments), name="tcp-proxy", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _run(self, target: object, *arguments: object) -> None:
        assert callable(target)
        try:
            with suppress(OSError):  # a side has ended the connection
                target(*arguments)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._is_refusing:
                client.close()
            else:
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        """Forward the data of one connection until a side ends it."""
        with ExitStack() as stack:
            stack.enter_context(client)
            server = stack.enter_context(socket.create_connection(("127.0.0.1", self.upstream), _CONNECT_S_MAX))
            server.settimeout(None)
            for side in (client, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(client, server)
            with self._lock:
                self._connections.add(connection)
            stack.callback(self._forget, connection)
            answers = threading.Thread(target=self._forward_answers, args=(connection,), daemon=True)
            answers.start()
            stack.callback(answers.join)
            stack.callback(connection.cut)
            self._forward_requests(connection)

    def _forget(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _forward_requests(self, connection: _Connection) -> None:
        before = b""
        while data := connection.client.recv(_CHUNK_BYTES):
            time.sleep(self._delay_s)
            moment = self._moment_in(before + data)
            before = (before + data)[-64:]  # a pattern may come in two pieces
            if moment is Moment.BEFORE_REQUEST:
                return
            if moment is Moment.BEFORE_ANSWER:
                connection.ends_at_answer.set()
            if not self._send(connection.server, data):
                return

    def _forward_answers(self, connection: _Connection) -> None:
        with suppress(OSError):
            while data := connection.server.recv(_CHUNK_BYTES):
                time.sleep(self._delay_s)
                if connection.ends_at_answer.is_set() or not self._send(connection.client, data):
                    break
        connection.cut()

    def _moment_in(self, data: bytes) -> Moment | None:
        """Return the moment of the cut, if `data` has the pattern."""
        with self._lock:
            if self._pattern is None or self._pattern[0] not in data:
                return None
            moment = self._pattern[1]
            self._pattern = None
            self.cuts += 1
            return moment

    def _send(self, target: socket.socket, data: bytes) -> bool:
        """Send `data`, or the bytes until the cut. Return whether the connection goes on."""
        with self._lock:
            is_cut = self._bytes_left is not None and self._bytes_left < len(data)
            if is_cut:
                data, self._bytes_left = data[: self._bytes_left], None
                self.cuts += 1
            elif self._bytes_left is not None:
                self._bytes_left -= len(data)
        target.sendall(data)
        return not is_cut

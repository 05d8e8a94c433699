"""The proxy forwards, delays and cuts connections."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kits.tcp_proxy import Moment, TcpProxy


class Echo:
    """A server that answers each piece of data with the same data. `received` has all data."""

    def __init__(self) -> None:
        self.received = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._answer, args=self._listener.accept()[:1], daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while data := client.recv(65536):
                self.received += data
                client.sendall(data)

    def await_data(self, data: bytes) -> None:
        """Wait until the server has received exactly `data`."""
        deadline = time.monotonic() + 10
        while self.received != data:
            assert time.monotonic() < deadline, self.received
            time.sleep(0.001)


@pytest.fixture
def echo() -> Iterator[Echo]:
    """Return a server."""
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    """Return a proxy for `echo`."""
    with TcpProxy(echo.port) as proxy:
        yield proxy


def connect(proxy: TcpProxy) -> socket.socket:
    """Return a connection through the proxy."""
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def receive(connection: socket.socket, count: int) -> bytes:
    """Return the next `count` bytes, or those until the connection ends."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while len(data) < count and (piece := connection.recv(count - len(data))):
            data += piece
    return data


def ask(connection: socket.socket, data: bytes) -> bytes:
    """Return the answer of the server to `data`."""
    connection.sendall(data)
    return receive(connection, len(data))


def test_data_is_forwarded_in_both_directions(proxy: TcpProxy) -> None:
    data = bytes(range(256)) * 1000
    with connect(proxy) as first, connect(proxy) as second:
        first.sendall(data)
        assert ask(second, b"second") == b"second"
        assert receive(first, len(data)) == data


def test_data_is_delayed(proxy: TcpProxy) -> None:
    with connect(proxy) as connection:
        ask(connection, b"first")
        proxy.delay(0.1)
        began = time.monotonic()
        assert ask(connection, b"second") == b"second"
        assert time.monotonic() - began >= 0.2
        proxy.delay(0)


def test_a_request_is_cut_before_the_server_gets_it(proxy: TcpProxy, echo: Echo) -> None:
    with connect(proxy) as connection, connect(proxy) as other:
        ask(connection, b"BEGIN")
        proxy.cut_at(b"COMMIT", Moment.BEFORE_REQUEST)
        assert ask(connection, b"COMMIT") == b""
        assert ask(other, b"COMMIT") == b"COMMIT"
    assert echo.received == b"BEGINCOMMIT"
    assert proxy.cuts == 1


def test_an_answer_is_cut_after_the_server_got_the_request(proxy: TcpProxy, echo: Echo) -> None:
    proxy.cut_at(b"COMMIT", Moment.BEFORE_ANSWER)
    with connect(proxy) as connection:
        assert ask(connection, b"COM") == b"COM"
        assert ask(connection, b"MIT") == b""
    assert echo.received == b"COMMIT"


@pytest.mark.parametrize("count", range(1, 8))
def test_a_connection_is_cut_at_a_number_of_bytes(proxy: TcpProxy, echo: Echo, count: int) -> None:
    proxy.cut_after(count)
    with connect(proxy) as connection:
        assert ask(connection, b"four") == b"four"[: max(count - 4, 0)]
        echo.await_data(b"four"[:count])
    assert proxy.cuts == 1


def test_all_connections_are_cut(proxy: TcpProxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        assert ask(first, b"a") + ask(second, b"b") == b"ab"
        assert proxy.cut_all() == 2
        assert receive(first, 1) + receive(second, 1) == b""
    with connect(proxy) as third:
        assert ask(third, b"c") == b"c"


def test_new_connections_are_refused_for_a_time(proxy: TcpProxy) -> None:
    with connect(proxy) as first:
        assert ask(first, b"a") == b"a"
        proxy.refuse()
        with connect(proxy) as second:
            assert receive(second, 1) == b""
        assert ask(first, b"b") == b"b"
    proxy.admit()
    with connect(proxy) as third:
        assert ask(third, b"c") == b"c"


def test_a_connection_ends_when_the_server_does_not_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with TcpProxy(port) as proxy, connect(proxy) as connection:
        assert receive(connection, 1) == b""


def test_the_end_of_the_proxy_ends_its_connections_and_threads(echo: Echo) -> None:
    with TcpProxy(echo.port) as proxy:
        connection = connect(proxy)
        assert ask(connection, b"a") == b"a"
    with connection:
        assert receive(connection, 1) == b""
    assert not [thread for thread in threading.enumerate() if thread.name == "tcp-proxy"]

"""One answer for one request: the HTTP clients never take an answer for that of another request."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from incoming_payments.limits import (
    ANSWER_LINES_MAX,
    ANSWER_OVERHEAD_BYTES_MAX,
    ANSWER_PIECES_MAX,
    INTERIM_RESPONSES_MAX,
)
from incoming_payments.outbound._http import HttpFailed, Received
from kits.http_clients import SharedClient
from kits.https_server import contexts
from kits.odd_answers import NOT_ONE_ANSWER, ONE_ANSWER
from kits.scripted_server import Exchange, ScriptedServer, scripted_server

BODY_BYTES_MAX: Final = 20_000
CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def client() -> Iterator[SharedClient]:
    """An HTTP client that trusts the test CA."""
    with contextlib.closing(SharedClient(bytes_max=BODY_BYTES_MAX, tls=contexts()[1])) as client:
        yield client


def target(exchange: Exchange) -> bytes:
    """Return the target of the request."""
    return exchange.head.split(" ")[1].encode()


def answer_to(exchange: Exchange, size: int = 0) -> bytes:
    """Return a whole answer that repeats the target of the request, with a body of at least `size` bytes."""
    body = target(exchange).ljust(size)
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def ask(client: SharedClient, server: ScriptedServer, name: str, *, timeout_s: float = 20) -> object:
    """Send a request with this name, and return the target that the answer repeats, or the failure."""
    outcome = client.send(f"{server.url}?{name}", timeout_s=timeout_s)
    return getattr(outcome, "body", b"").decode().strip().rpartition("?")[2] or outcome


@pytest.mark.parametrize("pause_s", [0, 0.03])
@pytest.mark.parametrize("status", [100, 102, 103, 199])
def test_interim_response_is_not_the_answer(client: SharedClient, status: int, pause_s: float) -> None:
    """RFC 9110 §15.2: the final answer follows, at once or later. The connection is not used again."""

    def script(exchange: Exchange, _: int) -> None:
        exchange.send(b"HTTP/1.1 %d X\r\nLink: </style.css>\r\n\r\n" % status)
        exchange.ended.wait(pause_s)
        exchange.send(answer_to(exchange))

    with scripted_server(script) as server:
        assert [ask(client, server, name) for name in "abc"] == ["a", "b", "c"]
        assert server.connections == 3


def test_several_interim_responses(client: SharedClient) -> None:
    """A server may send more than one of them."""

    def script(exchange: Exchange, _: int) -> None:
        exchange.send(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 X\r\n\r\nHTTP/1.1 102 X\r\n\r\n" + answer_to(exchange)
        )

    with scripted_server(script) as server:
        assert [ask(client, server, name) for name in "abc"] == ["a", "b", "c"]


INTERIM: Final[dict[str, bytes]] = {
    "100": b"HTTP/1.1 100 Continue\r\n\r\n",
    "103": b"HTTP/1.1 103 X\r\nLink: </style.css>\r\n\r\n",
}
ODD_INTERIM: Final = {"100 in another spelling": b"HTTP/1.1\t+100\n\n"}


def after_interim(interim: bytes, count: int, size: int) -> Callable[[Exchange, int], None]:
    """Return a script that sends interim responses and the answer, in pieces of `size` bytes."""

    def script(exchange: Exchange, _: int) -> None:
        octets = interim * count + answer_to(exchange)
        for at in range(0, len(octets), size):
            exchange.send(octets[at : at + size])

    return script


@pytest.mark.parametrize("interim", INTERIM.values(), ids=INTERIM)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_few_interim_responses_are_taken(client: SharedClient, interim: bytes, size: int) -> None:
    """A server may send some while it works."""
    with scripted_server(after_interim(interim, INTERIM_RESPONSES_MAX, size)) as server:
        assert ask(client, server, "a") == "a"


@pytest.mark.parametrize("interim", (INTERIM | ODD_INTERIM).values(), ids=INTERIM | ODD_INTERIM)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_many_interim_responses_are_refused(client: SharedClient, interim: bytes, size: int) -> None:
    """Each one costs time, and a server could send thousands. It does not matter in which pieces they arrive."""
    with scripted_server(after_interim(interim, INTERIM_RESPONSES_MAX + 1, size)) as server:
        assert isinstance(ask(client, server, "a"), HttpFailed)


def processor_s(octets: bytes, size: int) -> float:
    """Return the processor time for taking `octets` in pieces of `size` bytes, until they are refused."""
    received = Received(len(octets))
    begin_s = time.thread_time()
    with contextlib.suppress(ValueError):
        for at in range(0, len(octets), size):
            received.add(memoryview(octets)[at : at + size])
    return time.thread_time() - begin_s


def test_blank_lines_take_little_time() -> None:
    """A server sends them in one piece. It takes no longer to refuse them than to take an answer byte by byte."""
    count = 1 << 15
    assert processor_s(b"\n" * count, count) < processor_s(CHUNKED + b"x" * count, 1)


def test_blank_lines_of_a_body_are_no_interim_responses(client: SharedClient) -> None:
    """The count ends with the final answer."""

    def script(exchange: Exchange, _: int) -> None:
        body = target(exchange) + b"\r\n\r\n" * 2 * INTERIM_RESPONSES_MAX
        exchange.send(NOT_ONE_ANSWER["an interim response"](body))

    with scripted_server(script) as server:
        assert ask(client, server, "a") == "a"


def test_switch_of_protocols_is_not_followed(client: SharedClient) -> None:
    """The clients ask for no other protocol, so what follows is of no use to the next request."""

    def script(exchange: Exchange, number: int) -> None:
        exchange.send(b"HTTP/1.1 101 X\r\n\r\n" + b"\0" * 100 + b"\r\n" if number == 0 else answer_to(exchange))

    with scripted_server(script) as server:
        assert ask(client, server, "a") != "a"
        assert ask(client, server, "b") == "b"
        assert server.connections == 2


STRAY: Final[dict[str, Callable[[bytes], bytes]]] = {
    "an answer": lambda answer: answer,
    "a part of an answer": lambda answer: answer[:20],
    "an interim response": lambda _: b"HTTP/1.1 100 Continue\r\n\r\n",
    "a byte": lambda _: b"x",
    "zeros": lambda _: b"\0" * 100_000,
}


@pytest.mark.parametrize("tls", [None, contexts()[0]], ids=["http", "https"])
@pytest.mark.parametrize("stray", STRAY.values(), ids=STRAY)
@pytest.mark.parametrize("loop_sees_them", [False, True])
def test_connection_with_stray_bytes_is_not_used_again(
    client: SharedClient, stray: Callable[[bytes], bytes], loop_sees_them: bool, tls: Any
) -> None:
    """Bytes that arrive while a connection is idle, seen by the event loop or not yet, belong to no request."""
    with scripted_server(lambda exchange, _: exchange.send(answer_to(exchange)), tls=tls) as server:
        assert ask(client, server, "a") == "a"
        first = server.requests[0]
        with contextlib.suppress(OSError):  # the client closes the connection
            first.send(stray(answer_to(first)))
        time.sleep(0.02)  # until the bytes have arrived
        if loop_sees_them:
            client.idle(0.02)
        assert [ask(client, server, name) for name in "bc"] == ["b", "c"]
        assert server.connections == 2


@pytest.mark.parametrize("tls", [None, contexts()[0]], ids=["http", "https"])
@pytest.mark.parametrize("size", [0, 8192 - 41, 8192, 10_000])
def test_second_answer_is_not_used(client: SharedClient, size: int, tls: Any) -> None:
    """Two answers to one request arrive together, in one read or in several. The second is for no other request."""

    def script(exchange: Exchange, number: int) -> None:
        exchange.send(answer_to(exchange, size) * (2 if number == 0 else 1))

    with scripted_server(script, tls=tls) as server:
        assert [ask(client, server, name) for name in "abc"] == ["a", "b", "c"]
        assert server.connections == 2


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_second_answer_in_two_parts_is_not_used(client: SharedClient, cut: int) -> None:
    """The rest of a second answer arrives with the next request."""
    rest = b""

    def script(exchange: Exchange, number: int) -> None:
        nonlocal rest
        answer = answer_to(exchange, 100)
        if number == 0:
            exchange.send(answer + answer[:cut])
            rest = answer[cut:]
        else:
            exchange.send(rest * (exchange.connection is server.requests[0].connection) + answer)

    with scripted_server(script) as server:
        assert ask(client, server, "a") == "a"
        assert ask(client, server, "b") != "a"
        assert ask(client, server, "c") == "c"


@pytest.mark.parametrize("octets", ONE_ANSWER.values(), ids=ONE_ANSWER)
def test_connection_with_one_answer_is_used_again(client: SharedClient, octets: Callable[[bytes], bytes]) -> None:
    """A well-formed answer leaves no doubt about its end."""
    with scripted_server(lambda exchange, _: exchange.send(octets(target(exchange)))) as server:
        assert [ask(client, server, name) for name in "abc"] == ["a", "b", "c"]
        assert server.connections == 1


def test_connection_with_status_204_is_used_again(client: SharedClient) -> None:
    """An answer with status 204 ends with its header fields (RFC 9112 §6.3), and must not give a length."""
    with scripted_server(lambda exchange, _: exchange.send(b"HTTP/1.1 204 No Content\r\n\r\n")) as server:
        for name in "abc":
            ask(client, server, name)
        assert server.connections == 1


@pytest.mark.parametrize("octets", NOT_ONE_ANSWER.values(), ids=NOT_ONE_ANSWER)
def test_connection_with_anything_else_is_not_used_again(
    client: SharedClient, octets: Callable[[bytes], bytes]
) -> None:
    """The answer is taken or not, and nothing that arrived after it is used. The next request has a new connection."""

    def script(exchange: Exchange, number: int) -> None:
        exchange.send(octets(target(exchange)) if number == 0 else answer_to(exchange))

    with scripted_server(script) as server:
        assert ask(client, server, "a", timeout_s=0.3) != "b"
        assert ask(client, server, "b") == "b"
        assert server.connections == 2


@pytest.mark.parametrize("octets", NOT_ONE_ANSWER.values(), ids=NOT_ONE_ANSWER)
def test_bytes_that_are_not_one_answer(octets: Callable[[bytes], bytes]) -> None:
    """The check finds them on its own. It does not rely on how aiohttp reads them."""
    assert not is_one_answer(octets(b"body"))


def is_one_answer(octets: bytes) -> bool:
    """Return whether the clients take `octets` for exactly one answer."""
    received = Received(BODY_BYTES_MAX)
    received.add(memoryview(octets))
    return received.is_one_answer()


CLOSING: Final[dict[str, Callable[[bytes], bytes]]] = {
    "the last answer": lambda body: (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    ),
    "an answer that is cut off": lambda body: b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + body,
    "no HTTP": lambda _: b"garbage\r\n\r\n",
    "an interim response": NOT_ONE_ANSWER["an interim response"],
    "a large body": lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n" + b"x" * 90_000,
    "nothing": lambda _: b"",
}


@pytest.mark.parametrize("tls", [None, contexts()[0]], ids=["http", "https"])
@pytest.mark.parametrize("octets", CLOSING.values(), ids=CLOSING)
def test_server_cannot_keep_a_connection_open(client: SharedClient, octets: Callable[[bytes], bytes], tls: Any) -> None:
    """The client closes the socket at once. It does not wait until the server closes its side of TLS too."""
    closed = threading.Event()

    def script(exchange: Exchange, _: int) -> None:
        with contextlib.suppress(OSError):
            exchange.send(octets(target(exchange)))
        with socket.socket(fileno=os.dup(exchange.connection.fileno())) as tcp:  # below TLS
            with contextlib.suppress(ConnectionError):
                while tcp.recv(1000):
                    pass
            closed.set()

    with scripted_server(script, tls=tls) as server:
        ask(client, server, "a", timeout_s=0.3)
        end = time.monotonic() + 5
        while not closed.is_set() and time.monotonic() < end:
            client.idle(0.01)
        assert closed.is_set()


FLOODS: Final[dict[str, Callable[[Exchange], None]]] = {
    "interim responses": lambda exchange: exchange.send(b"HTTP/1.1 103 X\r\n\r\n" * 1000),
    "header fields": lambda exchange: exchange.send(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000),
    "a chunk extension": lambda exchange: exchange.send(CHUNKED + b"1;" + b"x" * 2_000_000),
    "chunk extensions": lambda exchange: exchange.send(CHUNKED + (b"1;" + b"x" * 1000 + b"\r\nx\r\n") * 2000),
    "trailers": lambda exchange: exchange.send(CHUNKED + b"0\r\n" + b"X: y\r\n" * 400_000),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_bytes_of_a_whole_answer_are_bounded(client: SharedClient, flood: Callable[[Exchange], None]) -> None:
    """Interim responses, header fields and the framing of chunks count too. The rest of the answer is not read."""
    sent = 0

    def script(exchange: Exchange, _: int) -> None:
        nonlocal sent
        while True:
            flood(exchange)
            sent += 1

    with scripted_server(script) as server:
        outcome = client.send(server.url)
    assert isinstance(outcome, HttpFailed)
    assert "did not answer" not in str(outcome)
    assert sent < 300


@pytest.mark.parametrize("more", [-1, 1])
def test_chunks_of_an_answer_are_bounded(client: SharedClient, more: int) -> None:
    """Each chunk takes time, and the deadline of a request does not end work of the processor."""
    chunks = b"1\r\nx\r\n" * (ANSWER_LINES_MAX // 2 - 3 + more) + b"0\r\n\r\n"
    octets = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    with scripted_server(lambda exchange, _: exchange.send(octets)) as server:
        assert isinstance(client.send(server.url), HttpFailed) == (more > 0)


def test_pieces_of_an_answer_are_bounded(client: SharedClient) -> None:
    """Each piece takes time, too. A server could send each byte in a TLS record of its own."""

    def drip(exchange: Exchange, _: int) -> None:
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n")
        for _ in range(2000):
            exchange.send(b"x")  # raises `OSError` once the client has closed the connection
            time.sleep(0.001)  # without a pause, the client receives many bytes at once

    with scripted_server(drip) as server:
        outcome = client.send(server.url, timeout_s=30)
    assert isinstance(outcome, HttpFailed)
    assert f"arrived in more than {ANSWER_PIECES_MAX} pieces" in str(outcome)


HELLO_REQUEST: Final = b"\x16\x03\x03\0\4" + b"\0" * 4  # RFC 5246 §7.4.1.1: a client may ignore it at any time


def test_tls_messages_without_an_end_do_not_exceed_the_time(client: SharedClient) -> None:
    """OpenSSL does not return while a server sends messages that it ignores. The server needs no certificate."""
    outlasted = threading.Event()

    def flood(exchange: Exchange, _: int) -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            exchange.send(HELLO_REQUEST * 100_000)  # raises `OSError` once the client has closed the connection
        outlasted.set()

    with scripted_server(flood) as server:
        outcome = client.send(server.url.replace("http:", "https:"), timeout_s=0.3)
        assert isinstance(outcome, HttpFailed)
        assert "did not answer within 0.3 s" in str(outcome)
        assert not outlasted.is_set()


def processor_s_of_field(client: SharedClient, name: bytes) -> float:
    """Return the processor time for an answer with a long field, whose value is the beginning of a quoted string."""
    value = b'multipart/mixed; a="' + b";a" * 32_000
    octets = b"HTTP/1.1 200 OK\r\n%b: %b\r\nContent-Length: 0\r\n\r\n" % (name, value)
    with scripted_server(lambda exchange, _: exchange.send(octets)) as server:
        begin_s = time.process_time()
        client.send(server.url)
        return time.process_time() - begin_s


@pytest.mark.parametrize("name", [b"Content-Type", b"content-type"])
def test_parameters_of_the_content_type_take_little_time(client: SharedClient, name: bytes) -> None:
    """A server may send thousands of them. The deadline of a request does not end work of the processor."""
    assert processor_s_of_field(client, name) < 20 * processor_s_of_field(client, b"X")


NESTED: Final[dict[str, bytes]] = {
    "in lines": b"Content-Type: message/rfc822\r\n\r\n" * 1500,
    "after a bare CR": b"X: y\r" + b"Content-Type: message/rfc822\r\r" * 1500 + b"\r\n",
    "after bare CRs": b"X: y\r" + b"Content-Type: message/rfc822\r\r" * 1500 + b"\r\r\r\n",
}


@pytest.mark.parametrize("fields", NESTED.values(), ids=NESTED)
def test_nested_messages_of_a_server_are_not_parsed(client: SharedClient, fields: bytes) -> None:
    """They are a body or a malformed field, and never an exception other than `HttpFailed`."""
    octets = b"HTTP/1.1 200 OK\r\n" + fields + b"Content-Length: 0\r\n\r\n"

    def script(exchange: Exchange, _: int) -> None:
        exchange.send(octets)
        raise OSError("this closes the connection")

    with scripted_server(script) as server:
        assert isinstance(client.send(server.url), HttpFailed)


@pytest.mark.parametrize("before", [b"", b"Transfer-Encoding: chunked\r\n"], ids=["first", "behind the framing"])
def test_content_type_in_several_lines_is_taken(client: SharedClient, before: bytes) -> None:
    """RFC 9112 §5.2: a user agent accepts such a field, which is obsolete."""
    folded = b"Content-Type: application/json;\r\n charset=utf-8\r\n"
    octets = b"HTTP/1.1 200 OK\r\n" + before + folded
    octets += b"\r\n2\r\n{}\r\n0\r\n\r\n" if before else b"Content-Length: 2\r\n\r\n{}"
    with scripted_server(lambda exchange, _: exchange.send(octets)) as server:
        assert getattr(client.send(server.url), "body", None) == b"{}"


MALFORMED_FIELDS: Final[dict[str, bytes]] = {
    "no name": b": y\r\n",
    "no colon": b"\1\r\n",
}


@pytest.mark.parametrize("field", MALFORMED_FIELDS.values(), ids=MALFORMED_FIELDS)
def test_malformed_header_fields_do_not_fill_the_log(
    client: SharedClient, field: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Such an answer is refused, and no log contains its bytes."""
    octets = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + field + b"X: " + b"\1" * 50_000 + b"\r\n\r\n"
    with scripted_server(lambda exchange, _: exchange.send(octets)) as server:
        assert isinstance(client.send(server.url), HttpFailed)
    assert caplog.text == ""


def test_answer_with_the_largest_body_and_much_else_is_taken(client: SharedClient) -> None:
    """The bound on the whole answer does not cut into that on the body."""

    def script(exchange: Exchange, _: int) -> None:
        interim = b"HTTP/1.1 103 X\r\nLink: %b\r\n\r\n" % (b"x" * 8000)
        exchange.send(interim * (ANSWER_OVERHEAD_BYTES_MAX // 8200) + answer_to(exchange, BODY_BYTES_MAX))

    with scripted_server(script) as server:
        assert ask(client, server, "a") == "a"

"""The HTTP protocol of `serve`, with requests as bytes."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pytest

from incoming_payments.limits import BODY_PARTS_MAX, FIELDS_READ_MAX, HEADERS_MAX, PIPELINED_REQUESTS_MAX
from kits.processes import Bank, unsigned
from kits.raw_http import answers, exchange

# A request that hides another one in its body, in two packets, and the statuses of the answers.
HIDDEN: Final = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
SMUGGLING: Final = {
    "a length and chunks": (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [400]),
    "chunks and a length": (b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", [400]),
    "two lengths": (b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN), [400]),
    "a list of lengths": (b"Content-Length: 0, %d\r\n\r\n" % len(HIDDEN), [400]),
    "a length of thirty digits": (b"Content-Length: %s\r\n\r\n" % (b"9" * 30), [400]),
    "a space before the colon": (b"Content-Length : 0\r\n\r\n", [400]),
    "a field in two lines": (b"X: a\r\n Content-Length: 0\r\n\r\n", [400]),
    "a field behind a newline alone": (b"X: a\nContent-Length: 0\r\n\r\n", [400]),
    "a chunk with 0x": (b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n", [400]),
    "an unknown coding": (b"Transfer-Encoding: xchunked\r\n\r\n", [400]),
    "a coding after chunked": (b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", [400]),
    "another protocol, and a length": (
        b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN),
        [400],
    ),
    "another protocol behind many fields": (
        b"X: y\r\n" * HEADERS_MAX + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN),
        [431],
    ),
    "a coding before chunked, behind many fields": (
        b"X: y\r\n" * HEADERS_MAX + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        [431],
    ),
    "nothing wrong": (b"Content-Length: %d\r\n\r\n" % len(HIDDEN), [401]),
    "a request behind it": (b"Content-Length: 0\r\n\r\n", [401, 404]),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run `serve`, and return its port."""
    bank = Bank.init(tmp_path_factory.mktemp("running"))
    with bank.serving():
        yield bank.port


@pytest.mark.parametrize("name", SMUGGLING)
@pytest.mark.parametrize("pause_s", [0, 0.05])
def test_a_request_in_the_body_of_another_is_not_answered(running: int, name: str, pause_s: float) -> None:
    """The connection closes after a request with an ambiguous end. RFC 9112 §11.2."""
    fields, expected = SMUGGLING[name]
    head = b"POST /incoming-payments HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + fields
    assert expected == statuses_of(running, head, pause_s)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json"])
@pytest.mark.parametrize("name", SMUGGLING)
def test_the_paths_beside_the_service_answer_no_hidden_request(running: int, path: str, name: str) -> None:
    """The health endpoints and the OpenAPI document take the same care of the connection."""
    fields, expected = SMUGGLING[name]
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\n".encode() + fields
    if name.startswith("another protocol"):
        expected = [200]  # these paths need no body
    assert [200 if status in {401, 431} else status for status in expected] == statuses_of(running, head, 0.05)


def statuses_of(port: int, head: bytes, pause_s: float) -> list[int | None]:
    """Return the statuses of the responses to `head` and, in a packet of its own, the hidden request."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        with suppress(OSError):  # the server may have closed the connection by now
            connection.sendall(head)
            time.sleep(pause_s)
            connection.sendall(HIDDEN)
            time.sleep(0.1)  # at the end of the input, uvloop drops a request that waits behind another
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while piece := connection.recv(65536):
                received += piece
    return [status for status, _ in answers(received)]


def send_until_closed(port: int, start: bytes, piece: bytes, pieces: int) -> tuple[int, bytes]:
    """Send `start`, and then many pieces until the server closes the connection. Return sent and received bytes."""
    sent, received = 0, b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            connection.sendall(start)
            for _ in range(pieces):
                connection.sendall(piece)
                sent += len(piece)
            connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(65536):
                received += data
        except ConnectionError:
            pass  # the server has closed the connection
    return sent, received


POST: Final = b"POST /incoming-payments HTTP/1.1\r\nHost: x\r\n"
CHUNKED: Final = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /", b"a" * 16384),
        (POST, b"X-Field: %s\r\n" % (b"a" * 16384)),
        (POST + b"X-Field: ", b"a" * 16384),
        (CHUNKED + b"1\r\na\r\n0\r\n", b"X-Trailer: %s\r\n" % (b"a" * 16384)),
        (CHUNKED + b"1;x=", b"a" * 16384),
        (b"", b"\r\n" * 8192),
    ],
    ids=["target", "fields", "field", "trailer fields", "chunk extension", "empty lines"],
)
def test_headers_without_end_close_the_connection(running: int, start: bytes, piece: bytes) -> None:
    """Bytes that the service would only keep are counted as they come. 64 MiB of them do not reach the service."""
    sent, _ = send_until_closed(running, start, piece, 4096)
    assert sent < 32 * 1024 * 1024  # the system buffers some megabytes
    assert [code for code, _ in answers(exchange(running, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))]


@pytest.mark.parametrize("more", [-1, 1])
def test_body_of_very_many_chunks_is_refused(running: int, more: int) -> None:
    """The client is not authenticated yet, and each chunk takes time."""
    start = POST + b"Content-Type: application/json\r\nAuthorization: GNAP a\r\nConnection: close\r\n"
    chunks = b"1\r\n \r\n" * (BODY_PARTS_MAX + more) + b"2\r\n{}\r\n0\r\n\r\n"
    found = answers(exchange(running, start + b"Transfer-Encoding: chunked\r\n\r\n" + chunks))
    assert (401 in [status for status, _ in found]) == (more < 0)


@pytest.mark.parametrize(
    ("rest", "status"),
    [(b"", 431), (b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", 401)],
    ids=["header fields", "trailer fields"],
)
def test_very_many_fields_end_the_connection(running: int, rest: bytes, status: int) -> None:
    """The client is not authenticated yet, and each field takes time, also a trailer field."""
    start = POST + b"Connection: close\r\n" + rest
    most = FIELDS_READ_MAX - start.count(b":")
    found = [answers(exchange(running, start + b"a:\r\n" * count + b"\r\n")) for count in (most, most + 1)]
    assert [code for [(code, _)] in found] == [status, 400]


def test_bytes_of_finished_headers_and_bodies_are_not_counted(running: int) -> None:
    """A connection carries any number of requests, also in pieces that end within the headers of the next request."""
    body = b"[" + b" " * 60_000 + b"]"
    request = POST + b"X: %s\r\nContent-Length: %d\r\n\r\n%s" % (b"a" * 10_000, len(body), body)
    whole, found = request * 40, b""
    last = whole + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running), timeout=30) as connection:
        for begin in range(0, len(last), 33_333):
            connection.sendall(last[begin : begin + 33_333])
        while data := connection.recv(65536):
            found += data
    assert [status for status, _ in answers(found)] == [401] * 40 + [404]


PIPELINED: Final = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
LAST: Final = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def test_pipelined_requests_are_answered(running: int) -> None:
    """A client may send some requests before it reads the first response."""
    received = exchange(running, PIPELINED * PIPELINED_REQUESTS_MAX + LAST)
    assert [status for status, _ in answers(received)] == [200] * (PIPELINED_REQUESTS_MAX + 1)


def test_too_many_pipelined_requests_close_the_connection(running: int) -> None:
    """Requests that wait for an earlier response take memory, so the server does not collect thousands of them."""
    assert len(answers(exchange(running, PIPELINED * 20_000 + LAST))) < 20_000
    assert unsigned("GET", f"http://127.0.0.1:{running}/healthz").status_code == 200


def test_headers_that_are_too_long_but_end_are_refused_by_a_code(running: int) -> None:
    """A client with a few fields too many learns the reason."""
    fields = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 10_000) for number in range(7))
    assert answers(exchange(running, POST + fields + b"Connection: close\r\n\r\n")) == [(431, "headers_too_large")]

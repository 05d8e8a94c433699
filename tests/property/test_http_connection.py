"""Requests as `serve` reads them, beside h11: nothing is answered that another server would read otherwise."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import h11
import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from incoming_payments.hosts.http_connection import HttpConnection

Read = tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]  # method, target, fields, body


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_open = self.reads = True

    def get_extra_info(self, _name: str, _default: Any = None) -> Any:
        """There is no socket, but something to set options of."""
        return self

    def setsockopt(self, *_: object) -> None:
        """Has no effect."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep it."""
        self.written += data

    def pause_reading(self) -> None:
        """Nothing is to come in."""
        self.reads = False

    def resume_reading(self) -> None:
        """More may come in."""
        self.reads = True

    def write_eof(self) -> None:
        """Nothing more goes out."""
        self.is_open = False

    def close(self) -> None:
        """Nothing more comes in or goes out."""
        self.is_open = False

    abort = close


async def settle() -> None:
    """Let what can be done be done."""
    for _ in range(5):
        await asyncio.sleep(0)


def read_by_us(pieces: list[bytes]) -> list[Read]:
    """What the application is asked when these come in one after the other."""
    asked: list[Read] = []

    async def application(
        scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        # h11 writes codings in lower case, which they are compared in.
        fields = [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in scope["headers"]]
        asked.append((scope["method"].encode(), scope["raw_path"] + query, fields, body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def story() -> None:
        config = uvicorn.Config(application, log_config=None, proxy_headers=False, ws="none")
        config.load()
        connection, wire = HttpConnection(config, ServerState(), {}), Wire()
        connection.connection_made(wire)
        waiting = list(pieces)
        while waiting and wire.is_open:
            piece = waiting.pop(0)
            buffer = connection.get_buffer(len(piece))
            buffer[: len(piece)] = piece
            connection.buffer_updated(len(piece))
            await settle()
            while not wire.reads:
                await settle()
        connection.connection_lost(None)

    asyncio.run(story())
    return asked


def read_by_h11(data: bytes) -> list[Read]:
    """What h11 reads, up to the first that is no request, or the last that may come.

    But for two things that change nothing: ends of lines before a request, and more spaces than one in its first line.
    """
    found: list[Read] = []
    keeps = True
    while keeps:
        line, end, rest = data.lstrip(b"\r\n").partition(b"\r\n")
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(b" ".join(word for word in line.split(b" ") if word) + end + rest)
        try:
            request = connection.next_event()
            if not isinstance(request, h11.Request):
                break
            body = b""
            while isinstance(event := connection.next_event(), h11.Data):
                body += event.data
        except h11.RemoteProtocolError:
            break
        if event is h11.NEED_DATA:
            break
        found.append((request.method, request.target, list(request.headers), body))
        keeps = connection.their_state is not h11.MUST_CLOSE
        data = connection.trailing_data[0]
    return found


STARTS: Final = [
    b"GET / HTTP/1.1", b"POST /ilp HTTP/1.1", b"POST /a?b=%20&c HTTP/1.1", b"GET / HTTP/1.0", b"HEAD /x#y HTTP/1.1",
    b"OPTIONS * HTTP/1.1", b"GET http://h:1/a HTTP/1.1", b"CONNECT h:1 HTTP/1.1", b"PRI * HTTP/2.0", b"GET /",
    b"DELETE /\xe9 HTTP/1.1", b"get / HTTP/1.1", b"GET / HTTP/1.2", b"PUT x HTTP/1.1",
]  # fmt: skip
FIELDS: Final = [
    b"Host: h", b"host:h", b"Host: a, b", b"Content-Length: 4", b"Content-Length: 04", b"Content-Length: 4, 4",
    b"Content-Length: +4", b"Content-Length:", b"Content-Length: 4 ", b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: Chunked ", b"transfer-encoding:\tchunked", b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity", b"Transfer-Encoding : chunked", b"Transfer-Encoding: x\x0bchunked",
    b"Connection: close", b"Connection: close\t", b"Connection: keep-alive", b"Connection: upgrade", b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"Expect: 100-continue", b" folded", b"A: b\rC: d", b"A: b\nC: d", b"A: \xff \t", b"A:", b": b", b"A b: c",
    b"A: \0",     b"Proxy-Connection: close", b"Trailer: Host", b"Content-Length: 0", b"Keep-Alive: 5",
]  # fmt: skip
BODIES: Final = [
    b"", b"abcd", b"4\r\nabcd\r\n0\r\n\r\n", b"04\r\nabcd\r\n0\r\n\r\n", b"4;x=y\r\nabcd\r\n0\r\n\r\n",
    b"4\r\nabcd\r\n0\r\nHost: evil\r\n\r\n", b"4\nabcd\n0\n\n", b"4 \r\nabcd\r\n0\r\n\r\n", b"-4\r\nabcd\r\n0\r\n\r\n",
    b"4\r\nabcde\r\n0\r\n\r\n", b"0\r\n\r\n", b"4\r\nabcd\r\n0\r\nContent-Length: 9\r\n\r\n", b"ffffffffffffffff1\r\n",
]  # fmt: skip
ENDS: Final = [b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b" \r\n"]

requests = st.builds(
    lambda start, fields, end, body: start + end + b"".join(field + end for field in fields) + b"\r\n" + body,
    st.sampled_from(STARTS),
    st.lists(st.sampled_from(FIELDS), max_size=6),
    st.sampled_from(ENDS),
    st.sampled_from(BODIES),
)
plain = st.builds(
    lambda start, fields, framed: b"\r\n".join([start, b"Host: h", *fields, framed]),
    st.sampled_from(STARTS[:4]),
    st.lists(
        st.sampled_from([b"A: b", b"Connection: keep-alive", b"Upgrade: h2c", b"Expect: 100-continue"]), max_size=2
    ),
    st.sampled_from(
        [b"Content-Length: 4\r\n\r\nabcd", b"Transfer-Encoding: chunked\r\n\r\n" + BODIES[2], b"\r\n", b"X: y\r\n\r\n"]
    ),
)
conversations = st.lists(requests | plain | plain | st.binary(max_size=8), min_size=1, max_size=4).map(b"".join)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A conversation with some bytes of it changed, taken away or put in."""
    data = bytearray(draw(conversations))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(data)))
        data[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b"\r", b"\n", b" ", b"0", b":", b"\0"])
        )
    return bytes(data)


@given(data=damaged(), cuts=st.lists(st.integers(0, 400), max_size=4))
@example(data=b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * 3, cuts=[])
def test_nobody_reads_it_otherwise(data: bytes, cuts: list[int]) -> None:
    """What is asked of the application h11 reads as well, in that order, however the bytes are cut."""
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(places) if start < end]
    ours, theirs = read_by_us(pieces), read_by_h11(data)
    assert ours == theirs[: len(ours)]

"""HTTP/1.1 for clients that nobody vouches for: one connection of `serve`. RFC 9112.

uvicorn listens, starts and stops; llhttp, by httptools, reads; this stands in between, and sees to it that nobody costs
the others much, and that nobody gets the answer to somebody else's request:

- **Bounds**: how many connections are open, how long each may dawdle, how far it may run ahead, how large a head is, in
  how many pieces a body comes, and how much of one connection is worked on before the others have their turn.
- **One after the other**: requests that are sent ahead wait until those before them are answered, and so does the
  refusal of what is not HTTP.
- **A connection on which it is not certain where a request ends** takes no other: one that was answered before its end,
  or would have another protocol. What its client goes on to send is not looked at, and dropped.
- **What is refused though llhttp takes it**: other versions than 1.0 and 1.1, other hosts than one, CONNECT, and other
  transfer codings than `chunked`. A request that tells its length in two ways is refused by llhttp. RFC 9112 §6.1.
- **What is taken though it is not HTTP**: `RTSP/1.1`, or `ICE/1.1` with SOURCE, for `HTTP/1.1`, as llhttp does not say
  which it was. It ends where the same in HTTP would.

Needs httptools and uvicorn, and is imported by `serve` alone.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.server import ServerState

from incoming_payments.api import http_refusal
from incoming_payments.errors import HttpRefused
from incoming_payments.hosts.asgi import Scope, fields_of
from incoming_payments.hosts.deadline import Deadline
from incoming_payments.hosts.http_exchange import Application, Exchange, Field, head_of
from incoming_payments.limits import (
    BODY_BYTES_MAX,
    BODY_PIECES_MAX,
    CONNECTIONS_MAX,
    DROPPED_BYTES_MAX,
    HEAD_BYTES_MAX,
    HEAD_LINES_MAX,
    HEADERS_MAX,
    READ_BYTES_MAX,
    REQUEST_S_MAX,
)

logger = logging.getLogger(__name__)

_HOSTS: Final = {"1.1": (1,), "1.0": (0, 1)}  # by version, how many Host fields there are: RFC 9112 §3.2
_FRAMING: Final = {b"content-length", b"transfer-encoding"}


def bounded(connections: int) -> type["HttpConnection"]:
    """The protocol for a server that may have so many connections open at once."""

    class Bounded(HttpConnection):
        connections_max = connections

    return Bounded


class HttpConnection(asyncio.BufferedProtocol, asyncio.Protocol):
    """One connection. uvicorn makes it, with what it is to serve, and asks it to `shutdown`.

    Whenever it is the client's turn, to send the rest of a request or to take an answer, it has `request_s_max`
    seconds; they are counted anew after each answer, and do not run while the application works. Then the connection
    is cut, without an answer.

    It is a buffered protocol because such a one says how much is read at once. All of that is worked on in one go,
    while others wait; and it is what is held of requests that are sent ahead.
    """

    connections_max: ClassVar[int] = CONNECTIONS_MAX
    request_s_max: ClassVar[float] = REQUEST_S_MAX

    _transport: asyncio.Transport

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002 - uvicorn's, for applications that keep something there: ours does not
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._application: Application = config.loaded_app
        self._root_path = config.root_path
        self._keep_alive_s = config.timeout_keep_alive
        self._server = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._arrived = memoryview(bytearray(READ_BYTES_MAX))
        self._parser = httptools.HttpRequestParser(self)
        # the request that arrives
        self._is_amid = False  # it has begun
        self._exchange: Exchange | None = None  # from the end of its head to its own
        self._target = b""
        self._fields: list[Field] = []
        self._lines = self._pieces = 0
        self._framing = 0  # bytes of it that are not its body
        # the connection
        self._waiting: deque[Exchange] = deque()  # for their answers; the application is at the first
        self._refusal: HttpRefused | None = None  # of what came behind them, or the reason for it
        self._is_deaf = False  # whatever comes now is not looked at
        self._has_more = False  # and something has come, or may be on its way
        self._is_closing = False  # our half is closed
        self._is_idle = False  # after an answer, before the first byte of another request
        self._dropped = 0  # bytes that came after the last answer
        self._reads = True
        self._writable = asyncio.Event()
        self._writable.set()
        self._deadline = Deadline(self._loop, self._late)  # the client's

    # --- what asyncio and uvicorn say ----------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # asyncio's says less
        """Begin to count, unless there are too many connections already."""
        self._transport = transport
        self._server.connections.add(self)  # type: ignore[arg-type]  # uvicorn names its own two protocols there
        # asyncio does so only for sockets that were made with a protocol number, which those of a listener that was
        # made with socket.create_server are not. Without it what is written in two goes can take 40 ms more.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._server.connections) > self.connections_max:
            transport.abort()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's word
        """There is nothing to wait for any more, for nobody."""
        self._server.connections.discard(self)
        self._is_deaf = True
        self._deadline.drop()
        for exchange in self._waiting:
            exchange.lose()
        # These know this connection. If it knew them on, all of it would stay until Python looks for such circles.
        del self._parser, self._deadline
        self._waiting.clear()
        self._exchange = self._refusal = None
        self._writable.set()

    def eof_received(self) -> bool:
        """The client sends nothing more. Requests that it has sent are answered first, but for half a one."""
        self._is_deaf, self._is_amid, self._has_more = True, False, False
        self._lose_incoming()
        if not self._waiting:
            return False
        self._waiting[-1].keeps = False
        return True

    def shutdown(self) -> None:
        """Stop: whoever has not sent all of a request is not waited for, who waits for an answer is."""
        self._is_deaf = True
        if self._waiting and self._waiting[0].is_whole:
            self._waiting[0].keeps = False
        else:
            self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's word
        """Where to the next bytes go."""
        return self._arrived

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come: more of a request, or of some."""
        if self._is_deaf:
            self._drop(nbytes)
        else:
            if self._is_idle:  # its time begins with its first byte
                self._is_idle = False
                self._deadline.lift()
            self._parse(self._arrived[:nbytes])
            self._watch()
        self._regulate()

    def pause_writing(self) -> None:
        """The client does not take its answers, so that the application waits for it."""
        self._writable.clear()
        self._watch()

    def resume_writing(self) -> None:
        """The client has taken enough for the application to go on."""
        self._writable.set()
        self._watch()

    # --- what llhttp says ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_amid, self._has_more = True, self._is_deaf
        self._target, self._fields = b"", []
        self._lines = self._pieces = self._framing = 0

    def on_url(self, url: bytes) -> None:
        """Some of its target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field: of the header, or one behind the body, which nobody needs. RFC 9110 §6.5.1."""
        self._lines += 1
        if self._lines > HEAD_LINES_MAX:
            raise self._refused(431, "headers_too_large", f"send at most {HEADERS_MAX} header fields")
        if self._exchange is None:
            self._fields.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        """All of its header: from here on it is answered, once its turn has come."""
        if self._is_deaf:  # the last one has come
            return
        method, version = self._parser.get_method(), self._parser.get_http_version()
        names = [name for name, _ in self._fields]
        if version not in _HOSTS or method == b"CONNECT":
            raise self._refused(400, "invalid_http", "speak HTTP/1.1, without CONNECT")
        if names.count(b"host") not in _HOSTS[version]:
            raise self._refused(400, "invalid_http", "send one Host field")
        if b"transfer-encoding" in names and self._values(b"transfer-encoding") != [b"chunked"]:
            raise self._refused(400, "invalid_http", "send no Transfer-Encoding but chunked")
        is_current = version == "1.1"
        keeps = is_current and self._parser.should_keep_alive() and not self._parser.should_upgrade()
        awaits_continue = is_current and b"expect" in names and b"100-continue" in self._values(b"expect")
        scope = self._scope(method, version)
        self._exchange = exchange = Exchange(self, scope, keeps=keeps, awaits_continue=awaits_continue)
        self._waiting.append(exchange)
        if len(self._waiting) == 1:
            self._begin(exchange)

    def on_body(self, body: bytes) -> None:
        """Some of its body."""
        if self._exchange is not None:
            self._framing -= len(body)
            self._pieces += 1
            if self._pieces > BODY_PIECES_MAX:
                raise self._refused(413, "body_too_large", f"send a body in at most {BODY_PIECES_MAX} pieces")
            self._exchange.feed(body)

    def on_message_complete(self) -> None:
        """All of it."""
        exchange = self._exchange
        # With `Upgrade` llhttp says so before the body.
        if exchange is not None and not self._parser.should_upgrade():
            self._is_amid, self._exchange = False, None
            exchange.end()
            self._is_deaf = not exchange.keeps

    # --- what the exchange says ----------------------------------------------------------------

    def default_fields(self) -> Iterable[Field]:
        """The date."""
        return self._server.default_headers

    def write(self, data: bytes) -> None:
        """Send `data`."""
        self._transport.write(data)

    async def drain(self) -> None:
        """Return when the client has taken enough of what was sent, or is gone."""
        await self._writable.wait()

    def taken(self) -> None:
        """The application has room for more of the body."""
        self._regulate()

    def answered(self) -> None:
        """Go on to the next request; or end, if there can be none."""
        self._server.total_requests += 1
        self._deadline.lift()
        if not self._waiting.popleft().keeps:
            self._close()
        elif self._waiting:
            self._begin(self._waiting[0])
        elif self._refusal is not None:
            self._answer(self._refusal)
        elif not self._is_amid:
            self._is_idle = True
            self._deadline.set(self._keep_alive_s)
        self._watch()
        self._regulate()

    def abort(self) -> None:
        """End at once."""
        self._transport.abort()

    # --- requests ------------------------------------------------------------------------------

    def _parse(self, data: memoryview) -> None:
        if self._is_amid:
            self._framing += len(data)
        if self._framing > HEAD_BYTES_MAX:
            text = f"send at most {HEAD_BYTES_MAX} bytes besides the body"
            self._refuse(self._refused(431, "headers_too_large", text))
            return
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._pass_over(bytes(data[upgrade.args[0] :]))
        except httptools.HttpParserError as error:
            self._refuse(self._refusal or self._refused(400, "invalid_http", f"this is not HTTP/1.1: {error}"))

    def _pass_over(self, rest: bytes) -> None:
        """RFC 9110 §7.8: who does not speak another protocol passes over the wish for it. `rest` is behind the header.

        llhttp takes that for the other protocol. So it is told anew how the body ends; what follows the body is not
        looked at, as nobody can say what it is.
        """
        lines = [b"%s: %s\r\n" % (name, value) for name, value in self._fields if name in _FRAMING]
        self._has_more = True
        self._parser = httptools.HttpRequestParser(_Body(self))
        with suppress(httptools.HttpParserUpgrade):  # what follows wants another as well
            self._parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *lines, b"\r\n", rest]))

    def _refused(self, status: int, code: str, description: str) -> HttpRefused:
        # httptools does not pass on what a callback raises, only that it did.
        self._refusal = HttpRefused(status, code, description)
        return self._refusal

    def _refuse(self, refusal: HttpRefused) -> None:
        """Look at nothing more, and say why, when those before are answered. Behind the last request nobody asks."""
        self._has_more = True
        if self._is_deaf:
            return
        self._is_deaf = True
        logger.warning("incoming payments: a connection was refused: %s", refusal)
        if self._exchange is not None and self._exchange.is_begun:  # there cannot be an answer within another
            self._transport.abort()
            return
        self._lose_incoming()
        if not self._waiting:
            self._answer(refusal)

    def _lose_incoming(self) -> None:
        """Nobody will answer the request that was arriving: the rest of it never comes."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._waiting.pop()
            exchange.lose()

    def _answer(self, refusal: HttpRefused) -> None:
        response = http_refusal(refusal)
        fields = [*self.default_fields(), *fields_of(response)]
        self._transport.write(head_of(response.status, fields, keeps=False) + response.body)
        self._deadline.lift()
        self._close()

    def _begin(self, exchange: Exchange) -> None:
        task = self._loop.create_task(exchange.run(self._application))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def _scope(self, method: bytes, version: str) -> Scope:
        raw_path, _, query = self._target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": method.decode("ascii"),
            "scheme": "http",
            "root_path": self._root_path,
            "path": self._root_path + unquote(raw_path.decode("ascii")),
            "raw_path": self._root_path.encode("ascii") + raw_path,
            "query_string": query,
            "headers": self._fields,
        }

    def _values(self, name: bytes) -> list[bytes]:
        """The values of the fields `name`, in lower case."""
        return [value.lower() for other, value in self._fields if other == name]

    # --- the connection ------------------------------------------------------------------------

    def _close(self) -> None:
        """Close our half, or both if the client sends nothing. RFC 9112 §9.6.

        What comes in after a socket was closed resets the connection, and a reset can take the last answer away from a
        client that has not read it yet. So our half is closed first, and the rest when the client has closed its own.
        """
        self._is_deaf = self._is_closing = True
        if not (self._is_amid or self._has_more or self._waiting):
            self._transport.close()
            return
        self._exchange = None
        self._waiting.clear()
        try:
            self._transport.write_eof()
        except OSError:  # the client has reset the connection
            self._transport.abort()

    def _drop(self, count: int) -> None:
        self._has_more = True
        if self._is_closing:
            self._dropped += count
            if self._dropped > DROPPED_BYTES_MAX:
                self._transport.abort()

    def _regulate(self) -> None:
        """Read, unless what comes would have to be held while those before it are answered."""
        waiting = self._waiting
        is_ahead = len(waiting) > 1 or (self._is_deaf and self._has_more)
        reads = not waiting or not (is_ahead or len(waiting[0].body) > BODY_BYTES_MAX)
        if reads != self._reads:
            self._reads = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _watch(self) -> None:
        """Let the client's time run, if it is its turn."""
        if self._waiting and self._waiting[0].is_whole and self._writable.is_set():
            self._deadline.lift()
        elif not self._deadline.is_set:
            self._deadline.set(self.request_s_max)

    def _late(self) -> None:
        """The client's time is over."""
        if self._is_idle:
            self._is_idle = False
            self._transport.close()  # which waits until the client has taken what was written
            self._deadline.set(self.request_s_max)
        else:
            self._transport.abort()


class _Body:
    """What is to be heard of a body alone."""

    def __init__(self, connection: HttpConnection) -> None:
        self.on_body = connection.on_body
        self.on_message_complete = connection.on_message_complete

"""The HTTP client, on aiohttp. See `_http`."""

import asyncio
import errno
import select
import socket
import ssl
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from incoming_payments.httpsig import RequestMessage
from incoming_payments.limits import CLIENT_CONNECTIONS_MAX, REQUEST_SOCKETS_MAX
from incoming_payments.outbound._http import (
    CONNECTIONS_DEFAULT,
    HttpAnswer,
    LookUps,
    MayConnect,
    Received,
    any_address,
    check_address,
    default_tls,
    failed,
    too_large,
    too_late,
)

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from aiohttp.client_proto import ResponseHandler

# the number of bytes to receive in one iteration of the loop, because more could be thousands of small chunks
_RECEIVED_BYTES_MAX: Final = 16 * 1024
# the number of bytes of TLS to receive in one iteration of the loop, because 2 KB of session tickets take 1 ms
_TLS_BYTES_MAX: Final = 2 * 1024
_NUMERIC: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
_OPENED: Final[ContextVar[list[socket.socket]]] = ContextVar("_OPENED")  # the sockets of the current request


class AsyncHttpClient:
    """Send requests over persistent connections, at most `connections` to one host. Close the client with `aclose`.

    `tls` replaces the default TLS context. `may_connect` decides whether a socket may connect to an IP address. If
    `keeps` is false, no connection carries a second request. The connections belong to the event loop of the first
    request. After that loop has ended, the client can serve another loop.
    """

    def __init__(
        self,
        *,
        bytes_max: int,
        connections: int = CONNECTIONS_DEFAULT,
        tls: ssl.SSLContext | None = None,
        may_connect: MayConnect = any_address,
        keeps: bool = True,
    ) -> None:
        self._bytes_max = bytes_max
        self._keeps = keeps
        self._connections = connections
        self._tls = tls or default_tls()
        self._may_connect = may_connect
        self._look_ups = LookUps()
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(self, request: RequestMessage, *, timeout_s: float) -> HttpAnswer:
        """Return the answer to `request`. Raise `HttpFailed` if no answer arrives in `timeout_s` seconds."""
        url = request.target_uri
        response = None
        opened: list[socket.socket] = []
        _OPENED.set(opened)
        try:
            response = await self._open().request(
                request.method,
                URL(url, encoded=True),
                data=request.body or None,
                headers=request.headers,
                allow_redirects=False,
                timeout=_total(timeout_s),
                middlewares=() if request.method == "POST" else (_send_once,),  # aiohttp does not retry a POST
            )
            body = bytearray()
            while not response.content.at_eof():
                body += await response.content.readany()
                if len(body) > self._bytes_max:
                    raise too_large(url, self._bytes_max)
            return HttpAnswer(response.status, response.headers, bytes(body))
        except TimeoutError:
            raise too_late(url, timeout_s) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            named = _final(error) if response is None else error  # so that the text is the same for all methods
            raise failed(url, named, is_connection=response is None and _is_connection(error)) from error
        finally:
            if response is not None and not response.closed:  # a complete answer closes the response
                response.close()
            # If a TLS handshake ends at the timeout, asyncio waits 30 s until the server also closes the connection.
            for each in opened if response is None else ():
                with suppress(OSError):  # the socket is already closed
                    each.shutdown(socket.SHUT_RDWR)

    def _open(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            self._loop = loop
            self._session = aiohttp.ClientSession(
                connector=_Connector(
                    self._bytes_max,
                    self._keeps,
                    limit=CLIENT_CONNECTIONS_MAX,
                    limit_per_host=self._connections,
                    resolver=_Resolver(self._look_ups),
                    use_dns_cache=False,  # some supported versions of aiohttp remember all names, without a bound
                    ssl=self._tls,
                    socket_factory=self._socket,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
            )
        return self._session

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, where = address
        check_address(self._may_connect, where[0])
        opened = _OPENED.get()
        # aiohttp tries the next address while other addresses do not answer. A hostile host name has many such
        # addresses.
        if sum(other.fileno() >= 0 for other in opened) >= REQUEST_SOCKETS_MAX:
            raise OSError(
                errno.EAGAIN, f"{REQUEST_SOCKETS_MAX} other addresses of the host do not answer, which is the limit"
            )
        created = _Socket(family, kind, protocol)
        opened.append(created)
        created.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES_MAX)
        return created

    async def aclose(self) -> None:
        """Close all connections. A later request opens new connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class _Socket(socket.socket):
    """A socket from which asyncio reads only a few bytes of TLS at once.

    So a hostile server that sends without a pause does not keep the loop from the other connections.
    """

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        return super().recv_into(memoryview(buffer)[:_TLS_BYTES_MAX], nbytes, flags)


def _total(timeout_s: float) -> aiohttp.ClientTimeout:
    """Return the limit on the whole exchange. aiohttp treats a total of 0 or less as no limit."""
    total_s = max(timeout_s, 0.001)
    return aiohttp.ClientTimeout(total=total_s, ceil_threshold=total_s + 1)


class _Connector(aiohttp.TCPConnector):
    """A connector that reuses a connection only if no byte has arrived on it since the last answer.

    The connector counts the bytes that arrive.
    """

    def __init__(self, body_bytes_max: int, keeps: bool, **options: Any) -> None:
        super().__init__(**options)
        self._body_bytes_max = body_bytes_max
        self._keeps = keeps

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp passes this argument
    ) -> aiohttp.connector.Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            transport = cast("asyncio.Transport", connection.transport)
            exchanges = transport.get_protocol()
            if not isinstance(exchanges, _Exchanges):  # the connection is new
                exchanges = _Exchanges(cast("ResponseHandler", exchanges), transport, self._keeps)
            elif _is_readable(transport):
                transport.abort()
                connection.close()
                continue
            exchanges.begin(self._body_bytes_max)
            connection.add_callback(exchanges.end)
            return connection


class _Exchanges(asyncio.Protocol):
    """A protocol between a connection and aiohttp.

    It limits each answer, and aborts the connection if a byte arrives between two exchanges. An exchange that did not
    receive exactly one answer closes the connection.
    """

    def __init__(self, handler: "ResponseHandler", transport: asyncio.Transport, keeps: bool) -> None:
        self._keeps = keeps
        self._handler = handler
        self._transport = transport
        self._received: Received | None = None
        self._error: Exception | None = None
        # These three events are passed to aiohttp unchanged.
        self.eof_received = handler.eof_received  # type: ignore[method-assign] # for this object only
        self.pause_writing = handler.pause_writing  # type: ignore[method-assign] # likewise
        self.resume_writing = handler.resume_writing  # type: ignore[method-assign] # likewise
        transport.set_protocol(self)

    def begin(self, body_bytes_max: int) -> None:
        self._received = Received(body_bytes_max)

    def end(self) -> None:
        is_kept = self._keeps and self._received is not None and self._received.is_one_answer()
        if not is_kept or self._handler.should_close:
            self._handler.force_close()
            self._transport.abort()  # `close` would wait 30 s for a TLS peer, outside the connection limit
        self._received = None

    def data_received(self, data: bytes) -> None:
        if self._received is None:
            self._transport.abort()
            return
        try:
            self._received.add(memoryview(data))
        except ValueError as error:
            self._error = error
            self._transport.abort()
            return
        self._handler.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._handler.connection_lost(self._error or exc)


def _is_readable(transport: asyncio.Transport) -> bool:
    """Return whether bytes have arrived that the event loop has not read yet."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


class _Resolver(AbstractResolver):
    """A resolver with its own threads, because other parts of the process need the threads of the event loop."""

    def __init__(self, look_ups: LookUps) -> None:
        self._look_ups = look_ups

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - aiohttp passes this argument
    ) -> list[ResolveResult]:
        found = await asyncio.wrap_future(self._look_ups.start(host, port))
        if not found:  # aiohttp asserts that there is an address
            raise OSError(errno.EADDRNOTAVAIL, "the host has no address")
        return [
            ResolveResult(hostname=host, host=address[0], port=port, family=kind, proto=protocol, flags=_NUMERIC)
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Do nothing, because each look-up ends on its own."""


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Replace the errors after which aiohttp would retry a GET, because the callers decide about retries."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectionError as error:
        if (final := _final(error)) is error:
            raise
        raise final from error


def _final(error: Exception) -> Exception:
    """Return `error`, or another error if aiohttp would retry a GET after `error`."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return error
    is_repeated = isinstance(error, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError)
    return aiohttp.ClientConnectionError(str(error)) if is_repeated else error


def _is_connection(error: Exception) -> bool:
    return isinstance(error, aiohttp.ClientConnectionError) and not isinstance(error, aiohttp.ClientSSLError)

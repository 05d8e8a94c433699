"""The sync HTTP client, on urllib3. See `_http`.

A timeout of urllib3 applies to each read, so a server that sends a byte now and then could block a thread for hours.
The connections of this module have a deadline for the whole exchange, from the look-up of the name to the end of the
body.
"""

import errno
import http.client
import io
import socket
import ssl
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, EmptyPoolError, HTTPError, NewConnectionError, ProtocolError
from urllib3.exceptions import TimeoutError as TooLate

from incoming_payments.httpsig import RequestMessage
from incoming_payments.outbound._http import (
    CONNECTIONS_DEFAULT,
    HOSTS_MAX,
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

_LEAST_S: Final = 0.001  # the shortest timeout, because a socket with the timeout 0 would not wait at all
_TARGET: Final = ":path"  # a private name for the target, because urllib3 would change its percent-encoding


class HttpClient:
    """Send requests over persistent connections, at most `connections` to one host. Close the client with `close`.

    `tls` replaces the default TLS context. `may_connect` decides whether a socket may connect to an IP address. If
    `keeps` is false, no connection carries a second request. Threads may share a client. A new connection takes another
    thread and another descriptor until the end of its first exchange.
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
        self._pools = urllib3.PoolManager(HOSTS_MAX, maxsize=connections, block=True, ssl_context=tls or default_tls())
        self._pools.pool_classes_by_scheme = _pool_classes(may_connect, bytes_max, keeps)

    def send(self, request: RequestMessage, *, timeout_s: float) -> HttpAnswer:
        """Return the answer to `request`. Raise `HttpFailed` if no answer arrives in `timeout_s` seconds."""
        url, target = request.target_uri, request.target
        has_head = False
        deadline = _Deadline(timeout_s)
        _DEADLINE.set(deadline)
        try:
            response = self._pools.connection_from_url(url).urlopen(
                request.method,
                target.path + (target.query or ""),
                body=request.body or None,
                headers={**dict(request.headers), _TARGET: target.path + (target.query or "")},
                redirect=False,
                retries=False,
                timeout=deadline,
                pool_timeout=timeout_s,  # type: ignore[arg-type] # it goes to queue.Queue.get, which takes a float
                preload_content=False,
                decode_content=False,
            )
            has_head = True
            body = response.read(self._bytes_max + 1)
            if len(body) > self._bytes_max:
                response.close()
                response.release_conn()
                raise too_large(url, self._bytes_max)
            response.read(1)  # this call raises an error if the body was cut off
            return HttpAnswer(response.status, response.headers, body)
        except (HTTPError, OSError, ValueError) as error:
            is_late = isinstance(error, TooLate | EmptyPoolError) and not isinstance(error, NewConnectionError)
            if is_late or deadline.has_ended_connection:
                raise too_late(url, timeout_s) from None
            raise failed(url, error, is_connection=not has_head and _is_connection(error)) from error
        finally:
            deadline.release()

    def close(self) -> None:
        """Close all connections that are not in use. A later request opens new connections."""
        self._pools.clear()


def _is_connection(error: Exception) -> bool:
    reason = error.args[-1] if isinstance(error, ProtocolError) else error
    return isinstance(reason, NewConnectionError | ConnectionError)


class _Deadline(urllib3.Timeout):
    """A timeout with one deadline for the whole exchange, from the wait for a connection to the end of the body."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._at = time.monotonic() + timeout_s
        self._guarded: tuple[socket.socket, threading.Timer] | None = None
        self.has_ended_connection = False

    def clone(self) -> "_Deadline":
        return self

    @property
    def connect_timeout(self) -> float:
        return max(_LEAST_S, self._at - time.monotonic())

    read_timeout = connect_timeout

    def guard(self, sock: socket.socket) -> None:
        """End the connection of `sock` at the deadline, in a thread. Raises `OSError`.

        OpenSSL handles TLS messages without content by itself, and does not return while a server sends more of them.
        So the timeout of the socket does not end such a read or handshake.
        """
        duplicate = sock.dup()  # TLS takes over the descriptor of `sock`
        timer = threading.Timer(self.connect_timeout, self._end_connection, (duplicate,))
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError as error:  # the system cannot start another thread
            duplicate.close()
            raise OSError(errno.EAGAIN, str(error)) from error
        self._guarded = duplicate, timer

    def _end_connection(self, duplicate: socket.socket) -> None:
        self.has_ended_connection = True
        with suppress(OSError):  # the server has closed it already
            duplicate.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Stop guarding the connection, because the exchange has ended."""
        if self._guarded is not None:
            duplicate, timer = self._guarded
            timer.cancel()
            timer.join()
            duplicate.close()


_DEADLINE: Final[ContextVar[_Deadline]] = ContextVar("_DEADLINE")  # the deadline of the current request


class _TimedReader(io.RawIOBase):
    """A reader for the bytes of one answer. The timeout starts when the reader is created.

    The reader also replaces the socket in `http.client.HTTPResponse`, which uses only the method `makefile`.
    """

    def __init__(self, sock: socket.socket, received: Received) -> None:
        self.received = received
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = time.monotonic() + (sock.gettimeout() or 0)
        self._is_whole = False

    def makefile(self, _: str) -> "_Answer":
        return _Answer(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._is_whole:
            self._sock.settimeout(0)
            return self._raw.readinto(buffer)
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:  # each read has its own timeout, so also check the time of the whole answer
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        count = self._raw.readinto(buffer)
        self.received.add(memoryview(buffer)[:count])
        return count

    def end(self) -> None:
        """End the answer. Later calls read only bytes that have already arrived."""
        self._is_whole = True

    def shut_down(self) -> None:
        """Shut the connection down. urllib3 checks for this before it uses a connection again."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(io.BufferedReader):
    """A reader for the bytes of one answer. It closes the connection if these bytes are not exactly one answer."""

    raw: _TimedReader

    def readline(self, size: int | None = -1) -> bytes:
        """Return a line of the headers or of the framing. Skip the field Content-Type, which no caller needs.

        http.client passes the headers to Python's e-mail parser. For a multipart type, that parser would take seconds,
        or exceed the recursion limit. It also ends a line at a bare CR, which RFC 9112 §2.2 calls invalid.
        """
        line = super().readline(size)
        while line[:13].lower() == b"content-type:":
            while (line := super().readline(size))[:1] in (b" ", b"\t"):  # RFC 9112 §5.2: a field in several lines
                pass
        if b"\r" in line[:-2]:
            raise ValueError("a line of the answer has a bare CR (RFC 9112 §2.2)")
        return line

    def close(self) -> None:
        if not self.closed and (not self.raw.received.is_one_answer() or self._has_more()):
            self.raw.shut_down()
        super().close()

    def _has_more(self) -> bool:
        self.raw.end()
        try:
            return bool(self.peek(1))
        except OSError:  # no bytes arrived over TLS, or the connection has failed
            return False


class _TimedResponse(http.client.HTTPResponse):
    body_bytes_max: int
    keeps: bool

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        reader = _TimedReader(sock, Received(self.body_bytes_max))
        super().__init__(reader, *args, **options)  # type: ignore[arg-type] # it has `makefile`

    def begin(self) -> None:
        super().begin()
        while self.status < 200:  # http.client skips only interim responses with status 100
            self.headers = self.msg = None  # type: ignore[assignment] # so that http.client begins again
            super().begin()
        if self.msg.defects or self.msg.get_payload():  # urllib3 would log all of these bytes
            raise ValueError("the header fields are malformed")
        if not self.keeps:
            self.will_close = True  # treat the answer as if it had `Connection: close`


def _pool_classes(
    may_connect: MayConnect, bytes_max: int, keeps_connections: bool
) -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """Return pools whose connections have a deadline, and lead only to addresses that `may_connect` allows."""
    look_ups = LookUps()

    class Response(_TimedResponse):
        body_bytes_max = bytes_max
        keeps = keeps_connections

    class Plain(HTTPConnection):
        response_class = Response

        def _new_conn(self) -> socket.socket:
            try:
                return _connect(look_ups.start(self.host, self.port), _DEADLINE.get(), may_connect)
            except TimeoutError as error:
                raise ConnectTimeoutError(self, str(error)) from error
            except OSError as error:
                raise NewConnectionError(self, str(error)) from error

        def request(self, method: str, url: str, body: Any = None, headers: Any = None, **options: Any) -> None:
            url = headers.pop(_TARGET)  # urllib3 may have changed `url`
            super().request(method, url, body, headers, **options)

    class Tls(Plain, HTTPSConnection):
        pass

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Tls

    return {"http": PlainPool, "https": TlsPool}


def _connect(look_up: "Future[list[Any]]", deadline: _Deadline, may_connect: MayConnect) -> socket.socket:
    """Return a socket that is connected to the first address that answers."""
    failure = OSError("the host has no address")
    for family, kind, protocol, _, address in look_up.result(deadline.connect_timeout):
        sock = None
        try:
            check_address(may_connect, str(address[0]))
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(deadline.connect_timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address)
            deadline.guard(sock)
            sock.settimeout(deadline.connect_timeout)  # the TLS handshake may take the rest of the time
        except OSError as error:
            failure = error
            if sock is not None:
                sock.close()
        else:
            return sock
    raise failure

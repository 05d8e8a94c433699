"""The service as an ASGI 3.0 application.

Mount an `AsgiApplication`, or call its method `answer` in a route of a framework.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from itertools import islice
from typing import Any, Final

from attrs import evolve

from incoming_payments.domain.checks import name_of
from incoming_payments.endpoints.open_payments import Request, Response, body_too_large, http_refusal
from incoming_payments.errors import ConfigurationError, HttpRefused
from incoming_payments.hosts._paths import Mount, below, check_body, encoded, origin_form
from incoming_payments.hosts.host_log import HostLog, NothingRead
from incoming_payments.limits import BODY_BYTES_MAX, BODY_S_MAX, BODY_START_S_MAX, HEADERS_MAX
from incoming_payments.service import AsyncIncomingPayments

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Names = Mapping[bytes, bytes]  # the header fields by name, each with its last value

_BODILESS: Final = {"GET", "HEAD", "OPTIONS"}
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_CLOSE: Final = ("Connection", "close")


class AsgiApplication:
    """The `service` as an application for any ASGI server that runs on asyncio.

    The arguments, the errors and the log are as in `incoming_payments.hosts.wsgi.WsgiApplication`, except that the
    service is an `AsyncIncomingPayments`. The application awaits `on_shutdown` when the server stops. Close the store
    in this function.

    Route `paths`, and every path below them, to the application.

    The application reads at most `limits.BODY_BYTES_MAX` bytes of a body. The first bytes have to arrive within
    `limits.BODY_START_S_MAX` seconds, and all of them within `limits.BODY_S_MAX`.
    """

    def __init__(
        self,
        service: AsyncIncomingPayments,
        *,
        mount: str | None = None,
        explain_refusals: bool = False,
        on_shutdown: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._mount = Mount(service, AsyncIncomingPayments, mount)
        self._service = service
        self.paths = self._mount.endpoints
        self._log = HostLog(logger, explain=explain_refusals)
        close: object = on_shutdown
        if close is not None and not callable(close):
            text = f"on_shutdown must be an async function, such as store.close, not {name_of(close)}"
            raise ConfigurationError(text, setting="on_shutdown")
        self._on_shutdown = on_shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or handle the lifespan events of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003, "reason": "HTTP only"})
        elif scope["type"] == "http":
            await _send(await self.answer(scope, receive), scope, send)
        else:  # an application must raise an error for an unknown protocol (ASGI, "Applications")
            raise NotImplementedError(f"AsgiApplication does not support the ASGI scope type {scope['type']!r}")

    async def answer(self, scope: Mapping[str, Any], receive: Receive, *, body: bytes | None = None) -> Response:
        """Return the response to the request of `scope`, which a route of a framework can send.

        Pass the `body` if other code has already read it. In that case, `receive` is not called. Raises
        `ConfigurationError` if `scope` is not an ASGI scope, or the body is not bytes, and no other exception.
        """
        given: object = scope
        is_mapping = isinstance(given, Mapping)
        if not is_mapping or "method" not in scope:
            found = "a WSGI environ" if is_mapping else name_of(given)
            text = f"answer() of AsgiApplication takes the ASGI scope, such as request.scope, not {found}"
            raise ConfigurationError(text, setting="scope")
        check_body(body)
        begin_s = time.perf_counter()
        names = dict(scope["headers"])
        path, response = await self._answer(scope, receive, names, body)
        self._service.answered(scope["method"], path, response, begin_s)
        return _last_after_upgrade(response, names)

    async def _answer(
        self, scope: Mapping[str, Any], receive: Receive, names: Names, body: bytes | None
    ) -> tuple[str, Response]:
        """Return the path below the base URL, and the response to the request."""
        path, endpoint = "", self._service.endpoint("")
        try:
            path = below(_path(scope), self._mount.path)
            endpoint = self._service.endpoint(path)
            answer = endpoint.begin(_head(scope, path, names))
            body = await _body(scope, receive, names, body, endpoint.body_bytes_max)
            response = await self._service.run(answer(body))
        except HttpRefused as error:
            if isinstance(error, NothingRead):
                self._log.nothing_read(scope["method"], scope["path"])
            return path, http_refusal(error)
        except Exception as error:  # noqa: BLE001 - it is logged
            self._log.failed(error)
            return path, endpoint.failed()
        self._log.note(response)
        if response.status == 404:
            self._log.not_found(_path(scope), self._mount)
        return path, response

    async def _live(self, receive: Receive, send: Send) -> None:
        # The first message is startup, and the second and last message is shutdown.
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._on_shutdown is not None:
            await self._on_shutdown()
        await send({"type": "lifespan.shutdown.complete"})


async def read_request(
    scope: Mapping[str, Any],
    receive: Receive,
    *,
    mount: str = "",
    check: Callable[[Request], object] = lambda _: None,
    bytes_max: int = BODY_BYTES_MAX,
) -> Request:
    """Return the request of an ASGI scope with its whole body. The path of the request does not contain `mount`.

    The request has at most `limits.HEADERS_MAX` header fields and one more, so that the service refuses a longer list.
    `check` may refuse the request before its body is read.
    Raises `HttpRefused` when the body exceeds `bytes_max` or takes longer than `limits.BODY_S_MAX`, when
    the client disconnects before the end of the body, or when the request has both `Content-Length` and
    `Transfer-Encoding`.
    """
    names = dict(scope["headers"])
    head = _head(scope, below(_path(scope), mount), names)
    check(head)
    return evolve(head, body=await _body(scope, receive, names, None, bytes_max))


def _check_framing(scope: Mapping[str, Any], names: Names) -> None:
    """Raise `HttpRefused` if a proxy and this service could disagree about the end of the request.

    The proxy could send the rest of the bytes as a request of another client (RFC 9112 §6.1 and §11.2). Some servers
    pass such requests to the application.
    """
    if b"transfer-encoding" not in names:
        return
    codings = [value.strip().lower() for name, value in scope["headers"] if name == b"transfer-encoding"]
    if b"content-length" in names:
        text = "the request has Content-Length and Transfer-Encoding: send one of them"
    elif codings != [b"chunked"]:
        text = 'Transfer-Encoding must be "chunked": send no other coding, and send the field once'
    else:
        return
    raise HttpRefused(400, "invalid_http", text, headers=(_CLOSE,))


def _head(scope: Mapping[str, Any], path: str, names: Names) -> Request:
    _check_framing(scope, names)
    # One field above the limit is enough for a refusal, and some servers pass on any number of fields.
    fields = islice(scope["headers"], HEADERS_MAX + 1)
    headers = tuple([(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields])
    query = scope.get("query_string", b"").decode("latin-1")
    return Request(method=scope["method"], path=path, query=query, headers=headers)


def _last_after_upgrade(response: Response, names: Names) -> Response:
    """Return `response`, which closes the connection if the request has `Upgrade`.

    RFC 9110 §7.8 lets a server ignore `Upgrade`. Some parsers (llhttp) skip the body of such a request, and then read
    the body as the next request. So this connection must not carry another request.
    """
    return evolve(response, headers=(*response.headers, _CLOSE)) if b"upgrade" in names else response


async def send_fixed(response: Response, scope: Mapping[str, Any], send: Send) -> None:
    """Send `response` to a request that does not reach the service.

    Close the connection in the same cases as `AsgiApplication`.
    """
    await _send(_last_after_upgrade(response, dict(scope["headers"])), scope, send)


async def _send(response: Response, scope: Mapping[str, Any], send: Send) -> None:
    is_head = scope["method"] == "HEAD"  # send the header fields of GET without the content (RFC 9110 §9.3.2)
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    headers.append((b"content-length", b"%d" % len(response.body)))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if is_head else response.body})


def _path(scope: Mapping[str, Any]) -> str:
    """Return the whole path, if possible as the client sent it, because the signature covers that form."""
    raw = scope.get("raw_path")
    return origin_form(raw.decode("latin-1")) if raw is not None else encoded(scope["path"])


async def _body(scope: Mapping[str, Any], receive: Receive, names: Names, body: bytes | None, limit: int) -> bytes:
    """Return the body of the request, which is `body` if the host has already read it."""
    if body is None:
        if scope["method"] in _BODILESS and scope.get("http_version", "2") < "2" and _FRAMING.isdisjoint(names):
            # The request has no body (RFC 9112 §6.3). If other code has read the first message, `receive` would wait
            # for another.
            return b""
        body = await _receive_body(receive, limit)
    if len(body) > limit:
        raise body_too_large(limit)
    if not body and _announces_content(scope):
        if b"upgrade" in names:  # see `_last_after_upgrade`
            text = "the server has not read the body, because the request has Upgrade: send it without Upgrade"
            raise HttpRefused(400, "incomplete_body", f"{text}, as HTTP clients do over https")
        raise NothingRead(400, "incomplete_body", "the body is empty, but Content-Length is not 0: send the whole body")
    return body


def _announces_content(scope: Mapping[str, Any]) -> bool:
    return any(name == b"content-length" and value.strip(b"0") for name, value in scope["headers"])


async def _receive_body(receive: Receive, limit: int) -> bytes:
    """Return the received body, or only its beginning when the body is longer than `limit`."""
    begin_s = asyncio.get_running_loop().time()
    body = bytearray()
    try:
        async with asyncio.timeout_at(begin_s + BODY_START_S_MAX) as deadline:
            if is_open := _append(body, await receive()):
                deadline.reschedule(begin_s + BODY_S_MAX)
            while is_open and len(body) <= limit:
                is_open = _append(body, await receive())
    except TimeoutError:
        # The rest of the body may still arrive, so this connection cannot carry another request (RFC 9110 §15.5.9).
        text = f"the body must begin within {BODY_START_S_MAX} s and end within {BODY_S_MAX} s: send the request again"
        raise (HttpRefused if body else NothingRead)(408, "body_timeout", text, headers=(_CLOSE,)) from None
    return bytes(body)


def _append(body: bytearray, message: Message) -> bool:
    """Append the bytes of `message` to `body`, and return whether more messages follow."""
    if message["type"] == "http.disconnect":  # the client cannot get a response, but the error ends the request
        text = "the client disconnected before the end of the body: send the request again"
        raise (HttpRefused if body else NothingRead)(400, "incomplete_body", text)
    body += message.get("body", b"")
    return bool(message.get("more_body", False))

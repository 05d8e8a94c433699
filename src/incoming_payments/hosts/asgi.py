"""The service as an ASGI application. ASGI 3.0.

Mount `AsgiApplication` as it is, or call its `answer` from a framework's own route.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import datetime
from typing import Any, Final

from attrs import evolve

from incoming_payments.api import Request, Response, body_too_large, http_refusal
from incoming_payments.clock import utc_now
from incoming_payments.errors import HttpRefused
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.run import arun
from incoming_payments.hosts.endpoints import Endpoints
from incoming_payments.hosts.host_log import HostLog
from incoming_payments.hosts.paths import below, encoded, origin_form
from incoming_payments.ilp_http import PacketPolicy
from incoming_payments.limits import BODY_BYTES_MAX, BODY_S_MAX
from incoming_payments.ports import AsyncPorts, Ports

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_CLOSE: Final = ("Connection", "close")


class AsgiApplication:
    """The service, for any ASGI server that runs on asyncio.

    The arguments, the errors and the log are those of `incoming_payments.hosts.wsgi.WsgiApplication`, except these:

    - `mount` is the server's `root_path` by default.
    - `on_shutdown` is awaited when the server stops. Close the store there.

    The application reads at most `limits.BODY_BYTES_MAX` bytes of a body, in at most `limits.BODY_S_MAX` seconds.
    """

    def __init__(
        self,
        *,
        policy: ServicePolicy,
        ports: AsyncPorts | Ports,
        packets: PacketPolicy | None = None,
        mount: str | None = None,
        clock: Callable[[], datetime] = utc_now,
        explain_refusals: bool = False,
        on_shutdown: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._endpoints = Endpoints(policy, packets, ports.methods)
        self._ports = ports
        self._mount = mount
        self._clock = clock
        self._log = HostLog(logger, explain=explain_refusals)
        self._on_shutdown = on_shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or follow the lifespan of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003, "reason": "HTTP only"})
        elif scope["type"] == "http":
            await _send(await self.answer(scope, receive), scope, send)
        else:  # ASGI, "Applications": an application raises for a protocol that it does not know
            raise NotImplementedError(f"the ASGI scope type {scope['type']!r} is not served")

    async def answer(self, scope: Mapping[str, Any], receive: Receive) -> Response:
        """Return the response to the request of `scope`, for a framework's own route to send. Raises nothing."""
        response = await self._answer(scope, receive)
        if b"upgrade" in _names(scope):
            # RFC 9110 §7.8 lets a server ignore Upgrade. Some parsers (llhttp) leave out the body of such a request and
            # then read that body as the next request, so this connection cannot carry another one.
            return evolve(response, headers=(*response.headers, _CLOSE))
        return response

    async def _answer(self, scope: Mapping[str, Any], receive: Receive) -> Response:
        endpoint = self._endpoints.payments
        try:
            path = _path(scope, self._mount)
            endpoint = self._endpoints.at(path)
            answer = endpoint.begin(_head(scope, path))
            body = await _receive_body(receive, endpoint.body_bytes_max)
            response = await arun(answer(body, self._clock), self._ports)
        except HttpRefused as error:
            return http_refusal(error)
        except Exception as error:  # noqa: BLE001 - it is logged
            self._log.failed(error)
            return endpoint.failed()
        self._log.note(response)
        return response

    async def _live(self, receive: Receive, send: Send) -> None:
        # The first message is startup, the second and last is shutdown.
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._on_shutdown is not None:
            await self._on_shutdown()
        await send({"type": "lifespan.shutdown.complete"})


async def read_request(scope: Mapping[str, Any], receive: Receive, *, mount: str | None = None) -> Request:
    """Return the request of an ASGI scope with its whole body.

    Raises `HttpRefused` when the body is over `limits.BODY_BYTES_MAX` or takes longer than `limits.BODY_S_MAX`, when
    the client disconnects before the end of the body, or when the request has both `Content-Length` and
    `Transfer-Encoding`.
    """
    return evolve(_head(scope, _path(scope, mount)), body=await _receive_body(receive, BODY_BYTES_MAX))


def _names(scope: Mapping[str, Any]) -> set[bytes]:
    return {name for name, _ in scope["headers"]}


def _check_framing(scope: Mapping[str, Any]) -> None:
    """Raise `HttpRefused` if a proxy and this service could disagree about the end of the request. RFC 9112 §6.1 and
    §11.2.

    The proxy would pass on the rest as a request of another client. Some servers pass such requests to the application.
    """
    names = _names(scope)
    if b"transfer-encoding" not in names:
        return
    codings = [value.strip().lower() for name, value in scope["headers"] if name == b"transfer-encoding"]
    if b"content-length" in names:
        text = "the request has Content-Length and Transfer-Encoding: send one of them"
    elif codings != [b"chunked"]:
        text = 'Transfer-Encoding must be "chunked", once: send no other coding'
    else:
        return
    raise HttpRefused(400, "invalid_http", text, headers=(_CLOSE,))


def _head(scope: Mapping[str, Any], path: str) -> Request:
    _check_framing(scope)
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
    query = scope.get("query_string", b"").decode("latin-1")
    return Request(method=scope["method"], path=path, query=query, headers=headers)


async def _send(response: Response, scope: Mapping[str, Any], send: Send) -> None:
    is_head = scope["method"] == "HEAD"  # RFC 9110 §9.3.2: the header fields of GET without its content
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    headers.append((b"content-length", b"%d" % len(response.body)))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if is_head else response.body})


def _path(scope: Mapping[str, Any], mount: str | None) -> str:
    """Return the path below the service, as sent if the server reports it: the signature covers the path as sent."""
    raw = scope.get("raw_path")
    path = origin_form(raw.decode("latin-1")) if raw is not None else encoded(scope["path"])
    return below(path, encoded(scope.get("root_path", "")) if mount is None else mount)


async def _receive_body(receive: Receive, limit: int) -> bytes:
    try:
        async with asyncio.timeout(BODY_S_MAX):
            return await _receive_all(receive, limit)
    except TimeoutError:
        # RFC 9110 §15.5.9: the rest of the body may still arrive, so this connection cannot carry another request.
        text = f"the whole body has to arrive within {BODY_S_MAX} seconds: send the request again"
        raise HttpRefused(408, "body_timeout", text, headers=(_CLOSE,)) from None


async def _receive_all(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":  # no response can be sent; this ends the request like any other error
            raise HttpRefused(400, "incomplete_body", "the client disconnected before the end of the body")
        body += message.get("body", b"")
        if len(body) > limit:
            raise body_too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)

"""The service as an ASGI application. ASGI 3.0.

Mount `AsgiApplication` as it is, or call its `answer` from a framework's own route.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import datetime
from typing import Any

from attrs import evolve

from incoming_payments.api import Request, Response, body_too_large, http_refusal
from incoming_payments.errors import HttpRefused
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.run import arun
from incoming_payments.hosts.clock import utc_now
from incoming_payments.hosts.host_log import HostLog
from incoming_payments.hosts.paths import below, encoded, origin_form
from incoming_payments.hosts.surfaces import Surfaces
from incoming_payments.ilp_http import PacketPolicy
from incoming_payments.limits import BODY_BYTES_MAX
from incoming_payments.ports import AsyncPorts, Ports

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class AsgiApplication:
    """The service, for any ASGI server.

    `mount` is the path the server puts before the service's own paths; by default what `root_path` says. `clock`
    tells the time. What a port raises that no client can cause is answered with 500 and logged with its trace,
    as often in a minute as `limits.LOGGED_A_MINUTE_MAX` says, like troubles of the store; the others are counted.
    `packets` says from whom ILP packets are taken, and at which path; without it there is no such path. Raises
    `InvalidValue` when its receiver could not read the addresses that `ports.methods` hands out.
    `explain_refusals` logs why signatures were refused, with the likeliest cause and no secret, at most
    `limits.EXPLAINED_A_MINUTE_MAX` times a minute.
    `on_shutdown` is awaited when the server stops, the place to close a store.
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
        self._surfaces = Surfaces(policy, packets, ports.methods)
        self._ports = ports
        self._mount = mount
        self._clock = clock
        self._log = HostLog(logger, explain=explain_refusals)
        self._on_shutdown = on_shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or follow the server's life."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003, "reason": "HTTP only"})
        elif scope["type"] == "http":
            await _send(await self.answer(scope, receive), scope, send)
        else:  # ASGI, "Applications": never answer in a protocol that one does not know
            raise NotImplementedError(f"the ASGI scope type {scope['type']!r} is not served")

    async def answer(self, scope: Mapping[str, Any], receive: Receive) -> Response:
        """The response to the request of `scope`, for a framework's own route to send. Raises nothing."""
        surface = self._surfaces.payments
        try:
            path = _path(scope, self._mount)
            surface = self._surfaces.at(path)
            answer = surface.begin(_head(scope, path))
            body = await _receive_body(receive, surface.body_bytes_max)
            response = await arun(answer(body, self._clock), self._ports)
        except HttpRefused as error:
            return http_refusal(error)
        except Exception as error:  # noqa: BLE001 - it is logged
            self._log.failed(error)
            return surface.failed()
        self._log.note(response)
        return response

    async def _live(self, receive: Receive, send: Send) -> None:
        # Startup is the first message, shutdown the second, and there is no third.
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._on_shutdown is not None:
            await self._on_shutdown()
        await send({"type": "lifespan.shutdown.complete"})


async def read_request(scope: Mapping[str, Any], receive: Receive, *, mount: str | None = None) -> Request:
    """The request of an ASGI scope, its body received to the end.

    Raises `HttpRefused` when the body is over `limits.BODY_BYTES_MAX`, or the client hangs up before its end.
    """
    return evolve(_head(scope, _path(scope, mount)), body=await _receive_body(receive, BODY_BYTES_MAX))


def _head(scope: Mapping[str, Any], path: str) -> Request:
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
    return Request(
        method=scope["method"],
        path=path,
        query=scope.get("query_string", b"").decode("latin-1"),
        headers=headers,
    )


def fields_of(response: Response) -> list[tuple[bytes, bytes]]:
    """The header fields of `response` as ASGI has them, with the length of its body."""
    fields = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    return [*fields, (b"content-length", b"%d" % len(response.body))]


async def _send(response: Response, scope: Mapping[str, Any], send: Send) -> None:
    is_head = scope["method"] == "HEAD"  # RFC 9110 §9.3.2: GET's header fields without its content
    await send({"type": "http.response.start", "status": response.status, "headers": fields_of(response)})
    await send({"type": "http.response.body", "body": b"" if is_head else response.body})


def _path(scope: Mapping[str, Any], mount: str | None) -> str:
    """The path below the service, raw where the server tells it, as the signature covers it as it was sent."""
    raw = scope.get("raw_path")
    path = origin_form(raw.decode("latin-1")) if raw is not None else encoded(scope["path"])
    return below(path, encoded(scope.get("root_path", "")) if mount is None else mount)


async def _receive_body(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            # Nobody waits for this answer any more, but the application has to end like any other.
            raise HttpRefused(400, "incomplete_body", "the client hung up before the body was complete")
        body += message.get("body", b"")
        if len(body) > limit:
            raise body_too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)

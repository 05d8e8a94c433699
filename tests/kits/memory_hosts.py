"""The WSGI and the ASGI host in memory, with the requests of their interfaces."""

import asyncio
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final
from urllib.parse import unquote_to_bytes
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

from attrs import frozen

from incoming_payments.endpoints.open_payments import Request, Response
from incoming_payments.hosts.asgi import AsgiApplication, Message, Scope
from incoming_payments.hosts.wsgi import WsgiApplication
from incoming_payments.service import AsyncIncomingPayments, IncomingPayments
from kits.http_servers import serving_asgi, serving_wsgi
from kits.service_kit import Client, Service, settings

# --- WSGI --------------------------------------------------------------------------------------------


def an_environ(request: Request, **changes: Any) -> dict[str, Any]:
    """Return the WSGI environment for `request`. `None` among `changes` removes a key."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(request.path).decode("latin-1"),
        "QUERY_STRING": request.query,
        "CONTENT_TYPE": "",
        "CONTENT_LENGTH": str(len(request.body)) if request.body else "",
        "wsgi.input": io.BytesIO(request.body),
    }
    for name, value in request.headers:
        key = name.upper().replace("-", "_")
        key = key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"
        environ[key] = f"{environ[key]},{value}" if environ.get(key) and key != "CONTENT_LENGTH" else value
    setup_testing_defaults(environ)
    return {key: value for key, value in {**environ, **changes}.items() if value is not None}


def wsgi_application(service: Service, **options: Any) -> WsgiApplication:
    """Return the service as a WSGI application. `options` are those of the application and of the service."""
    return WsgiApplication(IncomingPayments(**settings(service, options)), **options)


def call_wsgi(application: Any, environ: dict[str, Any]) -> Response:
    """Return the response of `application`, read as a WSGI server does."""
    started: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], _: object = None) -> Any:
        started.append((status, headers))

    body = application(environ, start_response)
    try:
        content = b"".join(body)
    finally:
        if hasattr(body, "close"):
            body.close()
    [(status, headers)] = started
    return Response(int(status.split(" ")[0]), tuple(headers), content)


def _exchange_wsgi(application: WsgiApplication, request: Request) -> tuple[Response, bool]:
    stream = io.BytesIO(request.body)
    response = call_wsgi(validator(application), an_environ(request, **{"wsgi.input": stream}))
    return response, stream.tell() > 0


# --- ASGI --------------------------------------------------------------------------------------------


def a_scope(request: Request, **changes: Any) -> Scope:
    """Return the ASGI scope for `request`. `None` among `changes` removes a key."""
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode("latin-1"),
        "query_string": request.query.encode("latin-1"),
        "root_path": "",
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in request.headers],
    }
    return {key: value for key, value in {**scope, **changes}.items() if value is not None}


class Channel:
    """The `receive` and `send` of an ASGI server, with the messages for both."""

    def __init__(self, *messages: Message) -> None:
        self.waiting = list(messages)
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        """Return the next message. Fail if there is none, because a real server would wait for ever."""
        return self.waiting.pop(0)

    async def send(self, message: Message) -> None:
        """Record the message."""
        self.sent.append(message)

    @property
    def response(self) -> Response:
        """Return the messages sent as one whole response."""
        start, body = self.sent
        assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
        headers = []
        for name, value in start["headers"]:
            assert (bytes, bytes, name.lower()) == (type(name), type(value), name)
            headers.append((name.decode("latin-1"), value.decode("latin-1")))
        return Response(start["status"], tuple(headers), body["body"])


def chunks(*parts: bytes) -> list[Message]:
    """Return a body as one message for each part."""
    last = len(parts) - 1
    return [{"type": "http.request", "body": part, "more_body": n < last} for n, part in enumerate(parts)]


def asgi_application(service: Service, **options: Any) -> AsgiApplication:
    """Return the service as an ASGI application. `options` are those of the application and of the service."""
    return AsgiApplication(AsyncIncomingPayments(**settings(service, options)), **options)


def call_asgi(application: AsgiApplication, scope: Scope, *messages: Message) -> Response:
    """Return the response of `application` to the request of `scope`."""
    channel = Channel(*(messages or chunks(b"")))
    asyncio.run(application(scope, channel.receive, channel.send))
    return channel.response


def _exchange_asgi(application: AsgiApplication, request: Request) -> tuple[Response, bool]:
    channel = Channel(*chunks(request.body))
    asyncio.run(application(a_scope(request), channel.receive, channel.send))
    return channel.response, not channel.waiting


async def behind(_scope: Scope, _receive: object, send: Any) -> None:
    """Answer as the application behind another one."""
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b"behind"})


# --- both --------------------------------------------------------------------------------------------


@frozen
class MemoryHost:
    """A host: its logger, its kind of service, and the other kind.

    `exchange` also says if the host has read the body. `serving` serves an application over HTTP, and yields the port.
    """

    logger: str
    application: Callable[..., Any]
    exchange: Callable[[Any, Request], tuple[Response, bool]]
    serving: Callable[[Any], AbstractContextManager[int]]
    adapter: type[Any]
    service: type[Any]
    other: type[Any]

    def call(self, application: Any, request: Request) -> Response:
        """Return the response of `application` to `request`."""
        return self.exchange(application, request)[0]

    def through(self, service: Service, **options: Any) -> Client:
        """Return a client of `service` that calls it by this host."""
        client = service.client()
        application = self.application(service, **options)
        client.send = lambda request: self.call(application, request)
        return client


WSGI: Final = MemoryHost(
    "incoming_payments.hosts.wsgi",
    wsgi_application,
    _exchange_wsgi,
    lambda application: serving_wsgi(validator(application)),
    WsgiApplication,
    IncomingPayments,
    AsyncIncomingPayments,
)
ASGI: Final = MemoryHost(
    "incoming_payments.hosts.asgi",
    asgi_application,
    _exchange_asgi,
    serving_asgi,
    AsgiApplication,
    AsyncIncomingPayments,
    IncomingPayments,
)

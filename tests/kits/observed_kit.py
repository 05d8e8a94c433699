"""A service that a recorder observes, and every way to send a request to it."""

import asyncio
import inspect
import io
from typing import Any, Final

from incoming_payments.endpoints.open_payments import Request, Response
from incoming_payments.hosts.asgi import AsgiApplication
from incoming_payments.hosts.wsgi import WsgiApplication
from incoming_payments.service import AsyncIncomingPayments, IncomingPayments
from kits.packet_kit import a_policy
from kits.service_kit import Client, Recorder, Service, settings
from kits.stream_kit import METHODS

WAYS: Final = ("sync", "async", "wsgi", "asgi")


class Observed:
    """A service that a recorder observes. `send` sends a request to its `handle`, or to one of the adapters."""

    def __init__(self, way: str, **options: Any) -> None:
        self.kit = Service()
        self.kit.methods = METHODS
        self.kit.replace(methods=METHODS)
        self.recorder = Recorder()
        self.way = way
        self.options = {"packets": a_policy(), "observer": self.recorder, **options}

    @property
    def service(self) -> Any:
        """Return a service with the present ports."""
        kind = AsyncIncomingPayments if self.way in {"async", "asgi"} else IncomingPayments
        return kind(**settings(self.kit, dict(self.options)))

    def client(self) -> Client:
        """Return a client that sends its requests here."""
        client = self.kit.client()
        client.send = self.send
        return client

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return the answer of a method of the service."""
        answer = getattr(self.service, name)(*args, **kwargs)
        return asyncio.run(answer) if inspect.iscoroutine(answer) else answer

    def send(self, request: Request) -> Response:
        """Return the response to `request`."""
        headers = request.headers
        if self.way == "wsgi":
            names = {name: name.upper().replace("-", "_") for name, _ in headers}
            bare = {"CONTENT_TYPE", "CONTENT_LENGTH"}
            fields = {key if (key := names[name]) in bare else f"HTTP_{key}": value for name, value in headers}
            fields |= {"CONTENT_LENGTH": str(len(request.body))} if request.body else {}
            environ = {"REQUEST_METHOD": request.method, "PATH_INFO": request.path, **fields}
            return WsgiApplication(self.service).answer({**environ, "wsgi.input": io.BytesIO(request.body)})
        if self.way == "asgi":
            fields_ = [(name.lower().encode(), value.encode()) for name, value in headers]
            scope = {"method": request.method, "path": request.path, "headers": fields_}

            async def body() -> dict[str, Any]:
                return {"type": "http.request", "body": request.body}

            return asyncio.run(AsgiApplication(self.service).answer(scope, body))
        response: Response = self.call("handle", request)
        return response

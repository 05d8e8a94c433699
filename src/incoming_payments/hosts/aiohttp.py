"""The service in an aiohttp server."""

from functools import partial
from typing import Any

from aiohttp import web

from incoming_payments.hosts._paths import require_application
from incoming_payments.hosts.asgi import AsgiApplication, Message


def routes(application: AsgiApplication) -> list[web.RouteDef]:
    """Return the routes for `app.add_routes`: every method, at the paths of `application` and below.

    Raises `ConfigurationError` unless `application` is an `AsgiApplication`.
    """
    require_application(application, AsgiApplication)

    async def answer(request: web.Request) -> web.Response:
        target = request.raw_path.encode("utf-8", "surrogateescape")
        headers = [(name.lower(), value) for name, value in request.raw_headers]
        scope: dict[str, Any] = {"http_version": "1.1", "method": request.method, "path": request.path}
        scope |= {"raw_path": target, "query_string": target.partition(b"?")[2], "headers": headers}
        response = await application.answer(scope, partial(_receive, request))
        return web.Response(body=response.body, status=response.status, headers=response.headers)

    return [web.route("*", f"{path}{{_:(?s:/.*)?}}", answer) for path in application.paths]


async def _receive(request: web.Request) -> Message:
    """Return the whole body as an ASGI message. `read` also returns a body that other code has already read."""
    try:
        body = await (request.read() if request.content.at_eof() else request.content.readany())
    except (OSError, web.RequestPayloadError):
        return {"type": "http.disconnect"}
    return {"type": "http.request", "body": body, "more_body": not request.content.at_eof()}

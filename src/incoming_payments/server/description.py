"""The OpenAPI document of `serve`, for programs that generate clients."""

from typing import Final
from urllib.parse import urlsplit

from incoming_payments.endpoints.open_payments import Response
from incoming_payments.endpoints.openapi import openapi_document
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.hosts.asgi import Receive, Scope, Send, send_fixed
from incoming_payments.server.health import Application
from incoming_payments.wire import JSON_MEDIA_TYPE, write_json

DOCUMENT: Final = "/openapi.json"


def with_document(application: Application, policy: ServicePolicy, mount: str | None) -> Application:
    """Return `application`, extended to serve its OpenAPI document.

    The paths are `DOCUMENT`, and `DOCUMENT` below the path of the base URL and below `mount`.
    """
    headers = (
        ("Content-Type", JSON_MEDIA_TYPE),
        ("Cache-Control", "no-cache"),
        ("Access-Control-Allow-Origin", "*"),  # pages that show the document have other origins
    )
    document = Response(200, headers, write_json(openapi_document(policy)))
    paths = {f"{prefix}{DOCUMENT}" for prefix in ("", urlsplit(policy.base_url).path, mount or "")}

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") not in paths or scope.get("method") not in {"GET", "HEAD"}:
            await application(scope, receive, send)
            return
        await send_fixed(document, scope, send)

    return answer

"""The OpenAPI document of `serve`, for programs that generate clients."""

from typing import Final
from urllib.parse import urlsplit

from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.hosts.asgi import Receive, Scope, Send
from incoming_payments.openapi import openapi_document
from incoming_payments.server.health import Application
from incoming_payments.wire import JSON_MEDIA_TYPE, write_json

DOCUMENT: Final = "/openapi.json"


def with_document(application: Application, policy: ServicePolicy, mount: str | None) -> Application:
    """Return `application` with the OpenAPI document at `DOCUMENT`, also below the base URL and below `mount`."""
    body = write_json(openapi_document(policy))
    headers = [
        (b"content-type", JSON_MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-cache"),
        (b"access-control-allow-origin", b"*"),  # pages that show the document run at other origins
    ]
    paths = {f"{prefix}{DOCUMENT}" for prefix in ("", urlsplit(policy.base_url).path, mount or "")}

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") not in paths or scope.get("method") not in {"GET", "HEAD"}:
            await application(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body if scope["method"] == "GET" else b""})

    return answer

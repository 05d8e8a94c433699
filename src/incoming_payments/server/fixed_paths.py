"""The answers of `serve` at fixed paths: its OpenAPI document for programs that generate clients, and its health."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from incoming_payments.endpoints.open_payments import Response
from incoming_payments.endpoints.openapi import openapi_document, pull_document
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.hosts.asgi import Receive, Scope, Send, send_fixed
from incoming_payments.service import AsyncIncomingPayments
from incoming_payments.wire import JSON_MEDIA_TYPE, write_json

DOCUMENT: Final = "/openapi.json"
LIVE: Final = "/healthz"
READY: Final = "/readyz"
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def with_document(application: Application, policy: ServicePolicy, mount: str | None) -> Application:
    """Return `application`, extended to serve its OpenAPI document.

    The paths are `DOCUMENT` at the root, below the path of the base URL, and below `mount`.
    """
    prefixes = ("", urlsplit(policy.base_url).path, mount or "")
    return _with_document(application, openapi_document(policy), [f"{prefix}{DOCUMENT}" for prefix in prefixes])


def with_pull_document(application: Application) -> Application:
    """Return `application`, extended to serve at `DOCUMENT` the OpenAPI document for consumers that pull events."""
    return _with_document(application, pull_document(), [DOCUMENT])


def _with_document(application: Application, document: Mapping[str, object], paths: Iterable[str]) -> Application:
    headers = (
        ("Content-Type", JSON_MEDIA_TYPE),
        ("Cache-Control", "no-cache"),
        ("Access-Control-Allow-Origin", "*"),  # pages that show the document have other origins
    )
    response = Response(200, headers, write_json(document))

    async def answer() -> Response:
        return response

    return _with_answers(application, dict.fromkeys(paths, answer))


def with_health(application: Application, service: AsyncIncomingPayments) -> Application:
    """Return `application` with two more paths outside the base URL. Each response is 200 or 503 and has no body.

    `LIVE` answers 200 while the process works. `READY` answers 200 while `service` is ready.
    """

    async def live() -> Response:
        return health(is_well=True)

    async def ready() -> Response:
        return health(is_well=await service.is_ready())

    return _with_answers(application, {LIVE: live, READY: ready})


def health(*, is_well: bool) -> Response:
    """Return the response of `LIVE` or `READY`."""
    return Response(200 if is_well else 503, (("Cache-Control", "no-store"),), b"")


def _with_answers(application: Application, answers: Mapping[str, Callable[[], Awaitable[Response]]]) -> Application:
    """Return `application`, in which `answers` respond to a GET or HEAD of their paths."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        answer = answers.get(scope.get("path", "")) if scope.get("method") in {"GET", "HEAD"} else None
        if answer is None:
            await application(scope, receive, send)
        else:
            await send_fixed(await answer(), scope, send)

    return respond

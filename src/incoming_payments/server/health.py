"""The health endpoints of `serve`, at fixed paths outside the base URL. A response reveals only the status."""

from collections.abc import Awaitable, Callable
from typing import Final

from incoming_payments.endpoints.open_payments import Response
from incoming_payments.hosts.asgi import Receive, Scope, Send, send_fixed
from incoming_payments.service import AsyncIncomingPayments

LIVE: Final = "/healthz"
READY: Final = "/readyz"
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
_HEADERS: Final = (("Cache-Control", "no-store"),)


def with_health(application: Application, service: AsyncIncomingPayments) -> Application:
    """Return `application` with two more paths for `GET` and `HEAD`. Each response is 200 or 503 and has no body.

    `LIVE` answers 200 while the process works. `READY` answers 200 while `service` is ready.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") not in {LIVE, READY} or scope.get("method") not in {"GET", "HEAD"}:
            await application(scope, receive, send)
            return
        is_well = scope["path"] == LIVE or await service.is_ready()
        response = Response(200 if is_well else 503, _HEADERS, b"")
        await send_fixed(response, scope, send)

    return answer

"""The access log of `serve`. Each request gets a line, which leaves out the query, the header fields and the body."""

import logging
import time

from incoming_payments.hosts.asgi import Message, Receive, Scope, Send
from incoming_payments.limits import LOGGED_PATH_CHARS_MAX
from incoming_payments.observers.log import LogEvent, log_event
from incoming_payments.server.fixed_paths import Application

logger = logging.getLogger(__name__)


def with_access_log(application: Application) -> Application:
    """Return `application`, extended so that it logs each answered request in a line at level INFO."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        begin_s, status, sent_bytes = time.perf_counter(), 0, 0

        async def count(message: Message) -> None:
            nonlocal status, sent_bytes
            status = message.get("status", status)
            sent_bytes += len(message.get("body", b""))
            await send(message)

        await application(scope, receive, count)
        path = scope["raw_path"].decode("ascii", "backslashreplace")
        fields = {
            "client": scope["client"][0] if scope["client"] else None,
            "method": scope["method"],
            "path": path[:LOGGED_PATH_CHARS_MAX],
            "status": status,
            "bytes": sent_bytes,
            "duration_ms": round(1000 * (time.perf_counter() - begin_s), 1),
        }
        text = "%(client)s %(method)s %(path)s %(status)d, %(bytes)d bytes, %(duration_ms).1f ms"
        log_event(logger, logging.INFO, LogEvent.REQUEST_ANSWERED, text, fields, fields=fields)

    return answer

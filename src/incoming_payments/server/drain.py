"""The drain: the seconds after SIGTERM in which the service still accepts requests, until a proxy has noticed."""

import asyncio
import signal
from collections.abc import Callable

from incoming_payments.hosts.asgi import Message, Receive, Scope, Send, send_fixed
from incoming_payments.server.fixed_paths import READY, Application, health


class Drain:
    """The drain of one process, which begins with SIGTERM. It takes `drain_s` seconds, or ends with another SIGTERM.

    At its end, it calls `stop`, which closes the listeners.
    """

    def __init__(self, drain_s: int, stop: Callable[[], None]) -> None:
        self._drain_s = drain_s
        self._stop = stop
        self.is_begun = False

    async def install(self) -> None:
        """Handle SIGTERM, in place of the handler of uvicorn, which would stop at once.

        uvicorn installs its handlers before it starts the application, and removes all handlers when it has stopped.
        """
        loop = asyncio.get_running_loop()
        signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(self._begin, loop))

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(0 if self.is_begun else self._drain_s, self._stop)
        self.is_begun = True


def with_drain(application: Application, drain: Drain) -> Application:
    """Return an application that closes connections after each response during `drain`. `READY` then answers 503.

    So a proxy that keeps connections open sends no further request on them.
    """

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if drain.is_begun and message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        if drain.is_begun and scope.get("path") == READY:
            await send_fixed(health(is_well=False), scope, answer)
        else:
            await application(scope, receive, answer)

    return respond

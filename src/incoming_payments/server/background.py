"""The background tasks of a process: the sweep for expired payments, and the heartbeat of a worker."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from incoming_payments.hosts.asgi import Message, Receive, Scope, Send
from incoming_payments.limits import EXPIRY_SWEEP_S_MAX, SWEEP_PAYMENTS_MAX
from incoming_payments.observers.log import LogEvent, log_event
from incoming_payments.server.fixed_paths import Application
from incoming_payments.service import AsyncIncomingPayments

logger = logging.getLogger(__name__)

Task = Callable[[], Coroutine[Any, Any, None]]

_BEAT_S: Final = 1.0


def with_tasks(application: Application, *tasks: Task) -> Application:
    """Return `application`, extended to run `tasks` from the start of the server until the last request is answered."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await application(scope, receive, send)
            return
        running = [asyncio.ensure_future(task()) for task in tasks]

        async def receive_and_stop() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                for task in running:
                    task.cancel()
                await asyncio.wait(running)
            return message

        await application(scope, receive_and_stop, send)

    return answer


def beating(beat: Callable[[], None]) -> Task:
    """Return a task that calls `beat` once a second, but not while the event loop hangs."""

    async def run() -> None:
        while True:
            beat()
            await asyncio.sleep(_BEAT_S)

    return run


def sweeping(service: AsyncIncomingPayments) -> Task:
    """Return a task that writes the `expired` events. Several processes may run this task: no event is written twice.

    A random pause lets the processes take turns. After a full sweep, the pause is as long as the sweep, so that other
    updates can use the disk for at least half of the time.
    """

    async def run() -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(random.uniform(0.3, 1) * EXPIRY_SWEEP_S_MAX)  # noqa: S311 - no secret
            try:
                begin_s = loop.time()
                while await service.announce_expired() == SWEEP_PAYMENTS_MAX:
                    await asyncio.sleep(loop.time() - begin_s)
                    begin_s = loop.time()
            except Exception as error:  # noqa: BLE001 - it is logged
                text = "a sweep for expired payments failed, so their events are written later: %s"
                log_event(logger, logging.WARNING, LogEvent.EXPIRY_SWEEP_FAILED, text, error)

    return run

"""The background tasks of a process: the sweep, the webhooks, and the heartbeat of a worker."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from incoming_payments.flows.expire import announce_expiry, find_expired
from incoming_payments.hosts.asgi import Message, Receive, Scope, Send
from incoming_payments.limits import TASKS_STOP_S_MAX
from incoming_payments.observers.log import LogEvent, log_event
from incoming_payments.ports import AsyncFeed
from incoming_payments.server.config.sweep import SweepTable
from incoming_payments.server.fixed_paths import Application
from incoming_payments.service import AsyncIncomingPayments

if TYPE_CHECKING:
    from incoming_payments.outbound.webhooks import WebhookEndpoint

logger = logging.getLogger(__name__)

Task = Callable[[], Coroutine[Any, Any, None]]

_BEAT_S: Final = 1.0
_AGAIN_S: Final = 0.1  # seconds between two cancellations of a task that waits for several things
_RESTART_S: Final = 5.0  # seconds until webhooks are started again, after the database did not answer
_EXPIRED_AT_ONCE_MAX: Final = 100  # payments whose events one batch writes, so that other updates wait for some ms


def with_tasks(application: Application, *tasks: Task) -> Application:
    """Return `application`, extended to run `tasks` from the start of the server until the last request is answered.

    The tasks have `limits.TASKS_STOP_S_MAX` seconds to end. After that, what they wait for is cancelled too.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await application(scope, receive, send)
            return
        running = [asyncio.ensure_future(task()) for task in tasks]

        async def receive_and_stop() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await _end(running)
            return message

        await application(scope, receive_and_stop, send)

    return answer


async def _end(running: Sequence["asyncio.Future[None]"]) -> None:
    """Cancel the tasks, and wait until they have ended.

    A task may still wait for something, such as the answer to a webhook. After some seconds, that is cancelled too.
    """
    pause_s = float(TASKS_STOP_S_MAX)
    while unfinished := [task for task in running if not task.done()]:
        for task in unfinished:
            task.cancel()
        await asyncio.wait(unfinished, timeout=pause_s)
        pause_s = _AGAIN_S


def beating(beat: Callable[[], None]) -> Task:
    """Return a task that calls `beat` once a second, but not while the event loop hangs."""

    async def run() -> None:
        while True:
            beat()
            await asyncio.sleep(_BEAT_S)

    return run


def relaying(service: AsyncIncomingPayments, endpoints: "Sequence[WebhookEndpoint]") -> Task:
    """Return a task that sends webhooks to `endpoints`. Several processes may run this task: they share the work.

    A cancelled task first waits for the attempts in flight. If it is cancelled again, or its process is killed, the
    other processes take over these deliveries as soon as their leases have ended.
    """

    async def run() -> None:
        from incoming_payments.outbound.webhooks import async_webhooks

        while True:
            try:
                async with async_webhooks(service, endpoints):
                    await asyncio.Event().wait()
            except Exception as error:  # noqa: BLE001 - it is logged
                text = "the webhooks could not be started, and are started later: %s"
                log_event(logger, logging.WARNING, LogEvent.RELAY_FAILED, text, error)
            await asyncio.sleep(_RESTART_S)

    return run


@frozen
class _Step:
    """One kind of work of the sweep. `work` does a batch, and returns whether no work is left."""

    work: Callable[[], Awaitable[bool]]
    event: LogEvent
    failed: str


def sweeping(service: AsyncIncomingPayments, feed: AsyncFeed, sweep: SweepTable) -> Task:
    """Return a task that writes `expired` events, and removes what has been kept for long enough.

    Several processes may run this task. They share the work. No event is written twice, because each batch is one
    transaction that takes only what is left. A random pause lets the processes take turns. Between two batches, the
    task pauses for as long as the first one took. So other updates can use the disk for at least half of the time.
    """
    steps = list(_steps(service, feed, sweep))

    async def run() -> None:
        while True:
            await asyncio.sleep(random.uniform(0.3, 1) * sweep.interval_s)  # noqa: S311 - no secret
            for step in steps:
                await _finish(step)

    return run


def _steps(service: AsyncIncomingPayments, feed: AsyncFeed, sweep: SweepTable) -> Iterator[_Step]:
    async def announce() -> bool:
        # The store commits concurrent updates together, so a batch takes a few syncs of the disk.
        now = service.clock()
        found = await service.run(find_expired(now, limit=_EXPIRED_AT_ONCE_MAX))
        await asyncio.gather(*(service.run(announce_expiry(id, now)) for id in found))
        return len(found) < _EXPIRED_AT_ONCE_MAX

    async def forget() -> bool:
        return await feed.forget(service.clock() - timedelta(seconds=sweep.deliveries_kept_s))

    text = "a sweep for expired payments failed, so their events are written later: %s"
    yield _Step(announce, LogEvent.EXPIRY_SWEEP_FAILED, text)
    if sweep.metadata_kept_s is not None:
        erase = partial(service.erase_old_metadata, kept_s=sweep.metadata_kept_s)
        yield _Step(erase, LogEvent.CLEAN_UP_FAILED, "old metadata was not erased, and is erased later: %s")
    yield _Step(forget, LogEvent.CLEAN_UP_FAILED, "old deliveries were not deleted, and are deleted later: %s")


async def _finish(step: _Step) -> None:
    """Do the work of `step`, batch by batch. A failure is logged, and the next sweep tries again."""
    loop = asyncio.get_running_loop()
    try:
        begin_s = loop.time()
        while not await step.work():
            await asyncio.sleep(loop.time() - begin_s)
            begin_s = loop.time()
    except Exception as error:  # noqa: BLE001 - it is logged
        log_event(logger, logging.WARNING, step.event, step.failed, error)

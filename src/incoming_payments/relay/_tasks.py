"""The relay in tasks of asyncio, for sync and async ports and handlers."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from incoming_payments.domain.feed import Acknowledged
from incoming_payments.flows.machinery.bounded import BoundedCall, Threads
from incoming_payments.ports import AsyncFeed, Feed, Observation
from incoming_payments.relay._core import Ask, Begin, Core, Handle, Pause, Step, Steps
from incoming_payments.relay._handlers import call_handler, is_async
from incoming_payments.relay._settings import RelaySettings
from incoming_payments.relay._slots import Attempt


class AsyncRelay:
    """`Relay` for asyncio. An `async def` handler runs in the event loop, and another handler runs in threads.

    Use it as an async context manager, which runs the relay in a task, or await `run`. When `run` is cancelled, it
    cancels the attempts in progress. Their deliveries come again when their leases have ended.
    """

    def __init__(
        self,
        settings: RelaySettings,
        feed: AsyncFeed | Feed,
        clock: Callable[[], datetime],
        report: Callable[[Observation], None] | None,
    ) -> None:
        self._settings = settings
        self._feed = feed
        self._core = Core(settings, clock=clock, report=report, wake=self._wake)
        self._is_async = is_async(settings.handler)
        self._stopped = asyncio.Event()
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._attempts: set[asyncio.Future[Any]] = set()
        self._handlers = Threads()
        self._running: asyncio.Future[None]

    async def run(self) -> None:
        """Register the consumer and handle its deliveries, until `stop`. Then finish the attempts in progress."""
        self._core.begin()
        await self._run()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        end_watch = self._feed.watch(self._wake)
        try:
            await self._perform_all(self._core.relaying())
        finally:
            end_watch()
            for attempt in self._attempts:
                attempt.cancel()
            self._handlers.end()

    def stop(self) -> None:
        """Make the relay stop. Call it in the event loop. `run` returns when the attempts have ended."""
        self._core.stop()
        self._stopped.set()
        self._woken.set()

    async def __aenter__(self) -> Self:
        """Register the consumer, and begin to handle its deliveries. Raises the errors of the feed."""
        await self._perform_all(self._core.registering())
        self._core.begin()
        self._running = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop, and wait until the attempts in progress have ended."""
        self.stop()
        await self._running

    def _wake(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._woken.set)

    async def _perform_all(self, steps: Steps) -> None:
        """Perform the steps of a generator."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._perform(step)
                except BaseException as error:  # noqa: BLE001 - the generator handles or raises it
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration:
            pass

    async def _perform(self, step: Step) -> Any:
        if isinstance(step, Ask):
            answer = step.call(self._feed)
            return await answer if inspect.isawaitable(answer) else answer
        if isinstance(step, Begin):
            task = asyncio.ensure_future(self._perform_all(self._core.attempting(step.attempt)))
            self._attempts.add(task)
            task.add_done_callback(self._attempts.discard)
            return None
        if isinstance(step, Handle):
            handle = self._handle_in_loop if self._is_async else self._handle
            return await BoundedCall(self._handlers, handle, step.attempt, self._settings.attempt_s)
        if isinstance(step, Pause):
            return await _wait(self._stopped, step.seconds)
        is_woken = await _wait(self._woken, step.seconds)
        self._woken.clear()
        return is_woken

    def _handle(self, attempt: Attempt) -> bool:
        with self._core.running(attempt):
            return call_handler(self._settings.handler, attempt)

    async def _handle_in_loop(self, attempt: Attempt) -> bool:
        with self._core.running(attempt):
            return isinstance(await self._settings.handler(attempt.delivery), Acknowledged)


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Return whether `event` is set within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False

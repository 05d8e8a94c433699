"""The relay in threads, for sync ports and handlers."""

import threading
import time
from collections.abc import Callable
from datetime import datetime
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self

from incoming_payments.errors import ConfigurationError
from incoming_payments.flows.machinery.bounded import BoundedCall, Threads
from incoming_payments.ports import Feed, Observation
from incoming_payments.relay._core import Ask, Begin, Core, Handle, Pause, Step, Steps
from incoming_payments.relay._handlers import call_handler, is_async
from incoming_payments.relay._settings import RelaySettings
from incoming_payments.relay._slots import Attempt

_LOOK_S: Final = 0.05  # seconds after which a pause notices that the relay stops


class Relay:
    """A relay that calls a sync handler in threads. `service.relay` makes it.

    Use it as a context manager, which runs the relay in background threads, or call `run`. A relay runs once. The
    threads are daemons, so a handler that never returns cannot keep the process alive.
    """

    def __init__(
        self,
        settings: RelaySettings,
        feed: Feed,
        clock: Callable[[], datetime],
        report: Callable[[Observation], None] | None,
    ) -> None:
        if is_async(settings.handler):
            text = "handler is async: use AsyncIncomingPayments, or write the handler with def"
            raise ConfigurationError(text, setting="handler")
        self._settings = settings
        self._feed = feed
        self._core = Core(settings, clock=clock, report=report, wake=self._wake)
        # not a `threading.Event`, because a signal handler may call `stop`, and only `put` is reentrant
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._attempts = Threads()
        self._handlers = Threads()
        name = f"incoming-payments-relay-{settings.consumer.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def run(self) -> None:
        """Register the consumer and handle its deliveries, until `stop`. Then finish the attempts in progress."""
        self._core.begin()
        self._run()

    def _run(self) -> None:
        end_watch = self._feed.watch(self._wake)
        try:
            self._perform_all(self._core.relaying())
            for threads in (self._attempts, self._handlers):
                threads.end()
        finally:
            end_watch()

    def stop(self) -> None:
        """Make the relay stop. This method returns at once, and `run` returns when the attempts have ended.

        A signal handler may call this method.
        """
        self._core.stop()

    def __enter__(self) -> Self:
        """Register the consumer, and begin to handle its deliveries. Raises the errors of the feed."""
        self._perform_all(self._core.registering())
        self._core.begin()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop, and wait until the attempts in progress have ended."""
        self.stop()
        self._thread.join()

    def _wake(self) -> None:
        if self._woken.empty():
            self._woken.put(None)

    def _perform_all(self, steps: Steps) -> None:
        """Perform the steps of a generator."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._perform(step)
                except BaseException as error:  # noqa: BLE001 - the generator handles or raises it
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration:
            pass

    def _perform(self, step: Step) -> Any:
        if isinstance(step, Ask):
            return step.call(self._feed)
        if isinstance(step, Begin):
            return self._attempts.submit(self._perform_all, self._core.attempting(step.attempt))
        if isinstance(step, Handle):
            return BoundedCall(self._handlers, self._handle, step.attempt, self._settings.attempt_s).wait()
        if isinstance(step, Pause):
            return self._pause(step.seconds)
        try:
            self._woken.get(timeout=step.seconds)
        except Empty:
            return False
        return True

    def _pause(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while not self._core.is_stopping and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_S))

    def _handle(self, attempt: Attempt) -> bool:
        with self._core.running(attempt):
            return call_handler(self._settings.handler, attempt)

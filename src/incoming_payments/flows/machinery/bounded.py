"""Call a port with a timeout. An answer after the timeout is dropped.

A sync port runs in a thread, so that a port that hangs cannot block the service. An async port is cancelled.
"""

import asyncio
import contextvars
import inspect
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from incoming_payments.errors import PortMissing
from incoming_payments.limits import PORT_THREADS_MAX

Calls = SimpleQueue[tuple["Future[Any]", Callable[[], Any]] | None]  # `None` ends a thread


class BoundedCall:
    """One call of a port. Call `wait` in a thread, or `await` the call.

    The call raises `TimeoutError` when the timeout passes.
    """

    def __init__(self, threads: "Threads", method: Callable[[Any], Any], argument: object, bound_s: float) -> None:
        self._threads = threads
        self._method = method
        self._argument = argument
        self._bound_s = bound_s

    def wait(self) -> Any:
        """Call the port in another thread, and return the answer. Raises the exceptions of the port."""
        deadline_s = time.monotonic() + self._bound_s
        future = self._threads.submit(self._method, self._argument)
        try:
            answer = future.result(self._bound_s)
        finally:
            future.cancel()  # the caller no longer needs a call that has not begun
        _check_in_time(deadline_s)
        if inspect.iscoroutine(answer):
            answer.close()  # prevent a warning of Python that the coroutine was never awaited
            raise PortMissing("approval is async: use arun, or AsyncIncomingPayments")
        return answer

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._bounded().__await__()

    async def _bounded(self) -> Any:
        # Do not use `asyncio.wait_for`, because it waits for ever for a coroutine that ignores its cancellation.
        deadline_s = time.monotonic() + self._bound_s
        task = asyncio.ensure_future(self._answer())
        try:
            await asyncio.wait({task}, timeout=self._bound_s)
        finally:
            if not task.done():
                task.add_done_callback(_ignore)
                task.cancel()
        if not task.done() or task.cancelled():
            raise TimeoutError
        answer = task.result()
        _check_in_time(deadline_s)
        return answer

    async def _answer(self) -> Any:
        if inspect.iscoroutinefunction(self._method):
            return await self._method(self._argument)
        answer = await asyncio.wrap_future(self._threads.submit(self._method, self._argument))
        return await answer if inspect.isawaitable(answer) else answer


def _check_in_time(deadline_s: float) -> None:
    """Raise `TimeoutError` after the deadline, because a port that blocks the loop also blocks the timer."""
    if time.monotonic() > deadline_s:
        raise TimeoutError


def _ignore(task: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of a dropped call, because asyncio logs exceptions that no code retrieves."""
    if not task.cancelled():
        task.exception()


class Threads:
    """A limited number of daemon threads for calls that may hang. The process can end while these threads run.

    A `ThreadPoolExecutor` would wait for its threads when the process ends.
    """

    def __init__(self) -> None:
        self._begin()
        _pools.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._calls: Calls = SimpleQueue()

    def submit(self, method: Callable[[Any], Any], argument: object) -> "Future[Any]":
        """Queue a call. If no thread is idle and the limit allows it, start another thread.

        Raises `TimeoutError` when too many calls wait for threads that hang.
        """
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        with self._lock:
            if self._calls.qsize() >= PORT_THREADS_MAX:
                raise TimeoutError(
                    f"{self._started} calls of the port have no answer yet, and {self._started} more calls "
                    "wait: make the port faster"
                )
            if not self._idle.acquire(blocking=False) and self._started < PORT_THREADS_MAX:
                name = "incoming-payments-port"
                threading.Thread(target=self._work, args=(self._calls,), name=name, daemon=True).start()
                self._started += 1
            self._calls.put((future, lambda: context.run(method, argument)))
        return future

    def end(self) -> None:
        """End each thread after its call. Submit no call after that."""
        with self._lock:
            for _ in range(self._started):
                self._calls.put(None)

    def _work(self, calls: Calls) -> None:
        while (queued := calls.get()) is not None:
            future, call = queued
            if future.set_running_or_notify_cancel():
                try:
                    answer = call()
                except BaseException as error:  # noqa: BLE001 - the caller gets it
                    future.set_exception(error)
                else:
                    future.set_result(answer)
            del queued, future, call  # an idle thread must not keep arguments alive
            self._idle.release()


_pools: "weakref.WeakSet[Threads]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool._begin()  # noqa: SLF001 - the child has none of the threads


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows does not fork
    os.register_at_fork(after_in_child=_after_fork_in_child)

"""A circuit breaker and single flight, for the clients of other systems."""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from incoming_payments.errors import PortUnavailable
from incoming_payments.limits import BREAKER_FAILURES_MAX, BREAKER_OPEN_S_MAX, BREAKER_OPEN_S_MIN

T = TypeVar("T")


class Breaker:
    """Stop sending to a server that does not answer. Times are seconds of a monotonic clock.

    After `limits.BREAKER_FAILURES_MAX` failures in a row, no request is sent for `limits.BREAKER_OPEN_S_MIN` seconds.
    Then one request tries the server. If it fails, the time doubles, to `limits.BREAKER_OPEN_S_MAX` at most.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._open_s = BREAKER_OPEN_S_MIN
        self._closed_from = 0.0
        self._answered_at = -math.inf

    def wait_s(self, now: float) -> float:
        """Return 0 if a request may be sent now, or else the seconds until the next request is allowed."""
        if self._failures < BREAKER_FAILURES_MAX:
            return 0.0
        with self._lock:
            if now >= self._closed_from:
                self._closed_from = now + self._open_s  # for the others, while this request tries the server
                return 0.0
            return self._closed_from - now

    def succeeded(self, now: float) -> None:
        """Record that the server answered."""
        self._answered_at = now
        if self._failures:
            with self._lock:
                self._failures, self._open_s, self._closed_from = 0, BREAKER_OPEN_S_MIN, 0.0

    def failed(self, now: float, begin_s: float) -> None:
        """Record that the server did not answer a request of `begin_s`.

        That is no failure of the server if it has answered another request since then. Otherwise a stranger with very
        many requests, which wait for a connection in vain, could open the breaker for all.
        """
        if begin_s < self._answered_at:
            return
        with self._lock:
            self._failures += 1
            if self._failures >= BREAKER_FAILURES_MAX:
                self._closed_from = now + self._open_s
                self._open_s = min(2 * self._open_s, BREAKER_OPEN_S_MAX)


class SingleFlight(Generic[T]):
    """Let threads that need the same result wait for the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, Future[T]] = {}

    def run(self, key: Hashable, work: Callable[[], T], *, timeout_s: float) -> T:
        """Return the result of `work`, or that of the same `key` in flight. Its `PortUnavailable` is for all."""
        with self._lock:
            flight = self._flights.get(key)
            mine: Future[T] = Future()
            if flight is None:
                self._flights[key] = mine
        if flight is not None:
            return flight.result(timeout_s)
        try:
            result = work()
        except PortUnavailable as error:
            self._end(key).set_exception(error)
            raise
        except BaseException:
            self._end(key).set_exception(PortUnavailable("the thread that worked for several requests was stopped"))
            raise
        self._end(key).set_result(result)
        return result

    def _end(self, key: Hashable) -> "Future[T]":
        with self._lock:
            return self._flights.pop(key)


class AsyncSingleFlight(Generic[T]):
    """Let tasks that need the same result wait for one task. It goes on when a waiting task is cancelled."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, asyncio.Task[T]] = {}

    def run(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> Awaitable[T]:
        """Return the result of `work`, or that of the same `key` in flight."""
        flight = self._flights.get(key)
        if flight is None or flight.get_loop() is not asyncio.get_running_loop():  # another loop may have ended
            flight = self._flights[key] = asyncio.create_task(work())
            flight.add_done_callback(lambda task: self._end(key, task))
        return asyncio.shield(flight)

    def _end(self, key: Hashable, task: "asyncio.Task[T]") -> None:
        if self._flights.get(key) is task:
            del self._flights[key]
        if not task.cancelled():
            task.exception()  # asyncio warns of an exception that no task retrieved

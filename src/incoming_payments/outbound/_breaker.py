"""A circuit breaker and single flight (one request for several callers), for the clients of other systems."""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from incoming_payments.limits import BREAKER_FAILURES_MAX, BREAKER_OPEN_S_MAX, BREAKER_OPEN_S_MIN

T = TypeVar("T")


class Breaker:
    """Stop sending to a server that does not answer. Times are seconds of a monotonic clock.

    After `limits.BREAKER_FAILURES_MAX` failures in a row, one caller probes the server. If the probe fails, requests
    pause for `limits.BREAKER_OPEN_S_MIN` seconds, until the next probe. During a pause, only trials are sent. The pause
    doubles with each failed probe, up to `limits.BREAKER_OPEN_S_MAX`. Any answer of the server ends the pause.

    A client chooses the content of its requests, and a server may have no answer to some requests. So a failed request
    of a client only causes a probe, and the outcome of the probe decides. No client chooses the content of a probe. A
    healthy server may still fail to answer a probe, because the server does not know the content of the probe. So a
    trial may replace a probe. A trial is a request that the server has answered before. Probes and trials take separate
    turns, so that an attacker that causes probes cannot delay a trial.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered_at = -math.inf
        self._reset()

    def _reset(self) -> None:
        self._failures = 0
        self._is_open = False
        self._open_s = BREAKER_OPEN_S_MIN
        self._probe_at = -math.inf
        self._trial_at = -math.inf

    def takes_probe(self, now: float) -> bool:
        """Return whether the caller must probe the server before it sends its request."""
        if self._failures < BREAKER_FAILURES_MAX:
            return False
        with self._lock:
            if now < self._probe_at:
                return False
            self._probe_at = now + self._open_s  # other callers do not probe in the meantime
            return True

    def takes_trial(self, now: float, deadline: float) -> bool:
        """Return whether the caller may send a trial now. The trial ends at `deadline` at the latest."""
        if self._failures < BREAKER_FAILURES_MAX:
            return False
        with self._lock:
            if now < self._trial_at:
                return False
            self._trial_at = deadline + self._open_s  # other callers make no trial in the meantime
            return True

    def wait_s(self, now: float) -> float:
        """Return 0 if a request may be sent now, or else the seconds until the next probe."""
        return max(0.0, self._probe_at - now) if self._is_open else 0.0

    def succeeded(self, now: float) -> None:
        """Record that the server answered."""
        self._answered_at = now
        if self._failures:
            with self._lock:
                self._reset()

    def failed(self, begin_s: float) -> None:
        """Record that the server did not answer a request that began at `begin_s`.

        If the server has answered another request since then, this is not a failure.
        """
        with self._lock:
            self._failures += begin_s >= self._answered_at

    def probe_failed(self, now: float, begin_s: float) -> None:
        """Record that the server did not answer a probe that began at `begin_s`. See `failed`."""
        with self._lock:
            if begin_s >= self._answered_at:
                self._is_open = True
                self._probe_at = now + self._open_s
                self._open_s = min(2 * self._open_s, BREAKER_OPEN_S_MAX)


class SingleFlight(Generic[T]):
    """Let tasks that need the same result wait for the first task.

    If the first task is cancelled, another task does the work.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, asyncio.Future[T | None]] = {}

    async def run(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`, or of the work in flight for the same `key`. The result must not be `None`.

        All callers get the exception of the work.
        """
        loop = asyncio.get_running_loop()
        # A flight of an event loop that has ended never gets a result.
        while (flight := self._flights.get(key)) is not None and flight.get_loop() is loop:
            shared = await asyncio.shield(flight)
            if shared is not None:
                return shared
        mine = self._flights[key] = loop.create_future()
        try:
            result = await work()
        except Exception as error:
            mine.set_exception(error)
            mine.exception()  # asyncio warns of an exception that no task retrieved
            raise
        else:
            mine.set_result(result)
            return result
        finally:
            if not mine.done():  # this task is cancelled, so the first waiting task does the work
                mine.set_result(None)
            if self._flights.get(key) is mine:
                del self._flights[key]

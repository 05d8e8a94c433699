"""Somebody's time, which may be over: one that is set and lifted for each request, and seldom missed."""

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls `passed` in `loop` when the time that was given is over, and was not lifted.

    A timer that has begun is left alone, and looks again when it goes off: to give time and to lift it costs none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, passed: Callable[[], None]) -> None:
        self._loop = loop
        self._passed = passed
        self._until: float | None = None  # by the loop's clock
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        """Whether time was given that is not over."""
        return self._until is not None

    def set(self, seconds: float) -> None:
        """Give so much time from now on, whatever was given before."""
        self._until = self._loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._until:
            self.drop()
        if self._timer is None:
            self._timer = self._loop.call_at(self._until, self._look)

    def lift(self) -> None:
        """Take it back: nothing is waited for."""
        self._until = None

    def drop(self) -> None:
        """Look no more, until time is given again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._until is None:
            return
        if self._loop.time() < self._until:
            self._timer = self._loop.call_at(self._until, self._look)
        else:
            self._until = None
            self._passed()

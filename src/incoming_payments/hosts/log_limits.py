"""Rate limits for log lines, so that clients cannot fill the disk that holds the payments."""

import threading
import time
from collections.abc import Callable

from incoming_payments.limits import LOGGED_A_MINUTE_MAX


class LineLimit:
    """Admit `a_minute_max` lines a minute, and count the others. Thread-safe.

    `clock` returns monotonic seconds. A minute begins with the first line after the last minute has ended.
    """

    def __init__(self, a_minute_max: int = LOGGED_A_MINUTE_MAX, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._a_minute_max = a_minute_max
        self._clock = clock
        self._lock = threading.Lock()
        self._minute_ends_s = clock()
        self._left = 0
        self._suppressed = 0

    def admit(self) -> int | None:
        """Return how many lines were suppressed since the last admitted one, or `None` to suppress this line."""
        with self._lock:
            now = self._clock()
            if now >= self._minute_ends_s:
                self._minute_ends_s, self._left = now + 60, self._a_minute_max
            if self._left == 0:
                self._suppressed += 1
                return None
            self._left -= 1
            suppressed, self._suppressed = self._suppressed, 0
            return suppressed

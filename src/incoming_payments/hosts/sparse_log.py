"""A log that nobody can fill: so many lines a minute, and the others counted.

Whoever can make a host write lines could otherwise fill the disk that it keeps its payments on.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from incoming_payments.limits import LOGGED_A_MINUTE_MAX

_MINUTE_S: Final = 60.0


class Sparse:
    """Lets `a_minute_max` lines pass in a minute, and counts the others. For any number of threads.

    `clock` tells seconds that never go backwards.
    """

    def __init__(self, a_minute_max: int = LOGGED_A_MINUTE_MAX, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._a_minute_max = a_minute_max
        self._clock = clock
        self._lock = threading.Lock()
        self._ends = clock()
        self._room = 0
        self._left_out = 0

    def admit(self) -> int | None:
        """How many lines were left out since the last that passed; `None` when this one is left out as well."""
        with self._lock:
            now = self._clock()
            if now >= self._ends:
                self._ends, self._room = now + _MINUTE_S, self._a_minute_max
            if self._room == 0:
                self._left_out += 1
                return None
            self._room -= 1
            left_out, self._left_out = self._left_out, 0
            return left_out


class SparseFilter(logging.Filter):
    """For the handler of a whole process: what one place in the code warns of passes so many times a minute.

    The next line from there says how many were left out. What is no warning, such as that a server has started, passes.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._places: dict[tuple[str, int], Sparse] = {}  # as many as there are in the code

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` is written. Raises nothing."""
        if record.levelno < logging.WARNING:
            return True
        place = (record.pathname, record.lineno)
        left_out = self._places.setdefault(place, Sparse(clock=self._clock)).admit()
        if left_out:
            record.msg = f"{record.msg} ({left_out} more of these were left out)"
        return left_out is not None

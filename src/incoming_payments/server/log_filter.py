"""The rate limit for the log handler of the server's processes."""

import logging
import time
from collections.abc import Callable

from incoming_payments.observers.log import LineLimit


class LineLimitFilter(logging.Filter):
    """A filter for the log handler of a process, which limits the rate of warnings from each place in the code.

    The next line from the same place names the number of suppressed lines. Lines below WARNING always pass.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # The dictionary is bounded, because it has at most one entry for each logging call in the code.
        self._places: dict[tuple[str, int], LineLimit] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write `record`."""
        if record.levelno < logging.WARNING:
            return True
        place = (record.pathname, record.lineno)
        suppressed = self._places.setdefault(place, LineLimit(clock=self._clock)).admit()
        if suppressed:
            record.msg = f"{record.msg} ({suppressed} lines from the same place were suppressed)"
        return suppressed is not None

"""Reports of refused signatures for a host's log: so many a minute, and the others counted."""

import logging
import threading
from datetime import datetime, timedelta
from typing import Final

from incoming_payments.api import Response
from incoming_payments.limits import EXPLAINED_A_MINUTE_MAX

_MINUTE: Final = timedelta(minutes=1)


class RefusalLog:
    """Logs why signatures were refused, at most `reports_max` times a minute. For any number of threads.

    A report costs some verifications and fills some lines, so that without a bound whoever has a token could burn a
    core and fill a disk. The refusals past the bound are counted, and the count is said with the next report.
    """

    def __init__(self, logger: logging.Logger, *, reports_max: int = EXPLAINED_A_MINUTE_MAX) -> None:
        self._logger = logger
        self._reports_max = reports_max
        self._lock = threading.Lock()
        self._since: datetime | None = None
        self._reports = 0
        self._left_out = 0

    def note(self, response: Response, now: datetime) -> None:
        """Log why the signature was refused, if that is what `response` says. Raises nothing."""
        if response.explain is None:
            return
        may_report, left_out = self._count(now)
        if left_out:
            self._logger.warning("incoming payments: %s refusals not explained", left_out)
        if not may_report:
            return
        try:
            self._logger.warning("incoming payments: %s", response.explain())
        except Exception:
            self._logger.exception("incoming payments: a refusal could not be explained")

    def _count(self, now: datetime) -> tuple[bool, int]:
        """Whether this one may be reported, and how many were not since the last that was."""
        with self._lock:
            # A clock that was set back must not silence the log until it has caught up.
            if self._since is None or not timedelta() <= now - self._since < _MINUTE:
                self._since, self._reports = now, 0
            if self._reports >= self._reports_max:
                self._left_out += 1
                return False, 0
            self._reports += 1
            left_out, self._left_out = self._left_out, 0
            return True, left_out

"""A clock for tests: it shows the same moment until it is told to go on."""

from datetime import datetime, timedelta

from incoming_payments.testing.values import NOW


class FakeClock:
    """Call it for the time, as a host calls `datetime.now(UTC)`. It begins at `now` and moves by `advance` only.

    >>> clock = FakeClock()
    >>> clock.advance(1.5)
    >>> clock() - NOW
    datetime.timedelta(seconds=1, microseconds=500000)
    """

    def __init__(self, now: datetime = NOW) -> None:
        self._now = now

    def __call__(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`; back, if they are negative, as clocks do that are set right."""
        self._now += timedelta(seconds=seconds)

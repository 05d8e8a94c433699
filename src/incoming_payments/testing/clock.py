"""A clock for tests, whose time changes only when the test advances the clock."""

from datetime import datetime, timedelta

from incoming_payments.testing.values import NOW


class FakeClock:
    """A clock that returns `now` until `advance` changes the time.

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
        """Advance the time by `seconds`. A negative number sets the clock back."""
        self._now += timedelta(seconds=seconds)

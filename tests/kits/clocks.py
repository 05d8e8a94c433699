"""Clocks that a test advances."""

from attrs import define


@define
class Seconds:
    """A clock in seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now

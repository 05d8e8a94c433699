"""The wall clock: the one place that reads it."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The current moment, in UTC."""
    return datetime.now(UTC)

"""Checks that several values share. Each raises `InvalidValue` with the name of the wrong member."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from attrs import Attribute

from incoming_payments.errors import InvalidValue
from incoming_payments.limits import UINT64_MAX

_UTC_OFFSET = timedelta(0)


def check_time(time: datetime) -> datetime:
    """Return `time` if it is a datetime in UTC. Other datetimes are ambiguous."""
    if not isinstance(time, datetime) or (time.tzinfo is not UTC and time.utcoffset() != _UTC_OFFSET):
        raise InvalidValue("a time must be a datetime in UTC, such as datetime.now(UTC)", member="now")
    return time


def check_integer(value: object, least: int, most: int, member: str) -> None:
    """Raise `InvalidValue` unless `value` is an integer from `least` to `most`. A `bool` is not an integer here."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidValue(f"{member} must be an integer from {least} to {most}", member=member)


def integer(least: int = 0, most: int = UINT64_MAX) -> Callable[[object, "Attribute[int]", int], None]:
    """Return an attrs validator for integers from `least` to `most`."""

    def check(_: object, attribute: "Attribute[int]", value: int) -> None:
        if type(value) is not int or not least <= value <= most:
            check_integer(value, least, most, attribute.name)

    return check

"""Validators that several value classes use. Each validator raises `InvalidValue` with the name of the wrong member."""

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from attrs import Attribute

from incoming_payments.errors import InvalidValue
from incoming_payments.limits import UINT64_MAX

T = TypeVar("T")
Validator = Callable[[object, "Attribute[Any]", Any], None]

_VISIBLE: Final = re.compile(r"[!-~]+")
_NO_OFFSET: Final = timedelta(0)


def check_time(time: datetime, *, member: str = "now") -> datetime:
    """Return `time`, the value of `member`, if it is a datetime in UTC. Other datetimes are ambiguous."""
    if not isinstance(time, datetime) or time.utcoffset() != _NO_OFFSET:
        raise InvalidValue("a time must be a datetime in UTC, such as datetime.now(UTC)", member=member)
    return time


def check_visible(text: object, most: int, subject: str, *, member: str) -> str:
    """Return `text` if it has 1 to `most` printable ASCII characters and no spaces, so that it fits a log line."""
    if not isinstance(text, str) or not _VISIBLE.fullmatch(text) or len(text) > most:
        raise InvalidValue(f"{subject} 1 to {most} printable ASCII characters without spaces", member=member)
    return text


def integer(least: int = 0, most: int = UINT64_MAX, *, name: str | None = None) -> Validator:
    """Return an attrs validator for integers from `least` to `most`, which refuses a `bool`."""

    def check(_: object, attribute: "Attribute[int]", value: object) -> None:
        if type(value) is not int or not least <= value <= most:
            member = name or attribute.name
            raise InvalidValue(f"{member} must be an integer from {least} to {most}", member=member)

    return check


def seconds(most: float) -> Validator:
    """Return an attrs validator for numbers of seconds from 0 to `most`."""
    return number(0, most, unit=" of seconds")


def number(least: float, most: float, *, unit: str = "") -> Validator:
    """Return an attrs validator for numbers from `least` to `most`."""

    def check(_: object, attribute: "Attribute[float]", value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            text = f"{attribute.name} must be a number{unit} from {least:g} to {most:g}, not {value!r}"
            raise InvalidValue(text, member=attribute.name)

    return check


def instance(cls: type) -> Validator:
    """Return an attrs validator for instances of `cls`."""

    def check(_: object, attribute: "Attribute[object]", value: object) -> None:
        if not isinstance(value, cls):
            text = f"{attribute.name} must be of type {cls.__name__}, not {name_of(value)}"
            raise InvalidValue(text, member=attribute.name)

    return check


def all_of(cls: type[T], values: Iterable[T], *, member: str) -> tuple[T, ...]:
    """Return `values` as a tuple if they are instances of `cls`. Raise `InvalidValue`, which names `member`."""
    found = name_of(values)
    if isinstance(values, Iterable) and not isinstance(values, str):
        values = tuple(values)
        wrong = [value for value in values if not isinstance(value, cls)]
        if not wrong:
            return values
        found = f"of {name_of(wrong[0])}"
    raise InvalidValue(f"{member} must be a list of {cls.__name__}, not {found}", member=member)


def name_of(value: object) -> str:
    """Return the type of a wrong argument for an error message. The value may be a secret, so it is not shown."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__

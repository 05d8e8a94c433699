"""Strict reading of values from outside: a value has exactly the expected type, or it is refused."""

from collections.abc import Mapping
from typing import Final

# How messages name the types of JSON and TOML.
NAMES: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number with a fraction or exponent",
    type(None): "null",
}


def wrong_type(value: object, expected: type, names: Mapping[type, str] = NAMES) -> str | None:
    """Return the fault in the type of `value`, or `None` if the type is exactly `expected`.

    A `bool` is no `int` here, and `2.0` is none either, although both are equal to one in Python.

    >>> wrong_type(True, int)
    'must be an integer, not a boolean'
    """
    if type(value) is expected:
        return None
    return f"must be {names[expected]}, not {names[type(value)]}"

"""Strict reading of values from outside: a value has exactly the expected type, or it is refused."""

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

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
_NAME_CHARS_MAX: Final = 50  # of a name in a message


def wrong_type(value: object, expected: type, names: Mapping[type, str] = NAMES) -> str | None:
    """Return the fault in the type of `value`, or `None` if the type is exactly `expected`.

    A `bool` is no `int` here, and `2.0` is none either, although both are equal to one in Python.

    >>> wrong_type(True, int)
    'must be an integer, not a boolean'
    """
    if type(value) is expected:
        return None
    return f"must be {names[expected]}, not {names[type(value)]}"


def read_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in `text`, the answer of another system. Raises `ValueError`, which says what is wrong.

    The text is UTF-8 (RFC 8259 §8.1). A name that occurs twice is refused in every object, because two readers could
    see two values. So are `NaN` and `Infinity`, which are not JSON.

    >>> read_object(b'{"active": false, "active": true}')
    Traceback (most recent call last):
    ValueError: has the member active twice
    """
    try:
        value = _DECODER.decode(text.decode())
    except _Ambiguous as error:
        raise ValueError(str(error)) from None
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - the text is wrong, and not the type of the argument
    return value


class _Ambiguous(Exception):
    """The text is no JSON, or two readers could read it differently."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in members if names.count(name) > 1)
        raise _Ambiguous(f"has the member {ascii(twice)[1:-1][:_NAME_CHARS_MAX]} twice")
    return members


def _no_constant(name: str) -> NoReturn:
    raise _Ambiguous(f"has {name}, which is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)

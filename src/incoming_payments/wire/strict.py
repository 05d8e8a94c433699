"""Read values from outside strictly. A value that does not have exactly the expected type is refused.

`read_json` reads all JSON that this library relies on. It refuses each text that two readers could interpret in
different ways, and takes time linear in the length of the text.
"""

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from incoming_payments import limits

# The names of the types of JSON and TOML in messages.
NAMES: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number with a fraction or exponent",
    type(None): "null",
}
_NAME_CHARS_MAX: Final = 50  # the length of a name in a message


def wrong_type(value: object, expected: type, names: Mapping[type, str] = NAMES) -> str | None:
    """Return the fault in the type of `value`, or `None` if the type is exactly `expected`.

    A `bool` and a float such as `2.0` do not count as an `int`, although each is equal to an `int` in Python.

    >>> wrong_type(True, int)
    'must be an integer, not a boolean'
    """
    if type(value) is expected:
        return None
    return f"must be {names[expected]}, not {names[type(value)]}"


class JsonRefused(ValueError):
    """The first fault of a JSON text. The text of the exception is about the whole JSON text.

    `fault` is about the wrong value. `path` has the names and indices that lead to this value, the innermost
    first. `position` is the index of the wrong character in a text that is not JSON.
    """

    def __init__(self, summary: str, fault: str, *path: str, position: int | None = None) -> None:
        super().__init__(summary)
        self.fault = fault
        self.path: list[str | int] = list(path)
        self.position = position


def read_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in `text`, the answer of another system. Raises `ValueError`, which describes the fault.

    A client may have made the object or a part of it, such as its key. So more than `limits.ANSWER_VALUES_MAX` opening
    brackets and commas are a fault, even in strings.

    >>> read_object(b'{"active": false, "active": true}')
    Traceback (most recent call last):
    incoming_payments.wire.strict.JsonRefused: has the member active twice
    """
    if sum(map(text.count, (b"[", b"{", b","))) > limits.ANSWER_VALUES_MAX:
        raise ValueError(
            f"has more than {limits.ANSWER_VALUES_MAX} opening brackets and commas: leave out other members"
        )
    value = read_json(text)
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - the text is wrong, and not the type of the argument
    return value


def read_json(
    octets: bytes, *, depth_max: int = limits.JSON_DEPTH_MAX, size_max: int | None = None, to_store: bool = False
) -> Any:
    """Return the JSON value in `octets`. Raises `JsonRefused` for the first fault, and no other exception.

    The text must be UTF-8 (RFC 8259 §8.1) and must have no byte order mark. The function refuses:

    - a name that occurs twice in an object, because two readers could see two values;
    - `NaN` and `Infinity`, which are not JSON;
    - values that are nested too deeply, and numbers with too many digits;
    - with `size_max`, more members, elements and fractions than fit into so many bytes of compact JSON, because each of
      them takes much longer to read than a byte of a string;
    - if `to_store` is true, values that a database or a client could change: numbers that a double cannot hold (RFC
      7493 §2.2), NUL, and lone surrogates.
    """
    try:
        text = octets.decode()
        if text.startswith("\ufeff"):
            # `json.loads` raises the same error
            raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)
        # The text is UTF-8, so only an escape can produce a forbidden character.
        checks_strings = to_store and "\\u" in text
        walk = _Walk(
            depth_max, math.inf if size_max is None else size_max, exact=to_store, checks_strings=checks_strings
        )
        return walk.value(_DECODER.decode(text), 0)
    except UnicodeDecodeError:
        raise JsonRefused("is not JSON", "is not UTF-8") from None
    except RecursionError:  # the decoder or `_Walk` raises this error
        fault = f"is nested more than {depth_max} deep"
        raise JsonRefused(fault, fault) from None
    except json.JSONDecodeError as error:
        fault = f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise JsonRefused("is not JSON", fault, position=error.pos) from None


# The decoder keeps details that the default JSON decoder loses. It returns an object as a tuple of its members, and a
# number as the bytes of its text.
class _Constant(str):
    __slots__ = ()


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=tuple, parse_int=str.encode, parse_float=str.encode, parse_constant=_Constant
)
# NUL, which PostgreSQL cannot store, and surrogates, which no encoder can write
_FORBIDDEN: Final = re.compile("[\0\ud800-\udfff]")


class _Walk:
    """A walk through a decoded text. It returns the value, or raises `JsonRefused` or `RecursionError`."""

    __slots__ = "_checks_strings", "_depth_max", "_exact", "_left", "_size_max"

    def __init__(self, depth_max: int, size_max: float, *, exact: bool, checks_strings: bool) -> None:
        self._depth_max = depth_max
        self._size_max = self._left = size_max
        self._exact = exact
        self._checks_strings = checks_strings

    def value(self, raw: Any, depth: int) -> Any:
        """Return the value of `raw`. `depth` is the number of arrays and objects around `raw`."""
        kind = type(raw)
        if kind is str:
            if self._checks_strings:
                _check_string(raw)
            return raw
        if kind is bytes:
            return self._number(raw)
        if kind is tuple:
            return self._object(raw, depth + 1)
        if kind is list:
            return self._array(raw, depth + 1)
        if kind is _Constant:
            raise JsonRefused(f"has {raw}, which is not JSON", f"is {raw}, {_NO_NUMBER}")
        return raw  # the value is true, false or null

    def _object(self, pairs: tuple[tuple[str, Any], ...], depth: int) -> dict[str, Any]:
        if depth > self._depth_max:
            raise RecursionError
        self._spend(2 * len(pairs))
        members = dict(pairs)
        if len(members) != len(pairs):
            [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
            summary = f"has the member {ascii(name)[1:-1][:_NAME_CHARS_MAX]} twice"
            raise JsonRefused(summary, "occurs twice in one object", name)
        name = ""
        try:
            for name, raw in pairs:
                if self._checks_strings:
                    _check_string(name)
                members[name] = self.value(raw, depth)
        except JsonRefused as refused:
            refused.path.append(name)
            raise
        return members

    def _array(self, items: list[Any], depth: int) -> list[Any]:
        if depth > self._depth_max:
            raise RecursionError
        self._spend(2 * len(items))
        values: list[Any] = []
        try:
            for item in items:
                values.append(self.value(item, depth))  # noqa: PERF401 - its length is the index of the fault
        except JsonRefused as refused:
            refused.path.append(len(values))
            raise
        return values

    def _number(self, raw: bytes) -> float:
        if len(raw) > limits.JSON_NUMBER_CHARS_MAX:
            raise JsonRefused("has a number with too many digits", _LONG)
        if raw.lstrip(b"-").isdigit():
            return -0.0 if self._exact and raw == b"-0" else int(raw)
        value = float(raw)
        self._spend(len(repr(value)) - 1)
        if self._exact and not _is_exact(raw.decode(), value):
            raise JsonRefused("has a number that a double cannot hold", _INEXACT)
        return value

    def _spend(self, size: int) -> None:
        """Count `size` bytes of compact JSON: a member or element and its separator have at least two."""
        self._left -= size
        if self._left < 0:
            fault = f"is larger than {self._size_max} bytes as compact JSON"
            raise JsonRefused(fault, f"makes the body larger than {self._size_max} bytes as compact JSON: send less")


_NO_NUMBER: Final = "which is not JSON: leave out the member, or write a number"
_LONG: Final = f"is a number of more than {limits.JSON_NUMBER_CHARS_MAX} characters: write it as a string"
_INEXACT: Final = "is a number that a double cannot hold exactly (RFC 7493 §2.2): round it, or write it as a string"
_ZERO: Final = re.compile(r"-?0(?:\.0*)?(?:[eE]|$)")


def _is_exact(text: str, value: float) -> bool:
    """Return whether the double `value` is exactly the number in `text`.

    Every number of up to 15 digits counts as exact, because `Decimal` would take most of the time for a body of many
    short numbers.
    """
    magnitude = abs(value)
    if magnitude == 0:
        return _ZERO.match(text) is not None
    if magnitude == math.inf:
        return False
    # a point or an exponent takes at least one character of `text`
    if len(text) <= sys.float_info.dig + 1 and magnitude >= sys.float_info.min:
        return True
    return Decimal(text) == Decimal(repr(value))


def _check_string(text: str) -> None:
    if _FORBIDDEN.search(text):
        raise JsonRefused("has a NUL or a lone surrogate", "holds a NUL or a lone surrogate")

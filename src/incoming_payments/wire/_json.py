"""JSON documents, with the restrictions of I-JSON (RFC 7493)."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NoReturn

from incoming_payments import limits
from incoming_payments.errors import MalformedJson

_NAME_CHARS_MAX: Final = 100  # of a member name in an error message
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))  # `dumps` builds one

# RFC 7493 §2.1 forbids surrogates, which no encoder can write. PostgreSQL cannot store NUL.
_FORBIDDEN: Final = re.compile("[\0\ud800-\udfff]")


def read_json(body: bytes, *, bytes_max: int = limits.BODY_BYTES_MAX, depth_max: int = limits.JSON_DEPTH_MAX) -> Any:
    """Read the JSON value in `body`, with the restrictions of I-JSON (RFC 7493) and the limits of this library.

    Raises `MalformedJson` for a body that is too long, too deep or not UTF-8, for a byte order mark, for duplicate
    members, for NaN, for numbers that are long or that a double changes, and for NUL and lone surrogates in strings.
    """
    if len(body) > bytes_max:
        raise MalformedJson(f"the body is larger than {bytes_max} bytes")
    try:
        text = body.decode("utf-8")
        document, is_sound = _decode(text)
    except UnicodeDecodeError:
        raise MalformedJson("the body is not UTF-8") from None
    except RecursionError:
        raise MalformedJson(f"the body is nested more than {depth_max} deep") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise MalformedJson(f"the body is not JSON: {error.msg} at {where}", position=error.pos) from None
    if not (is_sound and is_shallow(text, depth_max)):
        check_tree(document, depth_max)
    return document


def json_text(document: object) -> str:
    """Return `document` as compact JSON."""
    return _ENCODER.encode(document)


def write_json(document: object) -> bytes:
    """Return `document` as compact JSON in UTF-8."""
    return json_text(document).encode("utf-8")


def is_shallow(text: str, depth_max: int) -> bool:
    """Return whether the JSON in `text` opens so few containers that it cannot be nested more than `depth_max` deep.

    With `_decode`, it saves the walk of `check_tree` through most documents: 4 of 10 us for a create request (timeit).
    """
    return text.count("{") + text.count("[") <= depth_max


class _Refused(Exception):
    """A value breaks I-JSON (RFC 7493), or an object has such a `member`. `check_tree` knows its path."""

    def __init__(self, why: str, member: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.member = member


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(members := dict(pairs)) == len(pairs):
        return members
    [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
    raise _Refused("occurs twice in one object", name)


def _refuse_constant(name: str) -> NoReturn:
    raise _Refused(f"is {name}, which is not JSON: leave the member out or write a number")


def _parse_integer(text: str) -> float:
    if len(text) > limits.JSON_NUMBER_CHARS_MAX or text == "-0":
        return _parse_number(text)
    return int(text)


def _parse_number(text: str) -> float:
    if len(text) > limits.JSON_NUMBER_CHARS_MAX:
        most = limits.JSON_NUMBER_CHARS_MAX
        raise _Refused(f"is a number of more than {most} characters: write it as a string")
    value = float(text)
    try:
        if math.isfinite(value) and Decimal(text) == Decimal(repr(value)):
            return value
    except ArithmeticError:
        pass  # an exponent beyond those of `Decimal`
    raise _Refused("is a number that a double cannot hold exactly (RFC 7493 §2.2): round it, or write it as a string")


def _marked(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `hook`, but return its `_Refused` in the place of the value."""

    def call(found: Any) -> Any:
        try:
            return hook(found)
        except _Refused as mark:
            return mark

    return call


def _decoder(wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=wrap(_unique_members),
        parse_constant=wrap(_refuse_constant),
        parse_float=wrap(_parse_number),
        parse_int=wrap(_parse_integer),
    )


_DECODER: Final = _decoder(lambda hook: hook)  # `loads` builds one
_MARKING_DECODER: Final = _decoder(_marked)


def _decode(text: str) -> tuple[Any, bool]:
    """Return the JSON value in `text`, with marks in it, and whether it has neither a mark nor a forbidden character.

    The text is UTF-8, so only an escape can spell a forbidden character. Raises `JSONDecodeError`.
    """
    if text.startswith("\ufeff"):
        raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)  # as `loads` does
    try:
        return _DECODER.decode(text), "\\u" not in text
    except _Refused:
        return _MARKING_DECODER.decode(text), False


_Path = tuple[Any, ...]  # empty for the document; else the path of the container, and the name or index in it


def check_tree(document: object, depth_max: int) -> None:
    """Raise `MalformedJson` when `document` is nested too deep, or a part of it is refused or cannot be stored."""
    if not _is_sound(document, depth_max):
        _refuse_tree(document, depth_max)


def _is_sound(node: Any, depth_max: int) -> bool:
    """Return whether `check_tree` accepts `node`. The search for the faulty part would take ten times as long."""
    kind = type(node)
    if kind is str:
        return not _FORBIDDEN.search(node)
    if kind is dict:
        if depth_max < 1:
            return False
        for name, member in node.items():
            if _FORBIDDEN.search(name) or not _is_sound(member, depth_max - 1):
                return False
        return True
    if kind is list:
        return depth_max > 0 and all(_is_sound(item, depth_max - 1) for item in node)
    return kind is not _Refused


def _refuse_tree(document: object, depth_max: int) -> NoReturn:
    """Raise `MalformedJson`, which names the first faulty part of `document`."""
    level: list[tuple[_Path, object]] = [((), document)]
    depth = 0
    while level:  # pragma: no branch - `_is_sound` has found a faulty part
        below: list[tuple[_Path, object]] = []
        for path, node in level:
            if isinstance(node, dict):
                below += [((path, name), name) for name in node]
                below += [((path, name), member) for name, member in node.items()]
            elif isinstance(node, list):
                below += [((path, index), item) for index, item in enumerate(node)]
            elif isinstance(node, str) and _FORBIDDEN.search(node):
                raise _refusal(path, "holds a NUL or a lone surrogate")
            elif isinstance(node, _Refused):
                raise _refusal(path if node.member is None else (path, node.member), node.why)
        depth += any(isinstance(node, dict | list) for _, node in level)
        if depth > depth_max:
            raise MalformedJson(f"the body is nested more than {depth_max} deep")
        level = below
    raise AssertionError("the document has no faulty part")  # pragma: no cover - `_is_sound` has found one


def _refusal(path: _Path, why: str) -> MalformedJson:
    steps = []
    while path:
        path, step = path
        steps.append(f"[{step}]" if isinstance(step, int) else f".{printable(step)}")
    member = "".join(reversed(steps)).removeprefix(".")
    return MalformedJson(f"{member} {why}", member=member) if member else MalformedJson(f"the body {why}")


def printable(name: str) -> str:
    """Return the name of a member for an error message: short, and in printable ASCII."""
    return name.encode("unicode_escape").decode("ascii")[:_NAME_CHARS_MAX] or '""'

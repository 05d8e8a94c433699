"""JSON documents in requests and responses."""

import json
from typing import Any, Final

from incoming_payments import limits
from incoming_payments.errors import MalformedJson
from incoming_payments.wire import strict

_NAME_CHARS_MAX: Final = 100  # the length of a member name in an error message
# kept, because `json.dumps` would build a new encoder for each call
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_json(
    body: bytes,
    *,
    bytes_max: int = limits.BODY_BYTES_MAX,
    depth_max: int = limits.JSON_DEPTH_MAX,
    size_max: int | None = None,
) -> Any:
    """Read the JSON value in `body`, with the restrictions of I-JSON (RFC 7493) and the limits of this library.

    Raises `MalformedJson` for a body that is too long, too deep or not UTF-8, or that begins with a byte order mark.
    Raises it also for too many brackets, for duplicate members, for NaN, for numbers that are too long or that a double
    cannot represent exactly, for NUL and lone surrogates in strings, and for more values than fit into `size_max` bytes
    of compact JSON.
    """
    if len(body) > bytes_max:
        raise MalformedJson(f"the body is larger than {bytes_max} bytes: send a smaller body")
    if _has_too_many_brackets(body):
        raise MalformedJson(
            f"the body has more than {limits.JSON_BRACKETS_MAX} opening brackets [ and {{: send fewer arrays"
        )
    try:
        return strict.read_json(body, depth_max=depth_max, size_max=size_max, to_store=True)
    except strict.JsonRefused as refused:
        raise _malformed(refused) from None


def _has_too_many_brackets(body: bytes) -> bool:
    return body.count(b"[") + body.count(b"{") > limits.JSON_BRACKETS_MAX


def _malformed(refused: strict.JsonRefused) -> MalformedJson:
    steps = [f"[{step}]" if isinstance(step, int) else f".{printable(step)}" for step in reversed(refused.path)]
    if member := "".join(steps).removeprefix("."):
        return MalformedJson(f"{member} {refused.fault}", member=member)
    where = {} if refused.position is None else {"position": refused.position}
    return MalformedJson(f"the body {refused.fault}", **where)


def peek(body: bytes, name: str) -> Any:
    """Return the member `name` of the JSON object in `body`, or `None` if there is no such member.

    Use this function for the body of a client that is not authenticated yet. It checks only the number of brackets. The
    function is fast: it runs no Python code for the parts of the body, converts no number, and describes no fault.
    """
    if _has_too_many_brackets(body):
        return None
    try:
        document = _PEEKER.decode(body.decode())
    except (ValueError, RecursionError):
        return None
    return document.get(name) if isinstance(document, dict) else None


_PEEKER: Final = json.JSONDecoder(parse_int=str.encode, parse_float=str.encode, parse_constant=str.encode)


def json_text(document: object) -> str:
    """Return `document` as compact JSON."""
    return _ENCODER.encode(document)


def write_json(document: object) -> bytes:
    """Return `document` as compact JSON in UTF-8."""
    return json_text(document).encode("utf-8")


def printable(name: str) -> str:
    """Return a short form of the name of a member in printable ASCII, for an error message."""
    return name.encode("unicode_escape").decode("ascii")[:_NAME_CHARS_MAX] or '""'

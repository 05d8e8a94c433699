"""A field read twice: as it is, by the direct path where that matches, and with the direct path shut, by http_sf."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig import fields

_NOTHING: Final = re.compile(r"(?!)")


def _outcome(parse: Callable[[Sequence[str]], Any], lines: Sequence[str]) -> str:
    # As text, because 1 and True are equal, and so are a string and a Token.
    try:
        return repr(list(parse(lines).items()))
    except MalformedField as error:
        return repr((error.description, error.details))


def dictionary(lines: Sequence[str]) -> dict[str, Any]:
    """The members of a dictionary, with the types that a direct reading cannot give made one."""
    parsed = fields.parse_dictionary(lines, "X")
    return {key: (value, dict(parameters)) for key, (value, parameters) in parsed.items()}


def both_ways(parse: Callable[[Sequence[str]], Any], lines: Sequence[str]) -> tuple[str, str]:
    """What `parse` gives for `lines`, or its one error: with the direct path, and without."""
    return _outcome(parse, lines), long_way(parse, lines)


def long_way(parse: Callable[[Sequence[str]], Any], lines: Sequence[str]) -> str:
    """What `parse` gives for `lines` without the direct path, or its one error, as text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "_ONE_INPUT", _NOTHING)
        patch.setattr(fields, "_ONE_BYTE_SEQUENCE", _NOTHING)
        return _outcome(parse, lines)

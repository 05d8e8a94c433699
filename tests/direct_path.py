"""A field read twice: as it is, by the direct path where that matches, and with the direct path shut, by http_sf."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from incoming_payments.errors import IncomingPaymentsError, MalformedField, SignatureRefused
from incoming_payments.httpsig import digest, fields, verify_digest

_NOTHING: Final = re.compile(r"(?!)")


def _outcome(parse: Callable[[Sequence[str]], Any], lines: Sequence[str]) -> str:
    # As text, because 1 and True are equal, and so are a string and a Token.
    try:
        return repr(list(parse(lines).items()))
    except (MalformedField, SignatureRefused) as error:
        return _refusal(error)


def _refusal(error: IncomingPaymentsError) -> str:
    return repr((error.description, error.details))


def digest_of(body: bytes) -> Callable[[Sequence[str]], Any]:
    """What reads a Content-Digest for `body`, as a parser: it gives nothing, or its one error."""

    def parse(lines: Sequence[str]) -> dict[str, Any]:
        verify_digest(lines, body)
        return {}

    return parse


def both_ways(parse: Callable[[Sequence[str]], Any], lines: Sequence[str]) -> tuple[str, str]:
    """What `parse` gives for `lines`, or its one error: with the direct path, and without."""
    return _outcome(parse, lines), long_way(parse, lines)


def long_way(parse: Callable[[Sequence[str]], Any], lines: Sequence[str]) -> str:
    """What `parse` gives for `lines` without the direct path, or its one error, as text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "_head", lambda _: None)
        patch.setattr(fields, "_ONE_BYTE_SEQUENCE", _NOTHING)
        patch.setattr(digest, "_field", lambda *_: "")
        return _outcome(parse, lines)

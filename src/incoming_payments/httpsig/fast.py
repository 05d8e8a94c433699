"""The fast path of verification: a short parser for the form of `Signature-Input` that honest clients send.

`fields.parse_signature_input` is the specification. The function in this module returns the same result, and calls
`fields.parse_signature_input` for any other form. `benchmarks/verify.py --without-fast-path` prints the time that the
fast path saves.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from incoming_payments.httpsig import fields
from incoming_payments.httpsig.base import SF_KEY, Component, Coverage, count_parts
from incoming_payments.httpsig.fields import SignatureInput
from incoming_payments.limits import (
    COMPONENTS_MAX,
    COVERAGES_REMEMBERED_MAX,
    HEADER_BYTES_MAX,
    KEY_ID_CHARS_MAX,
    NONCE_CHARS_MAX,
    SF_PARTS_MAX,
)

# No text matches one of these patterns in two ways, so the time is linear.
_KEY: Final = SF_KEY.pattern
_CHARACTER: Final = r"[ !#-\[\]-~]"  # a character of a string without escapes
_STRING: Final = f'"{_CHARACTER}*"'
_COVERAGE: Final = re.compile(rf"({_KEY})=\(({_STRING}(?: {_STRING}){{0,{COMPONENTS_MAX - 1}}})")
# A parameter of RFC 9421 §2.3 with a valid value: a time before the year 5138, or a string within its limit
_PARAMETER: Final = re.compile(
    r";(?:(created|expires)=(0|[1-9][0-9]{0,10})"
    rf'|(keyid|alg|nonce|tag)="({_CHARACTER}{{0,{min(KEY_ID_CHARS_MAX, NONCE_CHARS_MAX)}}})")'
    r"|([\s\S]+)"
)


def parse_signature_input(lines: Sequence[str]) -> dict[str, SignatureInput]:
    """Return the members of `Signature-Input`. This is fast for one signature in the strict form of RFC 9651 §4.1."""
    # `verify.py --without-fast-path` measures the effect of this function
    return _one_input(lines) or fields.parse_signature_input(lines)


def _one_input(lines: Sequence[str]) -> dict[str, SignatureInput] | None:
    if len(lines) != 1 or len(lines[0]) > HEADER_BYTES_MAX or count_parts(lines[0]) > SF_PARTS_MAX:
        return None
    head, closing, rest = lines[0].partition(")")
    known = _head(head) if closing else None
    pairs = _PARAMETER.findall(rest)
    if known is None or (pairs and pairs[-1][4]):  # the field also has other parameters
        return None
    parameters = {time or name: int(digits) if time else string for time, digits, name, string, _ in pairs}
    if len(parameters) < len(pairs):  # a parameter is repeated
        return None
    label, coverage = known
    return {label: SignatureInput(label, coverage, parameters, lines[0][len(label) + 1 :])}


@lru_cache(maxsize=COVERAGES_REMEMBERED_MAX)  # cached, because clients cover the same components each time
def _head(head: str) -> tuple[str, Coverage] | None:
    """Return the label and the components in the text before the closing parenthesis."""
    match = _COVERAGE.fullmatch(head)
    if match is None:
        return None
    label, names = match.groups()
    return label, Coverage(tuple([Component(name) for name in names[1:-1].split('" "')]))

"""The structured-field tests of the HTTP working group, and a comparison with a second parser.

The tests read the cases from the folder that the environment variable INCOMING_PAYMENTS_VECTORS names. Its subfolder
`structured-field-tests` is a copy of https://github.com/httpwg/structured-field-tests.
"""

import json
import os
from base64 import b32decode
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import http_sf
import http_sfv
import pytest

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig.fields import parse_dictionary
from incoming_payments.limits import SF_CHARS_MAX, SF_MEMBERS_MAX, SF_PARTS_MAX
from kits.both_paths import both

FOLDER = os.environ.get("INCOMING_PAYMENTS_VECTORS")
SUITE = Path(FOLDER or ".") / "structured-field-tests"

pytestmark = pytest.mark.skipif(
    FOLDER is None,
    reason="set INCOMING_PAYMENTS_VECTORS to a folder that holds structured-field-tests, "
    "a copy of https://github.com/httpwg/structured-field-tests",
)


def _cases() -> Iterator[Any]:
    for path in sorted(SUITE.glob("*.json")):
        for case in json.loads(path.read_text(), parse_float=Decimal):
            yield pytest.param(case, id=f"{path.stem}: {case['name']}")


CASES = list(_cases()) if FOLDER is not None else []


def _bare(value: Any) -> Any:
    """Convert a bare item of the suite to the type that http_sf uses."""
    if not isinstance(value, dict):
        return value
    kinds: dict[str, Callable[[Any], Any]] = {
        "token": http_sf.Token,
        "binary": b32decode,
        "displaystring": http_sf.DisplayString,
        "date": lambda seconds: seconds,
    }
    return kinds[value["__type"]](value["value"])


def _simple(value: Any) -> Any:
    """Convert a bare item to a form that can be compared: with its type, and a date in seconds."""
    if isinstance(value, datetime):
        return "date", int(value.timestamp())
    return type(value).__name__, str(value) if isinstance(value, http_sf.Token | http_sf.DisplayString) else value


def _expected_params(params: list[Any]) -> list[Any]:
    return [(key, _expected_bare(value)) for key, value in params]


def _expected_bare(value: Any) -> Any:
    if isinstance(value, dict) and value["__type"] == "date":
        return "date", value["value"]
    return _simple(_bare(value))


def _expected_member(member: Any) -> Any:
    value, params = member
    if isinstance(value, list):
        return [_expected_member(item) for item in value], _expected_params(params)
    return _expected_bare(value), _expected_params(params)


def _member(member: Any) -> Any:
    value, params = member
    of_params = [(key, _simple(param)) for key, param in params.items()]
    return ([_member(item) for item in value] if isinstance(value, list) else _simple(value)), of_params


def _expected(case: Any) -> Any:
    if case["header_type"] == "dictionary":
        return [(key, _expected_member(member)) for key, member in case["expected"]]
    if case["header_type"] == "list":
        return [_expected_member(member) for member in case["expected"]]
    return _expected_member(case["expected"])


def _parsed(kind: str, structure: Any) -> Any:
    if kind == "dictionary":
        return [(key, _member(member)) for key, member in structure.items()]
    if kind == "list":
        return [_member(member) for member in structure]
    return _member(structure)


@pytest.mark.parametrize("case", CASES)
def test_http_sf(case: Any) -> None:
    """http_sf reads each case as the suite expects, and refuses the cases that must fail."""
    raw = ", ".join(case["raw"]).encode()
    try:
        parsed = http_sf.parse(raw, tltype=case["header_type"])
    except http_sf.StructuredFieldError:
        assert case.get("must_fail") or case.get("can_fail")
        return
    assert not case.get("must_fail")
    assert _parsed(case["header_type"], parsed) == _expected(case)
    if parsed or case["header_type"] == "item":
        assert http_sf.ser(parsed) == ", ".join(case.get("canonical", case["raw"]))


DICTIONARIES = [param for param in CASES if param.values[0]["header_type"] == "dictionary"]


@pytest.mark.parametrize("case", DICTIONARIES)
def test_our_dictionaries(case: Any) -> None:
    """`parse_dictionary` reads each dictionary as the suite expects, or refuses it for one of its stricter rules."""
    try:
        parsed = parse_dictionary(case["raw"], "X")
    except MalformedField as error:
        # RFC 9651 keeps the last of two values and permits a thousand members. `parse_dictionary` permits neither.
        limits = [f"more than {SF_MEMBERS_MAX}", f"more than {SF_PARTS_MAX}", f"longer than {SF_CHARS_MAX}"]
        stricter = any(rule in error.description for rule in ("repeats a key", *limits))
        assert case.get("must_fail") or stricter
        return
    assert not case.get("must_fail")
    assert _parsed("dictionary", parsed) == _expected(case)


@pytest.mark.parametrize("case", CASES)
def test_fast_path_agrees_with_the_parser(case: Any) -> None:
    """The fast path and the parser agree on each case as a field, a member, a component and a parameter."""
    raw = ", ".join(case["raw"])
    for text in (raw, f"sig1={raw}", f"sig1=({raw})", f'sig1=("a");created={raw}', f'sig1=("a");keyid={raw}'):
        fast_path, specification = both([text])
        assert fast_path == specification


BINARY = [param for param in CASES if str(param.id).startswith("binary: ")]


@pytest.mark.parametrize("case", BINARY)
def test_our_byte_sequences(case: Any) -> None:
    """A byte sequence reads as the suite expects, and one that is not canonical is refused, as the suite permits."""
    raw = ", ".join(case["raw"])
    try:
        parsed = parse_dictionary([f"sig1={raw}"], "X")
    except MalformedField:
        assert case.get("must_fail") or case.get("can_fail") or raw != case.get("canonical", [raw])[0]
        return
    assert not case.get("must_fail")
    assert [_member(member) for member in parsed.values()] == [_expected_member(case["expected"])]


# The cases on which http_sfv 0.9.9 differs, and why. The suite agrees with http_sf each time. The author of http_sfv
# has deprecated it in favour of http_sf.
SECOND_DIFFERS = {
    "binary: padding at beginning": "it accepts misplaced padding",
    "binary: padding in middle": "it accepts misplaced padding",
    "binary: bad padding": "it requires padding, which RFC 9651 makes optional; `parse_dictionary` requires it, too",
    "dictionary: empty dictionary": "it refuses an empty field, which means the same as an absent one",
    "list: empty list": "it refuses an empty field, which means the same as an absent one",
    "date: interoperability min date - 0001-01-01 00:00:00": "it converts with the C library, which cannot",
    "number: decimal with zero fractional digits": "it accepts a decimal without a digit after the point",
}


@pytest.mark.parametrize("case", CASES)
def test_second_parser_agrees(case: Any, request: pytest.FixtureRequest) -> None:
    """http_sfv parses and serialises each case as http_sf does, or the difference is listed with its reason."""
    raw = ", ".join(case["raw"]).encode()
    kind = case["header_type"]
    try:
        parsed = http_sf.parse(raw, tltype=kind)
        first = http_sf.ser(parsed) if parsed or kind == "item" else ""
    except http_sf.StructuredFieldError:
        first = None
    structure = getattr(http_sfv, kind.capitalize())()
    try:
        structure.parse(raw)
        second = str(structure)
    except ValueError:
        second = None
    name = request.node.callspec.id
    assert (first == second) is (name not in SECOND_DIFFERS)

"""`strict`: the type of a value from outside."""

import re
from typing import Any

import pytest

from incoming_payments.wire.strict import NAMES, read_object, wrong_type

VALUES: list[Any] = [{}, [], "", True, 1, 1.0, None]


@pytest.mark.parametrize("expected", NAMES)
def test_only_the_expected_type_is_accepted(expected: type) -> None:
    """A value of each other type of JSON is refused, and the message names both types."""
    accepted = [value for value in VALUES if wrong_type(value, expected) is None]
    assert [type(value) for value in accepted] == [expected]
    refused = [wrong_type(value, expected) for value in VALUES if type(value) is not expected]
    assert refused == [
        f"must be {NAMES[expected]}, not {NAMES[type(value)]}" for value in VALUES if type(value) is not expected
    ]


def test_names_can_be_those_of_another_format() -> None:
    """TOML calls an object a table."""
    assert wrong_type({}, str, {**NAMES, dict: "a table"}) == "must be a string, not a table"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff{}", "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        ("{}".encode("utf-16"), "is not JSON"),
        (b"[" * 2_000 + b"]" * 2_000, "is nested more than 32 deep"),
        (b"[" * 33 + b"]" * 33, "is nested more than 32 deep"),
        (b'{"a": ' + b"1" * 60_000 + b"}", "has a number with too many digits"),
        (b'{"a": 0.' + b"1" * 63 + b"}", "has a number with too many digits"),
        (b"[]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b'{"a": 1, "b": 2, "a": 1}', "has the member a twice"),
        (b'{"a": [{"b": 1, "b": 2}]}', "has the member b twice"),
        (b'{"\\u001b[2J": 1, "\\u001b[2J": 2}', r"has the member \x1b[2J twice"),
        (b'{"' + b"a" * 100 + b'": 1, "' + b"a" * 100 + b'": 2}', f"has the member {'a' * 50} twice"),
        (b'{"a": NaN}', "has NaN, which is not JSON"),
        (b'{"a": -Infinity}', "has -Infinity, which is not JSON"),
    ],
)
def test_text_on_which_readers_differ_is_refused(text: bytes, says: str) -> None:
    """The message says what is wrong, in printable ASCII."""
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        read_object(text)


def test_object_is_read() -> None:
    """Members may repeat the name of a member in another object."""
    assert read_object('{"a": {"a": "é"}, "b": [1.5, null]}'.encode()) == {"a": {"a": "é"}, "b": [1.5, None]}

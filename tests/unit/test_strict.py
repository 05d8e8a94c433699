"""`strict`: the type of a value from outside."""

from typing import Any

import pytest

from incoming_payments.strict import NAMES, wrong_type

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

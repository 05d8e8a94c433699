"""Reading a table by its declaration. `test_settings.py` tests the same with the real declarations."""

from typing import Any

import pytest

from incoming_payments.errors import ConfigurationError, InvalidValue
from incoming_payments.server.declarations import Setting, TableOf
from incoming_payments.server.reader import Table, naming

COLOUR = Setting("colour", str, "its colour")
SIZE = Setting("size", int, "its size", 3, bounds=(1, 5))
THINGS = Setting("things", list, "its things", example="[[things]]")
DECLARED = TableOf("thing", "[thing]", "A thing.", (COLOUR, SIZE))


def test_values_and_defaults() -> None:
    """A setting has the value of the file, or its default."""
    assert Table({"colour": "red", "size": 5}, "thing").read(DECLARED) == {"colour": "red", "size": 5}
    assert Table({"colour": "red"}, "thing").read(DECLARED) == {"colour": "red", "size": 3}


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({}, "thing.colour is missing: give a string"),
        ({"color": "red"}, "thing.colour is missing: give a string (color is not a setting: is it misspelt?)"),
        ({"colour": 1}, "thing.colour must be a string, not an integer"),
        ({"colour": {}}, "thing.colour must be a string, not a table"),
        ({"colour": "red", "size": True}, "thing.size must be an integer, not true or false"),
        ({"colour": "red", "size": 0}, "thing.size must be an integer from 1 to 5, not 0"),
        ({"colour": "red", "size": 6}, "thing.size must be an integer from 1 to 5, not 6"),
        ({"colour": "red", "sizes": 1}, "thing.sizes is not a setting: did you mean size?"),
        ({"colour": "red", "weight": 1}, "thing.weight is not a setting"),
        ({"colour": "red", "0Wy8xqPAoS": 1}, "thing.(a name that is not shown) is not a setting"),
    ],
)
def test_wrong_table_is_refused(members: dict[str, Any], says: str) -> None:
    """The error names the setting, says what was found, and suggests the nearest name."""
    with pytest.raises(ConfigurationError) as refused:
        Table(members, "thing").read(DECLARED)
    assert refused.value.description == says
    assert says.startswith(str(refused.value.details["setting"]))


def test_arrays_of_tables() -> None:
    """Each entry is a table with its place in its name; a required array is not empty."""
    entries = Table({"things": [{"a": 1}, {}]}, "").take(THINGS)
    assert [entry.name for entry in entries] == ["things[0]", "things[1]"]
    with pytest.raises(ConfigurationError, match=r"^things is missing: give at least one, as [^(]+$"):
        Table({"things": []}, "").take(THINGS)


def test_error_of_a_value_names_the_setting() -> None:
    """The member in the error becomes the setting, and the message begins with its name once."""
    with pytest.raises(ConfigurationError) as refused, naming("peer[0]", assetCode="asset_code"):
        raise InvalidValue("assetCode must be text", member="assetCode")
    assert refused.value.description == "peer[0].asset_code must be text"
    with pytest.raises(ConfigurationError) as refused, naming("peer[0]"):
        raise InvalidValue("the asset is wrong")
    assert refused.value.description == "peer[0]: the asset is wrong"

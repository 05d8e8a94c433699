"""Reading a table by its declaration. `test_settings.py` tests the same with the real declarations."""

from typing import Any

import pytest

from incoming_payments.errors import ConfigurationError, InvalidValue
from incoming_payments.server.reader import Once, Table, naming
from incoming_payments.server.setting import Setting, TableOf

COLOUR = Setting("colour", str, "its colour")
SIZE = Setting("size", int, "its size", 3, bounds=(1, 5))
THINGS = Setting("things", list, "its things", example="[[things]]")
HIDDEN = "thing.(a name that is not shown) is not a setting: leave it out, or use one of colour, size"
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
        ({"colour": "red", "weight": 1}, "thing.weight is not a setting: leave it out, or use one of colour, size"),
        ({"colour": "red", "port": 1}, "thing.port is not a setting: it belongs in [listen]"),
        (
            {"colour": "red", "auth_server": 1},
            "thing.auth_server is not a setting: it belongs in front of the first table or in [[wallet_address]]",
        ),
        ({"colour": "red", "database": ""}, "thing.database is not a setting: it belongs in front of the first table"),
        ({"colour": "red", "0Wy8xqPAoS": 1}, HIDDEN),
    ],
)
def test_wrong_table_is_refused(members: dict[str, Any], says: str) -> None:
    """The error names the setting, says what was found, and suggests the nearest name."""
    with pytest.raises(ConfigurationError) as refused:
        Table(members, "thing").read(DECLARED)
    assert refused.value.description == says
    assert says.startswith(str(refused.value.details["setting"]))


@pytest.mark.parametrize(
    ("members", "says"),
    [
        (
            {"tags": "a"},
            'thing.tags must be an array, not a string: write it in brackets, such as tags = ["..."]',
        ),
        ({"tags": 1}, "thing.tags must be an array, not an integer"),
        (
            {"mass": 0},
            "thing.mass must be an integer from 1 to 99, not 0; usually it is 5 to 50, because others are too heavy",
        ),
    ],
)
def test_error_shows_how_to_write_the_value(members: dict[str, Any], says: str) -> None:
    """The error shows brackets for a single value in place of an array, and the usual range of a number."""
    mass = Setting("mass", int, "its mass", 9, bounds=(1, 99), usual=(5, 50), unusual="others are too heavy")
    with pytest.raises(ConfigurationError) as refused:
        Table(members, "thing").read(TableOf("thing", "[thing]", "", (mass, Setting("tags", list, "its tags", []))))
    assert refused.value.description == says


@pytest.mark.parametrize("found", [1, []])
def test_value_in_place_of_a_table_is_refused(found: object) -> None:
    """The error shows the header of the table."""
    with pytest.raises(
        ConfigurationError, match=r"thing must be a table, not an?.*: write \[thing\] in front of its s"
    ):
        Table({"thing": found}, "").table("thing")


def test_missing_setting_at_the_top_belongs_in_front_of_the_tables() -> None:
    """In TOML, a setting after the header of a table belongs to that table."""
    with pytest.raises(ConfigurationError, match=r"^colour is missing: give a string in front of the first table$"):
        Table({}, "").take(COLOUR)


def test_value_that_must_be_unique_is_refused_the_second_time() -> None:
    """The error names both settings, and not the value."""
    once = Once()
    once.add("SECRET", "a[0]", "give another")
    once.add("OTHER", "a[1]", "give another")
    with pytest.raises(ConfigurationError) as refused:
        once.add("SECRET", "b[0]", "give another")
    assert refused.value.description == "b[0] holds the same value as a[0]: give another"
    assert refused.value.details == {"setting": "b[0]"}


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


@pytest.mark.parametrize(("found", "shown"), [(256, ", not 256"), ("SECRET", ""), (True, "")])
def test_error_of_a_value_shows_an_integer(found: object, shown: str) -> None:
    """The message shows a wrong integer. It shows no other value, which may be a secret."""
    with pytest.raises(ConfigurationError) as refused, naming("peer[0]", {"scale": found}, scale="asset_scale"):
        raise InvalidValue("scale must be an integer from 0 to 255", member="scale")
    assert refused.value.description == f"peer[0].asset_scale must be an integer from 0 to 255{shown}"

"""The declaration of settings: their text for errors, documents and the configuration of `init`."""

from typing import Literal

import pytest
from attrs import frozen

from incoming_payments.errors import InvalidValue
from incoming_payments.server.config.setting import (
    REQUIRED,
    Setting,
    differences,
    setting,
    settings_of,
    table,
    tables_of,
    toml,
)


@frozen(kw_only=True)
class Thing:
    """A table."""

    colour: Literal["red", "blue"] = setting("its colour", written='"{colour}"')
    size: int | None = setting("its size", None, "any size", bounds=(1, 9), usual=(2, 5), unusual="others are rare")
    parts: tuple[str, ...] = setting("its parts", ())


@frozen(kw_only=True)
class Things:
    """A configuration."""

    first: Thing = table("The first thing.", reloads=True)
    others: tuple[Thing, ...] = table("Another thing.", (), least="any number")


def test_line_of_a_setting_for_init() -> None:
    """A required setting and an active one are set. Another optional one is a comment with its default."""
    assert Setting(name="name", meaning="its name", default=REQUIRED, written='"{name}"').line == 'name = "{name}"'
    host = Setting(name="host", meaning="its host", default="127.0.0.1", is_active=True)
    assert host.line == 'host = "127.0.0.1"'
    assert Setting(name="is_on", meaning="whether it is on", default=False).line == "# is_on = false"


def test_settings_of_a_table() -> None:
    """A declaration has the name and the type of its field."""
    colour, size, parts = settings_of(Thing)
    assert (colour.name, colour.type, colour.default, colour.written) == ("colour", str, REQUIRED, '"{colour}"')
    assert (size.name, size.type, size.default, size.otherwise) == ("size", int, None, "any size")
    assert (parts.name, parts.type, toml(parts.default)) == ("parts", list, "[]")


def test_ranges_of_a_setting_as_text() -> None:
    """The text has the bounds, the usual range and its reason, as far as they are declared."""
    colour, size, _ = settings_of(Thing)
    assert size.values == "from 1 to 9, usually 2 to 5"
    assert size.usually == "usually it is 2 to 5, because others are rare"
    assert (colour.values, colour.usually) == ("", "")


@pytest.mark.parametrize("size", [0, 10])
def test_value_out_of_bounds_is_refused(size: int) -> None:
    """The error names the setting, its bounds and its usual values."""
    with pytest.raises(InvalidValue) as refused:
        Thing(colour="red", size=size)
    text = f"size must be an integer from 1 to 9, not {size}; usually it is 2 to 5, because others are rare"
    assert (refused.value.description, refused.value.details) == (text, {"member": "size"})


def test_no_table_shows_its_settings() -> None:
    """Any setting may hold a secret."""
    assert repr(Thing(colour="red", size=9)) == "Thing()"


def test_tables_of_a_configuration() -> None:
    """Each table has its header, its class, and its texts."""
    top, first, others = tables_of(Things)
    assert (top.header, top.cls, top.settings) == ("", Things, ())
    assert (first.name, first.header, first.cls, first.meaning) == ("first", "[first]", Thing, "The first thing.")
    assert (others.header, others.least, others.settings) == ("[[others]]", "any number", settings_of(Thing))


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        (1, 1, []),
        (1, 2, ["thing"]),
        (None, Thing(colour="red"), ["[thing]"]),
        (Thing(colour="red"), None, ["[thing]"]),
        (Thing(colour="red", size=1), Thing(colour="blue", size=2), ["thing.colour", "thing.size"]),
    ],
)
def test_differences_are_named(old: object, new: object, names: list[str]) -> None:
    """A changed setting has the name of its table in front. A table that comes or goes is named as a whole."""
    assert differences("thing", old, new) == names

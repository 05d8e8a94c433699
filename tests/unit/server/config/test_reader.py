"""Reading by the classes of tables. `test_settings.py` tests the same with the real declarations."""

from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from attrs import frozen

from incoming_payments.errors import ConfigurationError, InvalidValue
from incoming_payments.httpsig import Shape
from incoming_payments.server.config.reader import Once, naming, read
from incoming_payments.server.config.setting import setting, table

HIDDEN: Final = (
    "thing.(a name that is not shown) is not a setting: leave it out, or use one of colour, size, tags, file"
)


@frozen(kw_only=True)
class Thing:
    """A table with settings of several types."""

    colour: str = setting("its colour")
    size: int = setting("its size", 3, bounds=(1, 5))
    tags: tuple[Shape, ...] = setting("its tags", ())
    file: Path | None = setting("its file", None, "none")


@frozen(kw_only=True)
class Part:
    """A table in an array."""

    is_new: bool = setting("whether it is new")


@frozen(kw_only=True)
class Whole:
    """A table with an array of tables."""

    parts: tuple[Part, ...] = setting("its parts", example="parts = [{ is_new = true }]")
    made: datetime | None = setting("its date", None, "unknown")


@frozen(kw_only=True)
class Root:
    """A configuration."""

    name: str = setting("its name")
    kind: Literal["one", "two"] = setting("its kind", "one")
    thing: Thing = table("A thing.")
    wholes: tuple[Whole, ...] = table("A whole.", ())


def path_of(name: str) -> Path:
    """Return a path, or refuse its name."""
    if name == "a sentence":
        raise ConfigurationError("must not be a sentence")
    if name == "a value":
        raise InvalidValue("a value is no file")
    return Path("/", name)


def read_root(thing: Any, **members: Any) -> Root:
    """Return the configuration with this table `thing`."""
    return read(Root, {"name": "a", "thing": thing, **members}, {Path: path_of, datetime: lambda time: time})


def test_values_and_defaults() -> None:
    """A setting has the value of the file, or its default. A hook makes the values of further types."""
    assert read_root({"colour": "red"}) == Root(name="a", thing=Thing(colour="red"))
    thing = {"colour": "red", "size": 5, "tags": ["rust-sdk"], "file": "x"}
    time = datetime(2027, 1, 1)  # noqa: DTZ001 - as TOML without an offset
    whole = {"parts": [{"is_new": True}, {"is_new": False}], "made": time}
    assert read_root(thing, kind="two", wholes=[whole]) == Root(
        name="a",
        kind="two",
        thing=Thing(colour="red", size=5, tags=(Shape.RUST_SDK,), file=Path("/x")),
        wholes=(Whole(parts=(Part(is_new=True), Part(is_new=False)), made=time),),
    )


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        ({}, "thing.colour is missing: give a string"),
        ({"color": "red"}, "thing.colour is missing: give a string (color is not a setting: is it misspelt?)"),
        ({"colour": 1}, "thing.colour must be a string, not an integer"),
        ({"colour": {}}, "thing.colour must be a string, not a table"),
        ({"colour": "red", "size": True}, "thing.size must be an integer, not true or false"),
        ({"colour": "red", "size": 0}, "thing.size must be an integer from 1 to 5, not 0"),
        ({"colour": "red", "size": 6}, "thing.size must be an integer from 1 to 5, not 6"),
        ({"colour": "red", "sizes": 1}, "thing.sizes is not a setting: did you mean size?"),
        (
            {"colour": "red", "weight": 1},
            "thing.weight is not a setting: leave it out, or use one of colour, size, tags, file",
        ),
        ({"colour": "red", "is_new": 1}, "thing.is_new is not a setting: it belongs in parts"),
        ({"colour": "red", "name": ""}, "thing.name is not a setting: it belongs in front of the first table"),
        ({"colour": "red", "0Wy8xqPAoS": 1}, HIDDEN),
        (
            {"colour": "red", "tags": "php-sdk"},
            'thing.tags must be an array, not a string: write it in brackets, such as tags = ["..."]',
        ),
        ({"colour": "red", "tags": ["php"]}, "thing.tags[0] must be 'php-sdk' or 'rust-sdk': did you mean php-sdk?"),
        ({"colour": "red", "tags": ["php-sdk", 1]}, "thing.tags[1] must be 'php-sdk' or 'rust-sdk'"),
        ({"colour": "red", "file": 1}, "thing.file must be a string, not an integer"),
        ({"colour": "red", "file": "a sentence"}, "thing.file must not be a sentence"),
        ({"colour": "red", "file": "a value"}, "thing.file: a value is no file"),
        (1, "thing must be a table, not an integer: write [thing] in front of its settings, once"),
        ([], "thing must be a table, not an array: write [thing] in front of its settings, once"),
    ],
)
def test_wrong_table_is_refused(thing: Any, says: str) -> None:
    """The error names the setting, says what was found, and suggests what to write."""
    with pytest.raises(ConfigurationError) as refused:
        read_root(thing)
    assert refused.value.description == says
    assert says.startswith(str(refused.value.details["setting"]))


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"name": 1}, "name must be a string, not an integer"),
        ({"kind": "three"}, "kind must be 'one' or 'two'"),
        ({"wholes": {}}, "wholes must be an array of tables, such as [[wholes]]"),
        ({"wholes": [1]}, "wholes[0] must be a table, not an integer"),
        ({"wholes": [{}]}, "wholes[0].parts is missing: give at least one, as parts = [{ is_new = true }]"),
        ({"wholes": [{"parts": []}]}, "wholes[0].parts is missing: give at least one, as parts = [{ is_new = true }]"),
        ({"wholes": [{"parts": 1}]}, "wholes[0].parts must be an array of tables, such as parts = [{ is_new = true }]"),
        ({"wholes": [{"parts": [{"is_new": 1}]}]}, "wholes[0].parts[0].is_new must be true or false, not an integer"),
        (
            {"wholes": [{"parts": [{"is_new": True}, {}]}]},
            "wholes[0].parts[1].is_new is missing: give true or false",
        ),
        (
            {"wholes": [{"parts": [{"is_new": True}], "made": 2027}]},
            "wholes[0].made must be a date-time, such as 2027-01-01T00:00:00Z, not an integer",
        ),
        ({"thong": {}}, "thong is not a setting: did you mean thing?"),
    ],
)
def test_error_has_the_path_of_the_setting(members: dict[str, Any], says: str) -> None:
    """A setting in an array of tables has the place of its table."""
    with pytest.raises(ConfigurationError) as refused:
        read_root({"colour": "red"}, **members)
    assert refused.value.description == says
    assert says.startswith(str(refused.value.details["setting"]))


def test_missing_setting_at_the_top_belongs_in_front_of_the_tables() -> None:
    """In TOML, a setting after the header of a table belongs to that table."""
    with pytest.raises(ConfigurationError, match=r"^name is missing: give a string in front of the first table$"):
        read(Root, {"thing": {"colour": "red"}}, {Path: path_of})


def test_missing_table_shows_what_it_needs() -> None:
    """The error names the header and the required settings."""
    with pytest.raises(ConfigurationError, match=r"^thing is missing: give \[thing\] with colour$"):
        read(Root, {"name": "a"}, {Path: path_of})


def test_unexpected_error_of_a_hook_is_passed_on() -> None:
    """A mistake of this library is no error of the configuration."""
    with pytest.raises(ZeroDivisionError):
        read(Root, {"name": "a", "thing": {"colour": "red", "file": "x"}}, {Path: lambda _: 1 // 0})


def test_value_that_is_given_twice_names_both_settings() -> None:
    """The error names the second setting, and refers to the first one. It does not show the value."""
    once = Once()
    once.add("SECRET", "a[0]", "give another")
    once.add("OTHER", "a[1]", "give another")
    with pytest.raises(ConfigurationError) as refused:
        once.add("SECRET", "b[0]", "give another")
    assert refused.value.description == "b[0] holds the same value as a[0]: give another"
    assert refused.value.details == {"setting": "b[0]"}


def test_error_of_a_value_names_the_setting() -> None:
    """A member has the name of its setting, if the table has that setting. The message has the name once."""

    @frozen
    class Asset:
        asset_code: str = "SECRET"
        scale: int = 256

    for member, renamed, name in (
        ("assetCode", {}, "peer[0].asset_code"),
        ("units", {"units": "scale"}, "peer[0].scale"),
    ):
        with pytest.raises(ConfigurationError) as refused, naming("peer[0]", Asset(), **renamed):
            raise InvalidValue(f"{member} must be another", member=member)
        shown = ", not 256" if name.endswith("scale") else ""  # an integer is no secret
        assert refused.value.description == f"{name} must be another{shown}"
        assert refused.value.details == {"setting": name}
    with pytest.raises(ConfigurationError, match=r"^peer\[0\]: the asset is wrong$"), naming("peer[0]", Asset()):
        raise InvalidValue("the asset is wrong")

"""The declaration of settings. `test_template.py` and `test_settings.py` test its texts with the real settings."""

import pytest
from attrs import frozen

from incoming_payments.server.config.setting import differences, setting


@frozen(kw_only=True)
class Thing:
    """A table."""

    colour: str = setting("its colour")
    size: int | None = setting("its size", None, "any size")


def test_no_table_shows_its_settings() -> None:
    """Any setting may hold a secret."""
    assert repr(Thing(colour="red", size=9)) == "Thing()"


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

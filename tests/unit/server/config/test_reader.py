"""Reading by the classes of tables. `test_settings.py` tests the reader and its errors with the real tables."""

from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from incoming_payments.errors import ConfigurationError, InvalidValue
from incoming_payments.server.config.reader import naming, read
from incoming_payments.server.config.setting import setting


@frozen(kw_only=True)
class Root:
    """A configuration."""

    size: int = setting("its size", 3)
    file: Path | None = setting("its file", None, "none")


def test_hook_may_refuse_a_value() -> None:
    """The error of a hook completes a sentence about the setting, or is a sentence of its own."""
    sentences: dict[Exception, str] = {
        ConfigurationError("must not be x"): "file must not be x",
        InvalidValue("x is no file"): "file: x is no file",
    }
    for error, says in sentences.items():

        def refuse(_: object, error: Exception = error) -> Any:
            raise error

        with pytest.raises(ConfigurationError) as refused:
            read(Root, {"file": "x"}, {Path: refuse})
        assert (refused.value.description, refused.value.details) == (says, {"setting": "file"})


def test_unexpected_error_of_a_hook_is_passed_on() -> None:
    """A mistake of this library is no error of the configuration."""
    with pytest.raises(ZeroDivisionError):
        read(Root, {"file": "x"}, {Path: lambda _: 1 // 0})


@pytest.mark.parametrize(
    ("member", "renamed", "says"),
    [
        ("fileName", {"fileName": "file"}, "peer[0].file must be another"),
        ("size", {}, "peer[0].size must be another, not 3"),  # an integer is no secret
        ("other", {}, "peer[0] must be another"),
    ],
)
def test_error_of_a_value_names_the_setting(member: str, renamed: dict[str, str], says: str) -> None:
    """A member has the name of its setting, if the table has that setting."""
    with pytest.raises(ConfigurationError) as refused, naming("peer[0]", Root(), **renamed):
        raise InvalidValue(f"{member} must be another", member=member)
    assert refused.value.description == says

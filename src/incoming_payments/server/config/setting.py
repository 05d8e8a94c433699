"""Declare settings. Each setting is a field of the attrs class of its table.

`setting` and `table` declare a field, together with its text in the documentation. `settings_of` and `tables_of` return
the declarations, for the errors of the reader, the configuration that `init` writes, and the tables in
`docs/settings.md`.
"""

import json
from collections.abc import Callable
from datetime import datetime
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

from attrs import NOTHING, Attribute, evolve, field, fields, frozen, has

from incoming_payments.errors import InvalidValue

REQUIRED: Final = NOTHING  # the default of a required setting
_SETTING: Final = "setting"
_TABLE: Final = "table"


@frozen(kw_only=True)
class Setting:
    """The declaration of a setting.

    `default` is the value when the setting is left out. A default of `REQUIRED` means that a missing setting is an
    error. A default of `None` means that `otherwise` describes the default. `bounds` are the least and the greatest
    value. A value outside `usual` gets a warning that gives the reason in `unusual`. `written` is the value that `init`
    writes, as TOML with placeholders in braces. If `written` is `None`, `init` writes the default. `init` writes an
    optional setting as a comment.
    """

    name: str = ""
    type: type = str  # the type of the value in TOML
    meaning: str
    default: Any
    otherwise: str = ""
    bounds: tuple[int, int] | None = None
    usual: tuple[int, int] | None = None
    unusual: str = ""
    written: str | None = None
    is_active: bool = False  # whether `init` sets this optional setting
    example: str = ""  # an example of an array of tables
    least: str = ""  # the required number of tables in an array of tables

    @property
    def values(self) -> str:
        """Return the allowed and the usual values as text."""
        parts = [f"from {self.bounds[0]} to {self.bounds[1]}"] if self.bounds else []
        parts += [f"usually {self.usual[0]} to {self.usual[1]}"] if self.usual else []
        return ", ".join(parts)

    @property
    def usually(self) -> str:
        """Return the usual values with the reason, or `""` if every value is usual."""
        return f"the usual values are {self.usual[0]} to {self.usual[1]}, because {self.unusual}" if self.usual else ""

    @property
    def line(self) -> str:
        """Return the line that `init` writes for this setting."""
        line = f"{self.name} = {self.written if self.written is not None else toml(self.default)}"
        return line if self.default is REQUIRED or self.is_active else f"# {line}"


@frozen(kw_only=True)
class TableOf:
    """The declaration of a table of settings. `cls` is the class of the table.

    `header` is the name of the table with brackets. `least` is the required number of tables. If `reloads` is true,
    SIGHUP changes the settings of the table.
    """

    name: str = ""
    header: str = ""
    cls: type = object
    meaning: str = ""
    least: str = ""
    reloads: bool = False

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Return the settings."""
        return settings_of(self.cls)


def setting(meaning: str, default: Any = REQUIRED, otherwise: str = "", *, check: Any = None, **texts: Any) -> Any:
    """Declare a setting as a field of its table. `check` is an attrs validator. `texts` are arguments of `Setting`."""
    declared = Setting(meaning=meaning, default=default, otherwise=otherwise, **texts)
    # No `repr` shows the value, because the value may be a secret.
    return field(default=default, repr=False, validator=check or _validator(declared), metadata={_SETTING: declared})


def table(meaning: str, default: Any = REQUIRED, *, least: str = "", reloads: bool = False) -> Any:
    """Declare a table, an optional table or an array of tables as a field of the configuration."""
    return field(default=default, metadata={_TABLE: TableOf(meaning=meaning, least=least, reloads=reloads)})


def _validator(declared: Setting) -> Callable[[object, "Attribute[Any]", Any], None]:
    def check(_: object, attribute: "Attribute[Any]", value: Any) -> None:
        if declared.bounds and value is not None and not declared.bounds[0] <= value <= declared.bounds[1]:
            text = f"must be an integer from {declared.bounds[0]} to {declared.bounds[1]}, not {value}"
            raise invalid(attribute, f"{text}: {declared.usually}" if declared.usually else text)
        if declared.example and not value:
            raise invalid(attribute, f"is missing: add at least one table, such as {declared.example}")

    return check


def invalid(attribute: "Attribute[Any]", why: str) -> InvalidValue:
    """Return the error of a validator. The setting is the subject of the text `why`."""
    return InvalidValue(f"{attribute.name} {why}", member=attribute.name)


def settings_of(cls: type) -> tuple[Setting, ...]:
    """Return the declarations of the settings in the table `cls`."""
    return tuple(
        evolve(attribute.metadata[_SETTING], name=attribute.name, type=toml_type(attribute.type))
        for attribute in fields(cls)
        if _SETTING in attribute.metadata
    )


def tables_of(root: type) -> tuple[TableOf, ...]:
    """Return the declarations of all tables of a configuration. The first declaration is for the top-level settings."""
    found = [TableOf(cls=root)]
    for attribute in fields(root):
        if inner := inner_table(attribute):
            header = f"[[{attribute.name}]]" if is_array(attribute.type) else f"[{attribute.name}]"
            found.append(evolve(attribute.metadata[_TABLE], name=attribute.name, header=header, cls=inner))
            found += [
                TableOf(name=nested.name, header=nested.name, cls=cls, least=nested.metadata[_SETTING].least)
                for nested in fields(inner)
                if (cls := inner_table(nested))
            ]
    return tuple(found)


def inner_table(attribute: "Attribute[Any]") -> type | None:
    """Return the class of the tables in a field, or `None` for a plain setting."""
    types = (attribute.type, *get_args(attribute.type))
    return next((cls for cls in types if isinstance(cls, type) and has(cls) and settings_of(cls)), None)


def example_of(attribute: "Attribute[Any]") -> str:
    """Return an example of one table in an array of tables."""
    declared = attribute.metadata.get(_SETTING)
    return declared.example if declared else f"[[{attribute.name}]]"


def is_array(kind: Any) -> bool:
    """Return whether the values of an annotation are arrays."""
    return get_origin(kind) is tuple


def differences(name: str, old: object, new: object) -> list[str]:
    """Return the names of the settings in which two values of the table `name` differ."""
    if old == new:
        return []
    tables = [value for value in (old, new) if has(type(value))]
    if len(tables) < 2:
        return [f"[{name}]" if tables else name]
    names = [setting.name for setting in settings_of(type(old))]
    return [f"{name}.{setting}" for setting in names if getattr(old, setting) != getattr(new, setting)]


def toml_type(kind: Any) -> type:
    """Return the TOML type for an annotation. A type of this library has the TOML type string."""
    if get_origin(kind) in (Union, UnionType):
        kind = get_args(kind)[0]
    if is_array(kind):
        return list
    return kind if kind in (bool, int, datetime) else str


def toml(value: object) -> str:
    """Return a setting's default as TOML, in which these values look as in JSON.

    >>> toml(True), toml("a"), toml(())
    ('true', '"a"', '[]')
    """
    return json.dumps(value)

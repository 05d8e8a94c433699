"""Reading of a configuration by the classes of its tables. Every error names the setting at fault."""

import difflib
import enum
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from attrs import Attribute, AttrsInstance, fields, frozen, has

from incoming_payments.errors import ConfigurationError, IncomingPaymentsError, InvalidValue
from incoming_payments.server.config.setting import (
    REQUIRED,
    example_of,
    inner_table,
    is_array,
    settings_of,
    tables_of,
    toml_type,
    without_none,
)
from incoming_payments.strict import NAMES, wrong_type

T = TypeVar("T", bound=AttrsInstance)

_NAMES: Final[Mapping[type, str]] = {
    **NAMES,
    dict: "a table",
    bool: "true or false",
    float: "a float",
    datetime: "a date-time, such as 2027-01-01T00:00:00Z",
    date: "a date",
    time: "a time",
}
_TOP: Final = "in front of the first table"
HARMLESS_NAME: Final = re.compile(r"[a-z][a-z_-]{0,23}")  # a name like that of a setting, and unlike a token


def read(root: type[T], document: Mapping[str, Any], hooks: Mapping[Any, Callable[[Any], Any]]) -> T:
    """Return the configuration in `document`: a value of `root`, with values of the classes of its tables.

    `hooks` make the values of further types. A hook raises `InvalidValue`, or `ConfigurationError` with a description
    that completes a sentence about the setting. Raises `ConfigurationError` when a setting is missing, unknown, of the
    wrong type or invalid.
    """
    return _Reader(root, hooks).table(root, document, "")


@frozen
class _Reader:
    _root: type
    _hooks: Mapping[Any, Callable[[Any], Any]]

    def table(self, cls: type[T], given: Mapping[str, Any], path: str) -> T:
        """Return the table at `path`."""
        settings = {attribute.name: attribute for attribute in fields(cls) if attribute.init}
        unknown = sorted(given.keys() - settings.keys())
        values = {}
        for name, attribute in settings.items():
            if name in given:
                values[name] = self._setting(attribute, given[name], _joined(path, name))
            elif attribute.default is REQUIRED:
                place = "" if path else f" {_TOP}"
                raise refused(_joined(path, name), f"is missing: {_gift(attribute, place)}{_misspelt(name, unknown)}")
        if unknown:
            why = f"is not a setting: {_suggestion(unknown[0], list(settings), self._root)}"
            raise refused(_joined(path, _shown(unknown[0])), why)
        with naming(path, cls):
            return cls(**values)

    def _setting(self, attribute: "Attribute[Any]", value: object, path: str) -> object:
        kind = without_none(attribute.type)
        if not is_array(kind):
            how = f": write [{attribute.name}] in front of its settings, once" if inner_table(attribute) else ""
            return self._value(kind, value, path, how)
        if not isinstance(value, list):
            raise refused(path, _instead(attribute, value))
        [item_kind, _] = get_args(kind)
        return tuple(self._value(item_kind, item, f"{path}[{place}]") for place, item in enumerate(value))

    def _value(self, kind: Any, value: Any, path: str, how: str = "") -> object:
        """Return the value of the setting at `path`, or of an item of it. `how` is added to an error about its type."""
        if choices := _choices(kind):
            return _one_of(choices, value, path)
        make = self._hooks.get(kind)
        is_table = make is None and has(kind)
        if why := wrong_type(value, dict if is_table else toml_type(kind), _NAMES):
            raise refused(path, f"{why}{how}")
        if is_table:
            return self.table(kind, value, path)
        with naming(path):
            return value if make is None else make(value)


def _choices(kind: Any) -> Sequence[str]:
    """Return the values of an enumeration or of a `Literal`, or nothing for another type."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return list(kind) if isinstance(kind, type) and issubclass(kind, enum.StrEnum) else ()


def _one_of(choices: Sequence[str], value: object, path: str) -> str:
    for choice in choices:
        if choice == value:
            return choice
    near = difflib.get_close_matches(str(value).lower(), choices, 1)
    hint = f": did you mean {near[0]}?" if near else ""
    raise refused(path, f"must be {' or '.join(repr(str(choice)) for choice in choices)}{hint}")


# --- errors --------------------------------------------------------------------------------------


def _misspelt(name: str, unknown: Collection[str]) -> str:
    """Return the probable reason why the setting `name` is missing."""
    near = difflib.get_close_matches(name, unknown, 1)
    return f" ({_shown(near[0])} is not a setting: is it misspelt?)" if near else ""


def _gift(attribute: "Attribute[Any]", place: str) -> str:
    """Return what to give for a missing setting or table."""
    cls = inner_table(attribute)
    if cls and is_array(attribute.type):
        return f"give at least one, as {example_of(attribute)}"
    if cls:
        needed = [setting.name for setting in settings_of(cls) if setting.default is REQUIRED]
        return f"give [{attribute.name}] with {' and '.join(needed)}"
    return f"give {_NAMES[toml_type(attribute.type)]}{place}"


def _instead(attribute: "Attribute[Any]", value: object) -> str:
    """Return the error for a value in place of an array."""
    if inner_table(attribute):
        return f"must be an array of tables, such as {example_of(attribute)}"
    return f'{wrong_type(value, list, _NAMES)}: write it in brackets, such as {attribute.name} = ["..."]'


def _suggestion(name: str, known: Collection[str], root: type) -> str:
    """Return what to do about the unknown setting `name` of a table with the settings `known`."""
    if near := difflib.get_close_matches(name, known, 1):
        return f"did you mean {near[0]}?"
    tables = [table for table in tables_of(root) if name in {setting.name for setting in table.settings}]
    if tables:
        return f"it belongs {' or '.join(f'in {table.header}' if table.header else _TOP for table in tables)}"
    return f"leave it out, or use one of {', '.join(known)}"


def _shown(name: str) -> str:
    """Return a name from the file, or hide it if it may be a token on the wrong side of the equals sign."""
    return name if HARMLESS_NAME.fullmatch(name) else "(a name that is not shown)"


def _joined(*names: str) -> str:
    return ".".join(name for name in names if name)


def refused(setting: str, why: str) -> ConfigurationError:
    """Return the error for a setting. `why` completes a sentence about the setting."""
    return ConfigurationError(f"{setting} {why}", setting=setting)


def _member(error: IncomingPaymentsError) -> str:
    return str(error.details.get("member", error.details.get("setting", "")))


def _about(setting: str, error: IncomingPaymentsError, found: object = None) -> ConfigurationError:
    """Return `error` as an error about the setting. It shows the value `found` if that is an integer."""
    rest = error.description.removeprefix(f"{_member(error)} ")
    colon = ":" if isinstance(error, InvalidValue) and rest == error.description else ""
    shown = f", not {found}" if type(found) is int else ""
    return ConfigurationError(f"{setting}{colon} {rest}{shown}", setting=setting)


@contextmanager
def naming(path: str, table: object = None, **settings: str) -> Iterator[None]:
    """Turn the error of a value's constructor into a `ConfigurationError` that names the setting.

    `table` is the table at `path`. The setting of a member has the name in `settings`, or the name of the member in
    snake case. If the table has no such setting, the error names the table.
    """
    try:
        yield
    except (ConfigurationError, InvalidValue) as error:
        member = _member(error)
        name = settings.get(member, re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", member))
        if hasattr(table, name):
            raise _about(_joined(path, name), error, getattr(table, name)) from None
        raise _about(path, error) from None


class Once:
    """Values that may be given once each, with the settings that gave them."""

    def __init__(self) -> None:
        self._settings: dict[Hashable, str] = {}

    def add(self, value: Hashable, setting: str, instead: str) -> None:
        """Record that `setting` gave `value`. Raises `ConfigurationError` when another setting gave it before."""
        first = self._settings.setdefault(value, setting)
        if first != setting:
            raise refused(setting, f"holds the same value as {first}: {instead}")

"""Read a configuration into the classes of its tables, with cattrs. Every error names the setting at fault."""

import difflib
import enum
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time
from functools import partial
from types import GenericAlias
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from attrs import Attribute, fields_dict, has
from cattrs import (
    AttributeValidationNote,
    BaseValidationError,
    ClassValidationError,
    Converter,
    ForbiddenExtraKeysError,
)
from cattrs.gen import make_dict_structure_fn

from incoming_payments.errors import ConfigurationError, IncomingPaymentsError, InvalidValue
from incoming_payments.server.config.setting import (
    REQUIRED,
    example_of,
    inner_table,
    is_array,
    settings_of,
    tables_of,
    toml_type,
)
from incoming_payments.wire.strict import NAMES, wrong_type

T = TypeVar("T")

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
HARMLESS_NAME: Final = re.compile(r"[a-z][a-z_-]{0,23}")  # a name that may be a setting, and cannot be a token


class _WrongType(ConfigurationError):
    """The TOML type of a value is wrong."""


# --- cattrs --------------------------------------------------------------------------------------


def read(root: type[T], document: Mapping[str, Any], hooks: Mapping[Any, Callable[[Any], Any]]) -> T:
    """Return the configuration in `document` as a `root`, with an object of the right class for each table.

    `hooks` are the functions that make values, by type. A hook raises `InvalidValue`, or
    `ConfigurationError` with a description whose subject is the setting. Raises `ConfigurationError` when a setting is
    missing, unknown, of the wrong type or invalid.
    """
    converter = Converter(detailed_validation=True)

    def make_array(value: Any, kind: Any) -> Any:
        items: Any = GenericAlias(list, get_args(kind)[:1])
        return tuple(converter.structure(_exactly(list, value), items))

    def make_table(cls: type) -> Callable[[Any, Any], Any]:
        make: Any = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True, _cattrs_use_linecache=False)
        return lambda value, _: make(_exactly(dict, value), cls)

    converter.register_structure_hook_factory(has, make_table)
    converter.register_structure_hook_func(is_array, make_array)
    converter.register_structure_hook_func(_is_literal, _make_literal)
    converter.register_structure_hook(str, _make_text)
    for kind in (int, bool):
        converter.register_structure_hook(kind, lambda value, kind: _exactly(kind, value))
    for kind, hook in hooks.items():
        converter.register_structure_hook(kind, partial(_make_value, hook))
    try:
        return converter.structure(document, root)
    except BaseValidationError as error:
        raise _first_error(error, root) from None


def _is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


def _make_value(hook: Callable[[Any], Any], value: object, kind: type) -> object:
    return hook(_exactly(toml_type(kind), value))


def _make_text(value: object, kind: Any) -> object:
    return kind(_one_of(list(kind), value)) if issubclass(kind, enum.StrEnum) else _exactly(str, value)


def _make_literal(value: object, kind: Any) -> object:
    return _one_of(get_args(kind), value)


def _exactly(kind: type[T], value: object) -> T:
    if type(value) is kind:
        return value
    raise _WrongType(str(wrong_type(value, kind, _NAMES)))


def _one_of(choices: Collection[str], value: object) -> object:
    if value in choices:
        return value
    near = difflib.get_close_matches(str(value).lower(), choices, 1)
    hint = f": did you mean {near[0]}?" if near else ""
    raise ConfigurationError(f"must be {' or '.join(repr(str(choice)) for choice in choices)}{hint}")


# --- errors --------------------------------------------------------------------------------------


def _first_error(error: Exception, root: type) -> ConfigurationError:
    """Return the first error that cattrs has collected, with the path of its setting."""
    path, table, beside = "", root, list[Exception]()
    attribute: Attribute[Any] | None = None  # the attribute of the setting, if the whole setting is at fault
    while isinstance(error, BaseValidationError):
        if isinstance(error, ClassValidationError):
            table, beside = error.cl, list(error.exceptions)
        error, attribute = error.exceptions[0], None
        for note in getattr(error, "__notes__", ()):
            if isinstance(note, AttributeValidationNote):
                path, attribute = _joined(path, note.name), fields_dict(table)[note.name]
            else:
                path += f"[{note.index}]"
    unknown = [name for other in beside if isinstance(other, ForbiddenExtraKeysError) for name in other.extra_fields]
    if isinstance(error, ForbiddenExtraKeysError):
        name = min(unknown)
        return refused(_joined(path, _shown(name)), f"is not a setting: {_suggestion(name, table, root)}")
    if isinstance(error, KeyError) and attribute is not None:
        near = difflib.get_close_matches(attribute.name, unknown, 1)
        misspelt = f" ({_shown(near[0])} is not a setting: is it misspelt?)" if near else ""
        place = f" {_TOP}" if table is root else ""
        return refused(path, f"is missing: {_gift(attribute, place)}{misspelt}")
    if isinstance(error, _WrongType) and attribute is not None:
        return refused(path, _instead(attribute, error.description))
    if not isinstance(error, IncomingPaymentsError):
        raise error
    member = _member(error)
    return _about(_joined(path, member) if attribute is None and member in fields_dict(table) else path, error)


def _gift(attribute: "Attribute[Any]", place: str) -> str:
    """Return the advice for a missing setting or table."""
    cls = inner_table(attribute)
    if cls and is_array(attribute.type):
        return f"add at least one table, such as {example_of(attribute)}"
    if cls:
        needed = [setting.name for setting in settings_of(cls) if setting.default is REQUIRED]
        return f"give [{attribute.name}] with {' and '.join(needed)}"
    return f"give {_NAMES[toml_type(attribute.type)]}{place}"


def _instead(attribute: "Attribute[Any]", reason: str) -> str:
    """Return the error for a setting or table of the wrong type."""
    if not is_array(attribute.type):
        how = f": write [{attribute.name}] once, before the settings of this table" if inner_table(attribute) else ""
        return f"{reason}{how}"
    if inner_table(attribute):
        return f"must be an array of tables, such as {example_of(attribute)}"
    return f'{reason}: write the value in brackets, such as {attribute.name} = ["..."]'


def _suggestion(name: str, table: type, root: type) -> str:
    """Return the advice for the unknown setting `name`."""
    known = [name for name, attribute in fields_dict(table).items() if attribute.init]
    if near := difflib.get_close_matches(name, known, 1):
        return f"did you mean {near[0]}?"
    tables = [table for table in tables_of(root) if name in {setting.name for setting in table.settings}]
    if tables:
        return f"this setting belongs {' or '.join(f'in {table.header}' if table.header else _TOP for table in tables)}"
    return f"remove this setting, or use one of {', '.join(known)}"


def _shown(name: str) -> str:
    """Return a name from the file, or hide a name that may be a token on the wrong side of the equals sign."""
    return name if HARMLESS_NAME.fullmatch(name) else "(a name that is hidden, because it may be a secret)"


def _joined(*names: str) -> str:
    return ".".join(name for name in names if name)


def refused(setting: str, why: str) -> ConfigurationError:
    """Return the error for a setting, which is the subject of the text `why`."""
    return ConfigurationError(f"{setting} {why}", setting=setting)


def _member(error: IncomingPaymentsError) -> str:
    return str(error.details.get("member", error.details.get("setting", "")))


def _about(setting: str, error: IncomingPaymentsError, found: object = None) -> ConfigurationError:
    """Return `error` as an error about the setting. If the value `found` is an integer, the error shows the value."""
    rest = error.description.removeprefix(f"{_member(error)} ")
    colon = ":" if isinstance(error, InvalidValue) and rest == error.description else ""
    shown = f", not {found}" if type(found) is int else ""
    return ConfigurationError(f"{setting}{colon} {rest}{shown}", setting=setting)


@contextmanager
def naming(path: str, table: object = None, **settings: str) -> Iterator[None]:
    """Turn an `InvalidValue` into a `ConfigurationError` that names the setting.

    `table` is the table at `path`. `settings` maps members to settings. The setting of any other member has the name of
    the member in snake case. If the table has no such setting, the error names the table.
    """
    try:
        yield
    except InvalidValue as error:
        member = _member(error)
        name = settings.get(member, re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", member))
        if hasattr(table, name):
            raise _about(_joined(path, name), error, getattr(table, name)) from None
        raise _about(path, error) from None


class Once:
    """A check that no two settings have the same value."""

    def __init__(self) -> None:
        self._settings: dict[Hashable, str] = {}

    def add(self, value: Hashable, setting: str, instead: str) -> None:
        """Record that `setting` has `value`. Raises `ConfigurationError` when another setting has the same value."""
        first = self._settings.setdefault(value, setting)
        if first != setting:
            raise refused(setting, f"holds the same value as {first}: {instead}")

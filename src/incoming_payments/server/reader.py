"""Strict reading of a TOML table by its declaration. Every error names the setting at fault."""

import difflib
import re
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time
from typing import Any, Final

from incoming_payments.errors import ConfigurationError, InvalidValue
from incoming_payments.server.declarations import TABLES
from incoming_payments.server.setting import REQUIRED, Setting, TableOf
from incoming_payments.strict import NAMES, wrong_type

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


@contextmanager
def naming(setting: str, found: Mapping[str, Any] | None = None, **members: str) -> Iterator[None]:
    """Turn the `InvalidValue` of a value's constructor into a `ConfigurationError` that names the setting.

    If `members` has the member in the error, the error names that setting below `setting`. Otherwise it names
    `setting`. The error shows the value of the member in `found` if it is an integer.
    """
    try:
        yield
    except InvalidValue as error:
        member = str(error.details.get("member", ""))
        name = _joined(setting, members.get(member, ""))
        rest = error.description.removeprefix(f"{member} ")
        text = f"{name}: {rest}" if rest == error.description else f"{name} {rest}"
        value = (found or {}).get(member)
        text += f", not {value}" if type(value) is int else ""
        raise ConfigurationError(text, setting=name) from None


def _joined(*names: str) -> str:
    return ".".join(name for name in names if name)


def _shown(name: str) -> str:
    """Return a name from the file, or hide it if it may be a token on the wrong side of the equals sign."""
    return name if HARMLESS_NAME.fullmatch(name) else "(a name that is not shown)"


class Table:
    """A TOML table that is read member by member. `finish` refuses the members that were not read."""

    def __init__(self, members: Mapping[str, Any], name: str) -> None:
        self._left = dict(members)
        self._known: list[str] = []
        self.name = name

    def read(self, declaration: TableOf) -> dict[str, Any]:
        """Return the value of every declared setting by its name, and refuse all others.

        Raises `ConfigurationError` when a setting is missing, unknown, of the wrong type or out of bounds.
        """
        values = {setting.name: self.take(setting) for setting in declaration.settings}
        self.finish()
        return values

    def take(self, setting: Setting) -> Any:
        """Return the value of one setting; it is a list of `Table` for an array of tables."""
        name = setting.name
        if setting.example:
            return self.tables(name, least=setting.example)
        self._known.append(name)
        if name not in self._left:
            if setting.default is REQUIRED:
                place = "" if self.name else f" {_TOP}"
                raise self.wrong(name, f"is missing: give {_NAMES[setting.type]}{place}{self._misspelt(name)}")
            return setting.default
        value = self._left.pop(name)
        if reason := wrong_type(value, setting.type, _NAMES):
            how = (
                f': write it in brackets, such as {name} = ["..."]'
                if type(value) is str and setting.type is list
                else ""
            )
            raise self.wrong(name, f"{reason}{how}")
        if setting.bounds is not None and not setting.bounds[0] <= value <= setting.bounds[1]:
            least, most = setting.bounds
            usually = f"; {setting.usually}" if setting.usually else ""
            raise self.wrong(name, f"must be an integer from {least} to {most}, not {value}{usually}")
        return value

    def has(self, name: str) -> bool:
        """Return whether there is a member `name`, which is optional."""
        self._known.append(name)
        return name in self._left

    def table(self, name: str) -> "Table":
        """Return a member that is a table. Treat a missing table as an empty table, so that the error names its
        required settings."""
        self._known.append(name)
        if name not in self._left and (hint := self._misspelt(name)):
            raise self.wrong(name, f"is missing{hint}")
        members = self._left.pop(name, {})
        if reason := wrong_type(members, dict, _NAMES):
            raise self.wrong(name, f"{reason}: write [{name}] in front of its settings, once")
        return Table(members, _joined(self.name, name))

    def tables(self, name: str, *, least: str | None = None) -> list["Table"]:
        """Return a member that is an array of tables. It may be empty, unless `least` shows how to write one."""
        self._known.append(name)
        entries = self._left.pop(name, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise self.wrong(name, f"must be an array of tables, such as {least or f'[[{name}]]'}")
        if least is not None and not entries:
            raise self.wrong(name, f"is missing: give at least one, as {least}{self._misspelt(name)}")
        path = _joined(self.name, name)
        return [Table(entry, f"{path}[{place}]") for place, entry in enumerate(entries)]

    def wrong(self, name: str, why: str) -> ConfigurationError:
        """Return the error for the member `name`."""
        path = _joined(self.name, name if name in self._known else _shown(name))
        return ConfigurationError(f"{path} {why}", setting=path)

    def finish(self) -> None:
        """Raise `ConfigurationError` for a member that was not read, so that no misspelt setting is ignored."""
        for name in self._left:
            near = difflib.get_close_matches(name, self._known, 1)
            homes = [f"in {table.header}" if table.header else _TOP for table in TABLES if name in table.names]
            if near:
                hint = f"did you mean {near[0]}?"
            elif homes:
                hint = f"it belongs {' or '.join(homes)}"
            else:
                hint = f"leave it out, or use one of {', '.join(self._known)}"
            raise self.wrong(name, f"is not a setting: {hint}")

    def _misspelt(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._left, 1)
        return f" ({_shown(near[0])} is not a setting: is it misspelt?)" if near else ""


class Once:
    """Values that may be given once each, with the settings that gave them."""

    def __init__(self) -> None:
        self._settings: dict[Hashable, str] = {}

    def add(self, value: Hashable, setting: str, instead: str) -> None:
        """Record that `setting` gave `value`. Raises `ConfigurationError` when another setting gave it before."""
        first = self._settings.setdefault(value, setting)
        if first != setting:
            raise ConfigurationError(f"{setting} holds the same value as {first}: {instead}", setting=setting)

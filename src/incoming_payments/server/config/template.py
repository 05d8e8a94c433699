"""The settings of `serve` as text: the configuration that `init` writes, and the table in `docs/server.md`."""

import textwrap
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Final

from incoming_payments.server.config.setting import REQUIRED, Setting, toml
from incoming_payments.server.config.tables import TABLES


def documented() -> str:
    """Return all settings as a Markdown table, for `docs/server.md`."""
    lines = ["| table | setting | type | meaning | when left out |", "|---|---|---|---|---|"]
    for table in TABLES:
        heading = f"`{table.header}`" + (f", {table.least}" if table.least else "") if table.header else ""
        for setting in table.settings:
            meaning = setting.meaning + (f"; {setting.values}" if setting.values else "")
            cells = [heading, f"`{setting.name}`", TYPES[setting.type], meaning, _otherwise(setting)]
            lines.append(f"| {' | '.join(cells)} |")
            heading = ""
    return "\n".join(lines)


def _otherwise(setting: Setting) -> str:
    if setting.default is REQUIRED:
        return "error"
    return setting.otherwise or f"`{toml(setting.default)}`"


def template(*, has_authorization_server: bool, active: Collection[str] = (), **values: object) -> str:
    """Return the configuration that `init` writes, with `values` for the placeholders.

    The configuration has a table for the authorization server or for a token. The other table and `[wallet_addresses]`
    are comments. `active` are the names of the optional settings of the authorization server that are set.
    """
    omitted = ("wallet_addresses", "token" if has_authorization_server else "authorization_server")
    return "\n".join(_template_lines(omitted, active)).format(**values) + "\n"


def _template_lines(omitted: Collection[str], active: Collection[str]) -> Iterator[str]:
    yield "# The configuration of `incoming-payments serve`."
    yield "# Keep this file private: it holds a token. File names are relative to the folder of this file."
    for table in TABLES:
        if table.name == table.header == "rights":  # `rights` are a part of the table of their token
            continue
        yield from _comment(table.meaning, "# ")
        mark = "# " if table.name in omitted else ""
        yield from [f"{mark}{table.header}"] * bool(table.header)
        for setting in table.settings:
            values = f" ({setting.values})" if setting.values else ""
            yield from _comment(setting.meaning.replace("`", "") + values, "#   ")
            line = setting.line.removeprefix("# ")
            is_set = setting.line == line or (table.name == "authorization_server" and setting.name in active)
            yield f"{mark}{line}" if is_set else f"# {line}"
        yield ""


def _comment(text: str, start: str) -> Iterator[str]:
    yield from textwrap.wrap(text, 118, initial_indent=start, subsequent_indent=start, break_on_hyphens=False)


TYPES: Final = {
    str: "string",
    int: "integer",
    bool: "boolean",
    list: "array",
    datetime: "date-time",
}

"""The configuration that `init` writes, from the declarations of the settings."""

import textwrap
from collections.abc import Collection, Iterator

from incoming_payments.server.config.tables import TABLES


def template(*, has_authorization_server: bool, active: Collection[str] = (), **values: object) -> str:
    """Return the configuration that `init` writes, with `values` for the placeholders.

    The configuration has a table for the authorization server or for a token. The other table, `[wallet_addresses]`,
    `[[webhooks]]` and `[[consumer]]` are comments. `active` names the optional settings of the authorization server
    that are not comments.
    """
    access = "token" if has_authorization_server else "authorization_server"
    omitted = ("wallet_addresses", "webhooks", "consumer", access)
    return "\n".join(_template_lines(omitted, active)).format(**values) + "\n"


def _template_lines(omitted: Collection[str], active: Collection[str]) -> Iterator[str]:
    yield "# The configuration of `incoming-payments serve`."
    yield "# Keep this file private: it holds a token. File names are relative to the folder of this file."
    yield "# To use a setting behind #, remove the #. The values behind # are examples, and not always the defaults."
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

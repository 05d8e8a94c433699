"""The output of the operator commands: tables for people, and JSON for programs."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from incoming_payments.errors import ConfigurationError

Row = Mapping[str, object]  # the members of one JSON object, which are also the columns of a table

_WIDTH_MIN: Final = 200  # columns of output that goes to a file or a pipe, so that ids stay whole


def print_json(value: object) -> None:
    """Print `value` as JSON."""
    print(json.dumps(value, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Print the `columns` of `rows` as a table. Raises `ConfigurationError` when `rich` is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        text = "tables need rich: run pip install 'incoming-payments[serve]', or use --json"
        raise ConfigurationError(text) from None
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(row[column])) for column in columns))
    Console(width=None if sys.stdout.isatty() else _WIDTH_MIN).print(table)


def _cell(value: object) -> str:
    """Return a value as text. Control characters, which clients could send, are escaped."""
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)

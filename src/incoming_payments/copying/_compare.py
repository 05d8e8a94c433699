"""Compare all rows of both databases, in the order of their keys."""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

from attrs import field, frozen

from incoming_payments.copying._tables import SETTINGS_OF_SOURCE, TABLES, Row, Table, settings_from_source
from incoming_payments.copying._target import Target
from incoming_payments.errors import CopyFailed
from incoming_payments.limits import AUDIT_DIFFERENCES_MAX
from incoming_payments.stores.sqlite._moving import MovingFile


@frozen
class Difference:
    """A row that is not the same in both databases.

    `key` is its primary key. `text` says what differs, and contains no values.
    """

    table: str
    key: tuple[object, ...] = field(converter=tuple)
    text: str

    def __str__(self) -> str:
        return f"{self.table} {', '.join(map(str, self.key))}: {self.text}"


def compare(path: str | os.PathLike[str], conninfo: str) -> list[Difference]:
    """Return the first differences between a SQLite database that refuses writes and a PostgreSQL database.

    Neither database may change meanwhile. Raises the errors of the stores.
    """
    with MovingFile(path) as file, Target(conninfo) as target:
        return list(islice(differences(file, target, Counter()), AUDIT_DIFFERENCES_MAX))


def differences(file: MovingFile, target: Target, counts: Counter[str]) -> Iterator[Difference]:
    """Yield the differences, and add the rows of each table to `counts`."""
    for table in TABLES:
        with target.rows(table) as rows:
            yield from _merge(table, rows_of(file, table), rows, counts)
    if settings_of(file) != target.settings():
        yield Difference("settings", (), "the reference, or the count of the nonces, is not the same")


def rows_of(file: MovingFile, table: Table) -> Iterator[Row]:
    """Yield the rows of the file in the common form."""
    key: Row | None = table.start
    while key is not None:
        page = page_of(file, table, key)
        yield from page
        key = table.key_in_source(page[-1]) if len(page) == table.batch else None


def page_of(file: MovingFile, table: Table, after: Row) -> list[Row]:
    """Return the next rows of the file after a key. Raises `CopyFailed` for an invalid row."""
    try:
        return list(table.from_source(file.rows(table.page_of_source(), after)))
    except (ValueError, TypeError) as error:
        raise CopyFailed(
            f"{file.path} has an invalid row in {table.source} ({error}): audit the file, and correct the row"
        ) from error


def settings_of(file: MovingFile) -> Row:
    """Return the single values of the file."""
    [row] = file.rows(SETTINGS_OF_SOURCE, ())
    return settings_from_source(row)


def _merge(table: Table, source: Iterator[Row], target: Iterator[Row], counts: Counter[str]) -> Iterator[Difference]:
    size = len(table.start)
    left, right = next(source, None), next(target, None)
    while left is not None and right is not None:
        counts[table.name] += 1
        if left[:size] < right[:size]:
            yield _missing(table, left)
            left = next(source, None)
        elif right[:size] < left[:size]:
            yield _unknown(table, right)
            right = next(target, None)
        else:
            if left != right:
                wrong = [name for name, a, b in zip(table.columns, left, right, strict=True) if a != b]
                yield Difference(table.name, left[:size], f"not the same: {', '.join(wrong)}")
            left, right = next(source, None), next(target, None)
    yield from (_missing(table, row) for row in chain([left], source) if row is not None)
    yield from (_unknown(table, row) for row in chain([right], target) if row is not None)


def _missing(table: Table, row: Row) -> Difference:
    return Difference(table.name, row[: len(table.start)], "the row is missing in PostgreSQL")


def _unknown(table: Table, row: Row) -> Difference:
    return Difference(table.name, row[: len(table.start)], "the row is not in the file")

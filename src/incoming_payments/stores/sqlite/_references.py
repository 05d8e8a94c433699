"""The references of payments: the indexed column, and its setting in the database.

The database names the member of the metadata that it indexes. Each insert reads this name in its transaction, so all
processes index the same member, and a change of the member needs no restart.

The column holds a digest of the reference. SQLite moves the rows of a table and the entries of an index to other pages,
and may leave copies in unused bytes. A copy of a digest does not show the text after an erasure.
"""

import sqlite3
from pathlib import Path
from typing import Final

from incoming_payments.domain.payment import MetadataJson
from incoming_payments.errors import ConfigurationError
from incoming_payments.stores._references import digest_in

METADATA: Final = "coalesce(metadata, (SELECT text FROM metadata AS texts WHERE texts.number = metadata_number))"
SELECT_SETTING: Final = "SELECT reference, reindexed_to FROM settings"
WRITE_SETTING: Final = "UPDATE settings SET reference = ?, reindexed_to = ?"
_IS_EMPTY: Final = "SELECT NOT EXISTS (SELECT 1 FROM payments)"


def digest_of(connection: sqlite3.Connection, metadata: MetadataJson | None) -> bytes | None:
    """Return the value of the column for a payment with `metadata`."""
    member = None if metadata is None else connection.execute(SELECT_SETTING).fetchone()[0]
    return digest_in(metadata, member)


def indexed_member(connection: sqlite3.Connection) -> str | None:
    """Return the member that the database indexes, or `None` if it indexes none, or not all payments yet."""
    member, reindexed_to = connection.execute(SELECT_SETTING).fetchone()
    return None if reindexed_to is not None else member


def prepare_reference(connection: sqlite3.Connection, path: Path, reference: str | None) -> None:
    """Check that the database indexes the member `reference`. Set the member of a database without payments.

    If `reference` is `None`, accept every member. Raises `ConfigurationError` and any `sqlite3.Error`.
    """
    if reference is None or indexed_member(connection) == reference:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        member, _ = connection.execute(SELECT_SETTING).fetchone()
        if member is None and connection.execute(_IS_EMPTY).fetchone()[0]:
            connection.execute(WRITE_SETTING, (reference, None))
        require_member(connection, str(path), reference)  # another process may have set this member
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def require_member(connection: sqlite3.Connection, path: str, reference: str) -> None:
    """Raise `ConfigurationError` unless the database indexes the member `reference` of all payments."""
    member = indexed_member(connection)
    if member != reference:
        raise _not_indexed(Path(path), reference, member)


def _not_indexed(path: Path, reference: str, member: str | None) -> ConfigurationError:
    found = "no member" if member is None else f"the member {member}"
    text = f"{path} indexes {found} of the metadata of its payments, and not {reference}"
    how = "run `incoming-payments reindex`, or `SqliteStore(path).reindex(...)`"
    return ConfigurationError(f"{text}: correct the setting reference, or {how}", setting="reference")

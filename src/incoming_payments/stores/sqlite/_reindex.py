"""Index another member of the metadata as the reference of all payments, in batches."""

from typing import Final

from incoming_payments.limits import FEED_ROWS_MAX
from incoming_payments.stores._references import digest_in
from incoming_payments.stores.sqlite._references import METADATA, SELECT_SETTING, WRITE_SETTING
from incoming_payments.stores.sqlite._rows import Batch

_SELECT_OLD: Final = f"SELECT id, {METADATA} FROM payments WHERE id > ? ORDER BY id LIMIT ?"  # noqa: S608
_INDEX: Final = "UPDATE payments SET reference = ? WHERE id = ? AND reference IS NOT ?"


def begin_reindex(rows: Batch, reference: str | None) -> None:
    """Name the member to index. If a `reindex` for this member was interrupted, continue that one."""
    member, reindexed_to = rows.connection.execute(SELECT_SETTING).fetchone()
    if member != reference or reindexed_to is None:
        rows.connection.execute(WRITE_SETTING, (reference, ""))


def reindex(rows: Batch) -> bool:
    """Index a batch of payments, and return whether all are indexed."""
    member, reindexed_to = rows.connection.execute(SELECT_SETTING).fetchone()
    if reindexed_to is None:  # another process has indexed the rest
        return True
    page = rows.connection.execute(_SELECT_OLD, (reindexed_to, FEED_ROWS_MAX)).fetchall()
    digests = [(digest_in(metadata, member), id) for id, metadata in page]
    rows.connection.executemany(_INDEX, [(value, id, value) for value, id in digests])
    is_done = len(page) < FEED_ROWS_MAX
    rows.connection.execute(WRITE_SETTING, (member, None if is_done else page[-1][0]))
    return is_done

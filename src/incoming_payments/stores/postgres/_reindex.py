"""Index another member of the metadata as the reference of all payments, in batches."""

from typing import Final

from incoming_payments.limits import FEED_ROWS_MAX
from incoming_payments.stores._references import digest_in
from incoming_payments.stores.postgres._references import LOCK_SETTING, WRITE_SETTING
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Steps, array, at_once, statement
from incoming_payments.stores.postgres._values import FIRST_ID

PAUSE_S: Final = 0.05  # the time between two looks at the transactions that began before the change
# Find the transactions of clients by their locks, because each transaction locks its own virtual id. This role may not
# see the `xact_start` of other roles.
_RUNNING: Final = statement(
    "SELECT coalesce(array_agg(virtualtransaction), '{}')::text FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'virtualxid' AND datname = current_database() AND usesysid IS NOT NULL "
    "AND pid <> pg_backend_pid()"
)
_IS_QUIET: Final = statement(
    "SELECT NOT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'virtualxid' AND virtualtransaction = ANY(%s::text[]))"
)
_LOCK_PAGE: Final = statement(
    "SELECT id, metadata FROM incoming_payments.payments WHERE id > %s ORDER BY id LIMIT %s FOR UPDATE"
)
_INDEX: Final = statement(
    "UPDATE incoming_payments.payments SET reference = digests.digest "
    "FROM unnest(%s::uuid[], %s::bytea[]) AS digests (id, digest) "
    "WHERE payments.id = digests.id AND reference IS DISTINCT FROM digests.digest"
)


def begin_reindex(reference: str | None) -> Operation[None]:
    """Name the member to index, unless a `reindex` for this member was interrupted. That one continues."""
    return lambda: _begin(reference)


def _begin(reference: str | None) -> Steps[None]:
    [found] = yield [Query(LOCK_SETTING)]
    member, reindexed_to, _ = found.rows[0]
    if member == reference and reindexed_to is not None:
        return Ending([], lambda _: None, writes=False)
    return Ending([Query(WRITE_SETTING, (reference, FIRST_ID))], lambda _: None, writes=True)


def find_running() -> Operation[str]:
    """Return the other running transactions, for `is_quiet`. Call this after `begin_reindex`."""
    return lambda: at_once(Ending([Query(_RUNNING)], lambda results: str(results[0].rows[0][0]), writes=False))


def is_quiet(running: str) -> Operation[bool]:
    """Find out whether all transactions in the result of `find_running` have ended.

    Until then, such a transaction may index the old member of a new payment, even at a place that `reindex` has passed.
    """
    query = Query(_IS_QUIET, (running,))
    return lambda: at_once(Ending([query], lambda results: bool(results[0].rows[0][0]), writes=False))


def reindex() -> Operation[bool]:
    """Index a batch of payments, and return whether all are indexed."""
    return _reindex


def _reindex() -> Steps[bool]:
    [found] = yield [Query(LOCK_SETTING)]
    member, reindexed_to, _ = found.rows[0]
    if reindexed_to is None:  # another process has indexed the rest
        return Ending([], lambda _: True, writes=False)
    [page] = yield [Query(_LOCK_PAGE, (reindexed_to, FEED_ROWS_MAX))]
    ids = [id for id, _ in page.rows]
    digests = [digest_in(metadata, member) for _, metadata in page.rows]
    is_done = len(ids) < FEED_ROWS_MAX
    values = (array(ids), array(None if digest is None else rf"\x{digest.hex()}" for digest in digests))
    place = Query(WRITE_SETTING, (member, None if is_done else ids[-1]))
    return Ending([Query(_INDEX, values), place], lambda _: is_done, writes=True)

"""The references of payments: which member of the metadata the database indexes.

The database names the member. Each insert reads the name in its transaction, so all processes index the same member,
and a change of the member needs no restart.
"""

from typing import Final

from incoming_payments.errors import ConfigurationError
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Result, Steps, statement

SELECT_SETTING: Final = statement("SELECT reference, reindexed_to FROM incoming_payments.settings WHERE id = 1")
LOCK_SETTING: Final = statement(
    "SELECT reference, reindexed_to, NOT EXISTS (SELECT 1 FROM incoming_payments.payments) "
    "FROM incoming_payments.settings WHERE id = 1 FOR UPDATE"
)
WRITE_SETTING: Final = statement("UPDATE incoming_payments.settings SET reference = %s, reindexed_to = %s WHERE id = 1")


def prepare_reference(reference: str | None) -> Operation[str | None]:
    """Check that the database indexes the member `reference`, and return the indexed member.

    Set the member of a database without payments. If `reference` is `None`, accept every member. Raises
    `ConfigurationError`.
    """
    return lambda: _prepare(reference)


def _prepare(reference: str | None) -> Steps[str | None]:
    [found] = yield [Query(SELECT_SETTING)]
    if reference is None or indexed_member(found) == reference:
        return Ending([], lambda _: indexed_member(found), writes=False)
    [found] = yield [Query(LOCK_SETTING)]
    member, _, is_empty = found.rows[0]
    is_new = member is None and is_empty
    if not is_new:
        require_member(found, reference)  # another process may have set this member
    queries = [Query(WRITE_SETTING, (reference, None))] if is_new else []
    return Ending(queries, lambda _: reference, writes=is_new)


def indexed_member(setting: Result) -> str | None:
    """Return the member that the database indexes, or `None` if it indexes none, or not all payments yet."""
    member, reindexed_to = setting.rows[0][:2]
    return None if reindexed_to is not None else member


def require_member(setting: Result, reference: str) -> None:
    """Raise `ConfigurationError` unless the database indexes the member `reference` of all payments."""
    member = indexed_member(setting)
    if member != reference:
        found = "no member" if member is None else f"the member {member}"
        raise ConfigurationError(
            f"the database indexes {found} of the metadata of its payments, and not {reference}: correct the setting "
            "reference, or run `incoming-payments reindex`, or call `PostgresStore(conninfo).reindex(...)`",
            setting="reference",
        )

"""The pages of lists, each by one scan of an index that begins at the place of the page.

The state of a payment is not stored. Its conditions are those of `lifecycle.state_of` on the stored columns: amounts
are decimal text without leading zeros, so the longer text is the greater amount.
"""

from collections.abc import Iterator
from typing import Final

from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import IncomingPayment
from incoming_payments.domain.transitions import State
from incoming_payments.stores.sqlite._rows import Rows

_COMPLETED: Final = (
    "(closed_at IS NOT NULL OR (incoming_amount IS NOT NULL AND "
    "(length(received_amount), received_amount) >= (length(incoming_amount), incoming_amount)))"
)
_EXPIRED: Final = "(expiry_announced_at IS NOT NULL OR (expires_at IS NOT NULL AND expires_at < ?))"
_STATES: Final = {
    State.PENDING: f"NOT {_COMPLETED} AND NOT {_EXPIRED} AND received_amount = '0'",
    State.PROCESSING: f"NOT {_COMPLETED} AND NOT {_EXPIRED} AND received_amount <> '0'",
    State.COMPLETED: _COMPLETED,
    State.EXPIRED: f"NOT {_COMPLETED} AND {_EXPIRED}",
}


def page(rows: Rows, query: PaymentQuery) -> list[IncomingPayment]:
    """Return the page that `query` describes, newest first."""
    index, order = "payments_created", "ASC" if query.newer_than is not None else "DESC"
    if query.wallet_address is not None:
        index = "payments_of_wallet" if query.client is None else "payments_of_client"
    conditions = list(_conditions(query))
    where = f"WHERE {' AND '.join(text for text, _ in conditions)} " if conditions else ""
    # Without INDEXED BY, SQLite may prefer another index, and read the whole list to sort it.
    clauses = f"FROM payments INDEXED BY {index} {where}ORDER BY created_at {order}, id {order} LIMIT ?"
    values = [value for _, values in conditions for value in values]
    payments = rows.select(clauses, [*values, query.limit])
    return payments[::-1] if query.newer_than is not None else payments


def _conditions(query: PaymentQuery) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield each condition and its values.

    Only one condition bounds the scan on each side. With two, SQLite might begin the scan at the wider one.
    """
    if query.wallet_address is not None:
        yield "wallet_address = ?", (query.wallet_address,)
    if query.client is not None:
        yield "client = ?", (query.client,)
    older_than, newer_than = query.older_than, query.newer_than
    if older_than is not None and (query.created_before is None or older_than.created_at < query.created_before):
        yield "(created_at, id) < (?, ?)", older_than
    elif query.created_before is not None:
        yield "created_at < ?", (query.created_before,)
    if newer_than is not None and (query.created_from is None or newer_than.created_at >= query.created_from):
        yield "(created_at, id) > (?, ?)", newer_than
    elif query.created_from is not None:
        yield "created_at >= ?", (query.created_from,)
    if query.state is not None:
        text = _STATES[query.state]
        yield text, (query.now,) * text.count("?")

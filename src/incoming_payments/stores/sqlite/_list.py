"""Read the pages of lists. For each page, the store scans one index from the place where the page begins.

The state of a payment is not stored. Each query applies the conditions of `lifecycle.state_of` to the stored columns.
Amounts are decimal text without leading zeros, so the longer of two texts is the greater amount.
"""

from collections.abc import Iterator
from typing import Final

from attrs import evolve

from incoming_payments.domain.listing import PaymentQuery, Place
from incoming_payments.domain.payment import IncomingPayment
from incoming_payments.domain.transitions import State
from incoming_payments.limits import STORE_SLICE_PAYMENTS_MAX
from incoming_payments.stores._references import digest
from incoming_payments.stores.sqlite._references import require_member
from incoming_payments.stores.sqlite._rows import Rows, file_of
from incoming_payments.stores.sqlite._schema import COMPLETED

_EXPIRED: Final = "(expiry_announced_at IS NOT NULL OR (expires_at IS NOT NULL AND expires_at < ?))"
_STATES: Final = {
    State.PENDING: f"NOT {COMPLETED} AND NOT {_EXPIRED} AND received_amount = '0'",
    State.PROCESSING: f"NOT {COMPLETED} AND NOT {_EXPIRED} AND received_amount <> '0'",
    State.COMPLETED: COMPLETED,
    State.EXPIRED: f"NOT {COMPLETED} AND {_EXPIRED}",
}


class Scan:
    """A scan that reads the page of `query`. Call `read` until `is_done` is true.

    A query with a state, with a client alone, or with a reference and another filter, may pass over any number of
    payments. For such a query, each call reads only a slice of the list. So no read prevents the writer from emptying
    the log for long.
    """

    def __init__(self, query: PaymentQuery) -> None:
        self._rest = query
        self._found: list[IncomingPayment] = []
        self.is_done = False

    @property
    def page(self) -> list[IncomingPayment]:
        """The payments found so far, newest first."""
        return self._found if self._rest.newer_than is None else self._found[::-1]

    def read(self, rows: Rows) -> None:
        """Read the next slice."""
        rest, end = self._rest, None
        if rest.reference is not None:
            require_member(rows.connection, file_of(rows.connection), rest.reference.member)
        if rest != _indexed(rest):
            end = _end_of_slice(rows, rest)
        clauses, values = _clauses(rest, rest.limit - len(self._found), end)
        found = rows.select(clauses, values)
        # Change the attributes last, because the caller repeats a read that fails.
        self._found += found
        self.is_done = end is None or len(self._found) == rest.limit
        if end is not None:
            is_forward = rest.newer_than is not None
            self._rest = evolve(rest, newer_than=end) if is_forward else evolve(rest, older_than=end)


def _end_of_slice(rows: Rows, query: PaymentQuery) -> Place | None:
    """Return the place of the last payment in the next slice, or `None` if the rest of the list is shorter.

    Only the entries of the index are read.
    """
    clauses, values = _clauses(_indexed(query), 1, None)
    return rows.find_place(f"{clauses} OFFSET ?", [*values, STORE_SLICE_PAYMENTS_MAX - 1])


def _indexed(query: PaymentQuery) -> PaymentQuery:
    """Return `query` without the filters that its index does not have."""
    if query.reference is not None:
        return evolve(query, state=None, client=None, wallet_address=None)
    return evolve(query, state=None, client=None if query.wallet_address is None else query.client)


def _clauses(query: PaymentQuery, limit: int, end: Place | None) -> tuple[str, list[object]]:
    """Return the clauses, and their values, of a `SELECT` that finds the payments of `query` up to the place `end`."""
    index, order = "payments_created", "ASC" if query.newer_than is not None else "DESC"
    if query.reference is not None:
        index = "payments_of_reference"
    elif query.wallet_address is not None:
        index = "payments_of_wallet" if query.client is None else "payments_of_client"
    conditions = list(_conditions(query, end))
    where = f"WHERE {' AND '.join(text for text, _ in conditions)} " if conditions else ""
    # INDEXED BY is necessary: SQLite may otherwise choose another index, and sort the whole list.
    clauses = f"FROM payments INDEXED BY {index} {where}ORDER BY created_at {order}, id {order} LIMIT ?"
    return clauses, [*(value for _, values in conditions for value in values), limit]


def _conditions(query: PaymentQuery, end: Place | None) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield each condition and its values.

    Each end of the scan has only one condition. If an end had two conditions, SQLite might begin at the wider bound.
    """
    reference = None if query.reference is None else digest(query.reference.text)
    equal = {"reference": reference, "wallet_address": query.wallet_address, "client": query.client}
    yield from ((f"{column} = ?", (value,)) for column, value in equal.items() if value is not None)
    older_than, newer_than = query.older_than, query.newer_than
    if end is not None and newer_than is not None:
        yield "(created_at, id) <= (?, ?)", end
    elif older_than is not None and (query.created_before is None or older_than.created_at < query.created_before):
        yield "(created_at, id) < (?, ?)", older_than
    elif query.created_before is not None:
        yield "created_at < ?", (query.created_before,)
    if end is not None and newer_than is None:
        yield "(created_at, id) >= (?, ?)", end
    elif newer_than is not None and (query.created_from is None or newer_than.created_at >= query.created_from):
        yield "(created_at, id) > (?, ?)", newer_than
    elif query.created_from is not None:
        yield "created_at >= ?", (query.created_from,)
    if query.state is not None:
        text = _STATES[query.state]
        yield text, (query.now,) * text.count("?")

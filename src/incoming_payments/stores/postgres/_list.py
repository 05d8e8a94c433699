"""Read the pages of lists. For each page, the store scans one index from the place where the page begins.

The state of a payment is not stored. `_STATE` is `lifecycle.state_of` on the stored columns.
"""

from itertools import product
from typing import Final

from incoming_payments.domain.listing import PaymentQuery, Place
from incoming_payments.domain.payment import IncomingPayment
from incoming_payments.limits import STORE_SLICE_PAYMENTS_MAX
from incoming_payments.stores._references import digest
from incoming_payments.stores._rows import micros, payment_of
from incoming_payments.stores.postgres._references import SELECT_SETTING, require_member
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Result, Statement, at_once, statement
from incoming_payments.stores.postgres._values import COLUMNS, FIRST_ID, LAST_ID

_Index = tuple[str, ...]
_Bound = tuple[int, str]

# The columns that an index begins with. The rest of each index is (created_at, id).
_INDEXES: Final[tuple[_Index, ...]] = ((), ("reference",), ("wallet_address",), ("wallet_address", "client"))
_STATE: Final = (
    "CASE WHEN closed_at IS NOT NULL OR received_amount >= incoming_amount THEN 'completed' "
    "WHEN expiry_announced_at IS NOT NULL OR expires_at < %s THEN 'expired' "
    "WHEN received_amount > 0 THEN 'processing' ELSE 'pending' END"
)
_IS_WANTED: Final = (
    "(%s::text IS NULL OR wallet_address = %s) AND (%s::text IS NULL OR client = %s) "
    f"AND (%s::text IS NULL OR {_STATE} = %s)"
)


def _page(index: _Index, order: str) -> Statement:
    """Return the statement that reads a page from `index`, which has every filter."""
    return statement(f"SELECT id, {COLUMNS} {_scan(index, order)}")


def _slice(index: _Index, order: str) -> Statement:
    """Return the statement that reads the wanted payments, and the last payment, of one slice of `index`."""
    numbered = f"row_number() OVER (ORDER BY created_at {order}, id {order}) AS number"
    part = f"SELECT id, {COLUMNS}, {_IS_WANTED} AS is_wanted, {numbered} {_scan(index, order)}"
    return statement(
        f"SELECT id, {COLUMNS}, is_wanted, number FROM ({part}) AS slice "  # noqa: S608
        "WHERE is_wanted OR number = %s ORDER BY number LIMIT %s"
    )


def _scan(index: _Index, order: str) -> str:
    places = "(created_at, id) > (%s, %s) AND (created_at, id) < (%s, %s)"
    conditions = " AND ".join([*(f"{column} = %s" for column in index), places])
    return f"FROM incoming_payments.payments WHERE {conditions} ORDER BY created_at {order}, id {order} LIMIT %s"


_KEYS: Final = tuple(product(_INDEXES, ("ASC", "DESC")))
_PAGES: Final = {key: _page(*key) for key in _KEYS}
_SLICES: Final = {key: _slice(*key) for key in _KEYS}
# The ids before and after all ids, and the bounds before and after all places.
_CREATED_AT: Final = 11  # the place of `created_at` in a row
_FIRST: Final[_Bound] = (-(2**63), FIRST_ID)
_LAST: Final[_Bound] = (2**63 - 1, LAST_ID)


class Scan:
    """A scan that reads the page of `query`. Run the operation of `read` until `is_done` is true.

    A query with a state, with a client alone, or with a reference and another filter, may pass over any number of
    payments. For such a query, each operation reads only a slice of the list, so that none takes long.
    """

    def __init__(self, query: PaymentQuery) -> None:
        self._query = query
        self._index = _index_of(query)
        self._is_filtered = _filters(query, self._index) != (None, None, None)
        self._order = "DESC" if query.newer_than is None else "ASC"
        self._above, self._below = _bounds(query)  # the rest of the list is between these places
        self._found: list[IncomingPayment] = []
        self.is_done = False

    @property
    def page(self) -> list[IncomingPayment]:
        """The payments found so far, newest first."""
        return self._found if self._order == "DESC" else self._found[::-1]

    def read(self) -> Operation[None]:
        """Read the page, or its next slice."""
        reference, key = self._query.reference, (self._index, self._order)
        columns: dict[str, object] = {"wallet_address": self._query.wallet_address, "client": self._query.client}
        columns["reference"] = None if reference is None else digest(reference.text)
        scan = (*(columns[column] for column in self._index), *self._above, *self._below)
        left = self._query.limit - len(self._found)
        query = Query(_PAGES[key], (*scan, left))
        if self._is_filtered:
            wallet, client, state = _filters(self._query, self._index)
            wanted = (wallet, wallet, client, client, state, micros(self._query.now), state)
            size = STORE_SLICE_PAYMENTS_MAX
            query = Query(_SLICES[key], (*wanted, *scan, size, size, left))
        settings = [] if reference is None else [Query(SELECT_SETTING)]
        return lambda: at_once(Ending([query, *settings], self._add, writes=False))

    def _add(self, results: list[Result]) -> None:
        """Add what was read. This runs once for each operation, when it has succeeded."""
        rows, *settings = results
        if self._query.reference is not None:
            require_member(settings[0], self._query.reference.member)
        if not self._is_filtered:
            self._found += [payment_of(id, row) for id, *row in rows.rows]
            self.is_done = True
            return
        self._found += [payment_of(id, row) for id, *row, is_wanted, _ in rows.rows if is_wanted]
        is_full = bool(rows.rows) and rows.rows[-1][-1] == STORE_SLICE_PAYMENTS_MAX
        self.is_done = not is_full or len(self._found) == self._query.limit
        if is_full:
            last = (rows.rows[-1][_CREATED_AT], rows.rows[-1][0])
            self._above, self._below = (last, self._below) if self._order == "ASC" else (self._above, last)


def _index_of(query: PaymentQuery) -> _Index:
    if query.reference is not None:
        return ("reference",)
    if query.wallet_address is None:
        return ()
    return ("wallet_address",) if query.client is None else ("wallet_address", "client")


def _filters(query: PaymentQuery, index: _Index) -> tuple[str | None, str | None, str | None]:
    """Return the wallet address, the client and the state by which the index does not filter."""
    wallet = None if "wallet_address" in index else query.wallet_address
    client = None if "client" in index else query.client
    return wallet, client, query.state


def _bounds(query: PaymentQuery) -> tuple[_Bound, _Bound]:
    """Return the places between which the list is. Both are exclusive."""
    above, below = [_FIRST], [_LAST]
    if query.newer_than is not None:
        above.append(_bound(query.newer_than))
    if query.created_from is not None:
        above.append((micros(query.created_from) - 1, LAST_ID))
    if query.older_than is not None:
        below.append(_bound(query.older_than))
    if query.created_before is not None:
        below.append((micros(query.created_before), FIRST_ID))
    return max(above), min(below)


def _bound(place: Place) -> _Bound:
    return micros(place.created_at), place.id

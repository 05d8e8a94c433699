"""The statements about payments, credits and events, and their rows as values.

Each statement that changes money names one payment by its primary key. Credits and events are arrays of one statement,
so a statement is the same for any number of them.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from incoming_payments.domain.events import Event
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId, payment_id
from incoming_payments.errors import InvalidValue, PaymentExists, PaymentNotFound, StoreUnusable
from incoming_payments.stores._rows import (
    Row,
    credit_of,
    credit_row,
    event_of,
    event_row,
    micros,
    optional_micros,
    payment_of,
    payment_row,
    state_row,
    total_row,
)
from incoming_payments.stores.guard import ended_at, is_unpaid, sweep_at
from incoming_payments.stores.postgres._steps import Query, Result, array, statement

FIRST_ID, LAST_ID = (
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
)  # around the ids of all payments
COLUMNS: Final = (
    "version, received_amount, updated_at, wallet_address, client, asset_code, asset_scale, "
    "incoming_amount, expires_at, metadata, created_at, closed_at, expiry_announced_at"
)
_SELECT: Final = f"SELECT {COLUMNS} FROM incoming_payments.payments WHERE id = %s"  # noqa: S608
SELECT_PAYMENT: Final = statement(_SELECT)
LOCK_PAYMENT: Final = statement(f"{_SELECT} FOR UPDATE")
SELECT_CREDITS: Final = statement(
    "SELECT credit_id, amount, received_amount, completes, at FROM incoming_payments.credits "
    "WHERE payment_id = %s AND credit_id = ANY(%s)"
)
SELECT_EVENTS: Final = statement(
    "SELECT events.version, kind, at, events.received_amount, credit_id, peer, asset_code, asset_scale "
    "FROM incoming_payments.events JOIN incoming_payments.payments ON id = payment_id "
    "WHERE payment_id = %s ORDER BY events.version"
)
SELECT_EXPIRED: Final = statement(
    "SELECT id FROM incoming_payments.payments WHERE sweep_at < %s ORDER BY sweep_at, id LIMIT %s"
)
_EVENTS: Final = (
    "INSERT INTO incoming_payments.events (payment_id, version, kind, at, received_amount, credit_id, peer) "
    "SELECT payment.id, added.* FROM payment, "
    "unnest(%s::bigint[], %s::text[], %s::bigint[], %s::numeric[], %s::text[], %s::text[]) AS added"
)
_CREDITS: Final = (
    "INSERT INTO incoming_payments.credits (payment_id, credit_id, amount, received_amount, completes, at) "
    "SELECT payment.id, added.* FROM payment, "
    "unnest(%s::text[], %s::numeric[], %s::numeric[], %s::boolean[], %s::bigint[]) AS added"
)
_INSERT: Final = statement(
    "WITH payment AS (INSERT INTO incoming_payments.payments "  # noqa: S608
    f"(id, {COLUMNS}, sweep_at, ended_at, is_unpaid, reference) "
    "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING id) "
    f"{_EVENTS}"
)
# If the row is not replaced, the statement inserts nothing either.
_REPLACE: Final = statement(
    "WITH payment AS (UPDATE incoming_payments.payments SET version = %s, received_amount = %s, updated_at = %s, "  # noqa: S608
    "closed_at = %s, expiry_announced_at = %s, sweep_at = %s, ended_at = %s, is_unpaid = %s "
    f"WHERE id = %s AND version = %s RETURNING id), credit AS ({_CREDITS}) {_EVENTS}"
)
_PRIMARY_KEY: Final = "payments_pkey"


def checked_id(id: PaymentId) -> PaymentId:
    """Return `id`. Raises `PaymentNotFound` for a text that cannot be an id, which PostgreSQL would refuse."""
    if not is_id(id):
        raise not_found(id)
    return id


def is_id(text: str) -> bool:
    """Return whether `text` can be the id of a payment. PostgreSQL refuses other texts."""
    try:
        payment_id(text)
    except InvalidValue:
        return False
    return True


def not_found(id: PaymentId) -> PaymentNotFound:
    """Return the error for a payment that does not exist."""
    return PaymentNotFound(f"there is no payment {id}")


def payment_in(id: PaymentId, result: Result) -> IncomingPayment:
    """Return the payment from the result of a statement that selects it. Raises `PaymentNotFound`."""
    if not result.rows:
        raise not_found(id)
    return payment_of(id, result.rows[0])


def credits_in(payment: IncomingPayment, result: Result) -> dict[CreditId, Credit]:
    """Return the credits of `payment` by their ids."""
    return {id: credit_of(payment, id, tuple(row)) for id, *row in result.rows}


def events_in(id: PaymentId, result: Result) -> list[Event]:
    """Return the events of the payment `id`. Raises `PaymentNotFound`."""
    if not result.rows:
        raise not_found(id)
    return [event_of(id, row) for row in result.rows]


def insertion(payment: IncomingPayment, events: Sequence[Event], reference: bytes | None) -> Query:
    """Return the query that inserts `payment` and its `events`."""
    row = (payment.id, *payment_row(payment, payment.terms.metadata), *_derived(payment), reference)
    return Query(_INSERT, (*row, *_columns(event_row(event) for event in events)))


def exists(id: PaymentId) -> dict[str, PaymentExists]:
    """Return the refusal of `insertion` for an id that exists."""
    return {_PRIMARY_KEY: PaymentExists(f"payment {id} exists already: create the payment with another id")}


def replacement(
    before: IncomingPayment, after: IncomingPayment, credits: Sequence[Credit], events: Sequence[Event]
) -> Query:
    """Return the query that replaces `before` by `after`, and inserts its new credits and events."""
    row = (*total_row(after), *state_row(after), *_derived(after), after.id, before.version)
    added = _columns(map(credit_row, credits)) or ["{}"] * 5
    return Query(_REPLACE, (*row, *added, *_columns(map(event_row, events))))


def check_replaced(result: Result) -> None:
    """Raise `StoreUnusable` unless the query of `replacement` has changed the payment, which was locked."""
    if not result.changed:
        raise StoreUnusable("a payment that was locked could not be updated: remove the rules of the tables")


def expiry_values(now: datetime, limit: int) -> tuple[int, int]:
    """Return the values of `SELECT_EXPIRED`."""
    return micros(now), max(limit, 0)


def _derived(payment: IncomingPayment) -> tuple[int | None, int | None, bool]:
    """Return the columns that are derived from the payment."""
    return optional_micros(sweep_at(payment)), optional_micros(ended_at(payment)), is_unpaid(payment)


def _columns(rows: Iterable[Row]) -> list[str]:
    """Return the columns of `rows` as arrays, without the first one, which is the id of the payment."""
    return [array(column) for column in zip(*rows, strict=True)][1:]

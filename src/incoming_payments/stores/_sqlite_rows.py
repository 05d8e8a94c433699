"""Values to rows and back, and every SQL statement on them. Each touches one payment by its primary key.

Amounts are decimal text, as 64 unsigned bits do not fit SQLite's integers and an auditor has to be able to read them; moments are
microseconds since the epoch, which are exact. What is loaded goes through the domain's constructors, so a row that cannot be a
value is `StoreUnusable`, never used.
"""

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import PaymentExists, PaymentNotFound, StoreUnusable
from incoming_payments.stores.guard import sweep_at

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LOADED_MAX: Final = 1024  # payments whose last loaded row is remembered: some hundred kilobytes

_SELECT_PAYMENT: Final = (
    "SELECT version, received_amount, updated_at, wallet_address, client, asset_code, asset_scale, "
    "incoming_amount, expires_at, metadata, created_at, closed_at, expiry_announced_at "
    "FROM payments WHERE id = ?"
)
_SELECT_CREDIT: Final = (
    "SELECT amount, received_amount, completes, at FROM credits WHERE payment_id = ? AND credit_id = ?"
)
_SELECT_EVENTS: Final = (
    "SELECT version, kind, at, received_amount, credit_id, asset_code, asset_scale "
    "FROM events JOIN payments ON id = payment_id WHERE payment_id = ? ORDER BY version"
)
_SELECT_EXPIRED: Final = "SELECT id FROM payments WHERE sweep_at < ? ORDER BY sweep_at, id LIMIT ?"
_INSERT_PAYMENT: Final = (
    "INSERT INTO payments (id, version, received_amount, updated_at, wallet_address, client, asset_code, asset_scale, "
    "incoming_amount, expires_at, metadata, created_at, closed_at, expiry_announced_at, sweep_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# Most updates are credits that complete nothing. Naming `sweep_at` there would make SQLite rewrite its index every time.
_UPDATE_TOTAL: Final = (
    "UPDATE payments SET version = ?, received_amount = ?, updated_at = ? WHERE id = ? AND version = ?"
)
_UPDATE_STATE: Final = (
    "UPDATE payments SET version = ?, received_amount = ?, updated_at = ?, closed_at = ?, expiry_announced_at = ?, "
    "sweep_at = ? WHERE id = ? AND version = ?"
)
_INSERT_CREDIT: Final = (
    "INSERT INTO credits (payment_id, credit_id, amount, received_amount, completes, at) VALUES (?, ?, ?, ?, ?, ?)"
)
_INSERT_EVENT: Final = (
    "INSERT INTO events (payment_id, version, kind, at, received_amount, credit_id) VALUES (?, ?, ?, ?, ?, ?)"
)

_asset = lru_cache(maxsize=256)(Asset)


class Rows:
    """The rows of one connection, as values. Methods raise `sqlite3.Error` as it comes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self._loaded: dict[PaymentId, tuple[tuple[Any, ...], IncomingPayment]] = {}

    def payment(self, id: PaymentId) -> IncomingPayment:
        """The payment `id`. Raises `PaymentNotFound`; `StoreUnusable` when the row cannot be a payment."""
        row = self._execute(_SELECT_PAYMENT, (id,)).fetchone()
        if row is None:
            raise PaymentNotFound(f"there is no payment {id}")
        # An equal row makes an equal value, and checking one costs more than reading it.
        seen = self._loaded.get(id)
        if seen is not None and seen[0] == row:
            return seen[1]
        payment = _payment(id, row)
        self._remember(row, payment)
        return payment

    def credit(self, payment: IncomingPayment, id: CreditId) -> Credit | None:
        """The credit booked into `payment` under `id`, if any."""
        row = self._execute(_SELECT_CREDIT, (payment.id, id)).fetchone()
        return None if row is None else _credit(payment, id, row)

    def events(self, id: PaymentId) -> Sequence[Event]:
        """The events of the payment `id`, oldest first. Raises `PaymentNotFound`."""
        rows = self._execute(_SELECT_EVENTS, (id,)).fetchall()
        if not rows:
            raise PaymentNotFound(f"there is no payment {id}")
        return [_event(id, row) for row in rows]

    def expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """At most `limit` payments that the sweep has to look at, ordered by when they expired."""
        rows = self._execute(_SELECT_EXPIRED, (_micros(now), max(limit, 0))).fetchall()
        return [PaymentId(id) for (id,) in rows]

    def insert(self, payment: IncomingPayment, decision: Decision[Any]) -> None:
        """Write a new payment and its events. Raises `PaymentExists`, and has written nothing then."""
        row = _row(payment)
        try:
            self._execute(_INSERT_PAYMENT, (payment.id, *row, _optional_micros(sweep_at(payment))))
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
                raise PaymentExists(f"there is a payment {payment.id} already") from None
            raise
        self._insert_events(decision)

    def update(self, before: IncomingPayment, after: IncomingPayment, decision: Decision[Any]) -> None:
        """Write what became of `before`, as `payment` returned it, with its credit and events."""
        total = (after.version, after.received.text, _micros(after.updated_at))
        if (
            after.closed_at == before.closed_at
            and after.expiry_announced_at == before.expiry_announced_at
            and sweep_at(after) == sweep_at(before)
        ):
            state = self._loaded[before.id][0][-2:]
            cursor = self._execute(_UPDATE_TOTAL, (*total, after.id, before.version))
        else:
            state = (_optional_micros(after.closed_at), _optional_micros(after.expiry_announced_at))
            due = _optional_micros(sweep_at(after))
            cursor = self._execute(_UPDATE_STATE, (*total, *state, due, after.id, before.version))
        if cursor.rowcount != 1:
            raise StoreUnusable(f"payment {after.id} was not there to update, though it was loaded under a lock")
        self._remember(total + self._loaded[before.id][0][3:-2] + state, after)
        if decision.credit is not None:
            self._insert_credit(decision.credit)
        self._insert_events(decision)

    def _insert_credit(self, credit: Credit) -> None:
        self._execute(
            _INSERT_CREDIT,
            (
                credit.payment_id,
                credit.id,
                credit.amount.text,
                credit.received.text,
                1 if credit.completes else 0,
                _micros(credit.at),
            ),
        )

    def _insert_events(self, decision: Decision[Any]) -> None:
        for event in decision.events:
            self._execute(
                _INSERT_EVENT,
                (
                    event.payment_id,
                    event.version,
                    event.kind.value,
                    _micros(event.at),
                    event.received.text,
                    event.credit_id,
                ),
            )

    def _remember(self, row: tuple[Any, ...], payment: IncomingPayment) -> None:
        if len(self._loaded) >= _LOADED_MAX and payment.id not in self._loaded:
            self._loaded.clear()
        self._loaded[payment.id] = (row, payment)


def _row(payment: IncomingPayment) -> tuple[Any, ...]:
    """The columns of `_SELECT_PAYMENT`."""
    return (
        payment.version,
        payment.received.text,
        _micros(payment.updated_at),
        payment.wallet_address,
        payment.client,
        payment.asset.code,
        payment.asset.scale,
        None if payment.limit is None else payment.limit.text,
        _optional_micros(payment.expires_at),
        payment.metadata,
        _micros(payment.created_at),
        _optional_micros(payment.closed_at),
        _optional_micros(payment.expiry_announced_at),
    )


def _payment(id: PaymentId, row: tuple[Any, ...]) -> IncomingPayment:
    version, received, updated, wallet_address, client, code, scale, limit, expires, metadata, created, *rest = row
    closed, announced = rest
    try:
        asset = _asset(code, scale)
        return IncomingPayment(
            id=id,
            wallet_address=wallet_address,
            client=client,
            received=Amount.parse(received, asset),
            created_at=_moment(created),
            updated_at=_moment(updated),
            limit=None if limit is None else Amount.parse(limit, asset),
            expires_at=_optional_moment(expires),
            metadata=metadata,
            closed_at=_optional_moment(closed),
            expiry_announced_at=_optional_moment(announced),
            version=version,
        )
    except (ValueError, OverflowError) as error:  # InvalidValue is a ValueError
        raise _corrupt(f"payment {id}", error) from error


def _credit(payment: IncomingPayment, id: CreditId, row: tuple[Any, ...]) -> Credit:
    amount, received, completes, at = row
    try:
        return Credit(
            payment_id=payment.id,
            id=id,
            amount=Amount.parse(amount, payment.asset),
            received=Amount.parse(received, payment.asset),
            completes=completes == 1,
            at=_moment(at),
        )
    except (ValueError, OverflowError) as error:
        raise _corrupt(f"credit {id} of payment {payment.id}", error) from error


def _event(id: PaymentId, row: tuple[Any, ...]) -> Event:
    version, kind, at, received, credit_id, code, scale = row
    try:
        return Event(
            payment_id=id,
            version=version,
            kind=EventKind(kind),
            at=_moment(at),
            received=Amount.parse(received, _asset(code, scale)),
            credit_id=credit_id,
        )
    except (ValueError, OverflowError) as error:
        raise _corrupt(f"event {version} of payment {id}", error) from error


def _corrupt(what: str, error: Exception) -> StoreUnusable:
    return StoreUnusable(f"the row of {what} holds what cannot be: {error}")


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _optional_micros(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - _EPOCH) // _MICROSECOND


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _optional_moment(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)

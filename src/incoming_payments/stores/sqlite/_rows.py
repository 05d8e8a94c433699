"""Values to rows and back, and every SQL statement on them. Each touches payments, or a nonce, by their primary keys.

Amounts are decimal text, as 64 unsigned bits do not fit SQLite's integers and an auditor has to be able to
read them; moments are microseconds since the epoch, which are exact. What is loaded goes through the domain's
constructors, so a row that cannot be a value is `StoreUnusable`, never used.
"""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import PaymentExists, PaymentNotFound, StoreUnavailable, StoreUnusable
from incoming_payments.limits import NONCES_SWEPT_MAX, STORE_BATCH_MAX
from incoming_payments.stores.guard import sweep_at

_Row = tuple[Any, ...]
Lookup = tuple[PaymentId, CreditId | None]  # a payment that a job reads, and a credit of it

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LOADED_MAX: Final = 256  # payments remembered by one connection: some hundred kilobytes, with full metadata 3 MB

_PAYMENT: Final = (
    "version, received_amount, updated_at, wallet_address, client, asset_code, asset_scale, "
    "incoming_amount, expires_at, metadata, created_at, closed_at, expiry_announced_at"
)
_CREDIT: Final = "amount, received_amount, completes, at"
_SELECT_PAYMENT: Final = f"SELECT {_PAYMENT} FROM payments WHERE id = ?"  # noqa: S608
_SELECT_CREDIT: Final = f"SELECT {_CREDIT} FROM credits WHERE payment_id = ? AND credit_id = ?"  # noqa: S608
# For many at once (`Batch._pieces`), each with the key that was asked for. CROSS: SQLite keeps to this order. For
# `(payment_id, credit_id) IN (VALUES ...)` it would read the whole table.
_FIND_PAYMENTS: Final = (
    f"WITH asked (payment) AS (VALUES (?)) SELECT payment, {_PAYMENT} FROM asked CROSS JOIN payments ON id = payment"  # noqa: S608
)
_FIND_CREDITS: Final = (
    f"WITH asked (payment, credit) AS (VALUES (?, ?)) SELECT payment, credit, {_CREDIT} "  # noqa: S608
    "FROM asked CROSS JOIN credits ON payment_id = payment AND credit_id = credit"
)
_SELECT_EVENTS: Final = (
    "SELECT events.version, kind, at, events.received_amount, credit_id, peer, asset_code, asset_scale "
    "FROM events JOIN payments ON id = payment_id WHERE payment_id = ? ORDER BY events.version"
)
_SELECT_EXPIRED: Final = "SELECT id FROM payments WHERE sweep_at < ? ORDER BY sweep_at, id LIMIT ?"
_INSERT_PAYMENT: Final = (
    "INSERT INTO payments (id, version, received_amount, updated_at, wallet_address, client, asset_code, asset_scale, "
    "incoming_amount, expires_at, metadata, created_at, closed_at, expiry_announced_at, sweep_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# Most updates are credits that complete nothing. Naming `sweep_at` there would make SQLite rewrite its index
# every time.
_UPDATE_TOTAL: Final = (
    "UPDATE payments SET version = ?, received_amount = ?, updated_at = ? WHERE id = ? AND version = ?"
)
# The same for many at once. Not with WITH, as `sqlite3` counts the rows of what begins with UPDATE.
_UPDATE_TOTALS: Final = (
    "UPDATE payments SET version = column1, received_amount = column2, updated_at = column3 "
    "FROM (VALUES (?, ?, ?, ?, ?)) WHERE id = column4 AND version = column5"
)
_UPDATE_STATE: Final = (
    "UPDATE payments SET version = ?, received_amount = ?, updated_at = ?, closed_at = ?, expiry_announced_at = ?, "
    "sweep_at = ? WHERE id = ? AND version = ?"
)
_INSERT_CREDIT: Final = (
    "INSERT INTO credits (payment_id, credit_id, amount, received_amount, completes, at) VALUES (?, ?, ?, ?, ?, ?)"
)
_INSERT_EVENT: Final = (
    "INSERT INTO events (payment_id, version, kind, at, received_amount, credit_id, peer) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_SELECT_NONCE: Final = "SELECT until FROM nonces WHERE key = ?"
_INSERT_NONCE: Final = "INSERT INTO nonces (key, until) VALUES (?, ?)"
_RENEW_NONCE: Final = "UPDATE nonces SET until = ? WHERE key = ?"
_SWEEP_NONCES: Final = (
    "DELETE FROM nonces WHERE key IN (SELECT key FROM nonces WHERE until < ? ORDER BY until LIMIT ?) RETURNING until"
)
_SELECT_COUNT: Final = "SELECT held, swept_until FROM nonce_count"
_UPDATE_COUNT: Final = "UPDATE nonce_count SET held = ?, swept_until = ?"

_KINDS: Final = {kind: kind.value for kind in EventKind}  # `value` is a call, and there is an event a credit
_VARIABLES: Final = re.compile(r"(?<=VALUES )\([?, ]+\)")
_asset = lru_cache(maxsize=256)(Asset)


class Rows:
    """The rows that one connection reads, as values. Methods raise `sqlite3.Error` as it comes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._loaded: dict[PaymentId, tuple[_Row, IncomingPayment]] = {}

    def payment(self, id: PaymentId) -> IncomingPayment:
        """The payment `id`. Raises `PaymentNotFound`; `StoreUnusable` when the row cannot be a payment."""
        row = self._payment_row(id)
        if row is None:
            raise PaymentNotFound(f"there is no payment {id}")
        # An equal row makes an equal value, and checking one costs more than reading it.
        seen = self._loaded.get(id)
        if seen is not None and seen[0] == row:
            return seen[1]
        payment = _payment(id, row)
        self._remember(row, payment)
        return payment

    def events(self, id: PaymentId) -> Sequence[Event]:
        """The events of the payment `id`, oldest first. Raises `PaymentNotFound`."""
        rows = self.connection.execute(_SELECT_EVENTS, (id,)).fetchall()
        if not rows:
            raise PaymentNotFound(f"there is no payment {id}")
        return [_event(id, row) for row in rows]

    def expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """At most `limit` payments that the sweep has to look at, ordered by when they expired."""
        rows = self.connection.execute(_SELECT_EXPIRED, (_micros(now), max(limit, 0))).fetchall()
        return [PaymentId(id) for (id,) in rows]

    def _payment_row(self, id: PaymentId) -> _Row | None:
        row: _Row | None = self.connection.execute(_SELECT_PAYMENT, (id,)).fetchone()
        return row

    def _remember(self, row: _Row, payment: IncomingPayment) -> None:
        if len(self._loaded) >= _LOADED_MAX and payment.id not in self._loaded:
            del self._loaded[next(iter(self._loaded))]
        self._loaded[payment.id] = (row, payment)


class Batch(Rows):
    """What the jobs of one transaction read and write.

    Updates wait until `flush`: a payment that many jobs of the batch credit is read once and written once, and a
    job sees what the jobs before it decided. So a job that fails has written nothing.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._variables_max = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
        # What was fetched ahead. It becomes values when a job asks for it: where it cannot, only that job fails.
        self._payment_rows: dict[PaymentId, _Row] = {}
        self._credit_rows: dict[tuple[PaymentId, CreditId], _Row | None] = {}  # None: there is none
        self._changed: dict[PaymentId, tuple[IncomingPayment, IncomingPayment]] = {}  # as read, and as it has become
        self._credits: dict[tuple[PaymentId, CreditId], Credit] = {}
        self._events: list[Event] = []
        self._nonces: tuple[int, int] | None = None  # how many, and swept until when, by now; None: not asked for

    def prefetch(self, lookups: Sequence[Lookup]) -> None:
        """Read the rows that jobs will ask for, all at once; what else they ask for is read when they do."""
        # A payment that is not there is looked for again: an earlier job may insert it. Its credits cannot be there.
        for piece in self._pieces(_FIND_PAYMENTS, list({(payment,): None for payment, _ in lookups})):
            for payment, *row in self.connection.execute(*piece):
                self._payment_rows[payment] = tuple(row)
        self._credit_rows = {(payment, credit): None for payment, credit in lookups if credit is not None}
        for piece in self._pieces(_FIND_CREDITS, list(self._credit_rows)):
            for payment, credit, *row in self.connection.execute(*piece):
                self._credit_rows[payment, credit] = tuple(row)

    def payment(self, id: PaymentId) -> IncomingPayment:
        """The payment `id`, as it is by now. Raises as `Rows.payment`."""
        change = self._changed.get(id)
        return super().payment(id) if change is None else change[1]

    def credit(self, payment: IncomingPayment, id: CreditId) -> Credit | None:
        """The credit booked into `payment` under `id`, if any. Raises `StoreUnusable` when it cannot be one."""
        key = (payment.id, id)
        waiting = self._credits.get(key)
        if waiting is not None:
            return waiting
        if key in self._credit_rows:
            row = self._credit_rows[key]
        else:
            row = self.connection.execute(_SELECT_CREDIT, key).fetchone()
        return None if row is None else _credit(payment, id, row)

    def insert(self, payment: IncomingPayment, decision: Decision[Any]) -> None:
        """Write a new payment and its events. Raises `PaymentExists`, and has written nothing then."""
        row = (payment.id, *_row(payment), _optional_micros(sweep_at(payment)))
        try:
            self.connection.execute(_INSERT_PAYMENT, row)
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
                raise PaymentExists(f"there is a payment {payment.id} already") from None
            raise
        self._events += decision.events

    def update(self, before: IncomingPayment, after: IncomingPayment, decision: Decision[Any]) -> None:
        """Note what became of `before`, which is what `payment` returned, with its credit and events."""
        change = self._changed.get(after.id)
        self._changed[after.id] = (before if change is None else change[0], after)
        if decision.credit is not None:
            self._credits[after.id, decision.credit.id] = decision.credit
        self._events += decision.events

    def use_nonce(self, key: str, until: datetime, now: datetime, capacity: int) -> bool:
        """Whether `key` is used for the first time.

        Raises `StoreUnavailable` when there are `capacity` already. All it has written then is that expired ones are
        gone.
        """
        end, at = _micros(until), _micros(now)
        row = self.connection.execute(_SELECT_NONCE, (key,)).fetchone()
        if end < at or (row is not None and row[0] >= at):
            return False
        if row is not None:
            self.connection.execute(_RENEW_NONCE, (end, key))
            return True
        held, swept_until = self._nonces or self.connection.execute(_SELECT_COUNT).fetchone()
        ended = [until for (until,) in self.connection.execute(_SWEEP_NONCES, (at, NONCES_SWEPT_MAX))]
        held, swept_until = held - len(ended), max([swept_until, *ended])
        self._nonces = held, swept_until
        # A request that was kept waiting comes with a moment that has passed: it may have been swept by a later one.
        if end <= swept_until:
            return False
        if held >= capacity:
            raise StoreUnavailable(f"{capacity} nonces are remembered already: try again later")
        self.connection.execute(_INSERT_NONCE, (key, end))
        self._nonces = held + 1, swept_until
        return True

    def flush(self) -> None:
        """Write what waits. Raises `StoreUnusable` when a payment is not there as it was read."""
        totals, states = [], []
        for before, after in self._changed.values():
            total, state, due = _total(after), _state(after), sweep_at(after)
            key = (after.id, before.version)
            if state == _state(before) and due == sweep_at(before):
                totals.append(total + key)
            else:
                states.append((*total, *state, _optional_micros(due), *key))
            self._remember(_row(after), after)
        if len(totals) == 1:
            updated = self.connection.execute(_UPDATE_TOTAL, totals[0]).rowcount
        else:
            updated = self._write(_UPDATE_TOTALS, totals)
        if states:
            updated += self.connection.executemany(_UPDATE_STATE, states).rowcount
        if updated != len(self._changed):
            raise StoreUnusable("a payment was not there to update, though it was read in the same transaction")
        self._write(_INSERT_CREDIT, [_credit_row(credit) for credit in self._credits.values()])
        self._write(_INSERT_EVENT, [_event_row(event) for event in self._events])
        if self._nonces is not None:
            self.connection.execute(_UPDATE_COUNT, self._nonces)

    def clear(self) -> None:
        """Begin with nothing waiting and nothing fetched."""
        self._payment_rows.clear()
        self._credit_rows.clear()
        self._changed.clear()
        self._credits.clear()
        self._events.clear()
        self._nonces = None

    def _payment_row(self, id: PaymentId) -> _Row | None:
        return self._payment_rows.get(id) or super()._payment_row(id)

    def _write(self, statement: str, rows: Sequence[_Row]) -> int:
        """Execute `statement` for all `rows`, and count what it has changed."""
        return sum(self.connection.execute(*piece).rowcount for piece in self._pieces(statement, rows))

    def _pieces(self, statement: str, rows: Sequence[_Row]) -> Iterator[tuple[str, Sequence[Any]]]:
        """`statement` for many of `rows` at a time, with its variables, until it was for all.

        Each step of a statement gives the interpreter's lock away, and to have it back costs more than the step when
        others want it. The pieces are powers of two, so that there are few statements, and all of them stay prepared.
        """
        while rows:
            most = min(len(rows), STORE_BATCH_MAX, self._variables_max // len(rows[0]))
            count = 1 << most.bit_length() - 1
            yield _for_many(statement, count), list(chain.from_iterable(rows[:count]))
            rows = rows[count:]


@lru_cache
def _for_many(statement: str, count: int) -> str:
    """`statement` with its one row of variables written `count` times."""
    return _VARIABLES.sub(lambda row: ", ".join([row[0]] * count), statement)


def _total(payment: IncomingPayment) -> tuple[int, str, int]:
    """The columns that every credit changes."""
    return payment.version, str(payment.received.value), _micros(payment.updated_at)


def _state(payment: IncomingPayment) -> tuple[int | None, int | None]:
    return _optional_micros(payment.closed_at), _optional_micros(payment.expiry_announced_at)


def _credit_row(credit: Credit) -> _Row:
    amount, received = str(credit.amount.value), str(credit.received.value)
    return credit.payment_id, credit.id, amount, received, int(credit.completes), _micros(credit.at)


def _event_row(event: Event) -> _Row:
    at, received = _micros(event.at), str(event.received.value)
    return event.payment_id, event.version, _KINDS[event.kind], at, received, event.credit_id, event.peer


def _row(payment: IncomingPayment) -> _Row:
    """The columns of `_SELECT_PAYMENT`."""
    return (
        *_total(payment),
        payment.wallet_address,
        payment.client,
        payment.asset.code,
        payment.asset.scale,
        None if payment.limit is None else payment.limit.text,
        _optional_micros(payment.expires_at),
        payment.metadata,
        _micros(payment.created_at),
        *_state(payment),
    )


def _payment(id: PaymentId, row: _Row) -> IncomingPayment:
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


def _credit(payment: IncomingPayment, id: CreditId, row: _Row) -> Credit:
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


def _event(id: PaymentId, row: _Row) -> Event:
    version, kind, at, received, credit_id, peer, code, scale = row
    try:
        return Event(
            payment_id=id,
            version=version,
            kind=EventKind(kind),
            at=_moment(at),
            received=Amount.parse(received, _asset(code, scale)),
            credit_id=credit_id,
            peer=peer,
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

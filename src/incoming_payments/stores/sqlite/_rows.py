"""Read and write rows. Every SQL statement finds its rows by primary key or index."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from incoming_payments.domain.events import Event
from incoming_payments.domain.lifecycle import Decision, without_metadata
from incoming_payments.domain.listing import Place
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import PaymentExists, PaymentNotFound, StoreUnusable
from incoming_payments.limits import NONCES_SWEPT_MAX
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
    time_of,
    total_row,
)
from incoming_payments.stores.guard import check_nonce_capacity, check_nonce_time, ended_at, sweep_at
from incoming_payments.stores.sqlite._references import METADATA, digest_of
from incoming_payments.stores.sqlite._streams import mark

_COLUMNS: Final = (
    "version, received_amount, updated_at, wallet_address, client, asset_code, asset_scale, "
    "incoming_amount, expires_at, {}, created_at, closed_at, expiry_announced_at"
)
_PAYMENT: Final = _COLUMNS.format(METADATA)
_COLUMNS_OF_INSERT: Final = f"id, {_COLUMNS.format('metadata_number')}, sweep_at, reference"
_CREDIT: Final = "amount, received_amount, completes, at"
_SELECT_PAYMENT: Final = f"SELECT {_PAYMENT} FROM payments WHERE id = ?"  # noqa: S608
_SELECT_CREDIT: Final = f"SELECT {_CREDIT} FROM credits WHERE payment_id = ? AND credit_id = ?"  # noqa: S608
_SELECT_EVENTS: Final = (
    "SELECT events.version, kind, at, events.received_amount, credit_id, peer, asset_code, asset_scale "
    "FROM events JOIN payments ON id = payment_id WHERE payment_id = ? ORDER BY events.version"
)
_SELECT_EXPIRED: Final = "SELECT id FROM payments WHERE sweep_at < ? ORDER BY sweep_at, id LIMIT ?"
_INSERT_PAYMENT: Final = f"INSERT INTO payments ({_COLUMNS_OF_INSERT}) VALUES (?{', ?' * 15})"  # noqa: S608
_LAST_METADATA: Final = "SELECT max(number) FROM metadata"
_INSERT_METADATA: Final = "INSERT INTO metadata (number, text) VALUES (?, ?)"
# An erasure in the same transaction may have removed the metadata.
_INSERT_ENDED: Final = (
    "INSERT INTO metadata_to_erase (ended_at, payment_id) SELECT ?, id FROM payments "
    "WHERE id = ? AND (metadata_number IS NOT NULL OR metadata IS NOT NULL)"
)
# This statement is for updates that do not change `sweep_at`. If a statement names `sweep_at`, SQLite also writes the
# index of that column. The update then takes 1.5 to 2.7 times as long, and the log gets at least twice as many pages.
_UPDATE_TOTAL: Final = (
    "UPDATE payments SET version = ?, received_amount = ?, updated_at = ? WHERE id = ? AND version = ?"
)
_UPDATE_STATE: Final = (
    "UPDATE payments SET version = ?, received_amount = ?, updated_at = ?, closed_at = ?, expiry_announced_at = ?, "
    "sweep_at = ? WHERE id = ? AND version = ?"
)
_INSERT_CREDIT: Final = f"INSERT INTO credits (payment_id, credit_id, {_CREDIT}) VALUES (?{', ?' * 5})"  # noqa: S608
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


class Rows:
    """The rows that one connection reads, as values. Every method may raise `sqlite3.Error`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def payment(self, id: PaymentId) -> IncomingPayment:
        """Return the payment `id`. Raises `PaymentNotFound`, or `StoreUnusable` when the row is not a valid payment."""
        row = self.connection.execute(_SELECT_PAYMENT, (id,)).fetchone()
        if row is None:
            raise self._not_found(id)
        return payment_of(id, row)

    def events(self, id: PaymentId) -> Sequence[Event]:
        """Return the events of the payment `id`, oldest first. Raises `PaymentNotFound`."""
        rows = self.connection.execute(_SELECT_EVENTS, (id,)).fetchall()
        if not rows:
            raise self._not_found(id)
        return [event_of(id, row) for row in rows]

    def expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Return at most `limit` payments for the sweep, longest expired first."""
        rows = self.connection.execute(_SELECT_EXPIRED, (micros(now), max(limit, 0))).fetchall()
        return [PaymentId(id) for (id,) in rows]

    def select(self, clauses: str, values: Sequence[object]) -> list[IncomingPayment]:
        """Return the payments that a `SELECT` with these `clauses` finds. `values` may contain times."""
        rows = self.connection.execute(f"SELECT id, {_PAYMENT} {clauses}", _columns(values))
        return [payment_of(id, row) for id, *row in rows]

    def find_place(self, clauses: str, values: Sequence[object]) -> Place | None:
        """Return the place of the payment that a `SELECT` with these `clauses` finds, or `None`."""
        row = self.connection.execute(f"SELECT created_at, id {clauses}", _columns(values)).fetchone()
        return None if row is None else Place(time_of(row[0]), row[1])

    def _not_found(self, id: PaymentId) -> PaymentNotFound:
        return PaymentNotFound(f"there is no payment {id} in {file_of(self.connection)}")


class LogRequest:
    """A request to empty the log after the commit. The writer sets `is_emptied` before it answers the job.

    `erasures` is the number of erasures before the request, and `path` is the path of the database.
    """

    def __init__(self) -> None:
        self.erasures = 0
        self.path = ""
        self.is_emptied = False


class Batch(Rows):
    """The reads and writes of the jobs of one transaction.

    Updates wait until `flush`. So a payment that several jobs credit is written once, each job sees the decisions of
    the jobs before it, and a job that fails has written nothing.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        # each changed payment, as it was read and after the updates
        self._changed: dict[PaymentId, tuple[IncomingPayment, IncomingPayment]] = {}
        self._credits: dict[tuple[PaymentId, CreditId], Credit] = {}
        self._changes: list[tuple[IncomingPayment, tuple[Event, ...]]] = []
        self.log_requests: list[LogRequest] = []
        self.makes_due = False  # whether the transaction makes a stream of the feed due
        self._nonces: tuple[int, int] | None = None  # the row of `nonce_count`, or `None` before it is read

    def payment(self, id: PaymentId) -> IncomingPayment:
        """Return the payment `id` with the updates of this batch. Raises the exceptions of `Rows.payment`."""
        change = self._changed.get(id)
        return super().payment(id) if change is None else change[1]

    def credit(self, payment: IncomingPayment, id: CreditId) -> Credit | None:
        """Return the credit `id` of `payment`, if it exists. Raises `StoreUnusable` when the row is invalid."""
        key = (payment.terms.id, id)
        waiting = self._credits.get(key)
        if waiting is not None:
            return waiting
        row = self.connection.execute(_SELECT_CREDIT, key).fetchone()
        return None if row is None else credit_of(payment, id, row)

    def insert(self, payment: IncomingPayment, decision: Decision[Any]) -> None:
        """Write a new payment and its events. Raises `PaymentExists` before it writes anything."""
        metadata, number = payment.terms.metadata, None
        if metadata is not None:
            (last,) = self.connection.execute(_LAST_METADATA).fetchone()
            number = 1 if last is None else last + 1
        reference = digest_of(self.connection, metadata)
        row = (payment.id, *payment_row(payment, number), optional_micros(sweep_at(payment)), reference)
        try:
            self.connection.execute(_INSERT_PAYMENT, row)
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
                raise PaymentExists(
                    f"payment {payment.id} exists already: create the payment with another id"
                ) from None
            raise
        if metadata is not None:
            self.connection.execute(_INSERT_METADATA, (number, metadata))
        self._changes.append((payment, decision.events))

    def update(self, before: IncomingPayment, after: IncomingPayment, decision: Decision[Any]) -> None:
        """Replace the payment `before` by `after`. The method `payment` has returned `before`.

        Add the credit and the events of `decision`.
        """
        id = after.terms.id
        change = self._changed.get(id)
        self._changed[id] = (before if change is None else change[0], after)
        if decision.credit is not None:
            self._credits[id, decision.credit.id] = decision.credit
        self._changes.append((after, decision.events))

    def forget_metadata(self, id: PaymentId) -> None:
        """Forget the metadata of a payment that waits for its update."""
        change = self._changed.get(id)
        if change is not None:
            self._changed[id] = without_metadata(change[0]), without_metadata(change[1])

    def use_nonce(self, key: str, until: datetime, now: datetime, capacity: int) -> bool:
        """Return whether `key` is used for the first time.

        Raises `ClockBehind`, and `StoreUnavailable` when the table is full. A call that raises an error may have
        removed expired nonces, but has changed nothing else.
        """
        end, at = micros(until), micros(now)
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
        # An earlier call with a later `now` may have removed this key.
        check_nonce_time(until, time_of(swept_until), now)
        check_nonce_capacity(held, capacity)
        self.connection.execute(_INSERT_NONCE, (key, end))
        self._nonces = held + 1, swept_until
        return True

    def flush(self) -> None:
        """Write the updates. Raises `StoreUnusable` when a stored payment differs from the payment that was read."""
        totals, states = [], []
        for before, after in self._changed.values():
            total, state, due = total_row(after), state_row(after), sweep_at(after)
            key = (after.id, before.version)
            if state == state_row(before) and due == sweep_at(before):
                totals.append(total + key)
            else:
                states.append((*total, *state, optional_micros(due), *key))
        updated = self._update(_UPDATE_TOTAL, totals) + self._update(_UPDATE_STATE, states)
        if updated != len(self._changed):
            text = "a payment that this transaction has read could not be updated: check the database"
            raise StoreUnusable(text)
        ended = [
            (micros(at), after.id)
            for before, after in self._changed.values()
            if after.terms.metadata is not None and ended_at(before) is None and (at := ended_at(after)) is not None
        ]
        self.connection.executemany(_INSERT_ENDED, ended)
        self.connection.executemany(_INSERT_CREDIT, map(credit_row, self._credits.values()))
        events = [event_row(event) for _, events in self._changes for event in events]
        self.connection.executemany(_INSERT_EVENT, events)
        self.makes_due |= mark(self.connection, self._changes)
        if self._nonces is not None:
            self.connection.execute(_UPDATE_COUNT, self._nonces)

    def _update(self, statement: str, rows: Sequence[Row]) -> int:
        """Execute `statement` for all `rows`, and return the number of changed rows."""
        return self.connection.executemany(statement, rows).rowcount if rows else 0


def _columns(values: Sequence[object]) -> list[object]:
    return [micros(value) if isinstance(value, datetime) else value for value in values]


def file_of(connection: sqlite3.Connection) -> str:
    """Return the path of the database."""
    [(_, _, path)] = connection.execute("PRAGMA database_list").fetchall()
    return str(path)

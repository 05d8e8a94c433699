"""A short and correct store on SQLite. The broken stores are changes of it."""

import pickle
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from incoming_payments.domain.events import Event
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import ClientId, Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import PaymentExists, PaymentNotFound, StoreUnavailable, StoreUnusable
from incoming_payments.ports import Decide
from incoming_payments.stores.guard import check_insert, check_update, sweep_at

T = TypeVar("T")

_TABLES = (
    "CREATE TABLE IF NOT EXISTS payments (id TEXT PRIMARY KEY, due INTEGER, value BLOB)",
    "CREATE TABLE IF NOT EXISTS credits (payment TEXT, id TEXT, value BLOB, PRIMARY KEY (payment, id))",
    "CREATE TABLE IF NOT EXISTS events (payment TEXT, version INTEGER, value BLOB, PRIMARY KEY (payment, version))",
    "CREATE TABLE IF NOT EXISTS keys (client TEXT, key TEXT, value BLOB, PRIMARY KEY (client, key))",
)


class ReferenceStore:
    """A `PaymentStore` with one connection. It keeps pickled values."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._is_closed = False
        self.connection: sqlite3.Connection | None = None
        with self._transaction() as connection:
            for table in _TABLES:
                connection.execute(table)

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """See `PaymentStore.insert`."""
        payment, keyed = check_insert(decision), decision.keyed
        with self._transaction() as connection:
            if keyed and (earlier := self._creation(connection, keyed.client, keyed.key, payment.created_at)):
                return earlier
            if connection.execute("SELECT 1 FROM payments WHERE id = ?", (payment.id,)).fetchone():
                raise PaymentExists(f"payment {payment.id} exists already")
            self._write(connection, payment, decision)
            if keyed is not None:
                self._write_key(connection, keyed)
        return None

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        """See `PaymentStore.find_creation`."""
        with self._transaction("BEGIN") as connection:
            return self._creation(connection, client, key, now)

    def load(self, id: PaymentId) -> IncomingPayment:
        """See `PaymentStore.load`."""
        with self._transaction("BEGIN") as connection:
            return self._payment(connection, id)

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """See `PaymentStore.update`."""
        with self._transaction() as connection:
            before = self._payment(connection, id)
            earlier = self._credit(connection, id, credit_id)
            decision = decide(before, earlier)
            after = check_update(before, credit_id, earlier, decision)
            if after is not None:
                self._write(connection, after, decision)
        return decision.answer

    def events(self, id: PaymentId) -> Sequence[Event]:
        """See `PaymentStore.events`."""
        with self._transaction("BEGIN") as connection:
            self._payment(connection, id)
            rows = connection.execute("SELECT value FROM events WHERE payment = ? ORDER BY version", (id,))
            return [pickle.loads(value) for (value,) in rows]  # noqa: S301 - written by this store

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """See `PaymentStore.find_expired`."""
        with self._transaction("BEGIN") as connection:
            rows = connection.execute(
                "SELECT id FROM payments WHERE due < ? ORDER BY due, id LIMIT ?", (micros(now), limit)
            )
            return [PaymentId(id) for (id,) in rows]

    def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        """See `PaymentStore.find_payments`."""
        with self._transaction("BEGIN") as connection:
            rows = connection.execute("SELECT value FROM payments").fetchall()
        return query.page_of([pickle.loads(value) for (value,) in rows])  # noqa: S301 - written by this store

    def close(self) -> None:
        """Close the connection. Later calls raise `StoreUnusable`."""
        with self._mutex:
            self._is_closed = True
            self._drop()

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        with self._mutex:
            try:
                connection = self._connect()
                connection.execute(begin)
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    connection.rollback()
                    raise
            except sqlite3.Error as error:
                self._drop()
                raise StoreUnavailable(f"the database failed: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        if self._is_closed:
            raise StoreUnusable("the store is closed")
        if self.connection is None:
            self.connection = sqlite3.connect(self._path, timeout=5, isolation_level=None, check_same_thread=False)
            self.connection.execute("PRAGMA journal_mode = WAL")
            self.connection.execute("PRAGMA synchronous = FULL")
        return self.connection

    def _drop(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def _payment(self, connection: sqlite3.Connection, id: PaymentId) -> IncomingPayment:
        row = connection.execute("SELECT value FROM payments WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise PaymentNotFound(f"there is no payment {id}")
        payment: IncomingPayment = pickle.loads(row[0])  # noqa: S301 - written by this store
        return payment

    def _creation(
        self, connection: sqlite3.Connection, client: ClientId, key: IdempotencyKey, now: datetime
    ) -> KeyedCreation | None:
        row = connection.execute("SELECT value FROM keys WHERE client = ? AND key = ?", (client, key)).fetchone()
        keyed: KeyedCreation | None = None if row is None else pickle.loads(row[0])  # noqa: S301 - as above
        return None if keyed is None or keyed.until < now else keyed

    def _write_key(self, connection: sqlite3.Connection, keyed: KeyedCreation) -> None:
        row = (keyed.client, keyed.key, pickle.dumps(keyed))
        connection.execute("INSERT OR REPLACE INTO keys VALUES (?, ?, ?)", row)

    def _credit(self, connection: sqlite3.Connection, id: PaymentId, credit_id: CreditId | None) -> Credit | None:
        row = connection.execute("SELECT value FROM credits WHERE payment = ? AND id = ?", (id, credit_id)).fetchone()
        return None if row is None else pickle.loads(row[0])  # noqa: S301

    def _write(self, connection: sqlite3.Connection, payment: IncomingPayment, decision: Decision[Any]) -> None:
        self._write_payment(connection, payment)
        if decision.credit is not None:
            self._write_credit(connection, decision.credit)
        self._write_events(connection, decision.events)

    def _write_payment(self, connection: sqlite3.Connection, payment: IncomingPayment) -> None:
        at = sweep_at(payment)
        row = (payment.id, None if at is None else micros(at), pickle.dumps(payment))
        connection.execute("INSERT OR REPLACE INTO payments VALUES (?, ?, ?)", row)

    def _write_credit(self, connection: sqlite3.Connection, credit: Credit) -> None:
        connection.execute("INSERT INTO credits VALUES (?, ?, ?)", (credit.payment_id, credit.id, pickle.dumps(credit)))

    def _write_events(self, connection: sqlite3.Connection, events: Sequence[Event]) -> None:
        rows = [(event.payment_id, event.version, pickle.dumps(event)) for event in events]
        connection.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)


def micros(time: datetime) -> int:
    """Return `time` in microseconds since 1970."""
    passed = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds

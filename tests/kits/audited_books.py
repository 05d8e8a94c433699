"""A database for tests of the audit: honest traffic of a store, and damage to one row or column."""

# ruff: noqa: S608 - the names of tables come from the schema
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from incoming_payments.audit import AuditReport
from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount, Asset, Tolerance
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import Consumer, ConsumerName, Delivered, Failed, FeedEvent, Released, Start
from incoming_payments.domain.payment import STREAM_CREDITS, CreditId, PaymentId, client_id
from incoming_payments.stores.postgres import PostgresStore
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import create, credit
from incoming_payments.testing.values import NOW, a_creation, a_wallet_address

ALL: Final = ConsumerName("all")
CLOSED: Final = ConsumerName("closed")
SINGLE: Final = ConsumerName("single")
_LATER: Final = NOW + timedelta(hours=2)

Row = tuple[Any, ...]

# The damage that the audit finds in no row, for each table or column: another value that is valid for the column alone,
# NULL, two rows with swapped values, or a missing row. The database has nothing to compare these values with.
NEVER_FOUND: Final = {
    "consumers.name": "swapped",
    "consumers.kinds": "other null swapped",
    "consumers.wallet_addresses": "other null swapped",
    "consumers.joins_credits": "other swapped",
    "consumers.credit_delay_s": "other swapped",
    "consumers.down_after_s": "other null swapped",
    "consumers.disable_after_s": "other null swapped",
    "consumers.is_removed": "other",
    "consumers.failing_since": "other null swapped",
    "consumers.disabled_at": "other null swapped",
    "database_id.id": "other",
    "deliveries.payload": "other swapped",
    "deliveries.attempts": "other",
    "deliveries.created_at": "other",
    "deliveries.lease": "null",
    "deliveries.error": "other",
    "idempotency_keys": "missing",
    "idempotency_keys.key": "other swapped",
    "idempotency_keys.fingerprint": "other",
    "idempotency_keys.until": "other swapped",
    "nonce_count.swept_until": "other",
    "nonces.key": "other",
    "nonces.until": "other",
    "payments.wallet_address": "other swapped",
    "payments.asset_code": "other swapped",
    "payments.asset_scale": "other swapped",
    "request_counts": "missing",
    "request_counts.client": "other swapped",
    "request_counts.full_at": "other",
    "settings.reindexed_to": "other",
    "settings.erasures": "other",
    "streams.due_at": "other swapped",
}
# The damage that the audit finds in some rows only.
SOMETIMES_FOUND: Final = {
    "deliveries": "missing",
    "deliveries.payment_id": "swapped",
    "deliveries.last_version": "other",
    "deliveries.due_at": "other swapped",
    "deliveries.lease": "other swapped",
    "deliveries.ending": "other",
    "deliveries.ended_at": "other",
    "deliveries.error": "null swapped",
    "events.peer": "other swapped",
    "idempotency_keys.payment_id": "other swapped",
    "metadata": "missing",
    "metadata.number": "swapped",
    "metadata.text": "other swapped",
    "payments.client": "other",
    "payments.incoming_amount": "other null swapped",
    "payments.expires_at": "other null swapped",
    "payments.metadata": "other null swapped",
    "payments.metadata_number": "swapped",
    "streams": "missing",
    "streams.payment_id": "swapped",
    "streams.acknowledged": "other",
}


def texts(report: AuditReport) -> str:
    """Return the differences as text."""
    return "\n".join(map(str, report.differences))


def fill(store: SqliteStore | PostgresStore) -> list[PaymentId]:
    """Let consumers, clients and peers use `store`, and return the payments."""
    register(store, Consumer(name=ALL, credit_delay_s=0.5, disable_after_s=9e5), Start.BEGINNING)
    urls = {"https://bank.example/alice", "https://bank.example/carol"}
    closings = Consumer(name=CLOSED, kinds={EventKind.COMPLETED, EventKind.EXPIRED}, wallet_addresses=urls)
    register(store, closings, Start.NOW)
    register(store, Consumer(name=SINGLE, joins_credits=False, down_after_s=60.0), Start.NOW)
    full = create(store, a_creation(limit=100, expires_in_s=3600, metadata='{"ref": "7"}', key="k1"))
    closed = create(store, a_creation(limit=500, expires_in_s=3600, metadata='{"note": "a"}', key="k2", now=_at(1)))
    expired = create(store, a_creation(expires_in_s=60, metadata='{"ref": "8"}', now=_at(2)))
    pending = create(store, a_creation(limit=70, expires_in_s=7200, metadata='{"note": "b"}', now=_at(3)))
    euros = a_wallet_address("https://bank.example/bob", asset=Asset("EUR", 3))
    other = create(store, a_creation(wallet_address=euros, client=client_id("app"), key="k3", kept_s=9000, now=_at(4)))
    for number, value in enumerate((40, 50, 30)):
        credit(store, full, f"wire-{number}", value, now=_at(10 + number))
    packet(store, closed, 1, 5, "test.peer.a", now=_at(20))
    packet(store, closed, 2, 7, "test.peer.b", now=_at(21))
    store.update(closed, partial(lifecycle.complete, now=_at(22)))
    credit(store, expired, "wire-0", 3, now=_at(30))
    store.update(expired, partial(lifecycle.expire, now=_at(100)))
    amount = Amount(9, euros.asset)
    store.update(other, partial(lifecycle.credit, credit_id=CreditId("w"), amount=amount, now=_at(40)), CreditId("w"))
    for number in range(4):  # the later nonces remove the earlier ones
        store.nonces.use(f"{number:064x}", _at(50 + 9 * number), _at(45 + 9 * number))
    handle(store)
    metadata = ('{"note": "c"}', '{"note": "d"}', '{"ref": "9"}')
    later = [create(store, a_creation(metadata=text, now=_at(8000 + n))) for n, text in enumerate(metadata)]
    quotas = store.quotas(requests_per_minute=60)
    for name in ("app", "shop", "shop"):
        quotas.admit(client_id(name), _LATER)
    store.erasure.erase(later[-1])  # the writer writes the counts before this
    return [full, closed, expired, pending, other]


def register(store: SqliteStore | PostgresStore, consumer: Consumer, start: Start) -> None:
    """Register `consumer`."""
    while not store.feed.register(consumer, start, NOW):
        pass


def store_as_version_1(path: Path) -> None:
    """Move the metadata of two payments, as if version 1 of the schema had stored them, in a file without a store."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "UPDATE payments SET metadata = (SELECT text FROM metadata WHERE number = metadata_number), "
            "metadata_number = NULL WHERE metadata_number IN (1, 4)"
        )
        connection.execute("UPDATE metadata SET text = NULL WHERE number IN (1, 4)")


def multiply(path: Path, id: PaymentId, number: int) -> None:
    """Add `number` payments with the rows of the payment `id` to a file that no store has open."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TEMP TABLE added AS WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers "
            "WHERE n < ?) SELECT printf('019b796e-0000-7000-8000-%012x', n) AS new FROM numbers",
            (number,),
        )
        for table, key in (("payments", "id"), ("credits", "payment_id"), ("events", "payment_id")):
            columns = _columns(connection, table)
            values = ", ".join("new" if column == key else column for column in columns)
            connection.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM added, {table} WHERE {key} = ?",
                (id,),
            )
        connection.commit()


def handle(store: SqliteStore | PostgresStore) -> None:
    """Leave deliveries in every state: delivered, dead, sent again, failed, leased and waiting."""
    claim = partial(store.feed.claim, render=render, now=_LATER, until=_LATER + timedelta(minutes=1))
    failed = Failed(error="HTTP 500", retry_at=_LATER + timedelta(minutes=5))
    dead = Failed(error="HTTP 400", retry_at=_LATER, is_last=True)
    for result in (Delivered(), failed, Released(), dead, Delivered()):
        for delivery in claim(ALL, limit=1):
            store.feed.settle(delivery, result, _LATER)
    claim(ALL, limit=1)
    first, *_ = claim(CLOSED, limit=3)
    store.feed.settle(first, dead, _LATER)
    store.feed.redeliver(CLOSED, first.payment_id, first.first_version, _LATER)
    for _ in range(3):
        for delivery in claim(SINGLE, limit=2):
            store.feed.settle(delivery, Delivered(), _LATER)
    claim(SINGLE, limit=1)
    store.feed.set_enabled(SINGLE, _LATER, enabled=False)


def render(events: Sequence[FeedEvent]) -> bytes:
    """Return a payload."""
    return ",".join(event.id for event in events).encode()


def packet(
    store: SqliteStore | PostgresStore, id: PaymentId, number: int, value: int, peer: str, *, now: datetime
) -> None:
    """Credit a packet of `peer`."""
    amount, name = Amount(value, store.load(id).asset), CreditId(f"{STREAM_CREDITS}{number}")
    decide = partial(lifecycle.credit_packet, credit_id=name, amount=amount, now=now, tolerance=Tolerance(), peer=peer)
    store.update(id, decide, name)


def _at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


# --- damage ------------------------------------------------------------------------------------------


class Books:
    """The rows of a database without constraints, so that any damage to them is possible."""

    def __init__(self, path: Path) -> None:
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.deserialize(path.read_bytes())
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                connection.execute(f"ALTER TABLE {table} RENAME TO old")
                connection.execute(f"CREATE TABLE {table} AS SELECT * FROM old")
                connection.execute("DROP TABLE old")
            connection.commit()
            self._whole = connection.serialize()
            self.tables = {table: _columns(connection, table) for table in sorted(tables)}

    def rows(self, table: str) -> list[Row]:
        """Return the rows of `table`, each with its row id before its columns."""
        with closing(self._open()) as connection:
            return connection.execute(f"SELECT rowid, * FROM {table}").fetchall()

    def changed(self, *changes: tuple[str, Sequence[object]]) -> bytes:
        """Return the database after the statements `changes`, each with its values."""
        with closing(self._open()) as connection:
            for statement, values in changes:
                connection.execute(statement, values)
            connection.commit()
            return connection.serialize()

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:")
        connection.deserialize(self._whole)
        return connection

    def damaged(self, table: str, column: str, kind: str) -> Iterator[bytes]:
        """Yield the database with another valid value, NULL, or the value of the next row, for each row of `table`."""
        place = self.tables[table].index(column) + 1
        update = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
        rows = self.rows(table)
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            value = row[place]
            if kind == "other":
                yield self.changed((update, (other_value(table, column, value, self), row[0])))
            elif kind == "null" and value is not None:
                yield self.changed((update, (None, row[0])))
            elif kind == "swapped" and following is not None and following[place] != value:
                yield self.changed((update, (following[place], row[0])), (update, (value, following[0])))

    def without(self, table: str) -> Iterator[bytes]:
        """Yield the database without one row, for each row of `table`."""
        for row in self.rows(table):
            yield self.changed((f"DELETE FROM {table} WHERE rowid = ?", (row[0],)))

    def twice(self, table: str) -> Iterator[bytes]:
        """Yield the database with one row twice, for each row of `table`."""
        for row in self.rows(table):
            yield self.changed((f"INSERT INTO {table} SELECT * FROM {table} WHERE rowid = ?", (row[0],)))


_OTHERS: Final[dict[str, tuple[object, object]]] = {
    "id": ("019b7a0c-ffff-7000-8000-000000000001", "019b7a0c-ffff-7000-8000-000000000002"),
    "wallet_address": ("https://bank.example/eve", "https://bank.example/alice"),
    "client": ("someone", "app"),
    "asset_code": ("GBP", "USD"),
    "incoming_amount": ("1000", "2000"),
    "metadata": ('{"note": "9"}', "{}"),
    "text": ('{"note": "9"}', "{}"),
    "reference": (b"r" * 16, b"s" * 16),
    "credit_id": ("wire-77", "wire-78"),
    "kind": ("credited", "completed"),
    "peer": ("test.peer.c", "test.peer.a"),
    "key": ("a" * 64, "b" * 64),
    "fingerprint": ("1" * 64, "2" * 64),
    "consumer": (ALL, SINGLE),
    "name": ("another", "other"),
    "kinds": ("created", "created credited"),
    "wallet_addresses": ("https://bank.example/eve", "https://bank.example/alice"),
    "credit_delay_s": (1.5, 2.5),
    "down_after_s": (70.0, 71.0),
    "disable_after_s": (80.0, 81.0),
    "payload": (b"other", b"another"),
    "lease": (b"l" * 16, b"m" * 16),
    "ending": ("delivered", "dead"),
    "error": ("HTTP 404", "HTTP 405"),
}
_IF_NULL: Final = (NOW - datetime.fromisoformat("1970-01-01T00:00:00Z")) // timedelta(microseconds=1)


class _HasRows(Protocol):
    def rows(self, table: str) -> Sequence[Row]:
        """Return the rows of `table`, each with its place before its columns."""


def other_value(table: str, column: str, value: Any, books: _HasRows) -> object:
    """Return another value that is valid for the column alone."""
    if table == "database_id":
        return bytes(16)
    if table == "request_counts" and column == "client":
        return "another"
    if table == "settings" and column == "reference":
        return "note"
    if column in ("payment_id", "scanned_to", "reindexed_to"):
        return next(row[1] for row in books.rows("payments") if row[1] != value)
    if column in _OTHERS:
        first, second = _OTHERS[column]
        return second if value == first else first
    if isinstance(value, str):  # an amount
        return str(int(value) + 1)
    if column.startswith(("is_", "joins_", "completes")):
        return 1 - value
    if value is None:
        return _IF_NULL
    return value - 1 if value == 2**63 - 1 else value + 1


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]

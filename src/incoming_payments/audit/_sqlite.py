"""Read the rows of a SQLite database in one short transaction, and compare the parts that only SQLite has."""

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

from incoming_payments.audit._history import CreditRow, EventRow, PaymentRow
from incoming_payments.audit._metadata import MetadataRow, check_place, check_reference, check_to_erase
from incoming_payments.audit._report import FILE
from incoming_payments.audit._rules import ConsumerRow, DeliveryRow, KeyRow, SettingsRow, StreamRow
from incoming_payments.limits import AUDIT_DIFFERENCES_MAX, AUDIT_SLICE_S_MAX
from incoming_payments.stores.sqlite._schema import STATEMENTS

_SELECT_PARTS: Final = "SELECT type, name, sql FROM sqlite_master WHERE sql <> ''"
_WITHOUT_KEY: Final = (
    ("payments", "SELECT count(*) FROM payments WHERE id IS NULL"),
    ("credits", "SELECT count(*) FROM credits WHERE payment_id IS NULL"),
    ("events", "SELECT count(*) FROM events WHERE payment_id IS NULL"),
    ("idempotency_keys", "SELECT count(*) FROM idempotency_keys WHERE client IS NULL OR key IS NULL"),
    ("metadata", "SELECT count(*) FROM metadata WHERE number IS NULL"),
    ("metadata_to_erase", "SELECT count(*) FROM metadata_to_erase WHERE ended_at IS NULL OR payment_id IS NULL"),
    ("streams", "SELECT count(*) FROM streams WHERE consumer IS NULL OR payment_id IS NULL"),
    ("deliveries", "SELECT count(*) FROM deliveries WHERE consumer IS NULL OR payment_id IS NULL"),
)
_COUNT_NONCES: Final = "SELECT count(*) FROM nonces"
_SELECT_NONCES: Final = "SELECT count(*), count(key), count(until), min(until) FROM nonces"
_SELECT_COUNT: Final = "SELECT count(*), min(held), min(swept_until) FROM nonce_count"
_SELECT_WRONG_REQUESTS: Final = (
    "SELECT client FROM request_counts GROUP BY client "
    "HAVING client IS NULL OR count(*) > 1 OR count(full_at) < count(*)"
)
_SELECT_ID: Final = "SELECT count(*), min(length(id)) FROM database_id"
_ID_BYTES: Final = 16
_SELECT_SETTINGS: Final = f"SELECT {', '.join(SettingsRow._fields)} FROM settings"  # noqa: S608 - constants
_HAS_PAYMENT: Final = "SELECT count(*) FROM payments WHERE id = ?"
_SELECT_CONSUMERS: Final = f"SELECT {', '.join(ConsumerRow._fields)} FROM consumers ORDER BY name"  # noqa: S608 - constants
_NEXT_PAYMENT: Final = (
    "SELECT min(id) FROM (SELECT min(id) AS id FROM payments WHERE id > ?1 "
    "UNION ALL SELECT min(payment_id) FROM credits WHERE payment_id > ?1 "
    "UNION ALL SELECT min(payment_id) FROM events WHERE payment_id > ?1)"
)
_TEXT: Final = "(SELECT text FROM metadata AS texts WHERE texts.number = metadata_number)"
_OWN_COLUMNS: Final = {"metadata": f"coalesce(metadata, {_TEXT})"}
_SELECT_PAYMENT: Final = (
    f"SELECT {', '.join(_OWN_COLUMNS.get(name, name) for name in PaymentRow._fields)}, "  # noqa: S608 - constants
    f"metadata, metadata_number, {_TEXT}, reference FROM payments WHERE id = ?"
)
_PAYMENT_COLUMNS: Final = len(PaymentRow._fields)
_COUNT_TO_ERASE: Final = "SELECT count(*) FROM metadata_to_erase WHERE ended_at = ? AND payment_id = ?"
_SELECT_EVENTS: Final = (
    "SELECT e.version, e.kind, e.at, e.received_amount, e.credit_id, e.peer, "
    "c.credit_id, c.amount, c.received_amount, c.completes, c.at FROM events AS e "
    "LEFT JOIN credits AS c ON c.payment_id = e.payment_id AND c.credit_id = e.credit_id "
    "WHERE e.payment_id = ? AND e.version > ? ORDER BY e.version"
)
_EVENT_COLUMNS: Final = len(EventRow._fields)
_COUNT: Final = (
    "SELECT (SELECT count(*) FROM events WHERE payment_id = ?1), (SELECT count(*) FROM credits WHERE payment_id = ?1)"
)
_SELECT_KEYS: Final = (
    "SELECT k.client, k.key, k.fingerprint, k.payment_id, k.until, p.client, p.created_at FROM idempotency_keys AS k "
    "LEFT JOIN payments AS p ON p.id = k.payment_id WHERE (k.client, k.key) > (?, ?) ORDER BY k.client, k.key"
)
_NEXT_STREAM: Final = (
    "SELECT consumer, payment_id FROM streams WHERE (consumer, payment_id) > (?, ?) AND payment_id <> '' "
    "ORDER BY consumer, payment_id LIMIT 1"
)
_NEXT_DELIVERY: Final = (
    "SELECT consumer, payment_id FROM deliveries WHERE (consumer, payment_id) > (?, ?) AND payment_id <> '' "
    "ORDER BY consumer, payment_id LIMIT 1"
)
_SELECT_STREAM: Final = "SELECT acknowledged, head, due_at, is_open FROM streams WHERE consumer = ? AND payment_id = ?"
_SELECT_DELIVERIES: Final = (
    "SELECT first_version, last_version, typeof(payload), attempts, created_at, due_at, lease, ending, ended_at, "
    "error, (SELECT count(*) FROM events AS e WHERE e.payment_id = d.payment_id "
    "AND e.version BETWEEN d.first_version AND d.last_version), "
    "(SELECT count(*) FROM events AS e WHERE e.payment_id = d.payment_id "
    "AND e.version BETWEEN d.first_version AND d.last_version AND e.kind = 'credited') "
    "FROM deliveries AS d WHERE consumer = ? AND payment_id = ? ORDER BY first_version"
)
_SELECT_VERSION: Final = "SELECT min(version) FROM payments WHERE id = ?"


class SqliteSnapshot:
    """One read transaction. Close it soon after `is_over` is true. See `Snapshot` for the other methods."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._end_s = time.monotonic() + AUDIT_SLICE_S_MAX

    @property
    def is_over(self) -> bool:
        """Whether the time of this transaction is used up."""
        return time.monotonic() >= self._end_s

    def rows(self, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Return the rows of a `SELECT`, which are read one by one."""
        return self._connection.execute(statement, values)

    def one(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Return the only row of a `SELECT` that always has one."""
        return self._connection.execute(statement, values).fetchone()

    def unsound_tables(self) -> Iterator[tuple[str, str]]:
        """See `Snapshot`."""
        for text in _unsound_parts(self):
            yield FILE, text
        for table, statement in _WITHOUT_KEY:
            (number,) = self.one(statement)
            if number:
                yield table, f"{number} rows have no key"
        yield from self._unsound_nonces()
        for (client,) in self.rows(_SELECT_WRONG_REQUESTS):
            yield "request_counts", f"there must be one row of the client {client}, with a time"
        if self.one(_SELECT_ID) != (1, _ID_BYTES):
            yield "database_id", f"there must be one id of {_ID_BYTES} bytes"

    def _unsound_nonces(self) -> Iterator[tuple[str, str]]:
        counted, *rest = self.one(_SELECT_NONCES)
        rows, held, swept_until = self.one(_SELECT_COUNT)
        *others, first_until = rest
        if others != [counted] * 2:
            yield "nonces", "a nonce lacks its key or its time"
        elif rows != 1 or held != counted:
            yield "nonce_count", f"there must be one row with held = {counted}"
        elif swept_until is None or (first_until is not None and first_until < swept_until):
            yield "nonce_count", f"swept_until is {swept_until}, and there is a nonce until {first_until}"

    def count_nonces(self) -> int:
        """See `Snapshot`."""
        (number,) = self.one(_COUNT_NONCES)
        return int(number)

    def settings(self) -> Sequence[SettingsRow]:
        """See `Snapshot`."""
        return [SettingsRow(*values) for values in self.rows(_SELECT_SETTINGS)]

    def has_payment(self, id: str) -> bool:
        """See `Snapshot`."""
        return bool(self.one(_HAS_PAYMENT, (id,))[0])

    def consumers(self) -> Iterable[ConsumerRow]:
        """See `Snapshot`."""
        return (ConsumerRow(*values) for values in self.rows(_SELECT_CONSUMERS))

    def next_payment(self, after: str) -> Any:
        """See `Snapshot`."""
        return self.one(_NEXT_PAYMENT, (after,))[0]

    def payments(self, id: str) -> Sequence[tuple[PaymentRow, MetadataRow]]:
        """See `Snapshot`."""
        rows = self.rows(_SELECT_PAYMENT, (id,))
        return [(PaymentRow(*row[:_PAYMENT_COLUMNS]), MetadataRow(*row[_PAYMENT_COLUMNS:])) for row in rows]

    def events(self, id: str, after: int) -> Iterable[tuple[EventRow, CreditRow]]:
        """See `Snapshot`."""
        for row in self.rows(_SELECT_EVENTS, (id, after)):
            yield EventRow(*row[:_EVENT_COLUMNS]), CreditRow(*row[_EVENT_COLUMNS:])

    def counts(self, id: str) -> tuple[int, int]:
        """See `Snapshot`."""
        events, credits = self.one(_COUNT, (id,))
        return events, credits

    def check_columns(self, payment: PaymentRow, columns: MetadataRow, settings: SettingsRow | None) -> None:
        """See `Snapshot`."""
        check_place(columns)
        check_reference(payment, columns.reference, settings)
        check_to_erase(payment, lambda ended_at: self.one(_COUNT_TO_ERASE, (ended_at, payment.id))[0])

    def keys(self, after: tuple[str, str]) -> Iterable[KeyRow]:
        """See `Snapshot`."""
        return (KeyRow(*values) for values in self.rows(_SELECT_KEYS, after))

    def next_streams(self, after: tuple[str, str]) -> Sequence[Any]:
        """See `Snapshot`."""
        return [*self.rows(_NEXT_STREAM, after), *self.rows(_NEXT_DELIVERY, after)]

    def streams(self, consumer: str, id: str) -> tuple[Sequence[StreamRow], Any]:
        """See `Snapshot`."""
        rows = [StreamRow(*values) for values in self.rows(_SELECT_STREAM, (consumer, id))]
        return rows, self.one(_SELECT_VERSION, (id,))[0]

    def deliveries(self, consumer: str, id: str) -> Iterable[DeliveryRow]:
        """See `Snapshot`."""
        return (DeliveryRow(*values) for values in self.rows(_SELECT_DELIVERIES, (consumer, id)))

    def unsound_pages(self) -> Iterator[str]:
        """Yield each error that SQLite finds in pages, indexes and constraints. This reads the whole file."""
        for (text,) in self.rows(f"PRAGMA integrity_check({AUDIT_DIFFERENCES_MAX})"):
            if text != "ok":
                yield text


def _unsound_parts(snapshot: SqliteSnapshot) -> Iterator[str]:
    """Yield each difference between the definitions and those of this release.

    The constraints of a table guarantee the types of its columns.
    """
    found = {name: _normal(sql) for _, name, sql in snapshot.rows(_SELECT_PARTS)}
    with closing(sqlite3.connect(":memory:")) as model:
        for statement in STATEMENTS:
            model.execute(statement)
        for kind, name, sql in model.execute(_SELECT_PARTS):
            if found.get(name) != _normal(sql):
                yield f"the {kind} {name} is missing or has another definition"
    for (name,) in snapshot.rows("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
        yield f"there is a trigger {name}, which may change rows: remove it"


def _normal(statement: str) -> str:
    return " ".join(statement.split())

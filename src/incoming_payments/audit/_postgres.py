"""Read the rows of a PostgreSQL database in one transaction, and compare the parts that only PostgreSQL has.

The transaction is REPEATABLE READ and READ ONLY, so it sees one state of the database, and runs on a standby too. The
audit reads each table through one cursor on the server, in the order of its primary key. So it needs constant memory,
and reads each row once.
"""

# ruff: noqa: S608 - the names of tables and columns are constants

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import Any, Final, Self

import psycopg

from incoming_payments.audit._history import CreditRow, EventRow, PaymentRow
from incoming_payments.audit._metadata import DerivedRow, check_derived, check_reference
from incoming_payments.audit._report import FILE, Tally
from incoming_payments.audit._rules import ConsumerRow, DeliveryRow, KeyRow, SettingsRow, StreamRow
from incoming_payments.audit._snapshot import Damaged
from incoming_payments.errors import AuditFailed, StoreError
from incoming_payments.limits import AUDIT_SLICE_S_MAX
from incoming_payments.stores.postgres._migrations import check_schema
from incoming_payments.stores.postgres._schema import VERSIONS
from incoming_payments.stores.postgres._session import connection_string, shown

_ROWS_MAX: Final = 1_000  # rows that one round trip fetches
# Lift the limits that the role may have for other programs. Let each cursor follow an index, and sort no table. If a
# policy hid rows, the audit would prove only the rest, so `row_security` makes PostgreSQL refuse the query.
_SETTINGS: Final = (
    "SELECT set_config(name, wanted.value, true) FROM (VALUES ('statement_timeout', '0'), ('lock_timeout', '0'), "
    "('idle_in_transaction_session_timeout', '0'), ('transaction_timeout', '0'), ('enable_seqscan', 'off'), "
    "('enable_sort', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'), ('enable_hashagg', 'off'), "
    "('jit', 'off'), ('extra_float_digits', '1'), ('cursor_tuple_fraction', '0'), ('row_security', 'off')) "
    "AS wanted (name, value) "
    "JOIN pg_settings USING (name)"
)
_PARTS: Final = re.compile(r"CREATE (?:TABLE|INDEX)(?: CONCURRENTLY)?(?: IF NOT EXISTS)? (?:incoming_payments\.)?(\w+)")
_PRIMARY_KEYS: Final = re.compile(r"CREATE TABLE incoming_payments\.(\w+)")
_STEPS: Final = "\n".join(step for version in VERSIONS for step in (*version.before, *version.after))
_NAMES: Final = [*_PARTS.findall(_STEPS), *(f"{table}_pkey" for table in _PRIMARY_KEYS.findall(_STEPS))]
_SELECT_PARTS: Final = (
    "SELECT relname FROM pg_class LEFT JOIN pg_index ON indexrelid = pg_class.oid "
    "WHERE relnamespace = 'incoming_payments'::regnamespace AND coalesce(indisvalid AND indisready, true)"
)
_SELECT_TRIGGERS: Final = (
    "SELECT 'trigger', tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
    "WHERE relnamespace = 'incoming_payments'::regnamespace AND NOT tgisinternal "
    "UNION ALL SELECT 'rule', rulename FROM pg_rules WHERE schemaname = 'incoming_payments'"
)
_COUNT_NONCES: Final = "SELECT count(*) FROM incoming_payments.nonces"
# Each column is true if the rows of one table are sound.
_ARE_SMALL_TABLES_SOUND: Final = (
    "SELECT (SELECT sum(held) FROM incoming_payments.nonce_counts) = (SELECT count(*) FROM incoming_payments.nonces) "
    "AND (SELECT array_agg(slot ORDER BY slot) FROM incoming_payments.nonce_counts) "
    "= ARRAY(SELECT generate_series(0, 31)::smallint), "
    "(SELECT array_agg(slot ORDER BY slot) FROM incoming_payments.feed_writers) "
    "= ARRAY(SELECT generate_series(0, 255)::smallint), "
    "(SELECT count(*) = 1 AND min(registration) >= ALL (SELECT registration FROM incoming_payments.feed_writers "
    "UNION ALL SELECT registration FROM incoming_payments.consumers) FROM incoming_payments.registrations), "
    "(SELECT count(*) = count(DISTINCT client) FROM incoming_payments.quota_clients)"
)
_SMALL_TABLES: Final = (
    (
        "nonce_counts",
        "there must be one row for each slot from 0 to 31, and the sum of held must be the number of nonces",
    ),
    ("feed_writers", "there must be one row for each slot from 0 to 255"),
    ("registrations", "there must be one row, with the greatest registration of all"),
    ("quota_clients", "there must be one row of each client"),
)
# A place before the first payment is the smallest UUID. `SettingsRow` has an empty text for it, as in SQLite.
_PLACE: Final = "coalesce(nullif({0}::text, '00000000-0000-0000-0000-000000000000'), left({0}::text, 0))"
_SELECT_SETTINGS: Final = f"SELECT reference, {_PLACE.format('reindexed_to')}, 0, 0 FROM incoming_payments.settings"
_HAS_PAYMENT: Final = "SELECT count(*) FROM incoming_payments.payments WHERE id = %s::uuid"
_COLUMNS: Final = {
    "id": "id::text",
    "received_amount": "received_amount::text",
    "incoming_amount": "incoming_amount::text",
    "kinds": "array_to_string(kinds, ' ')",
    "wallet_addresses": "array_to_string(wallet_addresses, ' ')",
    "joins_credits": "joins_credits::int",
    "credit_delay_s": "credit_delay_s::float8",
    "down_after_s": "down_after_s::float8",
    "disable_after_s": "disable_after_s::float8",
    "scanned_to": f"CASE WHEN is_known THEN {_PLACE.format('scanned_to')} ELSE '' END",
    "is_removed": "is_removed::int",
    "is_open": "is_open::int",
    "payload": "'blob'",  # the column has no other type
    "is_unpaid": "is_unpaid::int",
}


def _columns(names: Iterable[str]) -> str:
    return ", ".join(_COLUMNS.get(name, name) for name in names)


_OF_CONSUMERS: Final = _columns(ConsumerRow._fields)
_SELECT_CONSUMERS: Final = f"SELECT {_OF_CONSUMERS} FROM incoming_payments.consumers ORDER BY name"
_OF_PAYMENTS: Final = _columns((*PaymentRow._fields, *DerivedRow._fields))
_SELECT_PAYMENTS: Final = f"SELECT {_OF_PAYMENTS} FROM incoming_payments.payments ORDER BY payments.id"
_PAYMENT_COLUMNS: Final = len(PaymentRow._fields)
_SELECT_EVENTS: Final = (
    "SELECT e.payment_id::text, e.version, e.kind, e.at, e.received_amount::text, e.credit_id, e.peer, "
    "c.credit_id, c.amount::text, c.received_amount::text, c.completes::int, c.at FROM incoming_payments.events AS e "
    "LEFT JOIN incoming_payments.credits AS c ON c.payment_id = e.payment_id AND c.credit_id = e.credit_id "
    "ORDER BY e.payment_id, e.version"
)
_EVENT_COLUMNS: Final = len(EventRow._fields)
_COUNT_CREDITS: Final = (
    "SELECT payment_id::text, count(*) FROM incoming_payments.credits AS c GROUP BY c.payment_id ORDER BY c.payment_id"
)
_SELECT_KEYS: Final = (
    "SELECT k.client, k.key, k.fingerprint, k.payment_id::text, k.until, p.client, p.created_at "
    "FROM incoming_payments.idempotency_keys AS k LEFT JOIN incoming_payments.payments AS p ON p.id = k.payment_id "
    "ORDER BY k.client, k.key"
)
_VERSION: Final = "(SELECT version FROM incoming_payments.payments WHERE id = payment_id)"
_SELECT_STREAMS: Final = (
    f"SELECT consumer, payment_id::text, {_VERSION}, {_columns(StreamRow._fields)} "
    "FROM incoming_payments.streams ORDER BY consumer, streams.payment_id"
)
_COUNT_EVENTS: Final = (
    "(SELECT count(*) FROM incoming_payments.events AS e WHERE e.payment_id = d.payment_id "
    "AND e.version BETWEEN first_version AND last_version {})"
)
_CREDITED: Final = "AND kind = 'credited'"
_SELECT_DELIVERIES: Final = (
    f"SELECT consumer, payment_id::text, {_VERSION}, {_columns(DeliveryRow._fields[:-2])}, "
    f"{_COUNT_EVENTS.format('')}, {_COUNT_EVENTS.format(_CREDITED)} "
    "FROM incoming_payments.deliveries AS d ORDER BY consumer, d.payment_id, first_version"
)
_COUNT_METADATA: Final = "SELECT count(*), count(ended_at) FROM incoming_payments.payments WHERE metadata IS NOT NULL"


class _Stream:
    """The rows of a cursor in the order of their first `size` columns, which are their key."""

    def __init__(self, rows: Iterator[Sequence[Any]], size: int) -> None:
        self._rows = rows
        self._size = size
        self.head: Any = None  # the next row, or `None` at the end
        self.key: Any = None  # the key of the next row
        self._advance()

    def _advance(self) -> Any:
        head, before = self.head, self.key
        self.head = next(self._rows, None)
        self.key = None if self.head is None else tuple(self.head[: self._size])
        is_in_order = self.key is None or (None not in self.key and (before is None or before <= self.key))
        if not is_in_order:
            raise Damaged(f"the rows of a table are not in order: {self.key!r} follows {before!r}")
        return head

    def skip(self, after: tuple[str, ...]) -> None:
        """Skip the rows with keys up to `after`."""
        while self.key is not None and self.key <= after:
            self._advance()

    def take(self, key: tuple[str, ...]) -> Iterator[Sequence[Any]]:
        """Yield the rows with `key`, without their keys."""
        while self.key == key:
            yield self._advance()[self._size :]


class PostgresSnapshot:
    """The one transaction of an audit. See `Snapshot` for the methods."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._cursors: list[psycopg.ServerCursor[Any]] = []
        self.end_s = 0.0
        self._id = ""  # the payment that the audit is reading
        self._found: list[tuple[PaymentRow, DerivedRow]] = []
        self._events_read = 0

    @property
    def is_over(self) -> bool:
        """Whether it is time to show the progress."""
        return time.monotonic() >= self.end_s

    def rows(self, statement: str, *values: object) -> list[Any]:
        """Return all rows of a `SELECT` that returns few."""
        return self._connection.execute(statement.encode(), values or None).fetchall()

    def unsound_tables(self) -> Iterator[tuple[str, str]]:
        """See `Snapshot`."""
        found = {name for (name,) in self.rows(_SELECT_PARTS)}
        for name in _NAMES:
            if name not in found:
                yield FILE, f"the table or index {name} is missing or invalid"
        for kind, name in self.rows(_SELECT_TRIGGERS):
            yield FILE, f"there is a {kind} {name}, which may change rows: remove it"
        [sound] = self.rows(_ARE_SMALL_TABLES_SOUND)
        for (table, text), is_sound in zip(_SMALL_TABLES, sound, strict=True):
            if not is_sound:
                yield table, text

    def count_nonces(self) -> int:
        """See `Snapshot`."""
        [(number,)] = self.rows(_COUNT_NONCES)
        return int(number)

    def settings(self) -> Sequence[SettingsRow]:
        """See `Snapshot`."""
        return [SettingsRow(*row) for row in self.rows(_SELECT_SETTINGS)]

    def has_payment(self, id: str) -> bool:
        """See `Snapshot`."""
        return self.rows(_HAS_PAYMENT, id) == [(1,)]

    def consumers(self) -> Iterable[ConsumerRow]:
        """See `Snapshot`."""
        return [ConsumerRow(*row) for row in self.rows(_SELECT_CONSUMERS)]

    def next_payment(self, after: str) -> Any:
        """See `Snapshot`."""
        for stream in (self._payments, self._events, self._credits):
            stream.skip((after,))
        keys = [each.key for each in (self._payments, self._events, self._credits) if each.key is not None]
        return min(keys)[0] if keys else None

    def payments(self, id: str) -> Sequence[tuple[PaymentRow, DerivedRow]]:
        """See `Snapshot`."""
        if id != self._id:
            self._id, self._events_read = id, 0
            rows = [(id, *row) for row in self._payments.take((id,))]
            self._found = [(PaymentRow(*row[:_PAYMENT_COLUMNS]), DerivedRow(*row[_PAYMENT_COLUMNS:])) for row in rows]
        return self._found

    def events(self, id: str, after: int) -> Iterable[tuple[EventRow, CreditRow]]:  # noqa: ARG002 - the cursor knows
        """See `Snapshot`."""
        for row in self._events.take((id,)):
            self._events_read += 1
            yield EventRow(*row[:_EVENT_COLUMNS]), CreditRow(*row[_EVENT_COLUMNS:])

    def counts(self, id: str) -> tuple[int, int]:
        """See `Snapshot`."""
        return self._events_read, sum(number for (number,) in self._credits.take((id,)))

    def check_columns(self, payment: PaymentRow, columns: DerivedRow, settings: SettingsRow | None) -> None:
        """See `Snapshot`."""
        check_reference(payment, columns.reference, settings)
        check_derived(payment, columns)

    def keys(self, after: tuple[str, str]) -> Iterable[KeyRow]:  # noqa: ARG002 - the cursor knows its place
        """See `Snapshot`."""
        return (KeyRow(*row) for row in self._keys)

    def next_streams(self, after: tuple[str, str]) -> Sequence[Any]:
        """See `Snapshot`."""
        for stream in (self._streams, self._deliveries):
            stream.skip(after)
        return [each.key for each in (self._streams, self._deliveries) if each.key is not None]

    def streams(self, consumer: str, id: str) -> tuple[Sequence[StreamRow], Any]:
        """See `Snapshot`."""
        rows = list(self._streams.take((consumer, id)))
        versions = [row[0] for row in rows] or [self._deliveries.head[2]]
        return [StreamRow(*row[1:]) for row in rows], versions[0]

    def deliveries(self, consumer: str, id: str) -> Iterable[DeliveryRow]:
        """See `Snapshot`."""
        return (DeliveryRow(*row[1:]) for row in self._deliveries.take((consumer, id)))

    def count_metadata(self) -> tuple[int, int]:
        """Return the numbers of payments with metadata, and of those among them that have ended."""
        [(number, ended)] = self.rows(_COUNT_METADATA)
        return number, ended

    @cached_property
    def _payments(self) -> _Stream:
        return _Stream(self._cursor("payments", _SELECT_PAYMENTS), 1)

    @cached_property
    def _events(self) -> _Stream:
        return _Stream(self._cursor("events", _SELECT_EVENTS), 1)

    @cached_property
    def _credits(self) -> _Stream:
        return _Stream(self._cursor("credits", _COUNT_CREDITS), 1)

    @cached_property
    def _keys(self) -> Iterator[Sequence[Any]]:
        return self._cursor("keys", _SELECT_KEYS)

    @cached_property
    def _streams(self) -> _Stream:
        return _Stream(self._cursor("streams", _SELECT_STREAMS), 2)

    @cached_property
    def _deliveries(self) -> _Stream:
        return _Stream(self._cursor("deliveries", _SELECT_DELIVERIES), 2)

    def _cursor(self, name: str, statement: str) -> Iterator[Sequence[Any]]:
        cursor = self._connection.cursor(name)
        self._cursors.append(cursor)
        cursor.itersize = _ROWS_MAX
        return iter(cursor.execute(statement.encode()))

    def close(self) -> None:
        """End the transaction."""
        for cursor in self._cursors:
            with suppress(psycopg.Error):
                cursor.close()
        self._connection.close()


class PostgresDatabase:
    """The database at the connection string or URL `conninfo`. Raises `AuditFailed` and `ConfigurationError`."""

    def __init__(self, conninfo: str) -> None:
        conninfo = connection_string(conninfo)
        self.name = shown(conninfo)
        self._conninfo = conninfo
        self._at_exit = ExitStack()
        self._snapshot: PostgresSnapshot | None = None
        try:
            check_schema(conninfo)
        except StoreError as error:
            raise AuditFailed(f"{self.name} cannot be audited: {error.description}") from error

    @contextmanager
    def read(self) -> Iterator[PostgresSnapshot]:
        """Yield the snapshot, which is the same in each call. Raises `Damaged`, also for errors of the block."""
        try:
            if self._snapshot is None:
                self._snapshot = self._begin()
            self._snapshot.end_s = time.monotonic() + AUDIT_SLICE_S_MAX
            yield self._snapshot
        except psycopg.errors.InsufficientPrivilege as error:
            raise AuditFailed(f"{self.name} cannot be read ({error}): let the role read all of its tables") from error
        except (psycopg.ProgrammingError, psycopg.DataError, psycopg.InternalError) as error:
            raise Damaged(" ".join(str(error).split())) from error
        except psycopg.Error as error:
            text = " ".join(str(error).split())
            raise AuditFailed(f"{self.name} cannot be read ({text}): correct this, and repeat the audit") from error

    def _begin(self) -> PostgresSnapshot:
        connection = psycopg.connect(self._conninfo)
        snapshot = PostgresSnapshot(connection)
        self._at_exit.callback(snapshot.close)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        connection.execute(_SETTINGS.encode())
        return snapshot

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._at_exit.close()


class Metadata:
    """The numbers of rows with metadata. The pass over the payments has compared them."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def run(self, snapshot: PostgresSnapshot) -> bool:
        """See `Pass`."""
        counts = self._tally.counts
        counts["metadata"], counts["metadata_to_erase"] = snapshot.count_metadata()
        return True

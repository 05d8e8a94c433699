"""Fill databases with payments, as the store would have written them, by plain SQL.

Each payment has three credits of packets, their events, and an acknowledged delivery of the three `credited` events.
Nine of ten payments are completed by their third credit. The others are open and have a time of expiry. There is one
payment in each millisecond, and a hundred payments in each wallet address.
"""

# ruff: noqa: S608 - the statements are made of constants and numbers
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import psycopg
from attrs import frozen

from _postgres import Server
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import Consumer, ConsumerName, Start
from incoming_payments.domain.payment import STREAM_CREDITS, CreditId, IncomingPayment, PaymentId, WalletAddressUrl
from incoming_payments.stores.postgres import PostgresStore, migrate
from incoming_payments.testing import a_creation, a_wallet_address, crediting

CREDITS: Final = 3  # credits of each payment
OPEN_EACH: Final = 10  # one of so many payments is open
PAYMENTS_OF_WALLET: Final = 100
WALLET: Final = "https://bank.example/accounts/"
CONSUMER: Final = Consumer(name=ConsumerName("ledger"), kinds=[EventKind.CREDITED])
_CLIENT: Final = "https://shop.example/"
_METADATA: Final = '{"externalRef":"INV-2026-0042"}'
_METADATA_SQL: Final = _METADATA.replace("{", "{{").replace("}", "}}")  # for `format`
_AMOUNT: Final = 100
_EXPIRES_S: Final = 90 * 86_400
_PEER: Final = "g.bank.connector"
_TABLES: Final = ("payments", "credits", "events", "deliveries")

_ID: Final = "(lpad(to_hex({began} + i), 12, '0') || '7' || substr(hash, 1, 3) || '8' || substr(hash, 4, 15))::uuid"
_AT: Final = "({began} + i) * 1000"
_CREDIT_ID: Final = (
    f"'{STREAM_CREDITS}' || lpad(to_hex(k), 16, '0') || ':' || encode(sha256((hash || k)::bytea), 'base64')"
)
_IS_OPEN: Final = f"i % {OPEN_EACH} = 0"
_HASHED: Final = "(SELECT i, md5('payment ' || i) AS hash FROM {} AS i OFFSET 0) AS numbers"
_NUMBERS: Final = _HASHED.format("generate_series(0::bigint, {payments} - 1)")
_FILLS: Final = (
    f"""
    INSERT INTO incoming_payments.payments (id, version, received_amount, updated_at, wallet_address, client,
        asset_code, asset_scale, incoming_amount, expires_at, metadata, created_at, closed_at, sweep_at, ended_at,
        is_unpaid)
    SELECT {_ID}, CASE WHEN {_IS_OPEN} THEN {CREDITS + 1} ELSE {CREDITS + 2} END, {CREDITS * _AMOUNT},
        {_AT} + {CREDITS}, '{WALLET}' || i / {PAYMENTS_OF_WALLET}, '{_CLIENT}', 'USD', 2,
        CASE WHEN {_IS_OPEN} THEN 1000000 ELSE {CREDITS * _AMOUNT} END, {_AT} + {_EXPIRES_S * 10**6},
        '{_METADATA_SQL}', {_AT}, NULL, CASE WHEN {_IS_OPEN} THEN {_AT} + {_EXPIRES_S * 10**6} END,
        CASE WHEN {_IS_OPEN} THEN NULL ELSE {_AT} + {CREDITS} END, false
    FROM {_NUMBERS}
    """,
    f"""
    INSERT INTO incoming_payments.credits (payment_id, credit_id, amount, received_amount, completes, at)
    SELECT {_ID}, {_CREDIT_ID}, {_AMOUNT}, k * {_AMOUNT}, k = {CREDITS} AND NOT {_IS_OPEN}, {_AT} + k
    FROM {_NUMBERS}, generate_series(1, {CREDITS}) AS k
    """,
    f"""
    INSERT INTO incoming_payments.events (payment_id, version, kind, at, received_amount, credit_id, peer)
    SELECT {_ID}, k + 1, CASE k WHEN 0 THEN 'created' WHEN {CREDITS + 1} THEN 'completed' ELSE 'credited' END,
        {_AT} + least(k, {CREDITS}), least(k, {CREDITS}) * {_AMOUNT},
        CASE WHEN k BETWEEN 1 AND {CREDITS} THEN {_CREDIT_ID} END,
        CASE WHEN k BETWEEN 1 AND {CREDITS} THEN '{_PEER}' END
    FROM {_NUMBERS}, generate_series(0, {CREDITS + 1}) AS k WHERE k <= {CREDITS} OR NOT {_IS_OPEN}
    """,
    f"""
    INSERT INTO incoming_payments.deliveries (consumer, payment_id, first_version, last_version, payload, attempts,
        created_at, ending, ended_at)
    SELECT '{CONSUMER.name}', {_ID}, 2, {CREDITS + 1}, '', 1, {_AT} + {CREDITS}, 'delivered', {_AT} + {CREDITS}
    FROM {_NUMBERS}
    """,
)
_DEFINITIONS: Final = """
    SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid), conname, pg_get_constraintdef(pg_constraint.oid)
    FROM pg_index LEFT JOIN pg_constraint ON conindid = indexrelid AND contype = 'p'
    WHERE indrelid = 'incoming_payments.{table}'::regclass
"""


@frozen
class Filled:
    """A database with `payments` payments, from the one that was created in the millisecond `began`."""

    server: Server
    name: str
    payments: int
    began: int

    @property
    def conninfo(self) -> str:
        """The connection string."""
        return self.server.conninfo(self.name)

    def wallet(self, place: int) -> WalletAddressUrl:
        """Return the wallet address of a payment, from 0."""
        return WalletAddressUrl(f"{WALLET}{place // PAYMENTS_OF_WALLET}")

    def ids(self, places: list[int]) -> list[PaymentId]:
        """Return the ids of payments, from 0."""
        id = _ID.format(began=self.began)
        query = f"SELECT {id}::text FROM {_HASHED.format(f'unnest(ARRAY{places}::bigint[])')}"
        return [PaymentId(row[0]) for row in self.server.execute(self.name, query)]

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each table with its indexes."""
        query = "SELECT pg_total_relation_size('incoming_payments.{}')"
        return {table: self.server.execute(self.name, query.format(table))[0][0] for table in _TABLES}

    def updates(self) -> tuple[int, int]:
        """Return the number of updates of payments, and of those that have written to no index (HOT)."""
        time.sleep(2)  # a session reports its numbers after a second
        query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'payments'"
        [(all_, hot)] = self.server.execute(self.name, query)
        return int(all_), int(hot)


def fill(server: Server, payments: int) -> Filled:
    """Create a database with `payments` payments. The server should have the settings `FILLING`."""
    now = datetime.now(UTC)
    began = int((now - timedelta(milliseconds=payments, hours=1)).timestamp() * 1000)
    filled = Filled(server, f"payments_{payments}", payments, began)
    server.execute("postgres", f"CREATE DATABASE {filled.name}")
    migrate(filled.conninfo)
    with PostgresStore(filled.conninfo) as store:
        while not store.feed.register(CONSUMER, Start.NOW, now):
            pass
    with ThreadPoolExecutor(len(_TABLES)) as executor:
        list(executor.map(partial(_fill, filled), _TABLES, _FILLS))
    _check(filled)
    return filled


def _fill(filled: Filled, table: str, statement: str) -> None:
    """Insert the rows without indexes, and create the indexes again. This is faster, and leaves no bloat.

    The table is emptied in the same transaction, so the server writes no log.
    """
    begin_s = time.perf_counter()
    with psycopg.connect(filled.conninfo, autocommit=True) as connection:
        indexes = connection.execute(_DEFINITIONS.format(table=table).encode()).fetchall()
        with connection.transaction():
            connection.execute(f"TRUNCATE incoming_payments.{table}".encode())
            for name, _, constraint, _ in indexes:
                drop = f"ALTER TABLE incoming_payments.{table} DROP CONSTRAINT {constraint}"
                connection.execute((drop if constraint else f"DROP INDEX {name}").encode())
            connection.execute(statement.format(began=filled.began, payments=filled.payments).encode())
            for _, definition, constraint, key in indexes:
                add = f"ALTER TABLE incoming_payments.{table} ADD CONSTRAINT {constraint} {key}"
                connection.execute((add if constraint else definition).encode())
        connection.execute(f"VACUUM (ANALYZE, FREEZE) incoming_payments.{table}".encode())
    print(f"{filled.payments:,} payments: {table} in {time.perf_counter() - begin_s:,.0f} s", flush=True)


def _check(filled: Filled) -> None:
    """Check that the rows are those of the store, except for the ids of credits and the peers."""
    completed, opened = filled.ids([1, 0])
    with PostgresStore(filled.conninfo) as store:
        for id in (completed, opened):
            ours, theirs = store.load(id), _as_stored(store, store.load(id))
            assert (ours.terms.limit, ours.progress) == (theirs.terms.limit, theirs.progress)
            shapes = [
                [(event.version, event.kind, event.at, event.received) for event in store.events(payment.id)]
                for payment in (ours, theirs)
            ]
            assert shapes[0] == shapes[1]
    columns = "is_unpaid, sweep_at IS NULL, ended_at IS NULL, closed_at IS NULL, reference IS NULL"
    kinds = "SELECT count(*) FROM (SELECT DISTINCT incoming_amount, {} FROM incoming_payments.payments) AS kinds"
    if filled.payments <= 1000:  # the two payments of the store have no other derived columns
        assert filled.server.execute(filled.name, kinds.format(columns)) == [(2,)]


def _as_stored(store: PostgresStore, like: IncomingPayment) -> IncomingPayment:
    """Store a payment like a filled one, and return it."""
    assert like.limit is not None
    created = a_creation(
        limit=like.limit.value,
        expires_in_s=_EXPIRES_S,
        metadata=_METADATA,
        wallet_address=a_wallet_address(like.wallet_address),
        now=like.created_at,
    )
    store.insert(created)
    id = created.answer.id
    for number in range(1, CREDITS + 1):
        at = like.created_at + timedelta(microseconds=number)
        store.update(id, crediting(f"wire-{number}", _AMOUNT, now=at), CreditId(f"wire-{number}"))
    return store.load(id)

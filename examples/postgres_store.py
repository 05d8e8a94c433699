"""A store of payments on PostgreSQL, by psycopg 3. Run `SCHEMA` once, as one of your migrations."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import attrs
import psycopg
from attrs import asdict
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool, PoolClosed

from incoming_payments.stores import (
    Amount,
    Asset,
    ClientId,
    Credit,
    CreditId,
    Decide,
    Decision,
    Event,
    EventKind,
    IdempotencyKey,
    IncomingPayment,
    KeyedCreation,
    PaymentExists,
    PaymentId,
    PaymentNotFound,
    PaymentQuery,
    Progress,
    State,
    StoreUnavailable,
    StoreUnusable,
    Terms,
    check_insert,
    check_update,
    sweep_at,
)

T = TypeVar("T")
Connection = psycopg.Connection[DictRow]

SCHEMA = """
CREATE TABLE payments (
    id text COLLATE "C" PRIMARY KEY, wallet_address text NOT NULL, client text NOT NULL,
    asset_code text NOT NULL, asset_scale smallint NOT NULL, created_at timestamptz NOT NULL,
    incoming_amount numeric(20), expires_at timestamptz, metadata text,
    received_amount numeric(20) NOT NULL, updated_at timestamptz NOT NULL, version bigint NOT NULL,
    closed_at timestamptz, expiry_announced_at timestamptz, sweep_at timestamptz
);
CREATE INDEX ON payments (sweep_at, id) WHERE sweep_at IS NOT NULL;
CREATE INDEX ON payments (created_at, id);
CREATE INDEX ON payments (wallet_address, created_at, id);
CREATE INDEX ON payments (wallet_address, client, created_at, id);
CREATE TABLE credits (
    payment_id text, credit_id text, amount numeric(20) NOT NULL, received_amount numeric(20) NOT NULL,
    completes boolean NOT NULL, at timestamptz NOT NULL, PRIMARY KEY (payment_id, credit_id)
);
CREATE TABLE events (
    payment_id text, version bigint, kind text NOT NULL, at timestamptz NOT NULL,
    received_amount numeric(20) NOT NULL, credit_id text, peer text, PRIMARY KEY (payment_id, version)
);
CREATE TABLE idempotency_keys (
    client text, key text, fingerprint text NOT NULL, payment text NOT NULL, until timestamptz NOT NULL,
    PRIMARY KEY (client, key)
);
CREATE INDEX ON idempotency_keys (until);
"""
# Without synchronous_commit, a crash of the server can remove acknowledged credits. lock_timeout bounds each wait.
OPTIONS = "-c timezone=UTC -c synchronous_commit=on -c lock_timeout=5s -c client_min_messages=warning"


# The conditions of `state_of` on the columns; `now` is a parameter.
COMPLETED = "(closed_at IS NOT NULL OR received_amount >= incoming_amount IS TRUE)"
EXPIRED = "(expiry_announced_at IS NOT NULL OR expires_at < %(now)s IS TRUE)"
STATES = {
    State.PENDING: f"NOT {COMPLETED} AND NOT {EXPIRED} AND received_amount = 0",
    State.PROCESSING: f"NOT {COMPLETED} AND NOT {EXPIRED} AND received_amount > 0",
    State.COMPLETED: COMPLETED,
    State.EXPIRED: f"NOT {COMPLETED} AND {EXPIRED}",
}


class PostgresStore:
    """A `PaymentStore` in the database of the connection string `conninfo`, for threads and any number of processes."""

    def __init__(self, conninfo: str) -> None:
        kwargs = {"row_factory": dict_row, "options": OPTIONS}
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            conninfo, kwargs=kwargs, min_size=1, max_size=8, timeout=5, open=True
        )

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        payment = check_insert(decision)
        terms = payment.terms
        row = (terms.id, terms.wallet_address, terms.client, terms.asset.code, terms.asset.scale, terms.created_at)
        more = (terms.limit and terms.limit.value, terms.expires_at, terms.metadata)
        query = (
            "INSERT INTO payments VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) "
            "ON CONFLICT DO NOTHING"
        )
        with self._transaction() as connection:
            if (earlier := _take_key(connection, decision.keyed, terms.created_at)) is not None:
                return earlier
            if not connection.execute(query, (*row, *more, *_progress(payment))).rowcount:
                raise PaymentExists(f"payment {terms.id} exists already")
            _write_events(connection, decision.events)
        return None

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        # With the lock, COMMIT waits until a standby has the record, as the first answer did.
        query = "SELECT * FROM idempotency_keys WHERE client = %s AND key = %s AND until >= %s FOR UPDATE"
        with self._transaction() as connection:
            row = connection.execute(query, (client, key, now)).fetchone()
        return None if row is None else KeyedCreation(**row)

    def load(self, id: PaymentId) -> IncomingPayment:
        with self._transaction() as connection:
            return _payment(connection.execute("SELECT * FROM payments WHERE id = %s", (id,)).fetchone(), id)

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        with self._transaction() as connection:
            locked = connection.execute("SELECT * FROM payments WHERE id = %s FOR UPDATE", (id,)).fetchone()
            before = _payment(locked, id)
            query = "SELECT * FROM credits WHERE payment_id = %s AND credit_id = %s"
            earlier = _credit(connection.execute(query, (id, credit_id)).fetchone(), before)
            decision = decide(before, earlier)
            after = check_update(before, credit_id, earlier, decision)
            if after is not None:
                connection.execute(
                    "UPDATE payments SET received_amount = %s, updated_at = %s, version = %s, closed_at = %s, "
                    "expiry_announced_at = %s, sweep_at = %s WHERE id = %s",
                    (*_progress(after), id),
                )
                if (credit := decision.credit) is not None:
                    values = (id, credit.id, credit.amount.value, credit.received.value, credit.completes, credit.at)
                    connection.execute("INSERT INTO credits VALUES (%s, %s, %s, %s, %s, %s)", values)
                _write_events(connection, decision.events)
        return decision.answer  # committed: the block has ended

    def events(self, id: PaymentId) -> Sequence[Event]:
        query = (
            "SELECT events.*, asset_code, asset_scale FROM events JOIN payments ON id = payment_id "
            "WHERE payment_id = %s ORDER BY events.version"
        )
        with self._transaction() as connection:
            rows = connection.execute(query, (id,)).fetchall()
        if not rows:
            raise PaymentNotFound(f"there is no payment {id}")
        return [_event(row) for row in rows]

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        query = "SELECT id FROM payments WHERE sweep_at < %s ORDER BY sweep_at, id LIMIT %s"
        with self._transaction() as connection:
            return [row["id"] for row in connection.execute(query, (now, limit))]

    def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        conditions = {
            "wallet_address = %(wallet_address)s": query.wallet_address,
            "client = %(client)s": query.client,
            "created_at >= %(created_from)s": query.created_from,
            "created_at < %(created_before)s": query.created_before,
            "(created_at, id) < (%(below)s, %(below_id)s)": query.older_than,
            "(created_at, id) > (%(above)s, %(above_id)s)": query.newer_than,
            STATES[query.state or State.PENDING]: query.state,
        }
        where = " AND ".join(["TRUE", *(text for text, value in conditions.items() if value is not None)])
        order = "DESC" if query.newer_than is None else "ASC"
        below, above = query.older_than or (None, None), query.newer_than or (None, None)
        places = {"below": below[0], "below_id": below[1], "above": above[0], "above_id": above[1]}
        # Only constants are in the text of the statement.
        statement = f"SELECT * FROM payments WHERE {where} ORDER BY created_at {order}, id {order} LIMIT %(limit)s"  # noqa: S608
        with self._transaction() as connection:
            rows = connection.execute(statement.encode(), {**asdict(query, recurse=False), **places}).fetchall()
        page = [_payment(row, row["id"]) for row in rows]
        return page if query.newer_than is None else page[::-1]

    def close(self) -> None:
        self._pool.close()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Yield a connection. Commit at the end of the block, or roll back at an exception."""
        try:
            with self._pool.connection() as connection, _warnings(connection) as warnings:
                yield connection
                connection.commit()  # the pool does not commit on a closed connection, and raises no error
                if warnings:  # for example, the wait for a standby was cancelled
                    raise StoreUnavailable(f"the outcome of COMMIT is unknown ({warnings}): repeat the call later")
        except PoolClosed as error:
            raise StoreUnusable("the store is closed: open another") from error
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
            raise StoreUnavailable(f"PostgreSQL is unavailable ({error}): repeat the call later") from error
        except psycopg.Error as error:
            raise StoreUnusable(f"PostgreSQL refused a statement: {error}") from error


@contextmanager
def _warnings(connection: Connection) -> Iterator[list[str | None]]:
    """Yield a list that gets the warnings of PostgreSQL."""
    warnings: list[str | None] = []

    def note(notice: psycopg.errors.Diagnostic) -> None:
        warnings.append(notice.message_primary)

    connection.add_notice_handler(note)
    try:
        yield warnings
    finally:
        connection.remove_notice_handler(note)


def _take_key(connection: Connection, keyed: KeyedCreation | None, now: datetime) -> KeyedCreation | None:
    """Write the record of an idempotency key, or return the earlier one. Wait for a transaction that writes the key."""
    if keyed is None:
        return None
    query = (
        "INSERT INTO idempotency_keys AS old VALUES (%(client)s, %(key)s, %(fingerprint)s, %(payment)s, %(until)s) "
        "ON CONFLICT (client, key) DO UPDATE SET fingerprint = excluded.fingerprint, payment = excluded.payment, "
        "until = excluded.until WHERE old.until < %(now)s"
    )
    if not connection.execute(query, {**attrs.asdict(keyed), "now": now}).rowcount:
        query = "SELECT * FROM idempotency_keys WHERE client = %s AND key = %s"
        [row] = connection.execute(query, (keyed.client, keyed.key)).fetchall()
        return KeyedCreation(**row)
    # Delete two expired records. SKIP LOCKED: two transactions never wait for each other's records.
    connection.execute(
        "DELETE FROM idempotency_keys WHERE (client, key) IN "
        "(SELECT client, key FROM idempotency_keys WHERE until < %s ORDER BY until LIMIT 2 FOR UPDATE SKIP LOCKED)",
        (now,),
    )
    return None


def _progress(payment: IncomingPayment) -> tuple[Any, ...]:
    """Return the columns that change."""
    now = payment.progress
    return (now.received.value, now.updated_at, now.version, now.closed_at, now.expiry_announced_at, sweep_at(payment))


def _write_events(connection: Connection, events: Sequence[Event]) -> None:
    for event in events:
        row = (event.payment_id, event.version, event.kind.value, event.at, event.received.value)
        connection.execute(
            "INSERT INTO events VALUES (%s, %s, %s, %s, %s, %s, %s)", (*row, event.credit_id, event.peer)
        )


def _payment(row: DictRow | None, id: PaymentId) -> IncomingPayment:
    if row is None:
        raise PaymentNotFound(f"there is no payment {id}")
    asset = Asset(row["asset_code"], row["asset_scale"])
    limit = None if row["incoming_amount"] is None else Amount(int(row["incoming_amount"]), asset)
    names = ("wallet_address", "client", "created_at", "expires_at", "metadata")
    received = Amount(int(row["received_amount"]), asset)
    changing = {name: row[name] for name in ("updated_at", "version", "closed_at", "expiry_announced_at")}
    terms = Terms(id=id, asset=asset, limit=limit, **{name: row[name] for name in names})
    return IncomingPayment(terms, Progress(received, **changing))


def _credit(row: DictRow | None, payment: IncomingPayment) -> Credit | None:
    if row is None:
        return None
    amount, received = (Amount(int(row[name]), payment.asset) for name in ("amount", "received_amount"))
    return Credit(payment.id, row["credit_id"], amount, received, row["completes"], row["at"])


def _event(row: DictRow) -> Event:
    received = Amount(int(row["received_amount"]), Asset(row["asset_code"], row["asset_scale"]))
    kind = EventKind(row["kind"])
    return Event(row["payment_id"], row["version"], kind, row["at"], received, row["credit_id"], row["peer"])

"""The tables of the store, and the steps that bring a database from one version to the next.

Every version has two lists of steps. The steps *before* add what the new code needs, and the old code still works with
them. The steps *after* remove what only the old code needed. So a service is upgraded without a stop: run the steps
before, replace the processes, and run the steps after.

All tables are in the schema `incoming_payments`, and every statement names it, so a `search_path` has no effect.

- Ids of payments are `uuid`: 16 bytes in place of 36, and an order that depends on no collation.
- Amounts are `numeric(20)`, because the largest is 2**64 - 1.
- Times are microseconds since 1970 in UTC, as `bigint`. They are exact, do not depend on the time zone or the date
  style of a session, and are equal to the times in the files of the SQLite store.
- Other texts in an index have `COLLATE "C"`: the index then depends on no library of the operating system, and an
  upgrade of that library cannot damage it.
- A credit changes no column of an index on `payments`, so PostgreSQL writes the new row beside the old one (HOT), and
  writes to no index. Do not add an index, or a condition of an index, on `received_amount`, `updated_at` or `version`.
"""

from typing import Final

from attrs import frozen


@frozen
class Version:
    """One version of the tables.

    A step is one SQL statement. All steps of a list run in one transaction, except a step that begins with
    `CREATE INDEX CONCURRENTLY` or `DROP INDEX CONCURRENTLY`, which runs alone. An index that readers need on a large
    table is created concurrently, with `IF NOT EXISTS`.
    """

    number: int
    before: tuple[str, ...]
    after: tuple[str, ...] = ()


# This table has one row: the last versions that have run their steps `before` and `after`.
CREATE_VERSIONS: Final = (
    "CREATE SCHEMA IF NOT EXISTS incoming_payments",
    """
    CREATE TABLE IF NOT EXISTS incoming_payments.schema_version (
        id smallint PRIMARY KEY CHECK (id = 1),
        before integer NOT NULL,
        after integer NOT NULL CHECK (after <= before)
    )
    """,
    "INSERT INTO incoming_payments.schema_version (id, before, after) VALUES (1, 0, 0) ON CONFLICT (id) DO NOTHING",
)

_PAYMENTS: Final = (
    # `sweep_at` and `ended_at` are what `guard.sweep_at` and `guard.ended_at` return. `reference` is a digest of the
    # reference, so that an erasure leaves no text in an index. `is_unpaid` is what `guard.is_unpaid` returns.
    """
    CREATE TABLE incoming_payments.payments (
        id uuid PRIMARY KEY,
        version bigint NOT NULL CHECK (version > 0),
        received_amount numeric(20) NOT NULL CHECK (received_amount >= 0),
        updated_at bigint NOT NULL CHECK (updated_at >= created_at),
        wallet_address text COLLATE "C" NOT NULL,
        client text COLLATE "C" NOT NULL,
        asset_code text NOT NULL,
        asset_scale smallint NOT NULL CHECK (asset_scale BETWEEN 0 AND 255),
        incoming_amount numeric(20) CHECK (incoming_amount > 0),
        expires_at bigint,
        metadata text,
        created_at bigint NOT NULL,
        closed_at bigint,
        expiry_announced_at bigint,
        sweep_at bigint CHECK (sweep_at IS NULL OR sweep_at = expires_at),
        ended_at bigint,
        reference bytea,
        is_unpaid boolean NOT NULL
    ) WITH (fillfactor = 85)
    """,
    "CREATE INDEX payments_to_sweep ON incoming_payments.payments (sweep_at, id) WHERE sweep_at IS NOT NULL",
    "CREATE INDEX payments_created ON incoming_payments.payments (created_at, id)",
    "CREATE INDEX payments_of_wallet ON incoming_payments.payments (wallet_address, created_at, id)",
    "CREATE INDEX payments_of_client ON incoming_payments.payments (wallet_address, client, created_at, id)",
    """
    CREATE INDEX payments_of_reference ON incoming_payments.payments (reference, created_at, id)
    WHERE reference IS NOT NULL
    """,
    """
    CREATE INDEX payments_to_erase ON incoming_payments.payments (ended_at, id)
    WHERE ended_at IS NOT NULL AND metadata IS NOT NULL
    """,
    "CREATE INDEX payments_unpaid ON incoming_payments.payments (client, id) WHERE is_unpaid",
    """
    CREATE TABLE incoming_payments.credits (
        payment_id uuid,
        credit_id text COLLATE "C",
        amount numeric(20) NOT NULL CHECK (amount > 0),
        received_amount numeric(20) NOT NULL CHECK (received_amount >= amount),
        completes boolean NOT NULL,
        at bigint NOT NULL,
        PRIMARY KEY (payment_id, credit_id)
    )
    """,
    # `peer` is the ILP address of the peer that sent the packet of a credit.
    """
    CREATE TABLE incoming_payments.events (
        payment_id uuid,
        version bigint CHECK (version > 0),
        kind text NOT NULL,
        at bigint NOT NULL,
        received_amount numeric(20) NOT NULL CHECK (received_amount >= 0),
        credit_id text,
        peer text,
        PRIMARY KEY (payment_id, version)
    )
    """,
    """
    CREATE TABLE incoming_payments.idempotency_keys (
        client text COLLATE "C",
        key text COLLATE "C",
        fingerprint text NOT NULL,
        payment_id uuid NOT NULL,
        until bigint NOT NULL,
        PRIMARY KEY (client, key)
    )
    """,
    "CREATE INDEX idempotency_keys_to_sweep ON incoming_payments.idempotency_keys (until)",
    # The used nonces, of 32 bytes each. The counts are spread over many rows, so that requests do not queue behind one.
    # The sum of `held` is the number of nonces. Nonces with `until` up to the greatest `swept_until` may have been
    # removed.
    "CREATE TABLE incoming_payments.nonces (key bytea PRIMARY KEY, until bigint NOT NULL)",
    "CREATE INDEX nonces_to_sweep ON incoming_payments.nonces (until, key)",
    """
    CREATE TABLE incoming_payments.nonce_counts (
        slot smallint PRIMARY KEY,
        held bigint NOT NULL,
        swept_until bigint NOT NULL
    ) WITH (fillfactor = 10)
    """,
    """
    INSERT INTO incoming_payments.nonce_counts (slot, held, swept_until)
    SELECT slot, 0, -9223372036854775808 FROM generate_series(0, 31) AS slot
    """,
    # `reference` is the member of the metadata that is indexed. `reindexed_to` is the last payment that `reindex` has
    # passed, until all payments are indexed.
    """
    CREATE TABLE incoming_payments.settings (
        id smallint PRIMARY KEY CHECK (id = 1),
        reference text,
        reindexed_to uuid
    )
    """,
    "INSERT INTO incoming_payments.settings (id) VALUES (1)",
)
_FEED: Final = (
    # `kinds` and `wallet_addresses` are NULL to admit all. `registration` is the number of the last change of the
    # consumer. `is_known` is true when all writers know the consumer (see `_streams`), and `scanned_to` is the last
    # payment that its registration has passed, until all old payments are passed. `numeric` keeps the floats exactly.
    """
    CREATE TABLE incoming_payments.consumers (
        name text COLLATE "C" PRIMARY KEY,
        kinds text[],
        wallet_addresses text[],
        joins_credits boolean NOT NULL,
        credit_delay_s numeric NOT NULL,
        down_after_s numeric,
        disable_after_s numeric,
        registration bigint NOT NULL,
        is_known boolean NOT NULL,
        scanned_to uuid,
        is_removed boolean NOT NULL,
        failing_since bigint,
        disabled_at bigint
    )
    """,
    # `registration` is the number of the last registration, which has a row of its own, and the number of the last one
    # that the writers with this slot know.
    """
    CREATE TABLE incoming_payments.registrations (
        id smallint PRIMARY KEY CHECK (id = 1),
        registration bigint NOT NULL
    )
    """,
    "INSERT INTO incoming_payments.registrations (id, registration) VALUES (1, 0)",
    """
    CREATE TABLE incoming_payments.feed_writers (
        slot smallint PRIMARY KEY,
        registration bigint NOT NULL
    ) WITH (fillfactor = 10)
    """,
    """
    INSERT INTO incoming_payments.feed_writers (slot, registration)
    SELECT slot, 0 FROM generate_series(0, 255) AS slot
    """,
    # The streams with events that a consumer has not handled. A stream without a row is handled. `acknowledged` is the
    # version up to which the events are handled, and `head` the version of the last event that the filter admits. An
    # open stream has a delivery that has not ended. The rows change often, so VACUUM comes early.
    """
    CREATE TABLE incoming_payments.streams (
        consumer text COLLATE "C",
        payment_id uuid,
        acknowledged bigint NOT NULL CHECK (acknowledged >= 0),
        head bigint NOT NULL CHECK (head > acknowledged),
        due_at bigint NOT NULL,
        is_open boolean NOT NULL,
        PRIMARY KEY (consumer, payment_id)
    ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)
    """,
    "CREATE INDEX streams_due ON incoming_payments.streams (consumer, due_at, payment_id) WHERE NOT is_open",
    # `due_at` is NULL when the delivery has ended. `lease` is NULL while no attempt is in progress.
    """
    CREATE TABLE incoming_payments.deliveries (
        consumer text COLLATE "C",
        payment_id uuid,
        first_version bigint CHECK (first_version > 0),
        last_version bigint NOT NULL CHECK (last_version >= first_version),
        payload bytea NOT NULL,
        attempts integer NOT NULL CHECK (attempts >= 0),
        created_at bigint NOT NULL,
        due_at bigint,
        lease bytea,
        ending text CHECK (ending IN ('delivered', 'dead')),
        ended_at bigint,
        error text,
        PRIMARY KEY (consumer, payment_id, first_version),
        CHECK ((ending IS NULL) = (ended_at IS NULL) AND (ending IS NULL) = (due_at IS NOT NULL))
    ) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02)
    """,
    """
    CREATE INDEX deliveries_due ON incoming_payments.deliveries (consumer, due_at, payment_id, first_version)
    WHERE due_at IS NOT NULL
    """,
    "CREATE INDEX deliveries_leased ON incoming_payments.deliveries (consumer, due_at) WHERE lease IS NOT NULL",
    "CREATE INDEX deliveries_of_payment ON incoming_payments.deliveries (payment_id)",
    "CREATE INDEX deliveries_delivered ON incoming_payments.deliveries (ended_at) WHERE ending = 'delivered'",
    """
    CREATE INDEX deliveries_dead ON incoming_payments.deliveries (consumer, ended_at, payment_id, first_version)
    WHERE ending = 'dead'
    """,
    # A payment has any number of `credited` events, but at most one other event after its first. This index lets a
    # consumer that excludes `credited` events pass over them.
    """
    CREATE INDEX events_of_other_kinds ON incoming_payments.events (payment_id, version)
    WHERE kind <> 'credited' AND version > 1
    """,
)
_QUOTAS: Final = (
    # `full_at` is the time at which the whole quota of requests is available again. An insert locks the row of its
    # client, so that it counts the unpaid payments of this client alone.
    """
    CREATE TABLE incoming_payments.quota_clients (
        client text COLLATE "C" PRIMARY KEY,
        full_at bigint NOT NULL
    ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)
    """,
    "CREATE INDEX quota_clients_to_sweep ON incoming_payments.quota_clients (full_at)",
)
_COPIES: Final = (
    # The copy of a SQLite database into this one. Until the copy is complete, no store opens this database. `place` is
    # the table and the key that the copy has reached, as JSON.
    """
    CREATE TABLE incoming_payments.copies (
        id smallint PRIMARY KEY CHECK (id = 1),
        copy_id text NOT NULL,
        source text NOT NULL,
        is_complete boolean NOT NULL,
        place text NOT NULL
    )
    """,
)
_VERSION_1: Final = (*_PAYMENTS, *_FEED, *_QUOTAS, *_COPIES)
VERSIONS: Final = (Version(1, _VERSION_1),)
VERSION: Final = VERSIONS[-1].number

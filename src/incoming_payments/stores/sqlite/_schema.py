"""The tables of the database file, and how a file of an earlier version gets them."""

import re
from typing import Final

APPLICATION_ID: Final = int.from_bytes(b"IPay")  # the number in the header of every database file
VERSION: Final = 2

# Amounts are minor units of the asset as decimal text. Times are microseconds since 1970 in UTC.
VERSION_1: Final = (
    # `sweep_at` is equal to `expires_at` until the expiry is announced, and NULL after that.
    """
    CREATE TABLE payments (
        id TEXT PRIMARY KEY NOT NULL,
        version INTEGER NOT NULL CHECK (version > 0),
        received_amount TEXT NOT NULL CHECK (received_amount NOT GLOB '*[^0-9]*'),
        updated_at INTEGER NOT NULL CHECK (updated_at >= created_at),
        wallet_address TEXT NOT NULL,
        client TEXT NOT NULL,
        asset_code TEXT NOT NULL,
        asset_scale INTEGER NOT NULL CHECK (asset_scale BETWEEN 0 AND 255),
        incoming_amount TEXT CHECK (incoming_amount NOT GLOB '*[^0-9]*'),
        expires_at INTEGER,
        metadata TEXT,
        created_at INTEGER NOT NULL,
        closed_at INTEGER,
        expiry_announced_at INTEGER,
        sweep_at INTEGER CHECK (sweep_at IS NULL OR sweep_at = expires_at)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX payments_to_sweep ON payments (sweep_at, id) WHERE sweep_at IS NOT NULL",
    # These indexes are for lists, which are ordered by creation time and id. Each query in `_list` names one of them.
    "CREATE INDEX payments_created ON payments (created_at, id)",
    "CREATE INDEX payments_of_wallet ON payments (wallet_address, created_at, id)",
    "CREATE INDEX payments_of_client ON payments (wallet_address, client, created_at, id)",
    """
    CREATE TABLE credits (
        payment_id TEXT NOT NULL,
        credit_id TEXT NOT NULL,
        amount TEXT NOT NULL CHECK (amount NOT GLOB '*[^0-9]*' AND amount <> '0'),
        received_amount TEXT NOT NULL CHECK (received_amount NOT GLOB '*[^0-9]*'),
        completes INTEGER NOT NULL CHECK (completes IN (0, 1)),
        at INTEGER NOT NULL,
        PRIMARY KEY (payment_id, credit_id)
    ) STRICT, WITHOUT ROWID
    """,
    # `peer` is the ILP address of the peer that sent the packet of a credit.
    """
    CREATE TABLE events (
        payment_id TEXT NOT NULL,
        version INTEGER NOT NULL CHECK (version > 0),
        kind TEXT NOT NULL,
        at INTEGER NOT NULL,
        received_amount TEXT NOT NULL CHECK (received_amount NOT GLOB '*[^0-9]*'),
        credit_id TEXT,
        peer TEXT,
        PRIMARY KEY (payment_id, version)
    ) STRICT, WITHOUT ROWID
    """,
    # The payment that a client created under each idempotency key, until the key has expired.
    """
    CREATE TABLE idempotency_keys (
        client TEXT NOT NULL,
        key TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        payment_id TEXT NOT NULL,
        until INTEGER NOT NULL,
        PRIMARY KEY (client, key)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX idempotency_keys_to_sweep ON idempotency_keys (until)",
    # The used nonces. A nonce is kept until its signature is too old.
    "CREATE TABLE nonces (key TEXT PRIMARY KEY NOT NULL, until INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE INDEX nonces_to_sweep ON nonces (until)",
    # `held` stores the number of nonces, because counting the rows would take time linear in their number. Nonces with
    # `until` up to `swept_until` may have been removed.
    "CREATE TABLE nonce_count (held INTEGER NOT NULL CHECK (held >= 0), swept_until INTEGER NOT NULL) STRICT",
    "INSERT INTO nonce_count (held, swept_until) VALUES (0, 0)",
)
COMPLETED: Final = (
    "(closed_at IS NOT NULL OR (incoming_amount IS NOT NULL AND "
    "(length(received_amount), received_amount) >= (length(incoming_amount), incoming_amount)))"
)
# The tables and columns that version 2 adds.
FEED: Final = (
    # `scanned_to` is the last payment that the registration of a consumer has passed, until the registration is
    # complete. `kinds` and `wallet_addresses` are lists with spaces, and NULL admits all.
    """
    CREATE TABLE consumers (
        name TEXT PRIMARY KEY NOT NULL,
        kinds TEXT,
        wallet_addresses TEXT,
        joins_credits INTEGER NOT NULL CHECK (joins_credits IN (0, 1)),
        credit_delay_s REAL NOT NULL,
        down_after_s REAL,
        disable_after_s REAL,
        scanned_to TEXT,
        is_removed INTEGER NOT NULL CHECK (is_removed IN (0, 1)),
        failing_since INTEGER,
        disabled_at INTEGER
    ) STRICT, WITHOUT ROWID
    """,
    # The streams with events that a consumer has not handled. A stream without a row is handled. `acknowledged` is the
    # version up to which the events are handled, and `head` the version of the last event that the filter admits. An
    # open stream has a delivery that has not ended.
    """
    CREATE TABLE streams (
        consumer TEXT NOT NULL,
        payment_id TEXT NOT NULL,
        acknowledged INTEGER NOT NULL CHECK (acknowledged >= 0),
        head INTEGER NOT NULL CHECK (head > acknowledged),
        due_at INTEGER NOT NULL,
        is_open INTEGER NOT NULL CHECK (is_open IN (0, 1)),
        PRIMARY KEY (consumer, payment_id)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX streams_due ON streams (consumer, due_at) WHERE is_open = 0",
    # `due_at` is NULL when the delivery has ended. `lease` is NULL while no attempt is in progress.
    """
    CREATE TABLE deliveries (
        consumer TEXT NOT NULL,
        payment_id TEXT NOT NULL,
        first_version INTEGER NOT NULL CHECK (first_version > 0),
        last_version INTEGER NOT NULL CHECK (last_version >= first_version),
        payload BLOB NOT NULL,
        attempts INTEGER NOT NULL CHECK (attempts >= 0),
        created_at INTEGER NOT NULL,
        due_at INTEGER,
        lease BLOB,
        ending TEXT CHECK (ending IN ('delivered', 'dead')),
        ended_at INTEGER,
        error TEXT,
        PRIMARY KEY (consumer, payment_id, first_version),
        CHECK ((ending IS NULL) = (ended_at IS NULL) AND (ending IS NULL) = (due_at IS NOT NULL))
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX deliveries_due ON deliveries (consumer, due_at) WHERE due_at IS NOT NULL",
    "CREATE INDEX deliveries_leased ON deliveries (consumer, due_at) WHERE lease IS NOT NULL",
    "CREATE INDEX deliveries_of_payment ON deliveries (payment_id)",
    "CREATE INDEX deliveries_delivered ON deliveries (ended_at) WHERE ending = 'delivered'",
    "CREATE INDEX deliveries_dead ON deliveries (consumer, ended_at, payment_id, first_version) WHERE ending = 'dead'",
    # A payment has any number of `credited` events, but at most one other event after its first. This index lets a
    # consumer that excludes `credited` events pass over them.
    "CREATE INDEX events_of_other_kinds ON events (payment_id, version) WHERE kind <> 'credited' AND version > 1",
)
# The parts that version 2 adds for quotas. `payments_unpaid` has the payments of clients that have received nothing,
# and are neither completed nor expired. It holds every column that the count reads. `full_at` is the time at which the
# whole quota of requests is available again.
QUOTAS: Final = (
    """
    CREATE INDEX payments_unpaid ON payments (client, id, expires_at, received_amount, closed_at, expiry_announced_at)
    WHERE received_amount = '0' AND closed_at IS NULL AND expiry_announced_at IS NULL AND client <> 'the host'
    """,
    "CREATE TABLE request_counts (client TEXT PRIMARY KEY NOT NULL, full_at INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE INDEX request_counts_to_sweep ON request_counts (full_at)",
)
METADATA: Final = (
    # The rows of this table never move to other pages, so that an erasure leaves no copies (see `_erasure`). `text` is
    # NULL after the erasure. The column `payments.metadata` has the metadata of payments that version 1 has stored.
    "CREATE TABLE metadata (number INTEGER PRIMARY KEY, text TEXT) STRICT",
    "ALTER TABLE payments ADD COLUMN metadata_number INTEGER",
    # The payments with metadata that have been completed or have expired.
    """
    CREATE TABLE metadata_to_erase (
        ended_at INTEGER NOT NULL,
        payment_id TEXT NOT NULL,
        PRIMARY KEY (ended_at, payment_id)
    ) STRICT, WITHOUT ROWID
    """,
    f"""
    INSERT INTO metadata_to_erase (ended_at, payment_id)
    SELECT CASE WHEN {COMPLETED} THEN updated_at ELSE expires_at END, id FROM payments
    WHERE metadata IS NOT NULL AND ({COMPLETED} OR expiry_announced_at IS NOT NULL)
    """,  # noqa: S608
    # A digest of the reference (see `_references`).
    "ALTER TABLE payments ADD COLUMN reference BLOB",
    "CREATE INDEX payments_of_reference ON payments (reference, created_at, id) WHERE reference IS NOT NULL",
    # `reference` is the member of the metadata that is indexed. `reindexed_to` is the last payment that `reindex` has
    # passed, until all payments are indexed. After the first `emptied` of the `erasures`, the log was emptied.
    """
    CREATE TABLE settings (
        reference TEXT,
        reindexed_to TEXT,
        erasures INTEGER NOT NULL,
        emptied INTEGER NOT NULL CHECK (emptied BETWEEN 0 AND erasures)
    ) STRICT
    """,
    "INSERT INTO settings (erasures, emptied) VALUES (0, 0)",
)
# The statements that bring a database of each earlier version up to the next version.
UPGRADES: Final = {1: (*FEED, *QUOTAS, *METADATA)}
STATEMENTS: Final = (*VERSION_1, *(text for statements in UPGRADES.values() for text in statements))
_CREATE: Final = re.compile(r"CREATE (TABLE|INDEX) (\w+)")
# The names of the tables and indexes, such as "table payments". Queries name indexes, and fail if such an index is
# missing.
PARTS: Final = tuple(f"{found[1].lower()} {found[2]}" for text in STATEMENTS if (found := _CREATE.search(text)))

"""The tables of the database file. The first released file format is version 1."""

import re
from typing import Final

APPLICATION_ID: Final = int.from_bytes(b"IPay")  # the number in the header of every database file
VERSION: Final = 1

# Amounts are minor units of the asset as decimal text. Times are microseconds since 1970 in UTC.
STATEMENTS: Final = (
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
_CREATE: Final = re.compile(r"CREATE (TABLE|INDEX) (\w+)")
# The names of the tables and indexes, such as "table payments". Queries name indexes, and fail if such an index is
# missing.
PARTS: Final = tuple(f"{found[1].lower()} {found[2]}" for text in STATEMENTS if (found := _CREATE.search(text)))

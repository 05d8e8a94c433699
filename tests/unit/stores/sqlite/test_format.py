"""The format of the database file, which other releases and other programs read."""

import hashlib
from datetime import timedelta
from functools import partial
from pathlib import Path

from incoming_payments.domain import lifecycle
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.stores.sqlite._schema import VERSION
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing.steps import create, credit
from kits.sqlite_jobs import rows

SCHEMAS = {  # the SHA-256 of the statements in a new file without white space, by version
    1: "631c3ea913d42c22dd1e4fc5bd62b22826318e9d3cddc889ce8c134d75766371",
    2: "52e2a0b5a33e3688cbce95326f2cbb7ed7e32847e6eb6c0530132a88197a7fc5",
}
MICROS = int(NOW.timestamp()) * 1_000_000 + NOW.microsecond


def test_schema_of_a_version_does_not_change(path: Path) -> None:
    """When this test fails, raise `VERSION` and add the new hash: files with the old schema exist.

    The id is no part of the schema: a store adds it to a database that has none.
    """
    SqliteStore(path).close()
    query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name <> 'database_id' ORDER BY name"
    statements = [sql for (sql,) in rows(path, query)]
    without_spaces = "".join("".join(statements).split())
    assert hashlib.sha256(without_spaces.encode()).hexdigest() == SCHEMAS[VERSION]


def test_file_names_its_application_and_version(path: Path) -> None:
    """The header of the file has both: `IPay` in ASCII, and the version."""
    SqliteStore(path).close()
    assert path.read_bytes()[68:72] == b"IPay"
    assert rows(path, "PRAGMA user_version") == [(VERSION,)]


def test_columns_hold_text_and_microseconds(path: Path) -> None:
    """Amounts are decimal text, and times are microseconds since 1970."""
    with SqliteStore(path) as store:
        created = a_creation(limit=500, expires_in_s=60, metadata="{}")
        id = create(store, created)
        credit(store, id, "wire-1", 20)
        payment = store.load(id)
        assert rows(path, "SELECT * FROM payments") == [
            (
                id,
                2,
                "20",
                MICROS,
                payment.wallet_address,
                payment.client,
                payment.asset.code,
                payment.asset.scale,
                "500",
                MICROS + 60_000_000,
                None,
                MICROS,
                None,
                None,
                MICROS + 60_000_000,
                1,
                None,
            )
        ]
        assert rows(path, "SELECT * FROM metadata") == [(1, "{}")]
        assert rows(path, "SELECT * FROM credits") == [(id, "wire-1", "20", "20", 0, MICROS)]
        assert rows(path, "SELECT * FROM events") == [
            (id, 1, "created", MICROS, "0", None, None),
            (id, 2, "credited", MICROS, "20", "wire-1", None),
        ]
        store.update(id, partial(lifecycle.expire, now=NOW + timedelta(seconds=61)))
        state = rows(path, "SELECT version, closed_at, expiry_announced_at, sweep_at FROM payments")
        assert state == [(3, None, MICROS + 61_000_000, None)]


def test_credit_that_completes_and_closing_are_stored(path: Path) -> None:
    """A completed payment has no time at which the sweep must announce its expiry."""
    with SqliteStore(path) as store:
        full = create(store, a_creation(limit=5, expires_in_s=60))
        credit(store, full, "wire-1", 5)
        assert rows(path, "SELECT completes FROM credits") == [(1,)]
        closed = create(store, a_creation(expires_in_s=60))
        store.update(closed, partial(lifecycle.complete, now=NOW))
        assert sorted(rows(path, "SELECT closed_at, sweep_at FROM payments"), key=str) == [(MICROS, None), (None, None)]


def test_used_nonces_are_counted(path: Path) -> None:
    """`held` is the number of nonces, and `swept_until` the latest end of a removed one."""
    later = NOW + timedelta(seconds=1)
    with SqliteStore(path) as store:
        store.nonces.use("a", NOW, NOW)
        store.nonces.use("b", later, NOW)
        assert rows(path, "SELECT * FROM nonces ORDER BY key") == [("a", MICROS), ("b", MICROS + 1_000_000)]
        assert rows(path, "SELECT * FROM nonce_count") == [(2, 0)]
        store.nonces.use("c", later, later)
        assert rows(path, "SELECT * FROM nonces ORDER BY key") == [("b", MICROS + 1_000_000), ("c", MICROS + 1_000_000)]
        assert rows(path, "SELECT * FROM nonce_count") == [(2, MICROS)]

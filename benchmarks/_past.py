"""Fill a database with payments, credits, events and acknowledged deliveries by plain SQL, so that its audit passes."""

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from incoming_payments.domain.feed import Consumer, Start
from incoming_payments.stores.sqlite import SqliteStore

CONSUMER: Final = Consumer(name="ledger", joins_credits=False)

_NUMBERS: Final = """
    INSERT INTO numbers WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT i FROM n
"""
# One payment in each millisecond. The ids have the usual form: UUID version 7 with the time of creation.
_PAYMENTS: Final = """
    INSERT INTO payments (id, version, received_amount, updated_at, wallet_address, client, asset_code, asset_scale,
        created_at)
    WITH RECURSIVE n (i) AS (SELECT :began UNION ALL SELECT i + 1 FROM n WHERE i < :began + :payments - 1)
    SELECT printf('%s-%s-7%s-8%s-%s', substr(printf('%012x', i), 1, 8), substr(printf('%012x', i), 9),
            substr(random, 1, 3), substr(random, 4, 3), substr(random, 7, 12)),
        :credits + 1, CAST(:credits AS TEXT), i * 1000 + :credits, 'https://bank.example/alice', 'https://shop.example/',
        'USD', 2, i * 1000
    FROM (SELECT i, lower(hex(randomblob(9))) AS random FROM n)
"""
_CREDITS: Final = """
    INSERT INTO credits (payment_id, credit_id, amount, received_amount, completes, at)
    SELECT id, printf('ledger:%016x', i), '1', CAST(i AS TEXT), 0, created_at + i
    FROM payments CROSS JOIN numbers WHERE i > 0 ORDER BY id, i
"""
_EVENTS: Final = """
    INSERT INTO events (payment_id, version, kind, at, received_amount, credit_id)
    SELECT id, i + 1, iif(i, 'credited', 'created'), created_at + i, CAST(i AS TEXT),
        iif(i, printf('ledger:%016x', i), NULL)
    FROM payments CROSS JOIN numbers ORDER BY id, i
"""
_DELIVERIES: Final = """
    INSERT INTO deliveries (consumer, payment_id, first_version, last_version, payload, attempts, created_at, ending,
        ended_at)
    SELECT ?, id, i + 1, i + 1, zeroblob(400), 1, created_at + i, 'delivered', created_at + i
    FROM payments CROSS JOIN numbers ORDER BY id, i
"""


def fill(path: Path, *, payments: int, credits: int, is_delivered: bool) -> None:
    """Create a database with `payments` payments of `credits` credits each.

    It has the registered consumer `CONSUMER`, and an acknowledged delivery of each event if `is_delivered` is true.
    """
    now = datetime.now(UTC)
    with SqliteStore(path) as store:
        store.feed.register(CONSUMER, Start.NOW, now)
    began = int((now - timedelta(milliseconds=payments, hours=1)).timestamp() * 1000)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -65536"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("CREATE TEMP TABLE numbers (i INTEGER PRIMARY KEY)")
        connection.execute(_NUMBERS, (credits,))
        connection.execute("BEGIN")
        connection.execute(_PAYMENTS, {"began": began, "payments": payments, "credits": credits})
        connection.execute(_CREDITS)
        connection.execute(_EVENTS)
        if is_delivered:
            connection.execute(_DELIVERIES, (CONSUMER.name,))
        connection.execute("COMMIT")
    with path.open("rb") as file:
        os.fsync(file.fileno())  # now, so that the disk is idle during the measurement

"""Measure the upgrade of a database of version 1, which plain SQL fills: its time and its disk space."""

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.stores.sqlite._schema import APPLICATION_ID, VERSION_1

# One payment in each millisecond, with metadata and one credit of 2500. Every second payment is completed.
_PAYMENTS: Final = """
    INSERT INTO payments (id, version, received_amount, updated_at, wallet_address, client, asset_code, asset_scale,
        incoming_amount, expires_at, metadata, created_at, sweep_at)
    WITH RECURSIVE n (i) AS (SELECT :began UNION ALL SELECT i + 1 FROM n WHERE i < :began + :payments - 1)
    SELECT printf('%s-%s-7%s-8%s-%s', substr(printf('%012x', i), 1, 8), substr(printf('%012x', i), 9),
            substr(random, 1, 3), substr(random, 4, 3), substr(random, 7, 12)),
        2 + i % 2, '2500', i * 1000, 'https://bank.example/alice', 'https://shop.example/', 'USD', 2,
        iif(i % 2, '2500', '5000'), i * 1000 + 2592000000000, '{"externalRef":"INV-2026"}', i * 1000,
        iif(i % 2, NULL, i * 1000 + 2592000000000)
    FROM (SELECT i, lower(hex(randomblob(9))) AS random FROM n)
"""
_CREDITS: Final = """
    INSERT INTO credits (payment_id, credit_id, amount, received_amount, completes, at)
    SELECT id, printf('wire-%016x', created_at), '2500', '2500', version = 3, updated_at FROM payments ORDER BY id
"""
_EVENTS: Final = """
    INSERT INTO events (payment_id, version, kind, at, received_amount, credit_id)
    SELECT id, v, CASE v WHEN 1 THEN 'created' WHEN 2 THEN 'credited' ELSE 'completed' END, updated_at,
        iif(v = 1, '0', '2500'), iif(v = 2, printf('wire-%016x', created_at), NULL)
    FROM payments CROSS JOIN (SELECT 1 AS v UNION ALL SELECT 2 UNION ALL SELECT 3) WHERE v <= version ORDER BY id, v
"""


def fill_version_1(path: Path, payments: int) -> None:
    """Create a database of version 1."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -65536"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("BEGIN")
        for statement in (*VERSION_1, f"PRAGMA application_id = {APPLICATION_ID}", "PRAGMA user_version = 1"):
            connection.execute(statement)
        began = int((time.time() - 3600) * 1000) - payments
        connection.execute(_PAYMENTS, {"began": began, "payments": payments})
        connection.execute(_CREDITS)
        connection.execute(_EVENTS)
        connection.execute("COMMIT")
    with path.open("rb") as file:
        os.fsync(file.fileno())


def measure_upgrade(folder: Path, payments: int) -> dict[str, float]:
    """Return the seconds of the upgrade, and the sizes of the files in MB."""
    path = folder / "payments.db"
    fill_version_1(path, payments)
    before, start, processor_s = path.stat().st_size, time.perf_counter(), time.process_time()
    SqliteStore(path).close()
    seconds, processor_s = time.perf_counter() - start, time.process_time() - processor_s
    [backup] = folder.glob("*.backup")
    return {
        "upgrade_payments": payments,
        "upgrade_s": round(seconds, 1),
        "upgrade_processor_s": round(processor_s, 1),
        "upgrade_before_mb": round(before / 1e6, 1),
        "upgrade_after_mb": round(path.stat().st_size / 1e6, 1),
        "upgrade_backup_mb": round(backup.stat().st_size / 1e6, 1),
    }

"""Measure whether the time for a durable credit, and the memory of the process, grow with the credits in the file.

Plain SQL fills files with a thousand to ten million credits, in the schema of the store and with ids of the usual form.
One payment has a tenth of the credits, and each other payment has a hundred. Then one process for each file credits
payments through the store, in turns. It credits the large payment, with 1 and with 64 credits in flight. It also
credits 64 new payments, as a service in operation does.
"""

import asyncio
import itertools
import multiprocessing
import os
import secrets
import sqlite3
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from _durable import IN_FLIGHT, credit_ids, credits_at_once, endless
from incoming_payments.domain.payment import PAYMENT_ID_RANDOM_BYTES, PaymentId, new_payment_id
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore

SIZES: Final = (1_000, 100_000, 1_000_000, 10_000_000)
EACH: Final = 100  # credits in each payment except the large one
TURNS: Final = 15
TURN_S: Final = 0.15
PAYMENTS: Final = 64  # new payments in each turn
KINDS: Final = ((False, 1), (False, IN_FLIGHT), (True, IN_FLIGHT))  # whether into the new payments; in flight
NAMES: Final = tuple(
    f"{f'{PAYMENTS} payments' if spread else 'large payment'}, {in_flight} in flight" for spread, in_flight in KINDS
)

_HISTORY: Final = "CREATE TEMP TABLE history (id TEXT PRIMARY KEY, credits INTEGER NOT NULL)"
_PAYMENTS: Final = """
    INSERT INTO payments (id, version, received_amount, updated_at, wallet_address, client, asset_code, asset_scale,
        created_at)
    SELECT history.id, credits + 1, CAST(credits AS TEXT), updated_at, wallet_address, client, asset_code, asset_scale,
        created_at
    FROM history CROSS JOIN payments WHERE payments.id = ?
"""
_NUMBERS: Final = """
    INSERT INTO numbers WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT i FROM n
"""
_CREDITS: Final = """
    INSERT INTO credits (payment_id, credit_id, amount, received_amount, completes, at)
    SELECT id, printf('ledger:%016x:%s', i, hex(randomblob(22))), '1', CAST(i AS TEXT), 0, ?
    FROM history CROSS JOIN numbers WHERE i <= credits
"""
_CREATED: Final = """
    INSERT INTO events (payment_id, version, kind, at, received_amount) SELECT id, 1, 'created', ?, '0' FROM history
"""
_CREDITED: Final = """
    INSERT INTO events (payment_id, version, kind, at, received_amount, credit_id)
    SELECT payment_id, CAST(received_amount AS INTEGER) + 1, 'credited', ?, received_amount, credit_id FROM credits
"""


def fill(path: Path, credits: int) -> PaymentId:
    """Fill a new file with `credits` credits in order. Return the id of the payment that has a tenth of them."""
    with SqliteStore(path) as store:
        pattern = endless(store)
    began = datetime.now(UTC) - timedelta(days=30)
    large = credits // 10
    counts = [large] + [EACH] * ((credits - large) // EACH)
    ids = [
        new_payment_id(began + timedelta(milliseconds=5 * place), secrets.token_bytes(PAYMENT_ID_RANDOM_BYTES))
        for place in range(len(counts))
    ]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -65536"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("BEGIN")
        connection.execute(_HISTORY)
        connection.executemany("INSERT INTO history VALUES (?, ?)", zip(ids, counts, strict=True))
        connection.execute(_PAYMENTS, (pattern,))
        connection.execute("CREATE TEMP TABLE numbers (i INTEGER PRIMARY KEY)")
        connection.execute(_NUMBERS, (large,))
        for statement in (_CREDITS, _CREDITED, _CREATED):
            connection.execute(statement, (int(began.timestamp()) * 1_000_000,))
        connection.execute("COMMIT")
    with path.open("rb") as file:
        os.fsync(file.fileno())  # now, so that the disk is idle during the measurement
    return ids[0]


async def credit(path: Path, large: PaymentId, kind: int, turn: int) -> tuple[float, float]:
    """Return the microseconds of one credit of the kind, and the peak memory of this process in MB."""
    spread, in_flight = KINDS[kind]
    ids: Iterator[PaymentId] = itertools.repeat(large)
    if spread:
        with SqliteStore(path) as made:
            ids = itertools.cycle([endless(made) for _ in range(PAYMENTS)])
    async with AsyncSqliteStore(path) as store:
        rate = await credits_at_once(store, ids, credit_ids(f"turn-{turn:02}-{kind}"), TURN_S, in_flight)
    return 1e6 / rate, memory_mb()


def credit_in_turn(path: Path, large: PaymentId, kind: int, turn: int) -> tuple[float, float]:
    """Run `credit` in a process of its own."""
    return asyncio.run(credit(path, large, kind, turn))


def memory_mb() -> float:
    """Return the peak memory of this process in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("/proc/self/status has no VmHWM: run this benchmark on Linux")


def measure(folder: Path, credits_max: int) -> tuple[dict[int, list[list[float]]], dict[int, float]]:
    """Return the microseconds by kind and turn, and the memory in MB, both by the number of credits in the file."""
    sizes = [size for size in SIZES if size < credits_max] + [credits_max]
    filled = {size: fill(folder / f"{size}.db", size) for size in sizes}
    spent: dict[int, list[list[float]]] = {size: [[] for _ in KINDS] for size in sizes}
    memory: dict[int, float] = {}
    fresh = multiprocessing.get_context("spawn")
    pools = {size: ProcessPoolExecutor(1, fresh) for size in sizes}
    # The sizes to compare follow each other directly, because the speed of a disk changes from second to second.
    for turn, kind, (size, large) in itertools.product(range(TURNS), range(len(KINDS)), filled.items()):
        result = pools[size].submit(credit_in_turn, folder / f"{size}.db", large, kind, turn)
        time, memory[size] = result.result()
        spent[size][kind].append(time)
    for pool in pools.values():
        pool.shutdown()
    return spent, memory


def medians(kinds: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of the turns for each kind."""
    return [statistics.median(times) for times in kinds]


def figures_of(spent: Mapping[int, list[list[float]]], memory: Mapping[int, float]) -> dict[str, object]:
    """Return the figures.

    `flatness` compares the time of a credit in the largest and the smallest file, for the worst kind of credit.
    """
    least, most = min(spent), max(spent)
    ratios = {
        name: round(statistics.median(big / small for small, big in zip(smaller, bigger, strict=True)), 3)
        for name, smaller, bigger in zip(NAMES, spent[least], spent[most], strict=True)
    }
    return {
        "flatness": max(ratios.values()),
        "flatness_credits": most,
        "flatness_of": ratios,
        "flatness_memory": round(memory[most] / memory[least], 3),
        "memory_mb": {f"{size:,}": round(value, 1) for size, value in memory.items()},
    }

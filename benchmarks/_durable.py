"""Measure durable credits on SQLite, beside a raw `sqlite3` loop with the same statements in batches of the same size.

The raw loop checks nothing and builds no values: it shows what Python's `sqlite3`, the database and the disk allow. It
executes all statements of each credit, and commits as many credits at once as this library does.

Both credit one payment in a file of their own, in short alternating turns. The speed of a disk changes from second to
second, so each ratio is taken within a turn, and the result is the median of the turns.
"""

import asyncio
import itertools
import secrets
import sqlite3
import statistics
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Final

from _prepares import prepares
from incoming_payments import Amount, Asset, AsyncPorts, DerivedMethods, Peer, Ports, Receiver
from incoming_payments.domain.payment import PaymentId
from incoming_payments.flows.machinery.run import arun, run
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import receive_packet
from incoming_payments.ilp.packet import PacketType
from incoming_payments.ports.clock import utc_now
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.stores.sqlite import _rows as statements
from incoming_payments.testing import a_creation

IN_FLIGHT: Final = 64
TURN_S: Final = 0.2
PACKETS: Final = {1: 400, IN_FLIGHT: 1600}  # packets in a turn, by the number in flight
USD: Final = Asset("USD", 2)
UNIT: Final = Amount(1, USD)
DIGEST: Final = b64encode(bytes(range(32))).decode()
RECEIVER: Final = Receiver(DerivedMethods("test.bank", [secrets.token_bytes(32)]))
PEER: Final = Peer("test.bank.connector", USD)

Rates = dict[str, list[float]]


def credit_ids(prefix: str) -> Iterator[str]:
    """Yield credit ids that are as long as those of packets, and ordered like them."""
    return (f"{prefix}:{number:016x}:{DIGEST}" for number in itertools.count(1))


def endless(store: SqliteStore) -> PaymentId:
    """Store a new payment that takes any number of credits, and return its id."""
    created = a_creation(limit=None, now=utc_now())
    store.insert(created)
    return created.answer.id


class Raw:
    """The raw loop, on a file of its own."""

    def __init__(self, path: Path) -> None:
        with SqliteStore(path) as store:
            self._id = endless(store)
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA synchronous = FULL")
        assert self._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        self._names = credit_ids("raw-id")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def credit(self, size: int) -> None:
        """Commit one batch of `size` credits, with all statements of each credit."""
        connection, id, at = self._connection, self._id, time.time_ns() // 1000
        version, total = self._begin()
        for place, name in enumerate(itertools.islice(self._names, size)):
            if place:
                version, total = self._payment()
            assert connection.execute(statements._SELECT_CREDIT, (id, name)).fetchone() is None
            update = (version + 1, str(total + 1), at, id, version)
            assert connection.execute(statements._UPDATE_TOTAL, update).rowcount == 1
            connection.execute(statements._INSERT_CREDIT, (id, name, "1", str(total + 1), 0, at))
            event = (id, version + 1, "credited", at, str(total + 1), name, None)
            connection.execute(statements._INSERT_EVENT, event)
        connection.execute("COMMIT")

    def _begin(self) -> tuple[int, int]:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("PRAGMA user_version").fetchone()
        return self._payment()

    def _payment(self) -> tuple[int, int]:
        row = self._connection.execute(statements._SELECT_PAYMENT, (self._id,)).fetchone()
        return row[0], int(row[1])


def raw_rate(credit: Callable[[int], None], size: int, seconds: float) -> float:
    """Return the credits a second of the raw loop, with `size` credits in a commit."""
    start, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < seconds:
        credit(size)
        done += size
    return done / spent


def credits_one_by_one(store: SqliteStore, id: PaymentId, names: Iterator[str], seconds: float) -> float:
    """Return the credits a second of the flow `receive`, one call after the other."""
    ports = Ports(store=store)
    start, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < seconds:
        run(receive(id, credit_id=next(names), amount=UNIT, clock=utc_now), ports)
        done += 1
    return done / spent


async def credits_at_once(
    store: AsyncSqliteStore, ids: Iterator[PaymentId], names: Iterator[str], seconds: float, in_flight: int = IN_FLIGHT
) -> float:
    """Return the credits a second of `in_flight` tasks in one event loop, which credit the payments `ids` in turn."""
    ports = AsyncPorts(store=store)
    done, start = 0, time.perf_counter()

    async def caller(until: float) -> None:
        nonlocal done
        while time.perf_counter() < until:
            await arun(receive(next(ids), credit_id=next(names), amount=UNIT, clock=utc_now), ports)
            done += 1

    await asyncio.gather(*(caller(start + seconds) for _ in range(in_flight)))
    return done / (time.perf_counter() - start)


def packets_one_by_one(store: SqliteStore, packets: list[bytes]) -> float:
    """Return the packets a second, from the bytes of each Prepare to the bytes of its durable Fulfill."""
    ports = Ports(store=store)
    start = time.perf_counter()
    for packet in packets:
        reply = run(receive_packet(packet, peer=PEER, receiver=RECEIVER, clock=utc_now), ports)
        assert reply[0] == PacketType.FULFILL
    return len(packets) / (time.perf_counter() - start)


async def packets_at_once(store: AsyncSqliteStore, packets: list[bytes]) -> float:
    """Return the packets a second of 64 tasks in one event loop."""
    ports, count = AsyncPorts(store=store), len(packets)

    async def caller() -> None:
        while packets:
            packet = packets.pop()
            reply = await arun(receive_packet(packet, peer=PEER, receiver=RECEIVER, clock=utc_now), ports)
            assert reply[0] == PacketType.FULFILL

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return count / (time.perf_counter() - start)


async def measure(folder: Path, turns: int) -> Rates:
    """Return the rates of the raw loops and of our store, for each turn."""
    rates: Rates = {}
    async with AsyncExitStack() as open_:
        one = open_.enter_context(SqliteStore(folder / "one.db"))
        raw = open_.enter_context(closing(Raw(folder / "raw.db")))
        with SqliteStore(folder / "many.db") as made:
            many_id = endless(made)
        many = await open_.enter_async_context(AsyncSqliteStore(folder / "many.db"))
        one_id = endless(one)
        one_names, many_names = credit_ids("ledger"), credit_ids("ledger")
        for turn in range(turns):
            now = utc_now()
            few, lot = (
                prepares(RECEIVER.methods, [id], count, amount=1, now=now, first=turn * count + 1)
                for id, count in ((one_id, PACKETS[1]), (many_id, PACKETS[IN_FLIGHT]))
            )
            measured = {
                "raw 1": raw_rate(raw.credit, 1, TURN_S),
                "credits 1": credits_one_by_one(one, one_id, one_names, TURN_S),
                "packets 1": packets_one_by_one(one, few),
                "raw 64": raw_rate(raw.credit, IN_FLIGHT, TURN_S),
                "credits 64": await credits_at_once(many, itertools.repeat(many_id), many_names, TURN_S),
                "packets 64": await packets_at_once(many, lot),
            }
            for name, rate in measured.items():
                rates.setdefault(name, []).append(rate)
    return rates


def ratio(rates: Rates, ours: str, raw: str) -> float:
    """Return our rate divided by that of the raw loop, as the median of the turns."""
    return round(statistics.median(own / bare for own, bare in zip(rates[ours], rates[raw], strict=True)), 3)


def medians(rates: Rates) -> dict[str, float]:
    """Return the median rate of each name."""
    return {name: statistics.median(each) for name, each in rates.items()}


def figures_of(rates: Rates) -> dict[str, object]:
    """Return the ratios, and the median rates a second."""
    return {
        "durable_1_vs_raw": ratio(rates, "credits 1", "raw 1"),
        "durable_64_vs_raw": ratio(rates, "credits 64", "raw 64"),
        "durable_packets_1_vs_raw": ratio(rates, "packets 1", "raw 1"),
        "durable_packets_64_vs_raw": ratio(rates, "packets 64", "raw 64"),
        **{f"per_s {name}": round(rate) for name, rate in medians(rates).items()},
    }

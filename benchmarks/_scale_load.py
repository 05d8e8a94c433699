"""Measure packets through worker processes, and credits of many processes into one payment, on PostgreSQL.

Both have a limit in the same run: pgbench with one UPDATE and its COMMIT, on the same server.
"""

import asyncio
import itertools
import multiprocessing
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any, Final

from attrs import evolve, field, frozen

from _durable import PEER, UNIT, credit_ids
from _load import drive, free_port, run_application, run_fast, server
from _prepares import prepares
from _processes import processor_s
from _scale_fill import Filled
from incoming_payments import AsyncPorts, DerivedMethods, Receiver
from incoming_payments.domain.payment import PaymentId
from incoming_payments.flows.machinery.run import arun
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import receive_packet
from incoming_payments.ilp.packet import PacketType
from incoming_payments.ports import Observation, StoreBatch
from incoming_payments.ports.clock import utc_now
from incoming_payments.stores.postgres import AsyncPostgresStore, PostgresStore
from incoming_payments.testing import a_creation

COUNTS: Final = (1, 2, 4)  # the numbers of processes
CONNECTIONS: Final = 8  # connections of each process to PostgreSQL
IN_FLIGHT: Final = 64  # packets of all workers together
PAYMENTS: Final = 200  # payments that get the packets in turn
SECRET: Final = bytes(range(32))  # the secret of the ILP addresses, which the load generator has to know
METHODS: Final = DerivedMethods("test.bank", [SECRET])


@frozen
class Cost:
    """The rate of a load, and the cost of one item."""

    rate: float
    library_us: float
    postgres_us: float
    load_us: float
    log_bytes: float
    per_commit: float = 0.0
    bare: float = field(default=0.0)

    @property
    def cores(self) -> float:
        """The number of processors used on average. Other work on the machine may limit it."""
        return self.rate * (self.library_us + self.postgres_us + self.load_us) / 1e6

    def figures(self, unit: str) -> dict[str, float]:
        """Return the figures for JSON."""
        return {
            f"{unit}_per_s": round(self.rate),
            "library_us": round(self.library_us),
            "postgres_us": round(self.postgres_us),
            "load_us": round(self.load_us),
            "cores": round(self.cores, 2),
            "log_bytes": round(self.log_bytes),
            "bare_commits_per_s": round(self.bare),
            "vs_bare_commits": round(self.rate / self.bare, 2),
        }


def endless(conninfo: str, count: int) -> list[PaymentId]:
    """Store new payments that take any number of credits."""
    with PostgresStore(conninfo, connections=1) as store:
        now = utc_now()
        created = [a_creation(limit=None, now=now) for _ in range(count)]
        for each in created:
            store.insert(each)
    return [each.answer.id for each in created]


# --- packets through worker processes ---


def run_worker(port: int, conninfo: str) -> None:
    """Serve packets over HTTP in this process until it is terminated."""
    receiver = Receiver(METHODS)
    store = AsyncPostgresStore(conninfo, connections=CONNECTIONS)
    ports = AsyncPorts(store=store)

    async def application(_: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message.get("more_body"):
                break
        reply = await arun(receive_packet(body, peer=PEER, receiver=receiver, clock=utc_now), ports)
        headers = [(b"content-type", b"application/octet-stream"), (b"content-length", str(len(reply)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    run_application(port, application)


def measure_workers(filled: Filled, workers: int, packets: int) -> Cost:
    """Return the packets a second through this number of worker processes, and their cost."""
    ids = endless(filled.conninfo, PAYMENTS)
    now = utc_now()
    requests = [_post(body) for body in prepares(METHODS, ids, packets, amount=1, now=now)]
    ports = [free_port() for _ in range(workers)]
    with ExitStack() as stack:
        pids = [
            stack.enter_context(server([sys.argv[0], "--worker", str(port), filled.conninfo], port)) for port in ports
        ]
        warm = [_post(body) for body in prepares(METHODS, ids, 256, amount=1, now=now, first=packets)]
        run_fast(_drive(ports, warm))
        before = sum(map(processor_s, pids)), filled.server.processor_s(), time.process_time()
        log, begin_s = filled.server.wal_bytes(), time.perf_counter()
        run_fast(_drive(ports, requests))
        spent_s = time.perf_counter() - begin_s
        log = filled.server.wal_bytes() - log
        after = sum(map(processor_s, pids)), filled.server.processor_s(), time.process_time()
    library, database, own = ((new - old) / packets * 1e6 for new, old in zip(after, before, strict=True))
    return Cost(packets / spent_s, library, database, own, log / packets)


def _post(body: bytes) -> bytes:
    head = f"POST /ilp HTTP/1.1\r\nHost: bank\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _drive(ports: Sequence[int], requests: list[bytes]) -> None:
    """Send the requests, on the same number of connections to each port."""
    queues = [requests] * (IN_FLIGHT // len(ports))
    await asyncio.gather(*(drive(port, queues, _is_fulfilled) for port in ports))


def _is_fulfilled(_: bytes, body: bytes) -> bool:
    return body[0] == PacketType.FULFILL


# --- credits into one payment ---


def measure_hot(filled: Filled, pools: Sequence[ProcessPoolExecutor], seconds: float, in_flight: int) -> Cost:
    """Return the credits a second into one payment, of `in_flight` tasks in each of `pools`, and their cost."""
    [id] = endless(filled.conninfo, 1)
    at = time.time() + 1.0
    before = filled.server.processor_s()
    log = filled.server.wal_bytes()
    running = [pool.submit(credit_one, filled.conninfo, id, at, seconds, in_flight) for pool in pools]
    found = [each.result() for each in running]
    log = filled.server.wal_bytes() - log
    database_s = filled.server.processor_s() - before
    credits, commits, library_s = (sum(column) for column in zip(*found, strict=True))
    with PostgresStore(filled.conninfo, connections=1) as store:
        assert store.load(id).received.value == credits
    us = 1e6 / credits
    return Cost(credits / seconds, library_s * us, database_s * us, 0.0, log / credits, credits / commits)


class Commits:
    """An observer that counts the commits of updates."""

    number = 0

    def observe(self, observation: Observation) -> None:
        """Count a commit."""
        self.number += isinstance(observation, StoreBatch)


def credit_one(conninfo: str, id: PaymentId, at: float, seconds: float, in_flight: int) -> tuple[int, int, float]:
    """Credit the payment from the time `at` on. Return the credits, the commits, and the seconds of processor."""
    return asyncio.run(_credit_one(conninfo, id, at, seconds, in_flight))


async def _credit_one(
    conninfo: str, id: PaymentId, at: float, seconds: float, in_flight: int
) -> tuple[int, int, float]:
    commits = Commits()
    names, credits = credit_ids(secrets.token_hex(4)), 0

    async def caller(ports: AsyncPorts) -> None:
        nonlocal credits
        while time.time() < at + seconds:
            await arun(receive(id, credit_id=next(names), amount=UNIT, clock=utc_now), ports)
            credits += 1

    async with AsyncPostgresStore(conninfo, connections=CONNECTIONS, observer=commits) as store:
        await asyncio.sleep(at - time.time())
        begin_s = time.process_time()
        await asyncio.gather(*(caller(AsyncPorts(store=store)) for _ in range(in_flight)))
        spent_s = time.process_time() - begin_s
    return credits, commits.number, spent_s


# --- rounds ---


def rounds(
    filled: Filled, count: int, *, packets: int, seconds: float, hot_in_flight: int
) -> tuple[dict[int, Cost], dict[int, Cost]]:
    """Return the medians of `count` rounds: of the workers, and of the hot payment, by the number of processes."""
    workers: dict[int, list[Cost]] = {processes: [] for processes in COUNTS}
    hot: dict[int, list[Cost]] = {processes: [] for processes in COUNTS}
    bare = filled.server.bare_commits
    whole_s = max(1, round(seconds))
    with ExitStack() as stack:
        fresh = multiprocessing.get_context("spawn")
        pools = [stack.enter_context(ProcessPoolExecutor(1, fresh)) for _ in range(max(COUNTS))]
        for started in [pool.submit(utc_now) for pool in pools]:  # this imports the library
            started.result()
        for _, processes in itertools.product(range(count), COUNTS):
            cost = measure_workers(filled, processes, packets)
            workers[processes].append(evolve(cost, bare=bare(processes * CONNECTIONS, whole_s)))
            cost = measure_hot(filled, pools[:processes], seconds, hot_in_flight)
            hot[processes].append(evolve(cost, bare=bare(processes, whole_s, rows=1)))
    return _medians(workers), _medians(hot)


def _medians(found: Mapping[int, Sequence[Cost]]) -> dict[int, Cost]:
    names = ("rate", "library_us", "postgres_us", "load_us", "log_bytes", "per_commit", "bare")
    return {
        processes: Cost(*(statistics.median(getattr(cost, name) for cost in costs) for name in names))
        for processes, costs in found.items()
    }

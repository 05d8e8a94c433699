"""Writers and consumers of the feed that are killed at random: each event arrives at least once, and in order.

    python -m campaigns.crash.feed FOLDER SEED ROUNDS        with PYTHONPATH=tests

In each round, processes change payments in a SQLite file, and other processes claim and settle deliveries. A consumer
writes what it got to a file, with a sync, before it acknowledges the delivery. All processes are killed by SIGKILL. At
the end, this process takes what is left, and compares the files with the database.
"""

import json
import logging
import os
import random
import secrets
import signal
import sqlite3
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from attrs import field, frozen

from incoming_payments import DerivedMethods, IncomingPayments, Ports, ServicePolicy
from incoming_payments.domain.feed import Consumer, ConsumerName, Delivered, Delivery, Failed, FeedEvent, Start
from incoming_payments.domain.payment import PAYMENT_ID_RANDOM_BYTES, CreditId, new_payment_id
from incoming_payments.domain.retry import RetryPolicy
from incoming_payments.errors import StoreStopped, StoreUnavailable
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import a_creation, crediting

CONSUMERS: Final = (
    Consumer(name="all"),
    Consumer(name="single", joins_credits=False),
    Consumer(name="ends", kinds=["created", "completed"]),
)
RELAYED: Final = CONSUMERS[1]  # the consumer of a relay; the others claim and settle by themselves
_LEASE: Final = timedelta(seconds=0.3)
_RETRY: Final = timedelta(seconds=0.05)
_SECONDS_MAX: Final = 0.5  # until a process is killed
_STOPPED: Final = 2  # the exit status after a stop: another process was killed in a sync that all of them need
_PATIENCE_S: Final = 60.0

Arrival = tuple[str, str]  # the id of a delivery, and its bytes as text
Facts = list[str | int | None]  # kind, total and credit id


@frozen
class Report:
    """What the campaign did, and the differences between the arrivals and the database."""

    killed: int
    arrivals: int
    duplicates: int
    violations: Sequence[str] = field(factory=tuple)


def render(events: Sequence[FeedEvent]) -> bytes:
    """Return the bytes of a delivery: the facts of each event by its id."""
    facts = {event.id: [event.kind.value, event.received.value, event.credit_id] for event in events}
    return json.dumps(facts).encode()


# --- the processes -----------------------------------------------------------------------------------


def _write(store: SqliteStore) -> None:
    """Create payments and credit them until they are completed."""
    while True:
        now = datetime.now(UTC)
        created = a_creation(id=new_payment_id(now, secrets.token_bytes(PAYMENT_ID_RANDOM_BYTES)), limit=4, now=now)
        store.insert(created)
        for number in range(4):
            name = f"wire-{number}"
            store.update(created.answer.id, crediting(name, 1, now=datetime.now(UTC)), CreditId(name))


class _Record:
    """The file of the arrivals at one consumer."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / f"{name}.arrivals", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, delivery: Delivery) -> None:
        """Write the delivery to the disk."""
        os.write(self._file, json.dumps([delivery.id, delivery.payload.decode()]).encode() + b"\n")
        os.fsync(self._file)


def _take(store: SqliteStore, name: ConsumerName, record: _Record, choose: random.Random) -> bool:
    """Claim deliveries, note them, and settle them. Some attempts fail. Return whether there was one."""
    now = datetime.now(UTC)
    deliveries = store.feed.claim(name, render, now=now, until=now + _LEASE, limit=choose.randint(1, 4))
    for delivery in deliveries:
        record.note(delivery)
        roll, now = choose.random(), datetime.now(UTC)
        failed = Failed(error="by chance", retry_at=now + _RETRY, is_last=roll < 0.05)
        store.feed.settle(delivery, failed if roll < 0.2 else Delivered(), now)
    return bool(deliveries)


def _consume(folder: Path, consumer: Consumer, store: SqliteStore) -> None:
    """Claim and settle for ever."""
    record, choose = _Record(folder, consumer.name), random.Random(os.getpid())
    while True:
        if not _take(store, consumer.name, record, choose):
            time.sleep(0.005)


def _relay(folder: Path, store: SqliteStore) -> None:
    """Run a relay for ever, whose handler fails at times."""
    logging.disable()  # each failure is logged
    record, choose = _Record(folder, RELAYED.name), random.Random(os.getpid())

    def handle(delivery: Delivery) -> None:
        record.note(delivery)
        if choose.random() < 0.2:
            raise RuntimeError("by chance")

    policy = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
    ports = Ports(store=store, methods=DerivedMethods("test.bank", [bytes(32)]), feed=store.feed)
    retry = RetryPolicy(first_s=_RETRY.total_seconds())
    service = IncomingPayments(policy=policy, ports=ports)
    service.relay(
        RELAYED, handle, render=render, retry=retry, attempt_s=0.5, lease_s=2, poll_s=0.02, start=Start.BEGINNING
    ).run()


# --- a round -----------------------------------------------------------------------------------------


def _fork(folder: Path, act: Callable[[SqliteStore], None]) -> int:
    """Run `act` in a child with a store of its own, and return its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        while True:
            try:
                act(SqliteStore(folder / "payments.db"))
            except StoreUnavailable:  # the file was locked for too long
                continue
    except StoreStopped:
        status = _STOPPED
    except BaseException:  # noqa: BLE001 - `os._exit` would lose it
        traceback.print_exc()
    finally:
        os._exit(status)


def _run_round(folder: Path, choose: random.Random) -> int:
    """Start all processes, kill them at random, and return how many were killed."""
    consumers = (partial(_consume, folder, CONSUMERS[place]) for place in (0, 0, 2))
    acts: list[Callable[[SqliteStore], None]] = [_write, _write, partial(_relay, folder), *consumers]
    children = [(choose.uniform(0.02, _SECONDS_MAX), _fork(folder, act)) for act in acts]
    begin_s, killed = time.monotonic(), 0
    for at_s, child in sorted(children):
        time.sleep(max(0.0, begin_s + at_s - time.monotonic()))
        os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in {_STOPPED, -signal.SIGKILL}, status
        killed += status == -signal.SIGKILL
    return killed


def _take_the_rest(folder: Path) -> None:
    """Send the dead letters again, and take everything that is due now or later."""
    with SqliteStore(folder / "payments.db") as store:
        for consumer in CONSUMERS:
            name, record, never_fails = consumer.name, _Record(folder, consumer.name), random.Random(1)
            never_fails.random = lambda: 1.0  # type: ignore[method-assign]
            for letter in store.feed.dead_letters(name, None, 10_000):
                store.feed.redeliver(name, letter.payment_id, letter.first_version, datetime.now(UTC))
            end_s = time.monotonic() + _PATIENCE_S
            while store.feed.next_due(name) is not None:
                assert time.monotonic() < end_s, f"the consumer {name} does not get its last deliveries"
                if not _take(store, name, record, never_fails):
                    time.sleep(0.01)


# --- the check ---------------------------------------------------------------------------------------


def arrivals_of(folder: Path, name: str) -> list[Arrival]:
    """Return the arrivals at a consumer, in order."""
    lines = (folder / f"{name}.arrivals").read_text("utf-8").splitlines()
    return [(id, payload) for id, payload in map(json.loads, lines)]


def stored_events(database: Path) -> dict[str, Facts]:
    """Return the facts of all stored events by their ids."""
    query = "SELECT payment_id, version, kind, received_amount, credit_id FROM events"
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(query).fetchall()
    return {f"{id}_{version}": [kind, int(received), credit] for id, version, kind, received, credit in rows}


def violations_of(consumer: Consumer, arrivals: Sequence[Arrival], stored: dict[str, Facts]) -> Iterator[str]:
    """Yield the differences between the arrivals at `consumer` and the stored events."""
    payloads: dict[str, str] = {}
    deliveries = defaultdict[str, set[str]](set)  # the deliveries that have the event
    versions = defaultdict[str, list[int]](list)  # the first arrivals of each payment
    for delivery, payload in arrivals:
        if payloads.setdefault(delivery, payload) != payload:
            yield f"a duplicate has other bytes: {delivery}"
        for event, facts in json.loads(payload).items():
            if stored.get(event) != facts:
                yield f"the event was invented: {event}"
            payment, _, version = event.rpartition("_")
            if event not in deliveries:
                versions[payment].append(int(version))
            deliveries[event].add(delivery)
    kinds = consumer.kinds
    wanted = {event for event, facts in stored.items() if kinds is None or facts[0] in kinds}
    yield from (f"the event never arrived: {event}" for event in sorted(wanted - set(deliveries)))
    yield from (f"the event is excluded: {event}" for event in sorted(set(deliveries) - wanted))
    yield from (f"two deliveries have the event: {event}" for event, found in deliveries.items() if len(found) > 1)
    yield from (f"first arrivals are not in order: {id}" for id, found in versions.items() if found != sorted(found))


def run_campaign(folder: Path, seed: int, rounds: int) -> Report:
    """Run all rounds, and check the arrivals."""
    choose = random.Random(seed)
    with SqliteStore(folder / "payments.db") as store:
        for consumer in CONSUMERS:
            assert store.feed.register(consumer, Start.BEGINNING, datetime.now(UTC))
            _Record(folder, consumer.name)
    killed = sum(_run_round(folder, choose) for _ in range(rounds))
    _take_the_rest(folder)
    stored = stored_events(folder / "payments.db")
    violations, number, different = [], 0, 0
    for consumer in CONSUMERS:
        arrivals = arrivals_of(folder, consumer.name)
        violations += [f"{consumer.name}: {text}" for text in violations_of(consumer, arrivals, stored)]
        number += len(arrivals)
        different += len({id for id, _ in arrivals})
    return Report(killed, number, number - different, violations)


def main(folder: str, seed: int, rounds: int) -> int:
    """Run the campaign, and print the report."""
    report = run_campaign(Path(folder), seed, rounds)
    print(
        f"{report.killed} processes killed, {report.arrivals} arrivals, {report.duplicates} of them again", flush=True
    )
    print("".join(f"broken: {text}\n" for text in report.violations), end="")
    return 1 if report.violations or not report.arrivals else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))

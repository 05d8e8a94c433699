"""Writers and consumers of the feed that are killed at random: each event arrives at least once, and in order.

    python -m campaigns.crash.feed FOLDER SEED ROUNDS        with PYTHONPATH=tests

In each round, processes change payments in a SQLite file, and other processes claim and settle deliveries. A consumer
writes what it got to a file, with a sync, before it acknowledges the delivery. Two relays send webhooks to two
receivers, which often fail. All processes are killed by SIGKILL. At the end, this process takes what is left, compares
the files with the database, and audits a copy of the database.
"""

import itertools
import json
import logging
import os
import random
import secrets
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from attrs import frozen

from campaigns.crash import webhooks
from campaigns.crash.arrivals import Record, arrivals_of, stored_events, violations_of
from incoming_payments.audit import audit
from incoming_payments.domain.feed import (
    Consumer,
    ConsumerName,
    Delivered,
    Delivery,
    Failed,
    FeedEvent,
    Start,
    consumer_name,
)
from incoming_payments.domain.payment import PAYMENT_ID_RANDOM_BYTES, CreditId, new_payment_id
from incoming_payments.domain.retry import RetryPolicy
from incoming_payments.errors import StoreStopped, StoreUnavailable
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import a_creation, crediting

DATABASE: Final = "payments.db"
_COPY: Final = "copy.db"
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


@frozen
class Report:
    """What the campaign did, and the differences between the arrivals and the database."""

    figures: Mapping[str, int]
    violations: Sequence[str]


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


def _take(store: SqliteStore, name: ConsumerName, record: Record, choose: random.Random) -> bool:
    """Claim deliveries, note them, and settle them. Some attempts fail. Return whether there was one."""
    now = datetime.now(UTC)
    deliveries = store.feed.claim(name, render, now=now, until=now + _LEASE, limit=choose.randint(1, 4))
    for delivery in deliveries:
        record.note(delivery.id, delivery.payload)
        roll, now = choose.random(), datetime.now(UTC)
        failed = Failed(error="by chance", retry_at=now + _RETRY, is_last=roll < 0.05)
        store.feed.settle(delivery, failed if roll < 0.2 else Delivered(), now)
    return bool(deliveries)


def _consume(folder: Path, consumer: Consumer, store: SqliteStore) -> None:
    """Claim and settle for ever."""
    record, choose = Record(folder, consumer.name), random.Random(os.getpid())
    while True:
        if not _take(store, consumer.name, record, choose):
            time.sleep(0.005)


def _relay(folder: Path, store: SqliteStore) -> None:
    """Run a relay for ever, whose handler fails at times."""
    logging.disable()  # each failure is logged
    record, choose = Record(folder, RELAYED.name), random.Random(os.getpid())

    def handle(delivery: Delivery) -> None:
        record.note(delivery.id, delivery.payload)
        if choose.random() < 0.2:
            raise RuntimeError("by chance")

    retry = RetryPolicy(first_s=_RETRY.total_seconds())
    webhooks.service_on(store).relay(
        RELAYED, handle, render=render, retry=retry, attempt_s=0.5, lease_s=2, poll_s=0.02, start=Start.BEGINNING
    ).run()


# --- a round -----------------------------------------------------------------------------------------


def _on_store(folder: Path, act: Callable[[SqliteStore], None]) -> None:
    """Run `act` with a store, again and again."""
    while True:
        try:
            act(SqliteStore(folder / DATABASE))
        except StoreUnavailable:  # the file was locked for too long
            continue


def _fork(act: Callable[[], None]) -> int:
    """Run `act` in a child, and return its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        act()
    except StoreStopped:
        status = _STOPPED
    except BaseException:  # noqa: BLE001 - `os._exit` would lose it
        traceback.print_exc()
    finally:
        os._exit(status)


def _end(child: int) -> bool:
    """Kill the child, and return whether it was running until it was killed."""
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {_STOPPED, -signal.SIGKILL}, status
    return status == -signal.SIGKILL


def _fork_webhooks(
    folder: Path, listener: socket.socket, *, behind: timedelta = timedelta(0), choose: random.Random | None = None
) -> tuple[int, int]:
    """Start a relay that sends webhooks, and a receiver. Return their process ids."""
    sends = partial(webhooks.relay, folder, listener, behind)
    receives = partial(webhooks.receive, folder, listener, choose)
    return _fork(partial(_on_store, folder, sends)), _fork(receives)


def _run_round(folder: Path, listener: socket.socket, choose: random.Random) -> tuple[int, int]:
    """Start all processes, kill them at random, and return how many were killed, and how many of these send webhooks.

    A process is not counted if it has stopped before.
    """
    consumers = (partial(_consume, folder, CONSUMERS[place]) for place in (0, 0, 2))
    acts: list[Callable[[SqliteStore], None]] = [_write, _write, partial(_relay, folder), *consumers]
    children = [_fork(partial(_on_store, folder, act)) for act in acts]
    pairs = [_fork_webhooks(folder, listener, behind=behind) for behind in (timedelta(0), webhooks.BEHIND)]
    running = {*children, *itertools.chain(*pairs)}
    kills = [(choose.uniform(0.02, _SECONDS_MAX), child) for child in sorted(running)]
    killed = set[int]()
    try:
        if choose.random() < 0.8:  # else kill some processes while they start
            webhooks.await_one(folder)
        begin_s = time.monotonic()
        for at_s, child in sorted(kills):
            time.sleep(max(0.0, begin_s + at_s - time.monotonic()))
            running.remove(child)
            if _end(child):
                killed.add(child)
    finally:
        for child in running:  # there are some if another process has failed
            os.kill(child, signal.SIGKILL)
    return len(killed), len(killed & {sender for sender, _ in pairs})


def _calm() -> random.Random:
    """Return choices with which nothing fails."""
    choose = random.Random(1)
    choose.random = lambda: 1.0  # type: ignore[method-assign]
    return choose


def _take_the_rest(folder: Path, listener: socket.socket) -> set[str]:
    """Take everything that is due now or later, also the dead letters, and then make a copy for the audit.

    Return the dead letters of webhooks.
    """
    children = _fork_webhooks(folder, listener, choose=_calm())
    try:
        with SqliteStore(folder / DATABASE) as store:
            for consumer in CONSUMERS:
                take = partial(_take, store, consumer.name, Record(folder, consumer.name), _calm())
                _finish(store, consumer.name, take)
            late = _finish(store, consumer_name(webhooks.NAME), lambda: False)
            store.backup(folder / _COPY)
    finally:
        for child in children:
            _end(child)
    return late


def _finish(store: SqliteStore, name: ConsumerName, take: Callable[[], bool]) -> set[str]:
    """Call `take` until the consumer has got everything. Return the deliveries that were dead letters."""
    dead, end_s = set[str](), time.monotonic() + _PATIENCE_S
    while store.feed.next_due(name) is not None or _resend(store, name, dead):
        assert time.monotonic() < end_s, f"the consumer {name} does not get its last deliveries"
        if not take():
            time.sleep(0.01)
    return dead


def _resend(store: SqliteStore, name: ConsumerName, dead: set[str]) -> bool:
    """Send the dead letters again, and add them to `dead`. Return whether there were any."""
    letters = store.feed.dead_letters(name, None, 10_000)
    for letter in letters:
        store.feed.redeliver(name, letter.payment_id, letter.first_version, datetime.now(UTC))
        dead.add(letter.id)
    return bool(letters)


# --- the campaign --------------------------------------------------------------------------------------


def run_campaign(folder: Path, seed: int, rounds: int) -> Report:
    """Run all rounds, check the arrivals, and audit the database."""
    choose, database = random.Random(seed), folder / DATABASE
    with webhooks.listen() as listener:
        hooks = webhooks.endpoint_at(listener).consumer
        with SqliteStore(database) as store:
            for consumer in (*CONSUMERS, hooks):
                assert store.feed.register(consumer, Start.BEGINNING, datetime.now(UTC))
                Record(folder, consumer.name)
        killed, relays = map(sum, zip(*(_run_round(folder, listener, choose) for _ in range(rounds)), strict=True))
        late = _take_the_rest(folder, listener)
    figures, violations = {"processes killed": killed, "relays of webhooks killed": relays}, list[str]()
    stored = stored_events(database)
    for consumer in (*CONSUMERS, hooks):
        arrivals = arrivals_of(folder, consumer.name)
        if consumer is hooks:
            found = violations_of(consumer, arrivals, stored, read=webhooks.facts_in, late=late)
        else:
            found = violations_of(consumer, arrivals, stored)
        violations += [f"{consumer.name}: {text}" for text in found]
        figures[f"arrivals at {consumer.name}"] = len(arrivals)
        figures[f"duplicates at {consumer.name}"] = len(arrivals) - len({id for id, _ in arrivals})
    figures |= {"dead webhooks sent again": len(late), **webhooks.outcomes_in(folder)}
    audited = audit(folder / _COPY)
    figures |= {"payments audited": audited.counts.payments, "deliveries audited": audited.counts.deliveries}
    return Report(figures, [*violations, *map(str, audited.differences)])


def main(folder: str, seed: int, rounds: int) -> int:
    """Run the campaign, and print the report."""
    report = run_campaign(Path(folder), seed, rounds)
    for name, figure in report.figures.items():
        print(f"{name:<30}{figure:>9}")
    print(f"{'violations':<30}{len(report.violations):>9}")
    print("".join(f"broken: {text}\n" for text in report.violations), end="")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))

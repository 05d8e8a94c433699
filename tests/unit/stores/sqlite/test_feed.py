"""Long histories in batches, damage, processes, forks and cancelled calls, which the contract suite cannot reach."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.feed import Consumer, ConsumerName, Delivered, Delivery, Start
from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.errors import InvalidValue, StoreUnusable
from incoming_payments.limits import CLAIM_EVENTS_MAX, FEED_ROWS_MAX
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing import NOW, a_creation, a_wallet_address, crediting
from incoming_payments.testing._feed_hooks import (
    LEDGER,
    MINUTE,
    claim,
    failed,
    register_all,
    remove_all,
    render,
    settle_all,
)
from incoming_payments.testing.steps import create, credit
from kits.sqlite_jobs import act_on, edit, fork, in_one_batch, rows, writers

ALICE = a_wallet_address()
BOB = a_wallet_address("https://bank.example/bob")
OLD = 2 * FEED_ROWS_MAX + 50  # payments for three batches


@pytest.fixture
def many(path: Path) -> list[PaymentId]:
    """Create `OLD` payments of two wallet addresses in the file, and return their ids in order."""
    creations = [a_creation(limit=2, wallet_address=BOB if number % 2 else ALICE) for number in range(OLD)]
    store = AsyncSqliteStore(path)
    in_one_batch(*map(store.insert, creations))
    asyncio.run(store.close())
    return sorted(creation.answer.id for creation in creations)


def taken(path: Path, name: str = LEDGER) -> Counter[tuple[PaymentId, str]]:
    """Settle everything that is due, and return how often each payload of each payment arrived."""
    found: Counter[tuple[PaymentId, str]] = Counter()
    store = AsyncSqliteStore(path)
    feed = store.feed

    def claimed() -> Any:
        return feed.claim(ConsumerName(name), render, now=NOW, until=NOW + MINUTE, limit=100)

    while deliveries := in_one_batch(claimed())[0]:
        found.update((delivery.payment_id, delivery.payload.decode()) for delivery in deliveries)
        assert all(in_one_batch(*(feed.settle(delivery, Delivered(), NOW) for delivery in deliveries)))
    asyncio.run(store.close())
    return found


def left(path: Path, table: str) -> int:
    """Return the number of rows of the table."""
    [(number,)] = rows(path, f"SELECT count(*) FROM {table}")  # noqa: S608
    return int(number)


# --- registration over old events ---


def test_a_registration_passes_over_old_payments_in_batches(
    path: Path, store: SqliteStore, many: list[PaymentId]
) -> None:
    """The consumer gets nothing before the last batch, and then each old event once."""
    register = partial(store.feed.register, Consumer(name=LEDGER), Start.BEGINNING, NOW)
    assert [register() for _ in range(2)] == [False, False]
    assert not claim(store.feed)
    assert store.feed.next_due(LEDGER) is None
    assert [state.is_ready for state in store.feed.consumers()] == [False]
    assert register()
    assert register()
    assert store.feed.next_due(LEDGER) == NOW
    assert taken(path) == Counter((id, "1") for id in many)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (None, ["1", "2", "3", "4"]),
        (["created"], ["1"]),
        (["credited"], ["2", "3"]),
        (["created", "completed"], ["1", "4"]),
        (["completed"], ["4"]),
    ],
)
def test_changes_between_the_batches_are_not_missed(
    path: Path, store: SqliteStore, many: list[PaymentId], kinds: list[str] | None, expected: list[str]
) -> None:
    """This holds for payments that the registration has passed, for the others, and for new payments."""
    consumer = Consumer(name=LEDGER, kinds=kinds, joins_credits=False)
    new: list[PaymentId] = []
    is_ready, turn = False, 0
    while not is_ready:
        for id in (many[turn], many[FEED_ROWS_MAX - 1], many[-1 - turn], *new):
            if store.load(id).version < 4:
                credit(store, id, f"wire-{turn}", 1)
        new.append(create(store, a_creation(limit=2)))
        is_ready = store.feed.register(consumer, Start.BEGINNING, NOW)
        turn += 1
    changed = [id for id in {*many, *new} if store.load(id).version > 1]
    for id in changed:
        if store.load(id).version < 4:
            credit(store, id, "last", 1)
    found = taken(path)
    for id in changed:
        assert [payload for payment, payload in found if payment == id] == expected
    assert set(found.values()) == {1}
    assert len({id for id, _ in found}) == (len(many) + len(new) if "1" in expected else len(changed))


@pytest.mark.parametrize("kinds", [None, ["created", "completed"]])
def test_changes_beside_the_batches_are_not_missed(
    path: Path, store: SqliteStore, many: list[PaymentId], kinds: list[str] | None
) -> None:
    """Another thread and another store change payments while the registration runs."""
    stop, changed = threading.Event(), list[PaymentId]()

    def change(own: SqliteStore, ids: Sequence[PaymentId], name: str) -> None:
        with own:
            for id in ids:
                if stop.is_set():
                    break
                credit(own, id, name, 2)
                changed.append(id)

    threads = [
        threading.Thread(target=change, args=(SqliteStore(path), ids, name))
        for ids, name in ((many[:400:3], "wire-1"), (many[:399:-5], "wire-2"))
    ]
    for thread in threads:
        thread.start()
    register_all(store.feed, Consumer(name=LEDGER, kinds=kinds, joins_credits=False), Start.BEGINNING)
    stop.set()
    for thread in threads:
        thread.join()
    found = taken(path)
    expected = {id: ["1"] for id in many}
    expected |= {id: ["1", "2", "3"] if kinds is None else ["1", "3"] for id in changed}
    arrived: dict[PaymentId, list[str]] = {}
    for id, payload in found:
        arrived.setdefault(id, []).append(payload)
    assert arrived == expected
    assert set(found.values()) == {1}


def test_a_registration_that_a_crash_interrupts_goes_on(path: Path, many: list[PaymentId]) -> None:
    """Another process continues with the next batch."""
    consumer = Consumer(name=LEDGER)
    with SqliteStore(path) as first:
        assert not first.feed.register(consumer, Start.BEGINNING, NOW)
    with SqliteStore(path) as second:
        assert not second.feed.register(consumer, Start.NOW, NOW)
        assert second.feed.register(consumer, Start.NOW, NOW)
        assert len(taken(path)) == len(many)


def test_a_registration_filters_old_payments_by_wallet_address(
    path: Path, store: SqliteStore, many: list[PaymentId]
) -> None:
    """Payments into other wallet addresses leave no row."""
    register_all(store.feed, Consumer(name=LEDGER, wallet_addresses=[BOB.url]), Start.BEGINNING)
    assert len(taken(path)) == len(many) // 2


def test_a_registration_passes_over_excluded_credits_by_an_index(
    monkeypatch: pytest.MonkeyPatch, path: Path, store: SqliteStore
) -> None:
    """A payment with many credits does not slow down a consumer that excludes them."""
    id = create(store)
    in_one_batch(
        *(
            AsyncSqliteStore.update(other, id, crediting(f"wire-{number}", 1), CreditId(f"wire-{number}"))
            for other in [AsyncSqliteStore(path)]
            for number in range(3000)
        )
    )
    steps: list[int] = []

    def count(connection: sqlite3.Connection, _: str) -> None:
        steps.clear()
        connection.set_progress_handler(lambda: steps.append(1), 100)

    act_on(monkeypatch, "SELECT version FROM events", count)
    with SqliteStore(path) as counting:
        for kinds in (["created"], ["completed", "expired"], ["credited"]):
            name = ConsumerName(kinds[0])
            assert counting.feed.register(Consumer(name=name, kinds=kinds), Start.BEGINNING, NOW)
            assert len(steps) < 20
        assert settle_all(counting.feed, "created") == ["1"]
        assert settle_all(counting.feed, "completed") == []


# --- removal and clean-up ---


def test_a_removal_works_in_batches(path: Path, store: SqliteStore, many: list[PaymentId]) -> None:
    """The consumer gets nothing after the first batch. No row of it is left."""
    register_all(store.feed, Consumer(name=LEDGER), Start.BEGINNING)
    register_all(store.feed, Consumer(name=ConsumerName("other")), Start.BEGINNING)
    for _ in range(6):
        claim(store.feed, limit=100)
    assert not store.feed.remove(LEDGER)
    assert [state.consumer.name for state in store.feed.consumers()] == ["other"]
    with pytest.raises(InvalidValue, match="complete the removal first"):
        store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    credit(store, many[0], "wire-1", 1)
    remove_all(store.feed, LEDGER)
    assert left(path, "deliveries") == 0
    assert rows(path, "SELECT DISTINCT consumer FROM streams") == [("other",)]
    assert rows(path, "SELECT name FROM consumers") == [("other",)]


def test_a_delivery_that_is_held_during_a_removal_cannot_be_settled(
    path: Path, store: SqliteStore, many: list[PaymentId]
) -> None:
    """A consumer with the same name starts anew, and gets the event again."""
    register_all(store.feed, Consumer(name=LEDGER), Start.BEGINNING)
    [held] = claim(store.feed, limit=1)
    assert not store.feed.remove(LEDGER)
    assert not store.feed.settle(held, Delivered(), NOW)
    remove_all(store.feed, LEDGER)
    register_all(store.feed, Consumer(name=LEDGER), Start.BEGINNING)
    assert not store.feed.settle(held, Delivered(), NOW)
    assert len(taken(path)) == len(many)


def test_a_skip_works_in_batches(path: Path, store: SqliteStore, many: list[PaymentId]) -> None:
    """Retries and streams are dropped. A lease is not."""
    register_all(store.feed, Consumer(name=LEDGER), Start.BEGINNING)
    [held] = claim(store.feed, limit=1)
    for _ in range(6):
        for delivery in claim(store.feed, limit=100):
            store.feed.settle(delivery, failed(retry_s=10), NOW)
    assert not store.feed.skip(LEDGER, NOW)
    while not store.feed.skip(LEDGER, NOW):
        pass
    assert (left(path, "deliveries"), left(path, "streams")) == (1, 1)
    assert store.feed.settle(held, Delivered(), NOW)
    assert not claim(store.feed, after_s=100)
    credit(store, many[-1], "wire-1", 1)
    assert settle_all(store.feed) == ["2"]


def test_acknowledged_deliveries_are_forgotten_in_batches(
    path: Path, store: SqliteStore, many: list[PaymentId]
) -> None:
    """Each call deletes at most `FEED_ROWS_MAX` rows."""
    register_all(store.feed, Consumer(name=LEDGER), Start.BEGINNING)
    taken(path)
    assert [store.feed.forget(NOW + MINUTE) for _ in range(3)] == [False, False, True]
    assert left(path, "deliveries") == 0
    assert len(many) == OLD


def test_a_claim_passes_over_many_streams_that_a_new_filter_excludes(store: SqliteStore, many: list[PaymentId]) -> None:
    """They do not hide a later one, and each claim drops a bounded number."""
    register_all(store.feed, Consumer(name=LEDGER), Start.BEGINNING)
    store.feed.register(Consumer(name=LEDGER, kinds=["credited"]), Start.NOW, NOW)
    credit(store, many[-1], "wire-1", 1, NOW + timedelta(seconds=1))
    found: list[Delivery] = []
    for _ in range(3):
        found += claim(store.feed, after_s=1, limit=1)
    assert [delivery.payload for delivery in found] == [b"2"]


@pytest.mark.parametrize("kinds", [["credited"], ["created", "credited"]], ids=str)
def test_a_claim_reads_a_bounded_number_of_events(path: Path, kinds: list[str]) -> None:
    """Other writes wait for a claim. Large deliveries come in several claims, and so do their next attempts.

    To know when the rest of a stream is due, a claim also reads the events behind a delivery of one event.
    """
    count = CLAIM_EVENTS_MAX // 2 + 1
    size = count if kinds == ["credited"] else 1
    names = [CreditId(f"wire-{number}") for number in range(count)]
    creations = [a_creation() for _ in range(3)]
    ids = {creation.answer.id for creation in creations}
    store = AsyncSqliteStore(path)
    in_one_batch(store.feed.register(Consumer(name=LEDGER, kinds=kinds), Start.NOW, NOW))
    in_one_batch(*map(store.insert, creations))
    for id in ids:
        in_one_batch(*(store.update(id, crediting(name, 1), name) for name in names))
    asyncio.run(store.close())
    with SqliteStore(path) as sync:
        for after_s in (0, 60) if size > 1 else (0,):
            claims = [claim(sync.feed, after_s=after_s) for _ in range(2)]
            assert [[len(delivery.events) for delivery in one] for one in claims] == [[size, size], [size]]
            assert {delivery.payment_id for one in claims for delivery in one} == ids


# --- damage ---


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE consumers SET kinds = 'created unheard-of'",
        "UPDATE consumers SET wallet_addresses = ''",
        "UPDATE consumers SET credit_delay_s = -1",
        "UPDATE consumers SET name = 'LEDGER?'",
    ],
)
def test_an_invalid_consumer_makes_the_store_unusable(path: Path, store: SqliteStore, statement: str) -> None:
    """Changes and claims are refused, and the error names the consumer."""
    id = create(store)
    store.feed.register(Consumer(name=LEDGER), Start.BEGINNING, NOW)
    edit(path, statement)
    calls: list[Callable[[], Any]] = [partial(create, store), partial(credit, store, id, "wire-1", 1)]
    for call in [*calls, store.feed.consumers]:
        with pytest.raises(StoreUnusable, match=r"the row of the consumer (ledger|LEDGER\?) holds an invalid value"):
            call()
    assert store.load(id).version == 1


@pytest.mark.parametrize("column", ["failing_since", "disabled_at"])
def test_an_invalid_time_of_a_consumer_makes_its_claims_fail(path: Path, store: SqliteStore, column: str) -> None:
    """The error names the consumer. Payments work."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    edit(path, f"UPDATE consumers SET {column} = 9223372036854775807")  # noqa: S608
    create(store)
    with pytest.raises(StoreUnusable, match="the row of the consumer ledger holds an invalid value"):
        claim(store.feed)


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("UPDATE events SET kind = 'unheard-of'", "event 1 of payment"),
        ("UPDATE events SET at = 9223372036854775807", "event 1 of payment"),
        ("UPDATE events SET received_amount = '99999999999999999999'", "event 1 of payment"),
        ("DELETE FROM events", "a delivery of payment"),
    ],
)
def test_an_invalid_event_is_not_delivered(path: Path, store: SqliteStore, statement: str, name: str) -> None:
    """A claim of its delivery raises `StoreUnusable`, and the next claim raises it again."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    create(store)
    [delivery] = claim(store.feed)
    store.feed.settle(delivery, failed(), NOW)
    edit(path, statement)
    for _ in range(2):
        with pytest.raises(StoreUnusable, match=name):
            claim(store.feed)


@pytest.mark.parametrize("column", ["created_at", "due_at"])
def test_an_invalid_delivery_is_not_listed(path: Path, store: SqliteStore, column: str) -> None:
    """The error names the payment."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    id = create(store)
    claim(store.feed)
    edit(path, f"UPDATE deliveries SET {column} = 9223372036854775807")  # noqa: S608
    with pytest.raises(StoreUnusable, match=f"a delivery of payment {id}"):
        store.feed.deliveries(id)


def test_a_renderer_that_returns_no_bytes_changes_nothing(store: SqliteStore) -> None:
    """The caller gets the error, and the calls in the same batch succeed."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    create(store)
    wrong: Any = lambda _: object()  # noqa: E731
    with pytest.raises(InvalidValue, match="payload must be of type bytes"):
        store.feed.claim(LEDGER, wrong, now=NOW, until=NOW + MINUTE, limit=1)
    assert [delivery.attempt for delivery in claim(store.feed)] == [1]


# --- one transaction with other calls ---


def test_changes_and_claims_in_one_transaction(path: Path) -> None:
    """A claim, a result and changes of the same payment lose nothing, in any order within one batch."""
    store = AsyncSqliteStore(path)
    feed = store.feed

    def settled(delivery: Delivery) -> Any:
        return feed.settle(delivery, Delivered(), NOW)

    def claimed() -> Any:
        return feed.claim(LEDGER, render, now=NOW, until=NOW + MINUTE, limit=10)

    def credited(number: int) -> Any:
        name = CreditId(f"wire-{number}")
        return store.update(created.answer.id, crediting(name, 1), name)

    created = a_creation()
    in_one_batch(feed.register(Consumer(name=LEDGER), Start.BEGINNING, NOW), store.insert(created), credited(0))
    payloads = []
    [first] = in_one_batch(claimed(), credited(1))[0]
    payloads.append(first.payload)
    assert in_one_batch(credited(2), settled(first), credited(3))[1] is True
    while deliveries := in_one_batch(claimed())[0]:
        payloads += [delivery.payload for delivery in deliveries]
        in_one_batch(*map(settled, deliveries))
    assert payloads == [b"1", b"2 3 4 5"]
    [second] = in_one_batch(credited(4), claimed(), credited(5), claimed())[1:2]
    assert second == []
    [last] = in_one_batch(claimed())[0]
    assert last.payload == b"6 7"
    asyncio.run(store.close())


def test_a_disabled_consumer_does_not_hide_a_change_of_the_same_transaction(path: Path) -> None:
    """The watchers are woken by the change."""
    store = AsyncSqliteStore(path)
    woken = threading.Event()
    consumers = [Consumer(name=ConsumerName(name)) for name in ("a", "b")]
    in_one_batch(*(store.feed.register(consumer, Start.NOW, NOW) for consumer in consumers))
    store.feed.watch(woken.set)
    in_one_batch(
        store.feed.set_enabled(consumers[0].name, NOW, enabled=True),
        store.feed.set_enabled(consumers[1].name, NOW, enabled=False),
    )
    assert woken.wait(10)
    asyncio.run(store.close())


def test_a_cancelled_claim_holds_its_lease(path: Path) -> None:
    """The delivery can be claimed again when the lease has ended. A cancelled result is stored."""

    async def run() -> None:
        async with AsyncSqliteStore(path) as store:
            feed = store.feed
            await feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
            await store.insert(a_creation())
            task = asyncio.ensure_future(feed.claim(LEDGER, render, now=NOW, until=NOW + MINUTE, limit=1))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not await feed.claim(LEDGER, render, now=NOW, until=NOW + MINUTE, limit=1)
            later = NOW + MINUTE
            [delivery] = await feed.claim(LEDGER, render, now=later, until=later + MINUTE, limit=1)
            assert delivery.attempt == 2
            task2 = asyncio.ensure_future(feed.settle(delivery, Delivered(), later))
            await asyncio.sleep(0)
            task2.cancel()
            await asyncio.gather(task2, return_exceptions=True)
            assert not await feed.claim(LEDGER, render, now=later, until=later + MINUTE, limit=1)
            assert await feed.next_due(LEDGER) is None

    asyncio.run(run())


# --- processes and forks ---

BEGIN = """
import os, sys, signal, time
from datetime import timedelta
from incoming_payments.domain.feed import Delivered
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import NOW
store = SqliteStore(sys.argv[1])
def claim(feed, limit):
    return feed.claim("ledger", lambda events: b"", now=NOW, until=NOW + timedelta(minutes=1), limit=limit)
"""
TAKING = """
while deliveries := claim(store.feed, limit=7):
    for delivery in deliveries:
        print(delivery.id, flush=True)
        assert store.feed.settle(delivery, Delivered(), NOW)
"""
DYING = """
for delivery in claim(store.feed, limit=3):
    print(delivery.id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def start(path: Path, script: str) -> "subprocess.Popen[str]":
    """Start a process that runs `script` with the store of the file."""
    return subprocess.Popen([sys.executable, "-c", BEGIN + script, str(path)], stdout=subprocess.PIPE, text=True)


def test_processes_share_the_deliveries(path: Path, store: SqliteStore) -> None:
    """Each delivery has one holder."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    many = [create(store) for _ in range(100)]
    processes = [start(path, TAKING) for _ in range(3)]
    lines = [line for process in processes for line in process.communicate(timeout=120)[0].split()]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(lines) == [f"{id}_1_1" for id in many]
    assert not claim(store.feed, after_s=1000)


def test_the_claims_of_a_killed_process_are_claimed_again(path: Path, store: SqliteStore) -> None:
    """Its leases end, and the bytes and ids stay the same."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    ids = {create(store) for _ in range(5)}
    process = start(path, DYING)
    dead = process.communicate(timeout=60)[0].split()
    assert process.returncode == -signal.SIGKILL
    assert len(dead) == 3
    assert len(claim(store.feed)) == 2
    again = claim(store.feed, after_s=60)
    assert {delivery.id for delivery in again if delivery.attempt == 2} >= set(dead)
    assert {delivery.payment_id for delivery in again} == ids


def test_a_fork_keeps_the_feed_usable(path: Path, store: SqliteStore) -> None:
    """Parent and child share the consumers. The child has no watchers of the parent."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    first, second = create(store), create(store)
    held = claim(store.feed, limit=1)
    woken: list[int] = []
    store.feed.watch(lambda: woken.append(os.getpid()))

    def in_child() -> None:
        [other] = claim(store.feed)
        assert {held[0].payment_id, other.payment_id} == {first, second}
        assert store.feed.settle(held[0], Delivered(), NOW)
        assert store.feed.settle(other, Delivered(), NOW)
        credit(store, first, "child", 1)
        assert not woken
        store.close()

    fork(in_child)
    assert not store.feed.settle(held[0], Delivered(), NOW)
    [later] = claim(store.feed)
    assert (later.payment_id, later.payload) == (first, b"2")
    assert path.exists()


def test_a_feed_keeps_its_store_open(path: Path) -> None:
    """A program may keep only the feed."""
    feed = SqliteStore(path).feed
    feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    assert claim(feed) == []
    assert [len(writers()), feed.consumers()[0].consumer.name] == [1, LEDGER]

"""Calls of the feed beside transactions of other stores, and connections that end in the middle of a call."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from incoming_payments.domain.feed import Consumer, ConsumerName, Delivered, Delivery, FeedEvent, Start
from incoming_payments.errors import ConsumerNotFound, StoreUnavailable
from incoming_payments.ports import Feed
from incoming_payments.stores.postgres import PostgresStore
from incoming_payments.testing import NOW, SyncView, a_creation
from incoming_payments.testing._feed_hooks import (
    LEDGER,
    MINUTE,
    claim,
    failed,
    remove_all,
    render,
    settle_all,
)
from incoming_payments.testing.steps import create, credit
from kits.postgres import SERIALIZABLE, async_view, empty_database, end_connections, execute

OTHER = ConsumerName("other")


@pytest.fixture(params=[PostgresStore, async_view])
def both(database: str, request: pytest.FixtureRequest) -> Iterator[PostgresStore | SyncView]:
    """Yield a store of each kind."""
    with request.param(database) as store:
        yield store


@contextmanager
def locked(database: str, statement: str) -> Iterator[psycopg.Connection[Any]]:
    """Hold the locks of `statement` in a transaction."""
    with psycopg.connect(database) as connection:
        connection.execute(statement.encode())
        yield connection
        connection.commit()


def await_lock_waiters(database: str, count: int = 1) -> None:
    """Wait until `count` transactions wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while execute(database, query) != [(count,)]:
        time.sleep(0.005)


@contextmanager
def in_flight(database: str, call: Callable[[], object]) -> Iterator[None]:
    """Make `call`, which stores an event for the consumer `ledger`. Its transaction ends after the block.

    The transaction has read the consumers, and waits for the row of its stream.
    """
    with ThreadPoolExecutor(1) as executor:
        with locked(database, "SELECT * FROM incoming_payments.streams WHERE consumer = 'ledger' FOR UPDATE"):
            future = executor.submit(call)
            await_lock_waiters(database)
            yield
        future.result()


# --- registration ---


@pytest.mark.parametrize("isolation", ["read committed", SERIALIZABLE])
@pytest.mark.parametrize("start", list(Start))
def test_a_registration_waits_for_the_changes_in_flight(start: Start, isolation: str) -> None:
    """Their transactions do not know the new consumer. Its old events include theirs."""
    database = empty_database(isolation)
    with PostgresStore(database) as store, PostgresStore(database) as other:
        store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
        id = create(store)
        register = partial(other.feed.register, Consumer(name=OTHER), start, NOW)
        with in_flight(database, partial(credit, store, id, "wire-1", 1)):
            assert [register(), register()] == [False, False]
            assert not claim(other.feed, OTHER)
            assert [state.is_ready for state in other.feed.consumers()] == [True, False]
        assert register()
        credit(store, id, "wire-2", 1)
        assert settle_all(other.feed, OTHER) == (["1", "2 3"] if start is Start.BEGINNING else ["3"])
        assert settle_all(store.feed) == ["1", "2 3"]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", SERIALIZABLE])
def test_a_change_that_began_before_a_registration_is_not_missed(isolation: str) -> None:
    """The transaction may have a snapshot without the consumer. Nothing of it is stored before the registration."""
    database = empty_database(isolation)
    with PostgresStore(database) as store, PostgresStore(database) as other, ThreadPoolExecutor(1) as executor:
        id = create(store)
        with locked(database, "SELECT * FROM incoming_payments.payments FOR UPDATE"):
            future = executor.submit(credit, store, id, "wire-1", 1)
            await_lock_waiters(database)
            assert other.feed.register(Consumer(name=LEDGER), Start.BEGINNING, NOW)
            assert settle_all(other.feed) == ["1"]
        future.result()
        assert settle_all(other.feed) == ["2"]


def test_a_wider_filter_waits_for_the_changes_in_flight(
    database: str, both: PostgresStore | SyncView, store: PostgresStore
) -> None:
    """After the registration, no transaction uses the old filter."""
    both.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    both.feed.register(Consumer(name=OTHER, kinds=["created"]), Start.NOW, NOW)
    id = create(store)
    register = partial(both.feed.register, Consumer(name=OTHER), Start.NOW, NOW)
    with in_flight(database, partial(credit, store, id, "wire-1", 1)):
        assert not register()
        assert settle_all(both.feed, OTHER) == ["1"]
    assert register()
    credit(store, id, "wire-2", 1)
    assert settle_all(both.feed, OTHER) == ["3"]


def test_a_removal_waits_for_the_changes_in_flight(
    database: str, both: PostgresStore | SyncView, store: PostgresStore
) -> None:
    """A consumer with the same name gets nothing of theirs."""
    both.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    id = create(store)
    with in_flight(database, partial(credit, store, id, "wire-1", 1)):
        assert not both.feed.remove(LEDGER)
    remove_all(both.feed, LEDGER)
    assert execute(database, "SELECT * FROM incoming_payments.streams") == []
    both.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    credit(store, id, "wire-2", 1)
    assert settle_all(both.feed) == ["3"]


def test_a_removal_waits_for_the_claims_in_flight(both: PostgresStore | SyncView, store: PostgresStore) -> None:
    """No delivery is left."""
    both.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    id = create(store)
    with ThreadPoolExecutor(1) as executor:
        removals: list[Future[None]] = []

        def remove_beside(events: Sequence[FeedEvent]) -> bytes:
            removals.append(executor.submit(remove_all, store.feed, LEDGER))
            with pytest.raises(TimeoutError):
                removals[0].result(0.1)
            return render(events)

        [held] = both.feed.claim(LEDGER, remove_beside, now=NOW, until=NOW + MINUTE, limit=1)
        removals[0].result()
    assert not both.feed.settle(held, Delivered(), NOW)
    assert not both.feed.deliveries(id)


def test_a_removal_that_another_process_completes_ends(database: str, store: PostgresStore) -> None:
    """Two processes may remove a consumer at the same time."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    create(store)
    with (
        PostgresStore(database) as other,
        ThreadPoolExecutor(2) as executor,
        locked(database, "SELECT * FROM incoming_payments.consumers FOR UPDATE"),
    ):
        first, second = (executor.submit(_removed, each.feed) for each in (store, other))
        await_lock_waiters(database, 2)
    assert sorted([first.result(), second.result()]) in (["ConsumerNotFound", "True"], ["True", "True"])
    assert not store.feed.consumers()


def _removed(feed: Feed) -> str:
    try:
        remove_all(feed, LEDGER)
    except ConsumerNotFound:
        return "ConsumerNotFound"
    return "True"


# --- claims and results ---


def test_claims_of_two_stores_do_not_wait(store: PostgresStore, both: PostgresStore | SyncView) -> None:
    """A claim passes over what another one is about to lease."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    ids = {create(store) for _ in range(2)}
    inner: list[Delivery] = []

    def claim_beside(events: Sequence[FeedEvent]) -> bytes:
        inner.extend(claim(both.feed))
        return render(events)

    outer = store.feed.claim(LEDGER, claim_beside, now=NOW, until=NOW + MINUTE, limit=1)
    assert {delivery.payment_id for delivery in [*outer, *inner]} == ids
    assert len(inner) == 1


def test_a_claim_waits_for_a_stream_that_a_change_holds(
    database: str, store: PostgresStore, both: PostgresStore | SyncView
) -> None:
    """A payment that is credited without a pause cannot hold back its events."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    create(store)
    with ThreadPoolExecutor(1) as executor:
        with locked(database, "UPDATE incoming_payments.streams SET head = head"):
            future = executor.submit(claim, both.feed)
            await_lock_waiters(database)
        assert [delivery.payload for delivery in future.result()] == [b"1"]


def test_of_two_claims_for_one_stream_one_gets_the_delivery(
    database: str, store: PostgresStore, both: PostgresStore | SyncView
) -> None:
    """The second one waits, and gets nothing."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    create(store)
    with ThreadPoolExecutor(1) as executor:
        others: list[Future[Sequence[Delivery]]] = []

        def claim_beside(events: Sequence[FeedEvent]) -> bytes:
            others.append(executor.submit(claim, both.feed))
            await_lock_waiters(database)
            return render(events)

        [_] = store.feed.claim(LEDGER, claim_beside, now=NOW, until=NOW + MINUTE, limit=5)
        assert not others[0].result()


def test_of_two_claims_for_a_consumer_that_is_down_one_gets_a_delivery(
    database: str, store: PostgresStore, both: PostgresStore | SyncView
) -> None:
    """The second one waits, and then sees the lease of the first."""
    store.feed.register(Consumer(name=LEDGER, down_after_s=0), Start.NOW, NOW)
    for _ in range(3):
        create(store)
    [delivery] = claim(store.feed, limit=1)
    store.feed.settle(delivery, failed(retry_s=1000), NOW)
    with ThreadPoolExecutor(1) as executor:
        others: list[Future[Sequence[Delivery]]] = []

        def claim_beside(events: Sequence[FeedEvent]) -> bytes:
            others.append(executor.submit(claim, both.feed, after_s=1))
            await_lock_waiters(database)
            return render(events)

        later = NOW + timedelta(seconds=1)
        [_] = store.feed.claim(LEDGER, claim_beside, now=later, until=later + MINUTE, limit=5)
        assert not others[0].result()


def test_a_result_keeps_what_another_process_has_written_about_the_consumer(
    database: str, store: PostgresStore
) -> None:
    """The first failure is noted beside the decision of an operator."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    create(store)
    [delivery] = claim(store.feed)
    with ThreadPoolExecutor(1) as executor:
        with locked(database, "UPDATE incoming_payments.consumers SET disabled_at = 1000000"):
            future = executor.submit(store.feed.settle, delivery, failed(), NOW)
            await_lock_waiters(database)
        assert future.result()
    [state] = store.feed.consumers()
    assert state.health.failing_since == NOW
    assert state.health.disabled_at is not None


def test_a_claim_whose_connection_ends_leaves_the_delivery(database: str, both: PostgresStore | SyncView) -> None:
    """The caller gets an error, or the delivery. Nothing is leased without an answer in this case."""
    both.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    create(both)

    def cut(events: Sequence[FeedEvent]) -> bytes:
        end_connections(database)
        return render(events)

    with pytest.raises(StoreUnavailable):
        both.feed.claim(LEDGER, cut, now=NOW, until=NOW + MINUTE, limit=1)
    assert [delivery.attempt for delivery in claim(both.feed)] == [1]


def test_the_lease_of_a_store_that_is_gone_ends(database: str) -> None:
    """Another process claims the delivery again."""
    with PostgresStore(database) as first:
        first.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
        create(first)
        [held] = claim(first.feed)
        end_connections(database)
    with PostgresStore(database) as second:
        assert not claim(second.feed, after_s=59)
        assert [delivery.payload for delivery in claim(second.feed, after_s=60)] == [held.payload]


def test_a_renderer_may_raise_the_errors_of_a_driver(both: PostgresStore | SyncView) -> None:
    """The store does not take them for its own, and does not repeat the claim."""
    both.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    create(both)
    calls: list[int] = []

    def fail(events: Sequence[FeedEvent]) -> bytes:
        calls.append(len(events))
        raise psycopg.errors.SerializationFailure("in the database of the host")

    with pytest.raises(psycopg.errors.SerializationFailure, match="of the host"):
        both.feed.claim(LEDGER, fail, now=NOW, until=NOW + MINUTE, limit=1)
    assert calls == [1]


def test_stores_share_the_deliveries_while_payments_change(database: str) -> None:
    """Each event arrives once and in order, and no claim fails."""
    arrived: dict[str, list[int]] = {}

    def change(store: PostgresStore) -> None:
        for _ in range(5):
            id = create(store, a_creation())
            for number in range(5):
                credit(store, id, f"wire-{number}", 1)

    def take(store: PostgresStore) -> None:
        for delivery in claim(store.feed, limit=3):
            arrived.setdefault(delivery.payment_id, []).append(delivery.last_version)
            assert store.feed.settle(delivery, Delivered(), NOW)

    def take_all(store: PostgresStore, changes: Sequence[Future[None]]) -> None:
        while not all(each.done() for each in changes) or store.feed.next_due(LEDGER) is not None:
            take(store)

    with ExitStack() as stack:
        stores = [stack.enter_context(PostgresStore(database)) for _ in range(3)]
        stores[0].feed.register(Consumer(name=LEDGER, joins_credits=False), Start.NOW, NOW)
        executor = stack.enter_context(ThreadPoolExecutor(6))
        changes = [executor.submit(change, store) for store in stores]
        for taken in [executor.submit(take_all, store, changes) for store in stores]:
            taken.result()
    assert list(arrived.values()) == [[1, 2, 3, 4, 5, 6]] * 15

"""Calls of one client that wait for each other leave the connections of the store to other clients."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest

from incoming_payments.domain.feed import Consumer, ConsumerName, Failed, Start
from incoming_payments.domain.idempotency import IdempotencyKey
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import StoreUnavailable
from incoming_payments.stores.postgres import AsyncPostgresStore, PostgresStore, _engine
from incoming_payments.testing import NOW, SyncQuotas, SyncView, a_creation, crediting
from incoming_payments.testing.quotas import OTHER, SHOP, Pair, create
from kits.postgres import async_view, execute

KEY = IdempotencyKey("order-1")
TAKE_CLIENT = "INSERT INTO incoming_payments.quota_clients (client, full_at) VALUES (%s, 0)", (SHOP,)
INSERT_KEY = (
    "INSERT INTO incoming_payments.idempotency_keys (client, key, fingerprint, payment_id, until) "
    "VALUES (%s, %s, '', '01900000-0000-7000-8000-000000000000', 0)"
)
TAKE_KEY = INSERT_KEY, (SHOP, KEY)
LOCK_PAYMENT = "SELECT * FROM incoming_payments.payments WHERE id = %s FOR UPDATE"
LOCK_CONSUMER = "SELECT * FROM incoming_payments.consumers FOR UPDATE", ()
LOCK_KEY = "SELECT * FROM incoming_payments.idempotency_keys FOR SHARE", ()
Statement = tuple[str, tuple[str, ...]]


@pytest.fixture(params=["threads", "asyncio"])
def pair(request: pytest.FixtureRequest, database: str) -> Iterator[Pair]:
    """Yield a store with two connections, and its quotas."""
    if request.param == "threads":
        with PostgresStore(database, connections=2) as store:
            yield store, store.quotas(unpaid_payments=50)
    else:
        with async_view(database, connections=2) as view:
            assert isinstance(view.store, AsyncPostgresStore)
            yield view, SyncQuotas(view, view.store.quotas(unpaid_payments=50))


@contextmanager
def uncommitted(database: str, statement: Statement) -> Iterator[None]:
    """Run `statement` in another process, as it seems. Roll back after the block."""
    with psycopg.connect(database) as connection:
        connection.execute(statement[0].encode(), statement[1])
        yield
        connection.rollback()


def await_lock_waiter(database: str) -> None:
    """Wait until a transaction waits for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while execute(database, query) == [(0,)]:
        time.sleep(0.005)


def create_reserved(pair: Pair) -> bool:
    """Create a payment that counts against the quota of the client."""
    return create(pair) is not None


def create_keyed(pair: Pair) -> bool:
    """Create a payment under the key, and return whether no other one had the key."""
    return pair[0].insert(a_creation(key=KEY)) is None


def outcome(call: Callable[[Pair], bool], pair: Pair) -> bool | type[StoreUnavailable]:
    """Return the answer of the call, or the class of its refusal."""
    try:
        return call(pair)
    except StoreUnavailable:
        return StoreUnavailable


def check_another_client(pair: Pair) -> None:
    """Create and read payments of another client."""
    for _ in range(3):
        id = create(pair, client=OTHER)
        assert id is not None
        assert pair[0].load(id).client == OTHER


@pytest.mark.parametrize(("call", "blocked_by"), [(create_reserved, TAKE_CLIENT), (create_keyed, TAKE_KEY)])
def test_waiting_inserts_of_a_client_occupy_one_connection(
    database: str, pair: Pair, call: Callable[[Pair], bool], blocked_by: Statement
) -> None:
    """Another client reads and creates meanwhile. For threads, only eight inserts wait.

    The others are refused at once, because a waiting insert occupies a thread of the host.
    """
    with ThreadPoolExecutor(12) as executor:
        with uncommitted(database, blocked_by):
            calls = [executor.submit(outcome, call, pair) for _ in range(12)]
            await_lock_waiter(database)
            check_another_client(pair)
            refused = [future for future in calls if future.done()]
        outcomes = [future.result() for future in calls]
    assert outcomes.count(StoreUnavailable) == len(refused) == (3 if isinstance(pair[0], PostgresStore) else 0)
    assert outcomes.count(True) == (1 if call is create_keyed else 12 - len(refused))


def test_inserts_of_callers_that_have_gone_occupy_one_connection(database: str) -> None:
    """A client may end its request while its insert waits. The insert goes on, and still waits for its turn."""

    async def run() -> int:
        async with AsyncPostgresStore(database, connections=2) as store:
            known, *others = [a_creation(key=KEY) for _ in range(6)]
            with uncommitted(database, TAKE_KEY):
                callers = [asyncio.create_task(store.insert(decision)) for decision in (known, *others)]
                await asyncio.to_thread(await_lock_waiter, database)
                for caller in callers:
                    caller.cancel()
                await asyncio.wait(callers)
                another = a_creation(client=OTHER)
                await store.insert(another)
                assert (await store.load(another.answer.id)).client == OTHER
        return len(execute(database, "SELECT 1 FROM incoming_payments.payments"))

    assert asyncio.run(run()) == 2


def test_close_waits_for_the_turns(database: str) -> None:
    """The inserts that were called before are stored."""

    async def run() -> None:
        store = AsyncPostgresStore(database, connections=2)
        await store.open()
        callers = [asyncio.create_task(store.insert(a_creation(key=KEY))) for _ in range(6)]
        await asyncio.sleep(0)
        await store.close()
        assert [caller.result() is None for caller in callers].count(True) == 1

    asyncio.run(run())


def test_insert_whose_turn_does_not_come_is_refused(database: str, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller repeats the call later. The next insert then has its turn."""
    with ThreadPoolExecutor(2) as executor:
        with uncommitted(database, TAKE_KEY):
            first = executor.submit(create_keyed, pair)
            await_lock_waiter(database)
            monkeypatch.setattr(_engine, "STORE_BUSY_S_MAX", 0.05)
            second = executor.submit(create_keyed, pair)
            time.sleep(0.2)
        with pytest.raises(StoreUnavailable, match="too many calls are already waiting for this one"):
            second.result()
        monkeypatch.undo()
        assert first.result()
    assert not create_keyed(pair)


def test_refused_calls_do_not_wait_for_a_turn(database: str) -> None:
    """A decision must not call the store. The refused calls store nothing, and refuse no later call."""
    with PostgresStore(database, connections=2) as store:
        payment = a_creation()
        store.insert(payment)

        def decide(_: IncomingPayment, __: Credit | None) -> Decision[None]:
            with pytest.raises(StoreUnavailable, match="repeat the call after the update"):
                store.insert(a_creation(key=KEY))
            with pytest.raises(StoreUnavailable, match="repeat the call after the update"):
                store.update(payment.answer.id, crediting("wire-1", 1), CreditId("wire-1"))
            return Decision(None)

        store.update(payment.answer.id, decide)
        assert store.insert(a_creation(key=KEY)) is None
        assert store.update(payment.answer.id, crediting("wire-2", 5), CreditId("wire-2")).received.value == 5


def test_waiting_updates_of_one_payment_let_those_of_others_pass(database: str) -> None:
    """A payment that is credited without a pause does not keep a thread of the store for itself."""
    order: list[str] = []

    def credit(store: PostgresStore, id: PaymentId, name: str) -> None:
        def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[Credit]:
            order.append(name)
            return crediting(name, 1)(payment, earlier)

        store.update(id, decide, CreditId(name))

    with PostgresStore(database, connections=1) as store, ThreadPoolExecutor(4) as executor:
        busy, other = a_creation(), a_creation()
        for decision in (busy, other):
            store.insert(decision)
        with uncommitted(
            database, ("SELECT * FROM incoming_payments.payments WHERE id = %s FOR UPDATE", (busy.answer.id,))
        ):
            calls = [executor.submit(credit, store, busy.answer.id, "busy-1")]
            await_lock_waiter(database)
            calls += [executor.submit(credit, store, busy.answer.id, name) for name in ("busy-2", "busy-3")]
            calls.append(executor.submit(credit, store, other.answer.id, "other"))
            time.sleep(0.5)  # all of them wait
        for call in calls:
            call.result()
    assert order[:2] == ["busy-1", "other"]


def test_waiting_results_of_a_consumer_occupy_one_connection(database: str, pair: Pair) -> None:
    """The first failure changes the health of the consumer, so each of the results locks the row of the consumer."""
    store, name = pair[0], ConsumerName("ledger")
    assert isinstance(store, PostgresStore | SyncView)
    feed = store.feed
    assert feed.register(Consumer(name=name), Start.NOW, NOW)
    for _ in range(6):
        store.insert(a_creation())
    deliveries = feed.claim(name, lambda _: b"", now=NOW, until=NOW + timedelta(minutes=1), limit=6)
    failed = Failed(error="no answer", retry_at=NOW)
    with ThreadPoolExecutor(6) as executor:
        with uncommitted(database, LOCK_CONSUMER):
            results = [executor.submit(feed.settle, delivery, failed, NOW) for delivery in deliveries]
            await_lock_waiter(database)
            check_another_client(pair)
        assert [future.result() for future in results] == [True] * 6


def test_repeats_of_a_creation_do_not_wait_for_each_other(database: str, pair: Pair) -> None:
    """A transaction that reads the record, and waits for its commit, holds up no other reader."""
    assert create_keyed(pair)
    with uncommitted(database, LOCK_KEY):
        found = pair[0].find_creation(SHOP, KEY, NOW)
    assert found is not None
    assert found.key == KEY

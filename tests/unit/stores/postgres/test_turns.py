"""Calls of one client that wait for each other leave the connections of the store to other clients."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from incoming_payments.domain.idempotency import IdempotencyKey
from incoming_payments.errors import StoreUnavailable
from incoming_payments.stores.postgres import AsyncPostgresStore, PostgresStore, _engine
from incoming_payments.testing import NOW, SyncQuotas, a_creation
from incoming_payments.testing.quotas import OTHER, SHOP, Pair, create
from kits.postgres import async_view, execute

KEY = IdempotencyKey("order-1")
TAKE_CLIENT = "INSERT INTO incoming_payments.quota_clients (client, full_at) VALUES (%s, 0)", (SHOP,)
INSERT_KEY = (
    "INSERT INTO incoming_payments.idempotency_keys (client, key, fingerprint, payment_id, until) "
    "VALUES (%s, %s, '', '01900000-0000-7000-8000-000000000000', 0)"
)
TAKE_KEY = INSERT_KEY, (SHOP, KEY)
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


@pytest.mark.parametrize(
    ("call", "blocked_by", "created"), [(create_reserved, TAKE_CLIENT, 6), (create_keyed, TAKE_KEY, 1)]
)
def test_waiting_inserts_of_a_client_occupy_one_connection(
    database: str, pair: Pair, call: Callable[[Pair], bool], blocked_by: Statement, created: int
) -> None:
    """Another client reads and creates while more inserts wait than the store has connections."""
    with ThreadPoolExecutor(6) as executor:
        with uncommitted(database, blocked_by):
            waiting = [executor.submit(call, pair) for _ in range(6)]
            await_lock_waiter(database)
            for _ in range(3):
                id = create(pair, client=OTHER)
                assert id is not None
                assert pair[0].load(id).client == OTHER
            assert not any(future.done() for future in waiting)
        assert [future.result() for future in waiting].count(True) == created


def test_insert_whose_turn_does_not_come_is_refused(database: str, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller repeats the call later. The next insert then has its turn."""
    with ThreadPoolExecutor(1) as executor:
        with uncommitted(database, TAKE_KEY):
            waiting = executor.submit(create_keyed, pair)
            await_lock_waiter(database)
            monkeypatch.setattr(_engine, "STORE_BUSY_S_MAX", 0.01)
            with pytest.raises(StoreUnavailable, match="too many payments of this client are being created"):
                create_keyed(pair)
            monkeypatch.undo()
        assert waiting.result()
    assert not create_keyed(pair)


def test_repeats_of_a_creation_do_not_wait_for_each_other(database: str, pair: Pair) -> None:
    """A transaction that reads the record, and waits for its commit, holds up no other reader."""
    assert create_keyed(pair)
    with uncommitted(database, LOCK_KEY):
        found = pair[0].find_creation(SHOP, KEY, NOW)
    assert found is not None
    assert found.key == KEY

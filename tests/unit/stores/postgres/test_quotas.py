"""Tests of the quotas in a PostgreSQL database."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from incoming_payments.domain.payment import HOST, client_id
from incoming_payments.errors import ConfigurationError, QuotaExceeded, StoreUnusable
from incoming_payments.stores.postgres import AsyncPostgresStore, PostgresStore
from incoming_payments.testing import NOW, SyncQuotas, SyncView, a_creation
from incoming_payments.testing.quotas import OTHER, SHOP, Pair, QuotaContract, create
from kits.postgres import READ_COMMITTED, SERIALIZABLE, async_view, empty_database, execute


def quotas_of(store: PostgresStore | SyncView, requests: int | None = None, unpaid: int | None = None) -> Pair:
    """Return the store and its quotas."""
    if isinstance(store, PostgresStore):
        return store, store.quotas(requests_per_minute=requests, unpaid_payments=unpaid)
    assert isinstance(store.store, AsyncPostgresStore)
    return store, SyncQuotas(store, store.store.quotas(requests_per_minute=requests, unpaid_payments=unpaid))


class TestPostgresQuotas(QuotaContract):
    """The contract suite against `PostgresQuotas`."""

    isolation = READ_COMMITTED
    open_store: Callable[..., PostgresStore | SyncView] = PostgresStore
    database: str | None = None

    def make_ports(self, directory: Path) -> Pair:  # noqa: ARG002 - part of the hook
        """Return a store on the database of the test, and its quotas."""
        self.database = self.database or empty_database(self.isolation)
        # With one connection, an insert waits for the exchange of the counts before it.
        store = type(self).open_store(self.database, connections=1)
        return quotas_of(store, self.requests, self.unpaid)


class TestSerializablePostgresQuotas(TestPostgresQuotas):
    """The contract suite with serializable transactions."""

    isolation = SERIALIZABLE


class TestAsyncPostgresQuotas(TestPostgresQuotas):
    """The contract suite against `AsyncPostgresQuotas`."""

    open_store = async_view


@pytest.mark.parametrize("name", ["requests_per_minute", "unpaid_payments"])
def test_wrong_setting_is_refused(store: PostgresStore, name: str) -> None:
    """The error names the setting and its bounds."""
    for world in (store, AsyncPostgresStore("")):
        with pytest.raises(ConfigurationError, match=f"{name} must be an integer from 1 to") as caught:
            world.quotas(**{name: 0})  # type: ignore[arg-type, unused-ignore] # on purpose
        assert caught.value.details == {"setting": name}


def test_without_settings_there_is_no_limit(store: PostgresStore, view: SyncView) -> None:
    """Both quotas are off by default."""
    for world in (store, view):
        pair = quotas_of(world)
        assert {pair[1].admit(SHOP, NOW) for _ in range(1000)} == {None}
        assert None not in {create(pair) for _ in range(4)}


def test_creates_of_the_host_have_no_quota(store: PostgresStore) -> None:
    """Payments that the host creates do not count, also if it creates them for a client at its quota."""
    pair = quotas_of(store, unpaid=1)
    store.insert(a_creation(client=HOST))
    assert create(pair) is not None
    store.insert(a_creation())
    assert create(pair) is None


def test_a_retry_under_a_key_gets_its_payment_at_the_quota(database: str, store: PostgresStore) -> None:
    """The insert returns the earlier record although the client has too many payments."""
    with PostgresStore(database) as other:
        decisions = [a_creation(key=key, metadata='{"a":1}') for key in ("order-1", "order-1", "order-2")]
        for port, decision in zip((store, other, other), decisions, strict=True):
            assert port.quotas(unpaid_payments=2).reserve(SHOP, decision.answer.id) == ()
        assert store.insert(decisions[0]) is None
        store.insert(a_creation())
        earlier = other.insert(decisions[1])
        assert earlier is not None
        assert earlier.payment == decisions[0].answer.id
        with pytest.raises(QuotaExceeded) as refused:
            other.insert(decisions[2])
        assert (refused.value.code, refused.value.retry_after_s) == ("too_many_unpaid_payments", 1.0)


def test_an_insert_of_another_client_does_not_wait(database: str, store: PostgresStore) -> None:
    """The lock is on the row of one client."""
    pair = quotas_of(store, unpaid=5)
    assert create(pair) is not None
    statement = "SELECT * FROM incoming_payments.quota_clients FOR UPDATE"
    with PostgresStore(database) as other, other._engine._pool.connection() as held, held.transaction():
        held.execute(statement.encode())
        assert create(pair, client=OTHER) is not None


def test_a_new_process_knows_the_counts(database: str) -> None:
    """After a restart, a client that has used its quotas gets one request, and no payment."""
    for requests in ([None] * 4, [None, 15.0]):
        with PostgresStore(database, connections=1) as store:
            pair = quotas_of(store, requests=4, unpaid=1)
            admitted = []
            for _ in requests:
                admitted.append(pair[1].admit(SHOP, NOW))
                store.insert(a_creation(client=HOST))  # the count of a request is written before this
            assert [wait if wait is None else min(wait, 15.0) for wait in admitted] == requests
            assert (create(pair) is None) is (len(requests) == 2)


def test_counts_of_silent_clients_are_removed(database: str) -> None:
    """The database holds a limited number of clients."""
    with PostgresStore(database, connections=1) as store:
        quotas = store.quotas(requests_per_minute=1)
        for number in range(20):
            quotas.admit(client_id(f"https://{number}.example/"), NOW + timedelta(minutes=2 * (number // 10)))
        store.insert(a_creation())
        assert execute(database, "SELECT count(*) FROM incoming_payments.quota_clients") == [(10,)]


def test_processes_exchange_their_counts_after_each_share_of_the_quota(database: str) -> None:
    """A process admits what is left of the quota as far as it knows, and 5 % more than the other process allows."""
    with PostgresStore(database, connections=1) as store, async_view(database, connections=1) as view:
        pairs = quotas_of(store, requests=200), quotas_of(view, requests=200)
        admitted = 0
        for _ in range(300):
            for port, quotas in pairs:
                admitted += quotas.admit(SHOP, NOW) is None
                port.find_expired(NOW, 1)  # the counts are written before this
        assert 200 <= admitted <= 220


def test_a_count_that_cannot_be_written_does_no_harm(database: str, store: PostgresStore, view: SyncView) -> None:
    """The process goes on with its own counts."""
    execute(database, "ALTER TABLE incoming_payments.quota_clients RENAME TO renamed")
    try:
        for world in (store, view):
            _, quotas = quotas_of(world, requests=10)
            assert [quotas.admit(SHOP, NOW) is None for _ in range(11)] == [True] * 10 + [False]
            time.sleep(0.05)
            world.find_expired(NOW, 1)
    finally:
        execute(database, "ALTER TABLE incoming_payments.renamed RENAME TO quota_clients")


def test_a_closed_store_counts_no_requests(database: str) -> None:
    """The error says that the store is closed."""
    with PostgresStore(database) as store:
        _, quotas = quotas_of(store, requests=10)
    with pytest.raises(StoreUnusable, match="closed"):
        quotas.admit(SHOP, NOW)

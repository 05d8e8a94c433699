"""Tests of the quotas in a SQLite file."""

from datetime import timedelta
from pathlib import Path

import pytest

from incoming_payments.domain.payment import HOST, client_id
from incoming_payments.errors import ConfigurationError, QuotaExceeded
from incoming_payments.limits import QUOTA_CLIENTS_MAX, QUOTA_RESERVED_S_MAX
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing import NOW, SyncQuotas, SyncView, a_creation
from incoming_payments.testing.quotas import SHOP, Pair, QuotaContract, create


class TestSqliteQuotas(QuotaContract):
    """The contract suite against `SqliteQuotas`."""

    def make_ports(self, directory: Path) -> Pair:
        """Return a store on the file in `directory`, and its quotas."""
        store = SqliteStore(directory / "payments.db")
        return store, store.quotas(requests_per_minute=self.requests, unpaid_payments=self.unpaid)


class TestAsyncSqliteQuotas(QuotaContract):
    """The contract suite against `AsyncSqliteQuotas`."""

    def make_ports(self, directory: Path) -> Pair:
        """Return a store on the file in `directory`, and its quotas."""

        async def open_store() -> AsyncSqliteStore:
            return AsyncSqliteStore(directory / "payments.db")

        view = SyncView(open_store, AsyncSqliteStore.close)
        assert isinstance(view.store, AsyncSqliteStore)
        quotas = view.store.quotas(requests_per_minute=self.requests, unpaid_payments=self.unpaid)
        return view, SyncQuotas(view, quotas)


@pytest.mark.parametrize("world", [SqliteStore, AsyncSqliteStore])
@pytest.mark.parametrize("name", ["requests_per_minute", "unpaid_payments"])
def test_wrong_setting_is_refused(tmp_path: Path, world: type[SqliteStore] | type[AsyncSqliteStore], name: str) -> None:
    """The error names the setting and its bounds."""
    with pytest.raises(ConfigurationError, match=f"{name} must be an integer from 1 to") as caught:
        world(tmp_path / "payments.db").quotas(**{name: 0})  # type: ignore[arg-type, unused-ignore] # on purpose
    assert caught.value.details == {"setting": name}


def test_without_settings_there_is_no_limit(tmp_path: Path) -> None:
    """Both quotas are off by default."""
    with SqliteStore(tmp_path / "payments.db") as store:
        pair = store, store.quotas()
        assert {pair[1].admit(SHOP, NOW) for _ in range(1000)} == {None}
        assert None not in {create(pair) for _ in range(10)}

        async def open_store() -> AsyncSqliteStore:
            return AsyncSqliteStore(tmp_path / "payments.db")

        with SyncView(open_store, AsyncSqliteStore.close) as view:
            assert isinstance(view.store, AsyncSqliteStore)
            quotas = SyncQuotas(view, view.store.quotas())
            assert (quotas.admit(SHOP, NOW), create((view, quotas)) is None) == (None, False)


def test_creates_of_the_host_have_no_quota(tmp_path: Path) -> None:
    """Payments that the host creates do not count, also if it creates them for a client at its quota."""
    with SqliteStore(tmp_path / "payments.db") as store:
        pair = store, store.quotas(unpaid_payments=1)
        store.insert(a_creation(client=HOST))
        assert create(pair) is not None
        store.insert(a_creation())
        assert create(pair) is None


def test_a_retry_under_a_key_gets_its_payment_at_the_quota(tmp_path: Path) -> None:
    """The insert returns the earlier record before it counts."""
    with SqliteStore(tmp_path / "payments.db") as store, SqliteStore(tmp_path / "payments.db") as other:
        decisions = [a_creation(key="order-1"), a_creation(key="order-1"), a_creation(key="order-2")]
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


def test_a_lost_reservation_ends(tmp_path: Path) -> None:
    """A create that ended without an insert or a release gives its place back after a minute."""
    with SqliteStore(tmp_path / "payments.db") as store:
        pair = store, store.quotas(unpaid_payments=1)
        assert pair[1].reserve(SHOP, a_creation().answer.id) == ()
        assert create(pair) is None
        assert create(pair, now=NOW + timedelta(seconds=QUOTA_RESERVED_S_MAX + 1)) is not None


def test_a_new_process_knows_the_counts(tmp_path: Path) -> None:
    """After a restart, a client that has used its quotas gets one request, and no payment."""
    for requests in ([None] * 4, [None, 15.0]):
        with SqliteStore(tmp_path / "payments.db") as store:
            pair = store, store.quotas(requests_per_minute=4, unpaid_payments=1)
            admitted = []
            for _ in requests:
                admitted.append(pair[1].admit(SHOP, NOW))
                store.insert(a_creation(client=HOST))  # the count of a request is written with the next update
            assert [wait if wait is None else min(wait, 15.0) for wait in admitted] == requests
            assert (create(pair) is None) is (len(requests) == 2)


def test_counts_of_silent_clients_are_removed(tmp_path: Path) -> None:
    """The file and the memory hold a limited number of clients."""
    with SqliteStore(tmp_path / "payments.db") as store:
        quotas = store.quotas(requests_per_minute=1, unpaid_payments=1)
        for number in range(20):
            quotas.admit(client_id(f"https://{number}.example/"), NOW + timedelta(minutes=2 * (number // 10)))
        store.insert(a_creation())
        [(held,)] = store._engine.read(lambda rows: rows.connection.execute("SELECT count(*) FROM request_counts"))
        assert held == 10
        for number in range(QUOTA_CLIENTS_MAX + 1):
            store._reservations.take(SHOP, a_creation().answer.id)
            assert (
                store._reservations.reserve(client_id(f"https://{number}.example/"), a_creation().answer.id, 1) is False
            )
        assert len(store._reservations._clients) == QUOTA_CLIENTS_MAX


def test_processes_exchange_their_counts_after_each_share_of_the_quota(tmp_path: Path) -> None:
    """A process admits what is left of the quota as far as it knows, and 10 % more than the other process allows."""
    with SqliteStore(tmp_path / "payments.db") as store, SqliteStore(tmp_path / "payments.db") as other:
        first, second = (port.quotas(requests_per_minute=200) for port in (store, other))
        admitted = 0
        for _ in range(300):
            for port, quotas in ((store, first), (other, second)):
                admitted += quotas.admit(SHOP, NOW) is None
                port.nonces.use(f"{admitted}", NOW, NOW)  # the counts are written with the next update
        assert 200 <= admitted <= 220

"""The quota contract detects ports that break a promise."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.payment import ClientId, PaymentId
from incoming_payments.ports import Quotas
from incoming_payments.service.quotas import MemoryQuotas
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import NOW
from incoming_payments.testing.quotas import SHOP, Pair, QuotaContract


class _Wrapped:
    """Quotas in memory, for wrong ports that change a method."""

    def __init__(self) -> None:
        self.quotas = MemoryQuotas(requests_per_minute=QuotaContract.requests, unpaid_payments=QuotaContract.unpaid)

    def admit(self, client: ClientId, now: datetime) -> float | None:
        return self.quotas.admit(client, now)

    def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]:
        return self.quotas.reserve(client, id)

    def release(self, client: ClientId, id: PaymentId) -> None:
        self.quotas.release(client, id)


class AdmitsAll(_Wrapped):
    """Has no quota of requests."""

    def admit(self, client: ClientId, now: datetime) -> float | None:  # noqa: ARG002 - part of the port
        return None


class CountsTogether(_Wrapped):
    """Counts all clients as one."""

    def admit(self, client: ClientId, now: datetime) -> float | None:  # noqa: ARG002 - part of the port
        return self.quotas.admit(SHOP, now)


class TrustsTheClock(_Wrapped):
    """Locks a client out when the clock is set back."""

    def __init__(self) -> None:
        super().__init__()
        self.latest = NOW

    def admit(self, client: ClientId, now: datetime) -> float | None:
        self.latest = max(self.latest, now)
        late_s = (self.latest - now).total_seconds()
        return late_s if late_s > 0 else self.quotas.admit(client, now)


class ReservesAll(_Wrapped):
    """Has no quota of unpaid payments."""

    def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]:
        self.quotas.reserve(client, id)
        return ()


class NeverReleases(_Wrapped):
    """Counts a payment for ever."""

    def release(self, client: ClientId, id: PaymentId) -> None:
        pass


class ReleasesForAll(_Wrapped):
    """Releases the payments of other clients."""

    def release(self, client: ClientId, id: PaymentId) -> None:  # noqa: ARG002 - part of the port
        self.quotas.release(SHOP, id)


class NewestFirst(_Wrapped):
    """Returns the counted payments in the wrong order."""

    def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]:
        return self.quotas.reserve(client, id)[::-1]


@pytest.mark.parametrize(
    ("quotas", "test"),
    [
        (AdmitsAll, QuotaContract.test_requests_up_to_the_quota_are_admitted),
        (AdmitsAll, QuotaContract.test_concurrent_callers_do_not_exceed_the_quotas),
        (CountsTogether, QuotaContract.test_each_client_has_its_own_quotas),
        (TrustsTheClock, QuotaContract.test_a_clock_that_is_set_back_does_not_lock_a_client_out),
        (ReservesAll, QuotaContract.test_unpaid_payments_are_counted),
        (ReservesAll, QuotaContract.test_concurrent_callers_do_not_exceed_the_quotas),
        (NewestFirst, QuotaContract.test_unpaid_payments_are_counted),
        (NeverReleases, QuotaContract.test_a_reserved_payment_is_counted_until_it_is_released),
        (
            NeverReleases,
            lambda suite, pair: suite.test_a_payment_that_is_paid_or_expired_is_not_counted(pair, is_paid=True),
        ),
        (ReleasesForAll, QuotaContract.test_a_reserved_payment_is_counted_until_it_is_released),
    ],
)
def test_a_broken_port_is_detected(quotas: Callable[[], Quotas], test: Callable[[QuotaContract, Any], None]) -> None:
    """The test of the broken promise fails."""
    with pytest.raises(AssertionError):
        test(QuotaContract(), (MemoryStore(), quotas()))


@pytest.mark.parametrize(
    "test",
    [
        QuotaContract.test_processes_share_the_quota_of_unpaid_payments,
        QuotaContract.test_concurrent_creates_in_two_processes_do_not_exceed_the_quota,
        QuotaContract.test_processes_share_the_quota_of_requests,
    ],
)
def test_counts_for_each_process_are_detected(test: Callable[[QuotaContract, Pair, Pair], None]) -> None:
    """Two ports that do not share their counts admit too much."""
    store = MemoryStore()
    with pytest.raises(AssertionError):
        test(QuotaContract(), (store, _Wrapped()), (store, _Wrapped()))


def test_hooks(tmp_path: Path) -> None:
    """The message names the method to override. The suite closes a store that has a `close` method."""
    with pytest.raises(NotImplementedError, match="make_ports is missing: override make_ports"):
        QuotaContract().make_ports(tmp_path)
    store = SqliteStore(tmp_path / "payments.db")
    QuotaContract().close_ports((store, store.quotas()))
    QuotaContract().close_ports((MemoryStore(), _Wrapped()))
    with pytest.raises(Exception, match="is closed"):
        store.load(PaymentId("019b76da-a800-7000-8000-000000000000"))

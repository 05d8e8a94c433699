"""Tests of `service.quotas`: the quotas in memory."""

import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from incoming_payments.domain.payment import ClientId, PaymentId
from incoming_payments.errors import ConfigurationError
from incoming_payments.service.quotas import MemoryQuotas
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import NOW
from incoming_payments.testing.quotas import Pair, QuotaContract

SHOP, OTHER = ClientId("https://shop.example/"), ClientId("https://other.example/")
IDS = [PaymentId(f"019b76da-a800-7000-8000-00000000000{number}") for number in range(9)]


class TestMemoryQuotas(QuotaContract):
    """The contract suite against `MemoryQuotas`."""

    memory_only = True

    def make_ports(self, directory: Path) -> Pair:  # noqa: ARG002 - part of the hook
        """Return new quotas."""
        return MemoryStore(), MemoryQuotas(requests_per_minute=self.requests, unpaid_payments=self.unpaid)


def later(seconds: float) -> timedelta:
    """Return a duration of some seconds."""
    return timedelta(seconds=seconds)


def test_requests_up_to_the_quota_are_admitted_at_once() -> None:
    """The next request has to wait until the share of one request has passed. A refused request does not count."""
    quotas = MemoryQuotas(requests_per_minute=6)
    assert [quotas.admit(SHOP, NOW) for _ in range(8)] == [None] * 6 + [10.0, 10.0]
    assert quotas.admit(SHOP, NOW + later(9)) == 1.0
    assert quotas.admit(SHOP, NOW + later(10)) is None
    assert quotas.admit(SHOP, NOW + later(10)) == 10.0
    assert [quotas.admit(SHOP, NOW + later(80)) for _ in range(7)] == [None] * 6 + [10.0]


@pytest.mark.parametrize("quota", [1, 7, 60, 1_000_000])
def test_rate_over_time_is_the_quota(quota: int) -> None:
    """In ten minutes a client that never stops gets ten quotas, and the first one at once."""
    quotas = MemoryQuotas(requests_per_minute=quota)
    steps = min(quota, 600) * 10
    admitted = 0
    for step in range(steps):
        now = NOW + timedelta(minutes=10) * step / steps
        while admitted < 11 * quota and quotas.admit(SHOP, now) is None:
            admitted += 1
            if quota == 1_000_000 and admitted >= 2000:
                return
    assert 10 * quota <= admitted <= 11 * quota


def test_waiting_as_long_as_answered_is_enough() -> None:
    """A client that waits for the answered seconds is admitted."""
    quotas = MemoryQuotas(requests_per_minute=7)
    now = NOW
    for _ in range(100):
        wait_s = quotas.admit(SHOP, now)
        if wait_s is not None:
            now += later(wait_s)
            assert quotas.admit(SHOP, now) is None


def test_clock_that_is_set_back_does_not_lock_a_client_out() -> None:
    """The wait is never longer than for a client that has just used up its quota."""
    quotas = MemoryQuotas(requests_per_minute=2)
    quotas.admit(SHOP, NOW + timedelta(days=1))
    assert quotas.admit(SHOP, NOW) == 30.0
    assert quotas.admit(SHOP, NOW + later(30)) is None


def test_each_client_has_its_own_quota() -> None:
    """A client cannot use up the quota of another one."""
    quotas = MemoryQuotas(requests_per_minute=1, unpaid_payments=1)
    assert (quotas.admit(SHOP, NOW), quotas.admit(SHOP, NOW), quotas.admit(OTHER, NOW)) == (None, 60.0, None)
    assert [quotas.reserve(SHOP, IDS[0]), quotas.reserve(OTHER, IDS[1])] == [(), ()]


def test_unpaid_payments_are_counted_until_they_are_released() -> None:
    """At the quota, `reserve` returns the counted payments, oldest first, and counts nothing."""
    quotas = MemoryQuotas(unpaid_payments=2)
    assert [quotas.reserve(SHOP, id) for id in IDS[:3]] == [(), (), (IDS[0], IDS[1])]
    quotas.release(SHOP, IDS[0])
    quotas.release(SHOP, IDS[0])  # a second release changes nothing
    quotas.release(OTHER, IDS[1])  # not counted for this client
    assert [quotas.reserve(SHOP, id) for id in IDS[2:4]] == [(), (IDS[1], IDS[2])]


def test_without_settings_there_is_no_limit() -> None:
    """Both quotas are off by default, and nothing is remembered."""
    quotas = MemoryQuotas()
    assert {quotas.admit(SHOP, NOW) for _ in range(1000)} == {None}
    assert {quotas.reserve(SHOP, id) for id in IDS} == {()}
    assert not quotas._used


def test_number_of_clients_is_limited() -> None:
    """One more client displaces the client that was silent for longest, so memory is limited."""
    quotas = MemoryQuotas(requests_per_minute=1, clients=2)
    first, second, third = (ClientId(f"https://{name}.example/") for name in ("a", "b", "c"))
    quotas.admit(first, NOW)
    quotas.admit(second, NOW)
    assert quotas.admit(first, NOW) == 60.0  # now the second was silent for longest
    quotas.admit(third, NOW)
    assert (quotas.admit(first, NOW), quotas.admit(third, NOW)) == (60.0, 60.0)
    assert quotas.admit(second, NOW) is None
    assert len(quotas._used) == 2


def test_threads_do_not_exceed_the_quotas() -> None:
    """Many threads at once get exactly the quota."""
    quotas = MemoryQuotas(requests_per_minute=50, unpaid_payments=30)
    admitted: list[bool] = []
    counted: list[bool] = []

    def work(number: int) -> None:
        for turn in range(20):
            admitted.append(quotas.admit(SHOP, NOW) is None)
            counted.append(quotas.reserve(SHOP, PaymentId(f"{number}-{turn}")) == ())

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert (sum(admitted), sum(counted)) == (50, 30)


@pytest.mark.parametrize("name", ["requests_per_minute", "unpaid_payments", "clients"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1", 10**9])
def test_wrong_setting_is_refused(name: str, value: object) -> None:
    """The error names the setting and its bounds."""
    with pytest.raises(ConfigurationError, match=f"{name} must be an integer from 1 to") as caught:
        MemoryQuotas(**{name: value})  # type: ignore[arg-type] # on purpose
    assert caught.value.details == {"setting": name}


def test_quotas_with_equal_settings_are_equal() -> None:
    """A server compares its settings after it has read them again."""
    used = MemoryQuotas(requests_per_minute=1)
    used.admit(SHOP, NOW)
    assert used == MemoryQuotas(requests_per_minute=1) != MemoryQuotas(requests_per_minute=2)
    assert repr(used) == "MemoryQuotas(requests_per_minute=1, unpaid_payments=None, clients=10000)"

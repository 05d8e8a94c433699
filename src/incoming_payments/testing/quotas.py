"""The guarantees of a `Quotas` port, as a test suite for your own port. The suite needs pytest.

```python
from incoming_payments.testing.quotas import QuotaContract

class TestMyQuotas(QuotaContract):
    def make_ports(self, directory):
        store = MyStore(directory / "payments")
        return store, MyQuotas(store, requests_per_minute=self.requests, unpaid_payments=self.unpaid)
```

`make_ports` is also called to open the same counts as another process would. For a port that serves only one process,
set `memory_only = True`.
"""

# ruff: noqa: S101 - a test suite asserts
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

try:
    import pytest
except ImportError as error:
    raise ImportError("the quota contract suite needs pytest: run pip install 'incoming-payments[testing]'") from error

from incoming_payments.domain.lifecycle import Decision, state_of
from incoming_payments.domain.payment import ClientId, CreditId, IncomingPayment, PaymentId, client_id
from incoming_payments.domain.transitions import State
from incoming_payments.errors import PaymentNotFound, QuotaExceeded
from incoming_payments.ports import PaymentStore, Quotas
from incoming_payments.testing.steps import together
from incoming_payments.testing.values import NOW, a_creation, crediting

Pair = tuple[PaymentStore, Quotas]

SHOP: Final = client_id("https://shop.example/")
OTHER: Final = client_id("https://other.example/")


def create(pair: Pair, *, client: ClientId = SHOP, now: datetime = NOW, expires_in_s: float = 600) -> PaymentId | None:
    """Create a payment as the service does, and return its id, or `None` if the quota is used up."""
    store, quotas = pair
    decision = a_creation(client=client, now=now, expires_in_s=expires_in_s)
    id = decision.answer.id
    counted = quotas.reserve(client, id)
    for earlier in counted:
        if not _is_unpaid(store, earlier, now):
            quotas.release(client, earlier)
            counted = quotas.reserve(client, id)
            break
    return None if counted else _insert(store, decision)


def _insert(store: PaymentStore, decision: Decision[IncomingPayment]) -> PaymentId | None:
    try:
        store.insert(decision)
    except QuotaExceeded:
        return None
    return decision.answer.id


def _is_unpaid(store: PaymentStore, id: PaymentId, now: datetime) -> bool:
    try:
        return state_of(store.load(id), now) is State.PENDING
    except PaymentNotFound:
        return True


class QuotaContract:
    """Subclass this class in a test module with a name that pytest collects, and override `make_ports`."""

    memory_only = False  # whether the port serves only one process
    threads = 8  # the number of concurrent callers
    requests = 10  # the quota of requests in a minute
    unpaid = 3  # the quota of unpaid payments
    requests_over = 1  # how many requests each further process may admit beyond the quota

    def make_ports(self, directory: Path) -> Pair:
        """Return a store and the quotas to test, with the quotas `requests` and `unpaid`.

        The first call for a `directory` returns an empty store. A second call opens the same store, as another process
        would.
        """
        raise NotImplementedError(
            "make_ports is missing: override make_ports in your test class, and return a store and the port to test"
        )

    def close_ports(self, pair: Pair) -> None:
        """Close what `make_ports` returned. By default, call the `close` method of the store, if it has one."""
        close = getattr(pair[0], "close", None)
        if close is not None:
            close()

    @pytest.fixture
    def closing(self) -> Iterator[ExitStack]:
        """Yield a stack that closes the ports of one test."""
        with ExitStack() as stack:
            yield stack

    @pytest.fixture
    def pair(self, tmp_path: Path, closing: ExitStack) -> Pair:
        """Return a store and its quotas for one test."""
        pair = self.make_ports(tmp_path)
        closing.callback(self.close_ports, pair)
        return pair

    @pytest.fixture
    def other(self, pair: Pair, tmp_path: Path, closing: ExitStack) -> Pair:  # noqa: ARG002 - `pair` comes first
        """Return the ports of another process. Skip the test when the port is `memory_only`."""
        if self.memory_only:
            pytest.skip("memory_only: this port serves one process, and no other process can open its counts")
        other = self.make_ports(tmp_path)
        closing.callback(self.close_ports, other)
        return other

    # --- requests ---

    def test_requests_up_to_the_quota_are_admitted(self, pair: Pair) -> None:
        """The next request has to wait, and is admitted after that time. A refused request is not counted."""
        _, quotas = pair
        assert [quotas.admit(SHOP, NOW) for _ in range(self.requests)] == [None] * self.requests
        waits = [quotas.admit(SHOP, NOW) for _ in range(5)]

        assert waits[0] is not None
        assert 0 < waits[0] <= 60
        assert waits == [waits[0]] * 5
        assert quotas.admit(SHOP, NOW + timedelta(seconds=waits[0])) is None

    def test_each_client_has_its_own_quotas(self, pair: Pair) -> None:
        """A client cannot use up the quotas of another client."""
        _, quotas = pair
        for _ in range(self.requests + 1):
            quotas.admit(SHOP, NOW)
        for _ in range(self.unpaid + 1):
            create(pair)

        assert quotas.admit(OTHER, NOW) is None
        assert create(pair, client=OTHER) is not None

    def test_a_clock_that_is_set_back_does_not_lock_a_client_out(self, pair: Pair) -> None:
        """The wait is at most two minutes."""
        store, quotas = pair
        for _ in range(self.requests):
            quotas.admit(SHOP, NOW + timedelta(days=1))
        store.insert(a_creation(client=OTHER))  # so that the counts reach the file

        assert (quotas.admit(SHOP, NOW) or 0) <= 120
        store.insert(a_creation(client=OTHER))
        assert quotas.admit(SHOP, NOW + timedelta(seconds=180)) is None

    # --- unpaid payments ---

    def test_unpaid_payments_are_counted(self, pair: Pair) -> None:
        """At the quota, `reserve` returns the counted payments, oldest first, and counts nothing."""
        store, quotas = pair
        ids = [create(pair, now=NOW + timedelta(seconds=number)) for number in range(self.unpaid)]

        for _ in range(2):
            refused = a_creation(now=NOW + timedelta(minutes=1))
            assert list(quotas.reserve(SHOP, refused.answer.id)) == ids
        assert create(pair) is None
        assert [store.load(id).id for id in ids if id is not None] == ids

    def test_a_reserved_payment_is_counted_until_it_is_released(self, pair: Pair) -> None:
        """A create that fails before its insert gives its place back. A second release changes nothing."""
        _, quotas = pair
        reserved = [a_creation().answer.id for _ in range(self.unpaid)]
        assert [tuple(quotas.reserve(SHOP, id)) for id in reserved] == [()] * self.unpaid
        assert create(pair) is None

        for _ in range(2):
            quotas.release(SHOP, reserved[0])
        quotas.release(OTHER, reserved[1])

        assert create(pair) is not None
        assert create(pair) is None

    @pytest.mark.parametrize("is_paid", [True, False])
    def test_a_payment_that_is_paid_or_expired_is_not_counted(self, pair: Pair, *, is_paid: bool) -> None:
        """It gives its place to one new payment."""
        store, _ = pair
        paid, *_ = [create(pair, expires_in_s=600 + number) for number in range(self.unpaid)]
        assert paid is not None
        now = NOW + timedelta(seconds=5 if is_paid else 600.5)
        if is_paid:
            store.update(paid, crediting("wire-1", 1), CreditId("wire-1"))

        assert create(pair, now=now) is not None
        assert create(pair, now=now) is None

    def test_concurrent_callers_do_not_exceed_the_quotas(self, pair: Pair) -> None:
        """Many threads at once get exactly the quotas."""
        _, quotas = pair
        admitted = together([lambda: [quotas.admit(SHOP, NOW) is None for _ in range(self.requests)]] * self.threads)
        created = together([partial(create, pair)] * self.threads)

        assert sum(map(sum, admitted)) == self.requests
        assert len([id for id in created if id is not None]) == self.unpaid

    # --- several processes ---

    def test_processes_share_the_quota_of_unpaid_payments(self, pair: Pair, other: Pair) -> None:
        """The unpaid payments of all processes count together, also if both have reserved the last one."""
        created = [create((pair, other)[number % 2]) for number in range(self.unpaid - 1)]
        decisions = [a_creation(), a_creation()]
        for (_, quotas), decision in zip((pair, other), decisions, strict=True):
            quotas.reserve(SHOP, decision.answer.id)
        created += [_insert(store, decision) for (store, _), decision in zip((pair, other), decisions, strict=True)]

        assert len([id for id in created if id is not None]) == self.unpaid
        assert [create(each) for each in (pair, other)] == [None, None]

    def test_concurrent_creates_in_two_processes_do_not_exceed_the_quota(self, pair: Pair, other: Pair) -> None:
        """The payments of all callers together are exactly the quota."""
        created = together([partial(create, each) for each in [pair, other] * (self.threads // 2)])

        assert len([id for id in created if id is not None]) == self.unpaid

    def test_processes_share_the_quota_of_requests(self, pair: Pair, other: Pair) -> None:
        """The requests in both processes exceed the quota by at most `requests_over`. The client waits for these."""
        admitted, now = 0, NOW
        for turn in range(4 * self.requests):
            for store, quotas in (pair, other):
                admitted += quotas.admit(SHOP, now) is None
                store.insert(a_creation(client=OTHER))  # so that the counts reach the file
            if turn >= 2 * self.requests:
                now += timedelta(minutes=1) / self.requests

        assert self.requests <= admitted <= 3 * self.requests + self.requests_over

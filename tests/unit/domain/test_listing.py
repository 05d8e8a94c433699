"""Tests of `listing`: the order, the filters and the pages of lists. The contract of stores has the details."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incoming_payments.domain.listing import PaymentQuery, Place
from incoming_payments.domain.payment import HOST, IncomingPayment, PaymentId
from incoming_payments.domain.transitions import State
from incoming_payments.errors import InvalidValue
from incoming_payments.testing import NOW, a_creation

SECOND = timedelta(seconds=1)


def payment(place: int, second: int = 0) -> IncomingPayment:
    """Return a payment of this second, with an id that is greater for a greater `place`."""
    id = PaymentId(f"019b7a0c-1000-7000-8000-{place:012x}")
    return a_creation(id=id, now=NOW + second * SECOND, client=HOST if place % 2 else None, expires_in_s=5).answer


def query(**filters: Any) -> PaymentQuery:
    """Return a query for a page of 3."""
    return PaymentQuery(**{"now": NOW, "limit": 3, **filters})


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 3)), unique_by=lambda pair: pair[0]), st.integers(1, 5))
def test_pages_in_both_directions_hold_the_whole_list(pairs: list[tuple[int, int]], limit: int) -> None:
    """Going from page to page forwards, and back again, meets each payment once, in descending order."""
    payments = [payment(place, second) for place, second in pairs]
    expected = sorted(payments, key=lambda one: (one.created_at, one.id), reverse=True)
    down = []
    page = query(limit=limit).page_of(payments)
    while page:
        down += page
        page = query(limit=limit, older_than=Place.of(page[-1])).page_of(payments)
    up = expected[-1:]
    while page := query(limit=limit, newer_than=Place.of(up[0])).page_of(payments) if up else []:
        up = [*page, *up]
    assert expected == down == up


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [4, 3, 2]),
        ({"limit": 1}, [4]),
        ({"client": HOST}, [3, 1]),
        ({"wallet_address": "https://bank.example/alice"}, [4, 3, 2]),
        ({"wallet_address": "https://bank.example/bob"}, []),
        ({"created_from": NOW + 2 * SECOND}, [4, 3, 2]),
        ({"created_from": NOW + 3 * SECOND}, [4, 3]),
        ({"created_before": NOW + 3 * SECOND}, [2, 1, 0]),
        ({"created_before": NOW}, []),
        ({"state": State.PENDING, "now": NOW + 7 * SECOND}, [4, 3, 2]),
        ({"state": "expired", "now": NOW + 7 * SECOND}, [1, 0]),
        ({"state": State.COMPLETED}, []),
    ],
)
def test_filters(filters: dict[str, Any], expected: list[int]) -> None:
    """Each filter admits its own payments. The first time is inclusive, the second one is not."""
    payments = [payment(number, number) for number in range(5)]
    assert [payments[number] for number in expected] == query(**filters).page_of(payments)


@pytest.mark.parametrize(
    ("filters", "member"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 102}, "limit"),
        ({"limit": True}, "limit"),
        ({"now": datetime(2026, 1, 1)}, "now"),  # noqa: DTZ001
        ({"created_from": datetime(2026, 1, 1)}, "created_from"),  # noqa: DTZ001
        ({"created_before": "2026-01-01T00:00:00Z"}, "created_before"),
        ({"state": "open"}, "state"),
        ({"older_than": Place(NOW, PaymentId("a")), "newer_than": Place(NOW, PaymentId("a"))}, "newer_than"),
    ],
)
def test_wrong_queries_cannot_be_built(filters: dict[str, Any], member: str) -> None:
    """The error names the wrong member."""
    with pytest.raises(InvalidValue) as caught:
        query(**filters)
    assert caught.value.details == {"member": member}

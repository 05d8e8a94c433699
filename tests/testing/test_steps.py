"""The steps do what they say, and `check_books` finds books that do not agree."""

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Amount
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing.steps import book, check_books, create, together


def test_books_that_agree_pass() -> None:
    """Credits that callers were told of, in any order."""
    store = MemoryStore()
    id = create(store)
    credits = together([lambda name=name: book(store, id, name, 5) for name in ("a", "b")])  # type: ignore[misc]
    check_books(store, id, credits[::-1])


def test_a_credit_that_is_missing_or_altered_is_found() -> None:
    """On either side."""
    store = MemoryStore()
    id = create(store)
    booked = book(store, id, "a", 5)
    for credits in ([], [booked, booked], [evolve(booked, received=Amount(6, booked.amount.asset))]):
        with pytest.raises(AssertionError):
            check_books(store, id, credits)

"""The steps credit payments, and `check_credits` detects credits that differ from the store."""

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Amount
from incoming_payments.errors import StoreUnavailable
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import steps
from incoming_payments.testing.steps import check_credits, create, credit, persistently


def test_a_missing_or_altered_credit_is_detected() -> None:
    """The list of credits may have too few, too many or wrong credits."""
    store = MemoryStore()
    id = create(store)
    credited = credit(store, id, "a", 5)
    for credits in ([], [credited, credited], [evolve(credited, received=Amount(6, credited.amount.asset))]):
        with pytest.raises(AssertionError):
            check_credits(store, id, credits)


def test_an_unavailable_store_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is repeated until it succeeds, or for some seconds."""
    outcomes = iter([StoreUnavailable("not yet"), 7, StoreUnavailable("for long")])

    def call() -> object:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert persistently(call) == 7
    monkeypatch.setattr(steps, "_PATIENCE_S", 0.0)
    with pytest.raises(StoreUnavailable, match="for long"):
        persistently(call)

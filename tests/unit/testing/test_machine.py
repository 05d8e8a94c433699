"""The state machine detects broken stores, and its model keeps the store contract."""

import inspect
from pathlib import Path

import pytest

from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing.machine import Model
from kits.broken_stores import (
    EventsNewestFirst,
    FindsCompletedPayments,
    IgnoresEarlierCredits,
    OverwritesOnInsert,
    TruncatesTimes,
    contract_of,
)


@pytest.mark.parametrize(
    "store",
    [
        IgnoresEarlierCredits,
        EventsNewestFirst,
        FindsCompletedPayments,
        OverwritesOnInsert,
        TruncatesTimes,
    ],
)
def test_the_machine_detects_a_broken_store(
    store: type[MemoryStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random histories are enough to find the difference from the model."""
    with pytest.raises(AssertionError):
        contract_of(store).test_random_histories_match_the_model(tmp_path)
    capsys.readouterr()


def test_the_model_keeps_the_contract() -> None:
    """The model passes each test of the suite with one store, except the concurrent ones: the model has no locks."""
    contract = contract_of(Model)
    for name in dir(contract):
        if name.startswith("test_") and not hasattr(getattr(contract, name), "pytestmark"):
            takes = list(inspect.signature(getattr(contract, name)).parameters)
            if "concurrent" not in name and takes == ["store"]:
                getattr(contract, name)(Model())

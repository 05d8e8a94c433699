"""The state machine finds what a store does wrong, and the model it compares with does nothing wrong."""

from pathlib import Path

import pytest

from broken_stores import Disorderly, Forgetful, Overwriting, Sweeping, ToTheSecond, contract_of
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing.machine import Model


@pytest.mark.parametrize("store", [Forgetful, Disorderly, Sweeping, Overwriting, ToTheSecond])
def test_the_machine_catches_a_broken_store(
    store: type[MemoryStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With no example written for it."""
    with pytest.raises(AssertionError):
        contract_of(store).test_any_history_ends_as_in_the_model(tmp_path)
    capsys.readouterr()


def test_the_model_keeps_the_contract() -> None:
    """It is what stores are compared with, so it had better."""
    contract = contract_of(Model)
    for name in dir(contract):
        if name.startswith("test_") and not hasattr(getattr(contract, name), "pytestmark"):
            if "concurrent" in name or "history" in name:  # it is no more than dictionaries
                continue
            getattr(contract, name)(Model())

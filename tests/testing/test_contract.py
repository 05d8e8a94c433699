"""The contract suite catches stores that break it, and says what it needs."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broken_stores import Disorderly, Eager, Forgetful, Overwriting, Sweeping, contract_of
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing.contract import StoreContract

CATCHES: list[tuple[type[MemoryStore], Callable[[StoreContract, Any], None]]] = [
    (Forgetful, StoreContract.test_a_credit_id_with_another_amount_is_refused),
    (Forgetful, StoreContract.test_concurrent_credits_lose_nothing_and_double_nothing),
    (Disorderly, StoreContract.test_many_updates_of_one_payment_add_up),
    (Sweeping, StoreContract.test_completed_payments_do_not_stand_in_the_way_of_the_sweep),
    (Eager, StoreContract.test_what_was_never_inserted_is_not_found),
    (Overwriting, StoreContract.test_insert_refuses_an_id_that_is_taken),
]


@pytest.mark.parametrize(("store", "test"), CATCHES)
def test_an_example_catches_a_broken_store(
    store: type[MemoryStore], test: Callable[[StoreContract, Any], None]
) -> None:
    """Each of these breaks one promise."""
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(contract_of(store), store())


def test_make_store_has_to_be_overridden(tmp_path: Path) -> None:
    """The message says so."""
    with pytest.raises(NotImplementedError, match="make_store"):
        StoreContract().make_store(tmp_path)


def test_testing_needs_no_test_library_but_for_the_contract() -> None:
    """Importing the package works without pytest and Hypothesis; importing the contract names what to install."""
    script = """
import sys
sys.modules["pytest"] = sys.modules["hypothesis"] = None
import incoming_payments.testing
for module in ("contract", "nonces"):
    try:
        __import__(f"incoming_payments.testing.{module}")
    except ImportError as error:
        print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert [line.rpartition(": ")[2] for line in run.stdout.splitlines()] == [
        "pip install pytest hypothesis",
        "pip install pytest",
    ]

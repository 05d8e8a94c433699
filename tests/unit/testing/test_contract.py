"""The contract suite detects stores that break a promise, and its error messages say what to do."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing.contract import StoreContract
from kits.broken_stores import (
    DecidesBeforeLoading,
    EventsNewestFirst,
    FindsCompletedPayments,
    IgnoresEarlierCredits,
    OverwritesOnInsert,
    contract_of,
)

DETECTED_BY: list[tuple[type[MemoryStore], Callable[[StoreContract, Any], None]]] = [
    (IgnoresEarlierCredits, StoreContract.test_a_duplicate_credit_id_with_another_amount_is_refused),
    (IgnoresEarlierCredits, StoreContract.test_concurrent_credits_are_credited_once),
    (EventsNewestFirst, StoreContract.test_many_updates_of_one_payment_add_up),
    (FindsCompletedPayments, StoreContract.test_find_expired_omits_completed_payments),
    (DecidesBeforeLoading, StoreContract.test_an_unknown_id_is_not_found),
    (OverwritesOnInsert, StoreContract.test_insert_refuses_an_existing_id),
]


@pytest.mark.parametrize(("store", "test"), DETECTED_BY)
def test_a_broken_store_is_detected(store: type[MemoryStore], test: Callable[[StoreContract, Any], None]) -> None:
    """The test of the broken promise fails."""
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(contract_of(store), store())


def test_make_store_must_be_overridden(tmp_path: Path) -> None:
    """The message names the method."""
    with pytest.raises(NotImplementedError, match="make_store: override it"):
        StoreContract().make_store(tmp_path)


def test_only_the_contract_suites_need_test_libraries() -> None:
    """The package works without pytest and Hypothesis. Importing a contract suite names the libraries to install."""
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

"""The contract suite detects stores that break a promise, and its error messages say what to do."""

import inspect
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from incoming_payments.errors import BrokenDecision, CreditIdReused, InvalidValue, PaymentCompleted
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing.contract import StoreContract
from kits import broken_keys
from kits import broken_sqlite as broken
from kits.broken_lists import WRONG_LISTS, ListsWrongly
from kits.broken_stores import (
    ChecksNoInserts,
    ChecksNoUpdates,
    DecidesBeforeLoading,
    EventsNewestFirst,
    FindsCompletedPayments,
    ForgetsEarlierCredits,
    IgnoresEarlierCredits,
    OverwritesOnInsert,
    contract_of,
)
from kits.reference_contract import ReferenceContract
from kits.reference_store import ReferenceStore

DETECTED_BY: list[tuple[type[MemoryStore], Callable[[StoreContract, Any], None]]] = [
    (IgnoresEarlierCredits, StoreContract.test_a_duplicate_credit_id_with_another_amount_is_refused),
    (IgnoresEarlierCredits, StoreContract.test_concurrent_credits_are_credited_once),
    (EventsNewestFirst, StoreContract.test_many_updates_of_one_payment_add_up),
    (FindsCompletedPayments, StoreContract.test_find_expired_omits_completed_payments),
    (DecidesBeforeLoading, StoreContract.test_an_unknown_id_is_not_found),
    (OverwritesOnInsert, StoreContract.test_insert_refuses_an_existing_id),
    (ForgetsEarlierCredits, StoreContract.test_a_second_credit_under_one_id_is_refused),
]


@pytest.mark.parametrize(("store", "test"), DETECTED_BY)
def test_a_broken_store_is_detected(store: type[MemoryStore], test: Callable[[StoreContract, Any], None]) -> None:
    """The test of the broken promise fails."""
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(contract_of(store), store())


UNCHECKED: Final = (
    (ChecksNoUpdates, StoreContract.test_a_wrong_update_is_refused),
    (ChecksNoInserts, StoreContract.test_a_wrong_insert_is_refused),
)
EACH_WRONG_DECISION: Final = [
    pytest.param(store, test, wrong.values[0], id=f"{store.__name__}-{wrong.id}")
    for store, test in UNCHECKED
    for wrong in vars(test)["pytestmark"][0].args[1]
]


@pytest.mark.parametrize(("store", "test", "wrong"), EACH_WRONG_DECISION)
def test_a_store_without_the_guard_is_detected(store: type[MemoryStore], test: Callable[..., None], wrong: Any) -> None:
    """Each wrong decision alone makes the suite fail."""
    with pytest.raises((AssertionError, AttributeError, pytest.fail.Exception)):
        test(contract_of(store), store(), wrong)


# --- stores on SQLite ---


class TestReferenceStore(ReferenceContract):
    """The store that the broken stores change passes the suite."""


FAILED: Final = (AssertionError, pytest.fail.Exception)
CAUGHT_BY: list[tuple[type[ReferenceStore], Callable[..., None], Any]] = [
    (broken.LoadsThenSaves, StoreContract.test_concurrent_credits_are_credited_once, FAILED),
    (broken.LoadsThenSaves, StoreContract.test_concurrent_updates_decide_one_after_the_other, FAILED),
    (broken.LocksTheObject, StoreContract.test_stores_credit_one_payment_at_the_same_time, FAILED),
    (broken.LocksTheObject, StoreContract.test_a_decision_in_one_store_holds_up_the_other, FAILED),
    (broken.CachesPayments, StoreContract.test_each_store_sees_the_changes_of_the_other, FAILED),
    (broken.DecidesBeforeTheLock, StoreContract.test_concurrent_updates_decide_one_after_the_other, FAILED),
    (broken.DecidesBeforeTheLock, StoreContract.test_a_decision_in_one_store_holds_up_the_other, FAILED),
    (broken.KeepsAStaleDecision, StoreContract.test_a_transaction_that_breaks_decides_again, BrokenDecision),
    (broken.CommitsEventsLater, StoreContract.test_a_reader_sees_a_payment_with_its_events, FAILED),
    (broken.CreditsTwice, StoreContract.test_a_duplicate_credit_id_is_credited_once, PaymentCompleted),
    (broken.LeaksErrorsOfTheDriver, StoreContract.test_a_broken_connection_raises_store_errors, sqlite3.Error),
    (broken.LeaksErrorsWhenClosed, StoreContract.test_a_closed_store_raises_store_errors, sqlite3.Error),
    (broken.AnswersEarly, StoreContract.test_each_store_sees_the_changes_of_the_other, FAILED),
    (broken.FindsTheLastFirst, StoreContract.test_find_expired_returns_the_earliest_expiry_first, FAILED),
    (broken.FindsTooMany, StoreContract.test_find_expired_returns_the_earliest_expiry_first, FAILED),
    (broken.FindsTooEarly, StoreContract.test_find_expired_returns_the_earliest_expiry_first, FAILED),
    (broken.FindsCompletedPayments, StoreContract.test_find_expired_omits_completed_payments, FAILED),
    *((ListsWrongly.by(change), getattr(StoreContract, f"test_{test}"), FAILED) for change, test in WRONG_LISTS),
    (broken.IgnoresCase, StoreContract.test_credit_ids_are_compared_exactly, CreditIdReused),
    (broken.RoundsAmounts, StoreContract.test_amounts_use_all_64_bits, InvalidValue),
    (broken.KeepsSignedAmounts, StoreContract.test_amounts_use_all_64_bits, OverflowError),
    (broken.LosesSecondEvents, StoreContract.test_a_credit_that_reaches_the_limit_completes_the_payment, FAILED),
    (broken.SortsEventsAsText, StoreContract.test_many_updates_of_one_payment_add_up, FAILED),
    (broken.OverwritesOnInsert, StoreContract.test_insert_refuses_an_existing_id, FAILED),
    (broken.OverwritesOnInsert, StoreContract.test_of_inserts_through_two_stores_one_succeeds, FAILED),
    (broken.FindsCreditsOfOtherPayments, StoreContract.test_a_credit_id_belongs_to_one_payment, CreditIdReused),
    (broken.TakesTheLatestCredit, StoreContract.test_a_decision_gets_the_latest_payment, FAILED),
    (broken_keys.ForgetsKeys, StoreContract.test_find_creation_returns_the_record_of_a_key, FAILED),
    (broken_keys.SharesKeys, StoreContract.test_a_key_belongs_to_one_client, FAILED),
    (broken_keys.IgnoresCaseOfKeys, StoreContract.test_idempotency_keys_are_compared_exactly, FAILED),
    (broken_keys.KeepsKeysForever, StoreContract.test_a_key_that_has_ended_can_be_used_again, FAILED),
    (broken_keys.EndsKeysEarly, StoreContract.test_a_key_that_has_ended_can_be_used_again, FAILED),
    (broken_keys.RemovesAllKeys, StoreContract.test_an_old_key_does_not_remove_a_newer_one, FAILED),
    (broken_keys.ReplacesKeys, StoreContract.test_a_repeated_key_stores_nothing, FAILED),
    (broken_keys.StoresBothPayments, StoreContract.test_a_repeated_key_stores_nothing, FAILED),
    (broken_keys.UsesKeysOfRefusedInserts, StoreContract.test_a_refused_insert_does_not_use_its_key, FAILED),
    (broken_keys.StoresBothPayments, StoreContract.test_concurrent_inserts_under_one_key_create_one_payment, FAILED),
    (broken_keys.LooksUpBeforeTheLock, StoreContract.test_concurrent_inserts_under_one_key_create_one_payment, FAILED),
    (broken_keys.LocksKeysInTheProcess, StoreContract.test_of_inserts_under_one_key_in_two_stores_one_creates, FAILED),
    (broken_keys.CachesKeys, StoreContract.test_a_key_is_known_to_other_stores, FAILED),
    (broken_keys.CommitsKeysFirst, StoreContract.test_a_reader_sees_a_key_with_its_payment, FAILED),
    (broken_keys.CommitsKeysLater, StoreContract.test_a_reader_sees_a_key_with_its_payment, FAILED),
]


@pytest.mark.parametrize(("store_class", "test", "error"), CAUGHT_BY)
def test_a_broken_store_on_sqlite_is_detected(
    store_class: type[ReferenceStore], test: Callable[..., None], error: Any, tmp_path: Path
) -> None:
    """The test of the broken promise fails. It passes for the reference store, which has no other difference."""
    with pytest.raises(error):
        run_test(store_class, test, tmp_path)


def test_a_store_may_repeat_a_transaction(tmp_path: Path) -> None:
    """A store may answer after its connection broke, if it decides again."""
    run_test(broken.DecidesAgain, StoreContract.test_a_transaction_that_breaks_decides_again, tmp_path)


def run_test(store_class: type[ReferenceStore], test: Callable[..., None], directory: Path) -> None:
    """Run one test of the suite, with the fixtures that it takes."""
    contract = ReferenceContract()
    contract.store_class = store_class
    store = contract.make_store(directory)
    with contract.opened_again(store, directory) as other:
        known = {"self": contract, "store": store, "other": other, "tmp_path": directory, "one": "a", "another": "A"}
        try:
            test(**{name: known[name] for name in inspect.signature(test).parameters})
        finally:
            contract.close_store(store)


@pytest.mark.parametrize("hook", ["open_again", "break_store"])
def test_hooks_must_be_overridden(hook: str, tmp_path: Path) -> None:
    """The message names the hook, and what to do when a store has nothing to open again or to break."""
    with pytest.raises(NotImplementedError, match=f"{hook} is missing: override {hook} in .*If"):
        getattr(StoreContract(), hook)(MemoryStore(), tmp_path)


def test_make_store_must_be_overridden(tmp_path: Path) -> None:
    """The message names the method."""
    with pytest.raises(NotImplementedError, match="make_store is missing: override make_store"):
        StoreContract().make_store(tmp_path)


def test_only_the_contract_suites_need_test_libraries() -> None:
    """The package works without pytest and Hypothesis. Importing a contract suite names the extra to install."""
    script = """
import sys
sys.modules["pytest"] = sys.modules["hypothesis"] = None
import incoming_payments.testing
for module in ("contract", "erasure", "feed", "nonces", "quotas"):
    try:
        __import__(f"incoming_payments.testing.{module}")
    except ImportError as error:
        print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    messages = [line.rpartition(": ")[2] for line in run.stdout.splitlines()]
    assert messages == ["run pip install 'incoming-payments[testing]'"] * 5

"""The contract suite catches stores that break it, and says what it needs."""

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from broken_stores import Disorderly, Eager, Forgetful, Overwriting, Sweeping, contract_of
from incoming_payments.stores.memory import MemoryNonces, MemoryStore
from incoming_payments.testing.contract import NonceContract, StoreContract

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
    with pytest.raises(NotImplementedError, match="make_nonces"):
        NonceContract().make_nonces(tmp_path)


class Evicting(MemoryNonces):
    """Forgets the key that ends first when there is no room."""

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """As a cache would."""
        if len(self._used) >= self._capacity:
            self._forget(self._by_end[0][0].replace(year=9999))
        return super().use(key, until, now)


class Blind(MemoryNonces):
    """Remembers nothing."""

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """As if there were no nonces."""
        super().use(key, until, now)
        return True


class Hoarding(MemoryNonces):
    """Never forgets."""

    def _forget(self, now: datetime) -> None:
        pass


@pytest.mark.parametrize(
    ("nonces", "test"),
    [
        (Evicting, NonceContract.test_full_means_refusing_and_never_forgetting),
        (Blind, NonceContract.test_a_key_is_used_once),
        (Blind, NonceContract.test_what_has_ended_already_is_not_new),
        (Blind, NonceContract.test_of_many_at_once_one_is_first),
        (Hoarding, NonceContract.test_a_key_is_free_again_after_its_time),
    ],
)
def test_an_example_catches_broken_nonces(
    nonces: type[MemoryNonces], test: Callable[[NonceContract, Any], None]
) -> None:
    """Each of these breaks one promise."""
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(NonceContract(), nonces(NonceContract.room))


def test_testing_needs_no_test_library_but_for_the_contract() -> None:
    """Importing the package works without pytest and Hypothesis; importing the contract names what to install."""
    script = """
import sys
sys.modules["pytest"] = sys.modules["hypothesis"] = None
import incoming_payments.testing
try:
    import incoming_payments.testing.contract
except ImportError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert "pip install pytest hypothesis" in run.stdout

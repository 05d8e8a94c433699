"""The contract suite catches stores that break it, and says what it needs."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from attrs import evolve
from hypothesis import Phase, settings

from incoming_payments.domain.events import Event
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import CreditId, IncomingPayment, PaymentId
from incoming_payments.ports import Decide, PaymentStore
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import a_creation
from incoming_payments.testing.contract import StoreContract
from incoming_payments.testing.machine import Model

T = TypeVar("T")


class Forgetful(MemoryStore):
    """Looks no credit id up, so a repeat is booked again."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Hides the credit that was booked before."""
        self._rows.pop((id, credit_id or ""), None)
        return super().update(id, decide, credit_id)


class Disorderly(MemoryStore):
    """Gives events newest first."""

    def events(self, id: PaymentId) -> Sequence[Event]:
        """The wrong way round."""
        return super().events(id)[::-1]


class Sweeping(MemoryStore):
    """Names every payment with an expiry, completed or not."""

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """All of them."""
        payments = [row for row in self._rows.values() if isinstance(row, IncomingPayment)]
        due = [(at, payment.id) for payment in payments if (at := payment.expires_at) is not None and at < now]
        return [id for _, id in sorted(due)][:limit]


class Overwriting(MemoryStore):
    """Takes an id twice."""

    def insert(self, decision: Decision[IncomingPayment]) -> None:
        """The later one wins."""
        self._write(decision.answer, decision)


class Eager(MemoryStore):
    """Asks for the decision before it knows whether there is anything to decide on."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """On any payment at all."""
        decide(a_creation().answer, None)
        return super().update(id, decide, credit_id)


class ToTheSecond(MemoryStore):
    """Rounds moments, as databases do that count in seconds."""

    def load(self, id: PaymentId) -> IncomingPayment:
        """Without the microseconds."""
        payment = super().load(id)
        return evolve(payment, created_at=payment.created_at.replace(microsecond=0))


def contract_of(make: Callable[[], PaymentStore]) -> StoreContract:
    """The suite for stores made by `make`."""

    class Contract(StoreContract):
        """Without a name that pytest collects, and without looking for the shortest history that fails."""

        machine_settings = settings(StoreContract.machine_settings, phases=[Phase.generate])

        def make_store(self, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
            """One of the broken ones."""
            return make()

    return Contract()


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
try:
    import incoming_payments.testing.contract
except ImportError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert "pip install pytest hypothesis" in run.stdout

"""Stores that break one promise each, to show that the contract suite finds it."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from attrs import evolve
from hypothesis import Phase, settings

from incoming_payments.domain.events import Event
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import CreditId, IncomingPayment, PaymentId
from incoming_payments.ports import Decide, PaymentStore
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import a_creation
from incoming_payments.testing.contract import StoreContract

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

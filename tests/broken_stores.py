"""Stores that break one promise each, to show that the contract suite finds it."""

from collections import ChainMap
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from attrs import evolve
from hypothesis import Phase, settings

from changed_payments import changed
from incoming_payments.domain.events import Event
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import PaymentExists, PaymentNotFound, StoreUnavailable
from incoming_payments.ports import Decide, PaymentStore
from incoming_payments.stores.guard import check_update
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
        return changed(payment, created_at=payment.created_at.replace(microsecond=0))


class LoadThenSave(MemoryStore):
    """Holds no lock between the two, so that of two updates at once the later one wins."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Loads, decides, and saves whatever has happened in between."""
        before = self.load(id)
        earlier = self._rows.get((id, credit_id or ""))
        decision = decide(before, earlier)
        after = check_update(before, credit_id, earlier, decision)
        if after is not None:
            self._write(after, decision)
        return decision.answer


class CommitsHalf(MemoryStore):
    """Has no transactions: when it fails, some of it is written."""

    writes = 0

    def _write(self, payment: IncomingPayment, decision: Decision[Any]) -> None:
        """Every fiftieth time the payment and no more."""
        self.writes += 1
        if self.writes % 50 == 0:
            self._rows[payment.id] = payment
            raise StoreUnavailable("the connection was lost")
        super()._write(payment, decision)


class LosesEvents(MemoryStore):
    """Writes events where they can get lost."""

    writes = 0

    def _write(self, payment: IncomingPayment, decision: Decision[Any]) -> None:
        """Every fiftieth time the last event of the decision is another one's."""
        self.writes += 1
        super()._write(payment, decision)
        if self.writes % 50 == 0:
            event = decision.events[-1]
            self._rows[payment.id, event.version] = evolve(event, at=event.at + timedelta(microseconds=1))


class Inventive(MemoryStore):
    """Finds what was never stored."""

    def load(self, id: PaymentId) -> IncomingPayment:
        """Somehow."""
        return super().load(id) if id in self._rows else a_creation(id=id).answer


class Amnesiac(MemoryStore):
    """Does not find what is there, every hundredth time."""

    loads = 0

    def load(self, id: PaymentId) -> IncomingPayment:
        """As if another process had not stored it."""
        self.loads += 1
        if self.loads % 100 == 0:
            raise PaymentNotFound("not yet")
        return super().load(id)


class Full(MemoryStore):
    """Says of new ids that they are taken, every tenth time."""

    inserts = 0

    def insert(self, decision: Decision[IncomingPayment]) -> None:
        """As if there were no room for it."""
        self.inserts += 1
        if self.inserts % 10 == 0:
            raise PaymentExists("no room")
        super().insert(decision)


class Backwards(MemoryStore):
    """Names the expired last first."""

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """All that are right, in the wrong order."""
        return super().find_expired(now, limit)[::-1]


class Shared:
    """One memory store, and the way of each process to it, which `open` gives."""

    def __init__(self, open: Callable[[MemoryStore], PaymentStore]) -> None:
        store = MemoryStore()
        self.open = lambda: open(store)


class _Way:
    """A process's way to a store: nothing but calls."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def insert(self, decision: Decision[IncomingPayment]) -> None:
        """As the store's."""
        self._store.insert(decision)

    def load(self, id: PaymentId) -> IncomingPayment:
        """As the store's."""
        return self._store.load(id)

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """As the store's."""
        return self._store.update(id, decide, credit_id)

    def events(self, id: PaymentId) -> Sequence[Event]:
        """As the store's."""
        return self._store.events(id)

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """As the store's."""
        return self._store.find_expired(now, limit)


class AnswersBeforeDurable(_Way):
    """Keeps a few updates in the memory of the process before it writes them: they die with it."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._memory = MemoryStore()
        self._unwritten: dict[Any, Any] = {}
        self._memory._rows = cast("Any", ChainMap(self._unwritten, store._rows))

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """In memory; now and then all of it goes where it should be."""
        answer = self._memory.update(id, decide, credit_id)
        if len(self._unwritten) > 9:
            self._store._rows.update(self._unwritten)
            self._unwritten.clear()
        return answer

    def load(self, id: PaymentId) -> IncomingPayment:
        """With what is in memory."""
        return self._memory.load(id)

    def events(self, id: PaymentId) -> Sequence[Event]:
        """With what is in memory."""
        return self._memory.events(id)


class Caching(_Way):
    """Remembers what it has loaded, and does not hear of what other processes write."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._loaded: dict[PaymentId, IncomingPayment] = {}

    def load(self, id: PaymentId) -> IncomingPayment:
        """From memory, if it can."""
        return self._loaded.setdefault(id, self._store.load(id))

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Rightly, and then remembered."""
        answer = super().update(id, decide, credit_id)
        self._loaded[id] = self._store.load(id)
        return answer


def contract_of(make: Callable[[], PaymentStore]) -> StoreContract:
    """The suite for stores made by `make`."""

    class Contract(StoreContract):
        """Without a name that pytest collects, and without looking for the shortest history that fails."""

        machine_settings = settings(StoreContract.machine_settings, phases=[Phase.generate])

        def make_store(self, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
            """One of the broken ones."""
            return make()

    return Contract()

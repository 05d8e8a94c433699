"""Stores that each break one promise on purpose, so that tests can prove that the contract suite detects it."""

from collections import ChainMap
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from attrs import evolve
from hypothesis import Phase, settings

from incoming_payments.domain.events import Event
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import ClientId, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import PaymentExists, PaymentNotFound, StoreUnavailable
from incoming_payments.ports import Decide, PaymentStore
from incoming_payments.stores.guard import check_update
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import a_creation
from incoming_payments.testing.contract import StoreContract
from kits.changed_payments import changed

T = TypeVar("T")


class IgnoresEarlierCredits(MemoryStore):
    """Never finds an earlier credit, so that a duplicate is credited again."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Delete the earlier credit before the update."""
        self._rows.pop((id, credit_id or ""), None)
        return super().update(id, decide, credit_id)


class EventsNewestFirst(MemoryStore):
    """Returns events in the wrong order."""

    def events(self, id: PaymentId) -> Sequence[Event]:
        """Return the newest event first."""
        return super().events(id)[::-1]


class FindsCompletedPayments(MemoryStore):
    """Returns completed payments from `find_expired` too."""

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Return every payment with an earlier `expires_at`."""
        payments = [row for row in self._rows.values() if isinstance(row, IncomingPayment)]
        due = [(at, payment.id) for payment in payments if (at := payment.expires_at) is not None and at < now]
        return [id for _, id in sorted(due)][:limit]


class OverwritesOnInsert(MemoryStore):
    """Accepts an id that exists already."""

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Replace the earlier payment."""
        self._write(decision.answer, decision)
        return None


class DecidesBeforeLoading(MemoryStore):
    """Calls `decide` before it knows whether the payment exists."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Call `decide` with an unrelated payment first."""
        decide(a_creation().answer, None)
        return super().update(id, decide, credit_id)


class TruncatesTimes(MemoryStore):
    """Stores times without their microseconds."""

    def load(self, id: PaymentId) -> IncomingPayment:
        """Return the payment with `created_at` in whole seconds."""
        payment = super().load(id)
        return changed(payment, created_at=payment.created_at.replace(microsecond=0))


class LoadsThenSaves(MemoryStore):
    """Holds no lock between load and save, so that one of two concurrent updates is lost."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Load, decide and save, even if the payment has changed in between."""
        before = self.load(id)
        earlier = self._rows.get((id, credit_id or ""))
        decision = decide(before, earlier)
        after = check_update(before, credit_id, earlier, decision)
        if after is not None:
            self._write(after, decision)
        return decision.answer


class ChecksNoUpdates(MemoryStore):
    """Leaves out `guard.check_update`, so that a wrong decision invents money."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Write every decision."""
        with self._lock:
            before = self._payment(id)
            decision = decide(before, self._rows.get((id, credit_id or "")))
            if decision.payment is not None:
                self._write(decision.payment, decision)
            return decision.answer


class ForgetsEarlierCredits(MemoryStore):
    """Does not tell `guard.check_update` of the earlier credit, so that a wrong decision credits it again."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Check the decision as if there were no earlier credit."""
        with self._lock:
            before = self._payment(id)
            decision = decide(before, self._rows.get((id, credit_id or "")))
            after = check_update(before, credit_id, None, decision)
            if after is not None:
                self._write(after, decision)
            return decision.answer


class ChecksNoInserts(MemoryStore):
    """Leaves out `guard.check_insert`, so that a payment may have money that was never credited."""

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Write every decision."""
        self._write(decision.payment or decision.answer, decision)
        return None


class CommitsPartly(MemoryStore):
    """Has no transactions: a failed write leaves the payment without its events."""

    writes = 0

    def _write(self, payment: IncomingPayment, decision: Decision[Any]) -> None:
        """Write only the payment and fail, at every 50th call."""
        self.writes += 1
        if self.writes % 50 == 0:
            self._rows[payment.id] = payment
            raise StoreUnavailable("the connection was lost")
        super()._write(payment, decision)


class AltersEvents(MemoryStore):
    """Stores an event with the wrong time."""

    writes = 0

    def _write(self, payment: IncomingPayment, decision: Decision[Any]) -> None:
        """Change the time of the last event, at every 50th call."""
        self.writes += 1
        super()._write(payment, decision)
        if self.writes % 50 == 0:
            event = decision.events[-1]
            self._rows[payment.id, event.version] = evolve(event, at=event.at + timedelta(microseconds=1))


class InventsPayments(MemoryStore):
    """Finds payments that were never inserted."""

    def load(self, id: PaymentId) -> IncomingPayment:
        """Return a new payment if there is none."""
        return super().load(id) if id in self._rows else a_creation(id=id).answer


class LosesPayments(MemoryStore):
    """Sometimes does not find a payment that is stored."""

    loads = 0

    def load(self, id: PaymentId) -> IncomingPayment:
        """Raise `PaymentNotFound` at every 100th call."""
        self.loads += 1
        if self.loads % 100 == 0:
            raise PaymentNotFound("this payment is stored, but the store does not find it")
        return super().load(id)


class RejectsNewIds(MemoryStore):
    """Sometimes reports that a new id exists already."""

    inserts = 0

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Raise `PaymentExists` at every 10th call."""
        self.inserts += 1
        if self.inserts % 10 == 0:
            raise PaymentExists("this id is new, but the store rejects it")
        return super().insert(decision)


class ListsAllStates(MemoryStore):
    """Ignores the state in `find_payments`."""

    def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        """Return the page without that filter."""
        return super().find_payments(evolve(query, state=None))


class FindsLastExpiredFirst(MemoryStore):
    """Returns the right payments from `find_expired` in the wrong order."""

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Return the payments in reverse order."""
        return super().find_expired(now, limit)[::-1]


class ForgetsKeys(MemoryStore):
    """Stores a payment without its idempotency key."""

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Insert without the key."""
        return super().insert(evolve(decision, keyed=None))


class LosesKeys(MemoryStore):
    """Sometimes does not find a key that is stored."""

    looks = 0

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        """Return `None` at every 20th call."""
        self.looks += 1
        return None if self.looks % 20 == 0 else super().find_creation(client, key, now)


class SharedStore:
    """One memory store. Each simulated process gets its own access to the store from `open`."""

    def __init__(self, open: Callable[[MemoryStore], PaymentStore]) -> None:
        store = MemoryStore()
        self.open = lambda: open(store)


class Connection:
    """Access to a shared store: each method calls the same method of the store."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Call the shared store."""
        return self._store.insert(decision)

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        """Call the shared store."""
        return self._store.find_creation(client, key, now)

    def load(self, id: PaymentId) -> IncomingPayment:
        """Call the shared store."""
        return self._store.load(id)

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Call the shared store."""
        return self._store.update(id, decide, credit_id)

    def events(self, id: PaymentId) -> Sequence[Event]:
        """Call the shared store."""
        return self._store.events(id)

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Call the shared store."""
        return self._store.find_expired(now, limit)

    def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        """Call the shared store."""
        return self._store.find_payments(query)


class AnswersBeforeDurable(Connection):
    """Keeps a few updates in the memory of the process, so that a crash loses them."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._memory = MemoryStore()
        self._unwritten: dict[Any, Any] = {}
        self._memory._rows = cast("Any", ChainMap(self._unwritten, store._rows))

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Update in memory, and write to the shared store when ten rows have changed."""
        answer = self._memory.update(id, decide, credit_id)
        if len(self._unwritten) > 9:
            self._store._rows.update(self._unwritten)
            self._unwritten.clear()
        return answer

    def load(self, id: PaymentId) -> IncomingPayment:
        """Return the payment with the updates that are only in memory."""
        return self._memory.load(id)

    def events(self, id: PaymentId) -> Sequence[Event]:
        """Return the events with those that are only in memory."""
        return self._memory.events(id)


class CachesPayments(Connection):
    """Caches loaded payments, and does not see the updates of other processes."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._loaded: dict[PaymentId, IncomingPayment] = {}

    def load(self, id: PaymentId) -> IncomingPayment:
        """Return the payment from the cache if it is there."""
        return self._loaded.setdefault(id, self._store.load(id))

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Update the shared store and the cache."""
        answer = super().update(id, decide, credit_id)
        self._loaded[id] = self._store.load(id)
        return answer


def contract_of(make: Callable[[], PaymentStore]) -> StoreContract:
    """Return the contract suite for the stores that `make` returns."""

    class Contract(StoreContract):
        """A suite that pytest does not collect, and that does not search for the shortest failing history."""

        machine_settings = settings(StoreContract.machine_settings, phases=[Phase.generate])

        def make_store(self, directory: Path) -> PaymentStore:  # noqa: ARG002 - the base class defines it
            """Return a new store."""
            return make()

    return Contract()

"""Stores in memory: for tests, demonstrations and simulations. They forget everything when the process ends."""

import heapq
import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

from incoming_payments.domain.events import Event
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import InvalidValue, PaymentExists, PaymentNotFound, StoreUnavailable
from incoming_payments.limits import NONCES_MAX
from incoming_payments.ports import Decide
from incoming_payments.stores.guard import check_insert, check_update, sweep_at

T = TypeVar("T")


class MemoryStore:
    """A `PaymentStore` in a dictionary, safe to use from several threads and from asyncio.

    `decide` runs under the store's lock, so it must not call the store.

    >>> from incoming_payments.testing import a_creation
    >>> store = MemoryStore()
    >>> created = a_creation()
    >>> store.insert(created)
    >>> store.load(created.answer.id) == created.answer
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Payments by id, credits by (id, credit id) and events by (id, version), all in one dictionary:
        # `dict.update` happens before or after a KeyboardInterrupt, never halfway, so the three cannot come
        # to contradict each other.
        self._rows: dict[str | tuple[str, str | int], Any] = {}

    def insert(self, decision: Decision[IncomingPayment]) -> None:
        """Store a new payment with its events. Raises `PaymentExists` when the id is taken."""
        payment = check_insert(decision)
        with self._lock:
            if payment.id in self._rows:
                raise PaymentExists(f"there is a payment {payment.id} already")
            self._write(payment, decision)

    def load(self, id: PaymentId) -> IncomingPayment:
        """The payment as last stored. Raises `PaymentNotFound`."""
        with self._lock:
            return self._payment(id)

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Load, decide and store as one step, and return the decision's answer. Raises `PaymentNotFound`."""
        with self._lock:
            before = self._payment(id)
            earlier = None if credit_id is None else self._rows.get((id, credit_id))
            decision = decide(before, earlier)
            after = check_update(before, credit_id, earlier, decision)
            if after is not None:
                self._write(after, decision)
            return decision.answer

    def events(self, id: PaymentId) -> Sequence[Event]:
        """The events of one payment, oldest first. Raises `PaymentNotFound`."""
        with self._lock:
            last = self._payment(id).version
            return [self._rows[id, version] for version in range(1, last + 1)]

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """At most `limit` payments that expired before `now` and were not announced, the longest expired first."""
        with self._lock:
            payments = [row for row in self._rows.values() if isinstance(row, IncomingPayment)]
        due = [(at, payment.id) for payment in payments if (at := sweep_at(payment)) is not None and at < now]
        return [id for _, id in sorted(due)[: max(limit, 0)]]

    def _payment(self, id: PaymentId) -> IncomingPayment:
        payment = self._rows.get(id)
        if payment is None:
            raise PaymentNotFound(f"there is no payment {id}")
        return payment  # type: ignore[no-any-return] # under an id stands a payment

    def _write(self, payment: IncomingPayment, decision: Decision[Any]) -> None:
        id = payment.id
        rows: dict[str | tuple[str, str | int], Any] = {id: payment}
        if decision.credit is not None:
            rows[id, decision.credit.id] = decision.credit
        for event in decision.events:
            rows[id, event.version] = event
        self._rows.update(rows)


class MemoryNonces:
    """A `Nonces` port in a dictionary, for one process: others know nothing of it, nor does the next one.

    It holds at most `capacity` keys and refuses more with `StoreUnavailable`. Raises `InvalidValue` for less than one.
    Safe to use from several threads and from asyncio.

    >>> from datetime import timedelta
    >>> from incoming_payments.testing import NOW
    >>> nonces = MemoryNonces()
    >>> [nonces.use("0" * 64, NOW + timedelta(seconds=300), NOW) for _ in range(2)]
    [True, False]
    """

    def __init__(self, capacity: int = NONCES_MAX) -> None:
        if capacity < 1:
            raise InvalidValue("capacity is how many keys are held: at least 1", member="capacity")
        self._capacity = capacity
        self._lock = threading.Lock()
        self._used: dict[str, datetime] = {}
        self._by_end: list[tuple[datetime, str]] = []
        self._forgotten: datetime | None = None  # whatever was to be remembered until then may be gone

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Whether `key` is used for the first time. Raises `StoreUnavailable` when there is no room for another."""
        with self._lock:
            self._forget(now)
            # A request that was kept waiting comes with a moment that has passed: it may be forgotten by a later one.
            if key in self._used or until < now or (self._forgotten is not None and until <= self._forgotten):
                return False
            if len(self._used) >= self._capacity:
                raise StoreUnavailable(f"{self._capacity} nonces are remembered already: try again later")
            # In this order a KeyboardInterrupt between the two leaves no key that is never forgotten.
            heapq.heappush(self._by_end, (until, key))
            self._used[key] = until
            return True

    def _forget(self, now: datetime) -> None:
        while self._by_end and self._by_end[0][0] < now:
            until, key = self._by_end[0]
            self._forgotten = until
            if self._used.get(key) == until:  # or an interrupted call put it there
                del self._used[key]
            heapq.heappop(self._by_end)

"""Stores in memory, for tests, demonstrations and simulations. Their data is lost when the process ends."""

import heapq
import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

from incoming_payments.domain.events import Event
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision, without_metadata
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import ClientId, CreditId, IncomingPayment, PaymentId
from incoming_payments.domain.reference import reference_text
from incoming_payments.errors import PaymentExists, PaymentNotFound
from incoming_payments.limits import ERASED_PAYMENTS_MAX, NONCES_DEFAULT
from incoming_payments.ports import Decide
from incoming_payments.stores import guard
from incoming_payments.stores.memory_feed import MemoryFeed

T = TypeVar("T")


class MemoryStore:
    """A `PaymentStore` in a dictionary. Thread-safe, and usable from asyncio.

    `feed` is the `Feed` of its events. `decide` runs under the lock of the store, so it must not call the store.
    `reference` names the member of the metadata by which `find_payments` can find payments.
    """

    def __init__(self, *, reference: str | None = None) -> None:
        self.reference = None if reference is None else reference_text(reference)
        self._lock = threading.Lock()
        # Payments by id, credits by (id, credit id), events by (id, version), creations by (client, key, "key"), and
        # the rows of the feed. All of them are in one dictionary, so that they always agree: a KeyboardInterrupt
        # cannot split `dict.update`.
        self._rows: dict[str | tuple[str | int, ...], Any] = {}
        self.feed = MemoryFeed(self._lock, self._rows)

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Store a new payment with its events and its idempotency key, or return the earlier record of the key.

        Raises `PaymentExists` when a payment with this id exists.
        """
        payment, keyed = guard.check_insert(decision), decision.keyed
        with self._lock:
            if keyed is not None and (earlier := self._creation(keyed.client, keyed.key, payment.created_at)):
                return earlier
            if payment.id in self._rows:
                raise PaymentExists(f"payment {payment.id} exists already: create the payment with another id")
            self._write(payment, decision)
            return None

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        """Return the record of the creation under `key` of `client`, or `None` if there is none or it has expired."""
        with self._lock:
            return self._creation(client, key, now)

    def load(self, id: PaymentId) -> IncomingPayment:
        """Return the payment as last stored. Raises `PaymentNotFound`."""
        with self._lock:
            return self._payment(id)

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Load, decide and store in one step, and return the answer of the decision. Raises `PaymentNotFound`."""
        with self._lock:
            before = self._payment(id)
            earlier = None if credit_id is None else self._rows.get((id, credit_id))
            decision = decide(before, earlier)
            after = guard.check_update(before, credit_id, earlier, decision)
            if after is not None:
                self._write(after, decision)
            return decision.answer

    def events(self, id: PaymentId) -> Sequence[Event]:
        """Return the events of one payment, oldest first. Raises `PaymentNotFound`."""
        with self._lock:
            last = self._payment(id).version
            return [self._rows[id, version] for version in range(1, last + 1)]

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Return at most `limit` payments that expired before `now` and were not announced, longest expired first."""
        due = [
            (at, payment.id) for payment in self._payments() if (at := guard.sweep_at(payment)) is not None and at < now
        ]
        return [id for _, id in sorted(due)[: max(limit, 0)]]

    def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        """Return the page that `query` describes, newest first. This takes time linear in the number of all rows."""
        return query.page_of(self._payments())

    @property
    def erasure(self) -> "MemoryErasure":
        """The `Erasure` port of this store."""
        return MemoryErasure(self)

    def erase(self, id: PaymentId) -> IncomingPayment:
        """See `Erasure.erase`."""
        with self._lock:
            self._rows[id] = erased = without_metadata(self._payment(id))
        return erased

    def find_ended(self, before: datetime) -> Sequence[PaymentId]:
        """Return a batch of the payments with metadata that ended before `before`."""
        payments = [payment for payment in self._payments() if payment.terms.metadata is not None]
        ended = [payment.id for payment in payments if (at := guard.ended_at(payment)) is not None and at < before]
        return ended[:ERASED_PAYMENTS_MAX]

    def _creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        creation: KeyedCreation | None = self._rows.get((client, key, "key"))
        return None if creation is None or creation.until < now else creation

    def _payments(self) -> list[IncomingPayment]:
        with self._lock:
            return [row for row in self._rows.values() if isinstance(row, IncomingPayment)]

    def _payment(self, id: PaymentId) -> IncomingPayment:
        payment = self._rows.get(id)
        if payment is None:
            raise PaymentNotFound(f"there is no payment {id}")
        return payment  # type: ignore[no-any-return] # the value under an id is a payment

    def _write(self, payment: IncomingPayment, decision: Decision[Any]) -> None:
        id = payment.id
        rows: dict[str | tuple[str | int, ...], Any] = {id: payment}
        if decision.credit is not None:
            rows[id, decision.credit.id] = decision.credit
        for event in decision.events:
            rows[id, event.version] = event
        if decision.keyed is not None:
            rows[decision.keyed.client, decision.keyed.key, "key"] = decision.keyed
        marks = self.feed.marks(payment, decision.events)
        self._rows.update(rows | marks)
        if marks:
            self.feed.wake()


class MemoryErasure:
    """The `Erasure` port of a `MemoryStore`. Python may keep the text in memory after an erasure."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def erase(self, id: PaymentId) -> IncomingPayment:
        """See `Erasure.erase`."""
        return self._store.erase(id)

    def erase_ended(self, before: datetime) -> bool:
        """See `Erasure.erase_ended`."""
        found = self._store.find_ended(before)
        for id in found:
            self._store.erase(id)
        return len(found) < ERASED_PAYMENTS_MAX


class MemoryNonces:
    """A `Nonces` port in a dictionary, for one process. Thread-safe.

    The port holds `capacity` keys, and raises `StoreUnavailable` for a further key. Raises `InvalidValue` for a
    capacity below one.

    >>> from datetime import timedelta
    >>> from incoming_payments.testing import NOW
    >>> nonces = MemoryNonces()
    >>> [nonces.use("0" * 64, NOW + timedelta(seconds=300), NOW) for _ in range(2)]
    [True, False]
    """

    def __init__(self, capacity: int = NONCES_DEFAULT) -> None:
        self._capacity = guard.checked_capacity(capacity)
        self._lock = threading.Lock()
        self._used: dict[str, datetime] = {}
        self._by_end: list[tuple[datetime, str]] = []
        self._removed_until: datetime | None = None  # the latest end of a removed key

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Return whether `key` is used for the first time.

        Raises `StoreUnavailable` when the store is full, and `ClockBehind`.
        """
        with self._lock:
            self._remove_ended(now)
            if key in self._used or until < now:
                return False
            # An earlier call with a later `now` may have removed this key.
            guard.check_nonce_time(until, self._removed_until, now)
            guard.check_nonce_capacity(len(self._used), self._capacity)
            # Keep this order. In the other order, a KeyboardInterrupt between the two lines could leave a key in memory
            # for ever.
            heapq.heappush(self._by_end, (until, key))
            self._used[key] = until
            return True

    def _remove_ended(self, now: datetime) -> None:
        while self._by_end and self._by_end[0][0] < now:
            until, key = self._by_end[0]
            self._removed_until = until
            if self._used.get(key) == until:  # if the times differ, an interrupt has left the key unused
                del self._used[key]
            heapq.heappop(self._by_end)

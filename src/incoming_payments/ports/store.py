"""The store of payments."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from incoming_payments.domain.events import Event
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import (
    ClientId,
    Credit,
    CreditId,
    IncomingPayment,
    PaymentId,
)

T = TypeVar("T")


Decide = Callable[[IncomingPayment, Credit | None], Decision[T]]


class PaymentStore(Protocol):
    """The store of payments. Each method is atomic, and returns when its result is durable."""

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Store a new payment with its events, and `decision.keyed` if it is set, in one transaction.

        Return `None`. If the store has a record with the client and the key of `decision.keyed`, return that record and
        store nothing. If the `until` of that record is before the `created_at` of the new payment, replace the record
        instead. While another transaction inserts a payment under the key, wait until that transaction ends. If the
        store has no record for the key, but has a payment with this id, raise `PaymentExists`.
        """

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        """Return the record that `insert` stored for this client and key, or `None`.

        Return `None` when the `until` of the record is before `now`. If this method returns a record, `load` must find
        the payment of the record.
        """

    def load(self, id: PaymentId) -> IncomingPayment:
        """Return the payment as last stored. Raise `PaymentNotFound`."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Load, decide and store in one transaction, and return the answer of the decision.

        Call `decide` inside the transaction, with the payment and its credit under `credit_id`, or `None` if there is
        no such credit. Do not call `decide` before the transaction begins, because the decision about a packet reads
        the clock. `decide` has no side effects. You may call it more than once, and must store the result of the last
        call. If `decide` raises an exception, store nothing and let the exception reach the caller. Raises
        `PaymentNotFound`.
        """

    def events(self, id: PaymentId) -> Sequence[Event]:
        """Return the events of one payment, oldest first. Raise `PaymentNotFound`."""

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Return at most `limit` payments with `expires_at` before `now` and no `expired` event, by `expires_at`.

        Leave out completed payments. Completed payments never expire, so each sweep would find them again and might not
        reach other payments.
        """

    def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        """Return the page that `query` describes, newest first. The correct answer is `query.page_of(all_payments)`.

        Find the place in the list by an index, so that all pages of a wallet address, and of one client at a wallet
        address, take the same time. Never count rows from the start of the list.

        A store that finds payments by a reference has an attribute `reference`, the name of the member of the metadata
        that it indexes. For a store without this attribute, no query has a `reference`.
        """


class AsyncPaymentStore(Protocol):
    """`PaymentStore` with `async def` methods."""

    async def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None: ...
    async def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None: ...
    async def load(self, id: PaymentId) -> IncomingPayment: ...
    async def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T: ...
    async def events(self, id: PaymentId) -> Sequence[Event]: ...
    async def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]: ...
    async def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]: ...

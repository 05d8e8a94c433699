"""The stores that the workers of these campaigns open, and some that break a promise, which the check must notice."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeGuard

from campaigns.postgres.relays import EARLY
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import STREAM_CREDITS, Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import StoreUnavailable
from incoming_payments.ports import PaymentStore
from incoming_payments.stores.postgres import PostgresStore
from kits.postgres import async_view


class Changed:
    """A store like `store`, with another method."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class TrustsReads(Changed):
    """After an unknown outcome, this store looks for the credit by a plain read, and acknowledges it if it is there.

    So it acknowledges a credit that the standby does not have.
    """

    def update(self, id: PaymentId, decide: Any, credit_id: CreditId | None = None) -> Any:
        """Credit, or find the credit."""
        try:
            return self.store.update(id, decide, credit_id)
        except StoreUnavailable:
            if not _is_call(credit_id):
                raise
            for event in self.store.events(id):
                if event.credit_id == credit_id:
                    payment = self.store.load(id)
                    return Credit(id, credit_id, event.received, event.received, False, payment.updated_at)
            raise


class ForgetsIds(Changed):
    """This store repeats an unknown credit by itself under another credit id, so it may credit it twice."""

    def update(self, id: PaymentId, decide: Any, credit_id: CreditId | None = None) -> Any:
        """Credit, perhaps twice."""
        try:
            return self.store.update(id, decide, credit_id)
        except StoreUnavailable:
            if not _is_call(credit_id):
                raise
            other = CreditId(f"{credit_id}-again")
            return self.store.update(id, partial(_under, other, decide), other)


def _is_call(credit_id: CreditId | None) -> TypeGuard[CreditId]:
    """Return whether the credit is one of a call, and not of a packet."""
    return credit_id is not None and not credit_id.startswith(STREAM_CREDITS)


def _under(id: CreditId, decide: Any, payment: IncomingPayment, earlier: Credit | None) -> Decision[Credit]:
    decision: Decision[Credit] = partial(decide.func, **{**decide.keywords, "credit_id": id})(payment, earlier)
    return decision


class RemembersReads(Changed):
    """This store answers each read from a copy that is up to a second old."""

    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store)
        self._copies: dict[PaymentId, tuple[float, IncomingPayment]] = {}

    def load(self, id: PaymentId) -> IncomingPayment:
        """Return the payment as it is or was."""
        at, payment = self._copies.get(id) or (time.monotonic(), self.store.load(id))
        if time.monotonic() - at > 1:
            at, payment = time.monotonic(), self.store.load(id)
        self._copies[id] = at, payment
        return payment


STORES: Final[dict[str, Callable[[str], PaymentStore]]] = {
    "threads": PostgresStore,
    "asyncio": async_view,
    "unprepared": partial(PostgresStore, prepares=False),
    EARLY: PostgresStore,
    "trusts_reads": lambda conninfo: TrustsReads(PostgresStore(conninfo)),
    "forgets_ids": lambda conninfo: ForgetsIds(PostgresStore(conninfo, prepares=False)),
    "remembers_reads": lambda conninfo: RemembersReads(PostgresStore(conninfo)),
}

"""Factories of stores for the crash kit, which names a factory as `module:callable`."""

from collections.abc import Sequence
from typing import TypeVar

from incoming_payments.domain.events import Event
from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.ports import Decide
from incoming_payments.stores.sqlite import AsyncSqliteStore
from incoming_payments.testing import SyncView
from kits.reference_store import ReferenceStore

T = TypeVar("T")


def open_async_sqlite(path: str) -> SyncView:
    """Return a view of an async store on the file `path`."""

    async def open_store() -> AsyncSqliteStore:
        return AsyncSqliteStore(path)

    return SyncView(open_store, AsyncSqliteStore.close)


class FinishesCommitsOfDeadProcesses(ReferenceStore):
    """A store on a server that is still committing the last update of a process that was killed.

    Reads do not see that update yet. The next update waits for its lock, and so for its commit.
    """

    _is_committed = False

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """See `PaymentStore.update`."""
        answer = super().update(id, decide, credit_id)
        self._is_committed = True
        return answer

    def events(self, id: PaymentId) -> Sequence[Event]:
        """See `PaymentStore.events`."""
        events = super().events(id)
        return events if self._is_committed else events[:-1]

"""Steps of tests with concurrent callers of a store on PostgreSQL."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, IncomingPayment, PaymentId
from incoming_payments.ports import PaymentStore
from incoming_payments.stores.postgres import PostgresStore
from kits.postgres import execute


class Hold:
    """A decision that waits in its transaction until `end` is called."""

    def __init__(self, store: PaymentStore, id: PaymentId, executor: ThreadPoolExecutor) -> None:
        self._began, self._may_end = threading.Event(), threading.Event()
        self.update = executor.submit(store.update, id, self._decide)
        self._began.wait()

    def _decide(self, _payment: IncomingPayment, _earlier: Credit | None) -> Decision[None]:
        self._began.set()
        self._may_end.wait()
        return Decision(None)

    def end(self) -> None:
        """Let the transaction commit."""
        self._may_end.set()
        self.update.result()


# the other sessions of the database
OTHERS = (
    "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend'"
)


def open_transactions(database: str) -> list[Any]:
    """Return the sessions that are in a transaction, after a moment in which one may end."""
    end_s = time.monotonic() + 1
    while (found := execute(database, f"{OTHERS} AND state <> 'idle'")) and time.monotonic() < end_s:
        time.sleep(0.01)
    return found


def await_waiting(store: PostgresStore, id: PaymentId, number: int) -> None:
    """Wait until this number of updates wait for the payment."""
    while len(store._engine._groups._waiting[id]) < number:
        time.sleep(0.001)

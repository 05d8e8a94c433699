"""The updates that wait for their payments.

While a transaction of a payment is in flight, later updates of this payment wait in this process. They then share the
next transaction and its commit. Updates of different payments never wait for each other here.
"""

import threading
from collections import deque

from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import StoreUnavailable
from incoming_payments.limits import STORE_BATCH_MAX, STORE_QUEUE_MAX
from incoming_payments.stores.postgres._operations import Job


class Groups:
    """The waiting jobs of each payment. Thread-safe.

    After `add`, call `begin`, in any thread. If it returns true, call `take` until it returns no job, and run the jobs.
    If a caller is interrupted between `add` and `begin`, its job runs with the next update of the payment.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[PaymentId, deque[Job]] = {}
        self._in_flight: set[PaymentId] = set()

    def add(self, id: PaymentId, job: Job) -> None:
        """Add a job. Raises `StoreUnavailable` when too many jobs wait for the payment."""
        with self._lock:
            waiting = self._waiting.setdefault(id, deque())
            if len(waiting) >= STORE_QUEUE_MAX:
                raise StoreUnavailable(f"{STORE_QUEUE_MAX} updates are already waiting: repeat the call later")
            waiting.append(job)

    def begin(self, id: PaymentId) -> bool:
        """Reserve the payment and return true. Return false if no job waits for it, or another caller has it."""
        with self._lock:
            if id in self._in_flight or id not in self._waiting:
                return False
            self._in_flight.add(id)
            return True

    def take(self, id: PaymentId) -> list[Job]:
        """Return the jobs for the next transaction of the payment, or none at the end."""
        with self._lock:
            waiting = self._waiting[id]
            taken = [waiting.popleft() for _ in range(min(len(waiting), STORE_BATCH_MAX))]
            if not taken:
                del self._waiting[id]
                self._in_flight.remove(id)
            return taken

"""The work that waits in this process for other work on the same rows, and occupies no connection meanwhile.

Updates of one payment share the next transaction and its commit. Calls that lock the same row of a client or of a
consumer follow each other. Work with different keys never waits for each other here.
"""

import threading
from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from typing import Generic, TypeVar

from incoming_payments.errors import StoreUnavailable
from incoming_payments.limits import STORE_BATCH_MAX

J = TypeVar("J")


class Groups(Generic[J]):
    """The waiting jobs of each key. Thread-safe.

    After `add`, call `begin`, in any thread. If it returns true, call `take` until it returns no job, and run the jobs.
    If a caller is interrupted between `add` and `begin`, its job runs with the next one of the key.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, deque[J]] = {}
        self._in_flight: set[Hashable] = set()

    def add(self, key: Hashable, job: J, waiting_max: int) -> None:
        """Add a job. Raises `StoreUnavailable` when too many jobs wait for the key."""
        with self._lock:
            waiting = self._waiting.setdefault(key, deque())
            if len(waiting) >= waiting_max:
                raise StoreUnavailable(f"{waiting_max} calls are already waiting for this one: repeat the call later")
            waiting.append(job)

    def begin(self, key: Hashable) -> bool:
        """Reserve the key and return true. Return false if no job waits for it, or another caller has it."""
        with self._lock:
            if key in self._in_flight or key not in self._waiting:
                return False
            self._in_flight.add(key)
            return True

    def discard(self, key: Hashable, job: J) -> None:
        """Remove a job that still waits."""
        with self._lock, suppress(KeyError, ValueError):
            self._waiting[key].remove(job)
            if not (self._waiting[key] or key in self._in_flight):
                del self._waiting[key]

    def take(self, key: Hashable, most: int = STORE_BATCH_MAX) -> list[J]:
        """Return the jobs that come next, or none at the end."""
        with self._lock:
            waiting = self._waiting[key]
            taken = [waiting.popleft() for _ in range(min(len(waiting), most))]
            if not taken:
                del self._waiting[key]
                self._in_flight.remove(key)
            return taken

"""The inserts that would wait for each other in the database wait here.

An insert with an idempotency key locks the record of the key, and an insert that counts against a quota locks the row
of its client. Without the turns, many such inserts of one client would each occupy a connection while they wait, and
leave none for the other clients.
"""

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

L = TypeVar("L")


class Turns(Generic[L]):
    """A lock for each key, which exists while a caller holds it or waits for it. Thread-safe."""

    def __init__(self, new_lock: Callable[[], L]) -> None:
        self._new_lock = new_lock
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()

    def lock(self, key: Hashable) -> L:
        """Return the lock of `key`. Keep the result as long as the lock is held."""
        with self._guard:
            lock: L = self._locks.get(key) or self._locks.setdefault(key, self._new_lock())
            return lock

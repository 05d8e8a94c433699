"""The slots of a relay, each of which holds one attempt."""

import threading

from attrs import define

from incoming_payments.domain.feed import Delivery


@define(eq=False)
class Attempt:
    """An attempt of `delivery`. Only `Slots` changes the other members."""

    delivery: Delivery
    is_running: bool = False
    is_settled: bool = False
    is_free: bool = False


class Slots:
    """The `limit` slots of a relay. Thread-safe.

    A slot is free again when the result of its attempt is stored and its handler has returned. So a handler that never
    returns keeps its slot for ever, but the other slots stay in use.
    """

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self._taken = 0
        self._unsettled = 0

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self._limit - self._taken

    @property
    def unsettled(self) -> int:
        """The number of attempts whose result is not stored."""
        return self._unsettled

    def take(self, delivery: Delivery) -> Attempt:
        """Take a slot for an attempt of `delivery`."""
        with self._lock:
            self._taken += 1
            self._unsettled += 1
        return Attempt(delivery)

    def begun(self, attempt: Attempt) -> None:
        """Record that the handler has begun."""
        with self._lock:
            attempt.is_running = True

    def returned(self, attempt: Attempt) -> None:
        """Record that the handler has returned."""
        with self._lock:
            attempt.is_running = False
            self._free(attempt)

    def settled(self, attempt: Attempt) -> None:
        """Record that the result is stored, or cannot be stored."""
        with self._lock:
            attempt.is_settled = True
            self._unsettled -= 1
            self._free(attempt)

    def _free(self, attempt: Attempt) -> None:
        """Free the slot once. On a slow machine, the handler may begin after its attempt has timed out."""
        is_free = attempt.is_free or (attempt.is_settled and not attempt.is_running)
        self._taken -= is_free and not attempt.is_free
        attempt.is_free = is_free

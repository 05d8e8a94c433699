"""The state that all parts of a simulation share: randomness, time, ledgers, counters and the trace."""

import random
from collections import Counter, deque
from typing import Final, Protocol

from incoming_payments.domain.payment import PaymentId
from incoming_payments.testing.simulation.ledger import Ledger
from incoming_payments.testing.values import NOW

TRACE_ENTRIES_MAX: Final = 4000
TRACE_LINES_SHOWN_MAX: Final = 40


class Concerning(Protocol):
    """The part of an operation that the trace needs."""

    @property
    def id(self) -> PaymentId | None:
        """The payment that the operation is about, or `None`."""
        ...


class SimulationState:
    """Randomness, time, ledgers, counters and the trace of one run.

    `met` counts the situations that occurred, by kind. While `injects_faults` is true, the ports fail at random.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - must be repeatable, not secret
        self.roll = self.random.random
        self.now = NOW
        self.steps = 0
        self.injects_faults = True
        self.ledgers: dict[PaymentId, Ledger] = {}
        self.keys: dict[str, tuple[PaymentId, bytes]] = {}  # the payment and the body under each key
        self.met: Counter[str] = Counter()
        self._trace: deque[tuple[int, str, Concerning | None, PaymentId | None]] = deque(maxlen=TRACE_ENTRIES_MAX)

    def below(self, bound: int) -> int:
        """Return a random integer from 0 to `bound - 1`."""
        return int(self.roll() * bound)

    def count(self, kind: str) -> None:
        """Count one occurrence of `kind`."""
        self.met[kind] += 1

    def note(self, text: str, operation: Concerning | None = None, id: PaymentId | None = None) -> None:
        """Add a line to the trace.

        The line is about the payment `id`. If `id` is `None`, the line is about the payment of `operation`.
        """
        concerned = id or (None if operation is None else operation.id)
        self._trace.append((self.steps, text, operation, concerned))

    def trace(self) -> list[str]:
        """Return the last lines that are about the latest payment or about no payment, oldest first."""
        concerned = next((id for _, _, _, id in reversed(self._trace) if id is not None), None)
        lines = [
            f"{step}: {text}" if operation is None else f"{step}: {operation} {text}"
            for step, text, operation, id in self._trace
            if operation is None or id == concerned
        ]
        return lines[-TRACE_LINES_SHOWN_MAX:]

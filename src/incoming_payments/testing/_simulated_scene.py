"""What the parts of a simulation share: the dice, the time, the books, what was met, and what has happened."""

import random
from collections import Counter, deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.flows.effects import Flow
from incoming_payments.ilp.receive import Receiver
from incoming_payments.testing._simulated_books import Book, Verdict
from incoming_payments.testing.values import NOW

if TYPE_CHECKING:
    from incoming_payments.testing._simulated_operations import Operation

TRACE_STEPS: Final = 4000  # remembered
TRACE_SHOWN: Final = 40


class Scene:
    """Where and when it all happens."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.roll = self.dice.random
        self.now = NOW
        self.steps = 0
        self.calm = False  # nothing goes wrong any more
        self.books: dict[PaymentId, Book] = {}
        self.met: Counter[str] = Counter()
        self._trace: deque[tuple[int, str, Operation | None, PaymentId | None]] = deque(maxlen=TRACE_STEPS)

    def below(self, bound: int) -> int:
        """A number from 0 to `bound - 1`; never a better one than needed, as this is called for every step."""
        return int(self.roll() * bound)

    def meet(self, what: str) -> None:
        """Count what has happened."""
        self.met[what] += 1

    def note(self, what: str, operation: "Operation | None" = None, id: PaymentId | None = None) -> None:
        """Remember what has happened, for the trace of a failure; `id` says to which payment."""
        concerned = id or (None if operation is None else operation.id)
        self._trace.append((self.steps, what, operation, concerned))

    def trace(self) -> list[str]:
        """What has happened to the payment that was last touched, and to all of them, oldest first."""
        concerned = next((id for _, _, _, id in reversed(self._trace) if id is not None), None)
        lines = [
            f"{step}: {what}" if operation is None else f"{step}: {operation} {what}"
            for step, what, operation, id in self._trace
            if operation is None or id == concerned
        ]
        return lines[-TRACE_SHOWN:]


@define(eq=False)
class Process:
    """A process of the service: a clock that is a little off, a way to the store, and a memory that dies with it."""

    name: str
    offset: timedelta
    store: Any  # a PaymentStore or an AsyncPaymentStore
    receiver: Receiver
    tasks: dict[int, "Task"] = field(factory=dict)


@define(eq=False)
class Task:
    """One call of an operation, in one process: its flow, where it stands, and what was known when it began."""

    operation: "Operation"
    process: Process
    flow: Flow[Any]
    clock: Callable[[], datetime]  # that of the process which it began in
    began: datetime
    now: datetime  # when it was decided, or else began
    place: int = 0  # in the list of all tasks
    told: tuple[int, bool] = (0, False)  # the total that had been told by then, and whether it was completed
    effect: Any = None
    done: bool = False  # the effect is; its outcome, `answer` or `error`, waits to be given to the flow
    answer: Any = None
    error: IncomingPaymentsError | None = None
    verdict: Verdict | None = None  # what the payment said; None while the store has not let it
    seen: tuple[int, str] | None = None  # total and state of the payment, when the store was last asked

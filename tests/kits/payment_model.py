"""A sequential model of a payment that clients create under one idempotency key, for `linearizability`.

The model is written for this check alone, and shares no code with the library.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import evolve, field, frozen

from kits.linearizability import Operation, Violation, find_violation

NOT_FOUND: Final = "payment_not_found"
COMPLETED: Final = "payment_completed"
REUSED: Final = "credit_id_reused"


@frozen
class Create:
    """Create `payment` under the key. The answer is the id of the payment that exists under the key afterwards."""

    payment: str
    limit: int | None = None


@frozen
class Credit:
    """Credit `amount` under `id`. The answer is the total just after the first credit under this id, or a refusal."""

    payment: str
    id: str
    amount: int


@frozen
class Packet(Credit):
    """Credit the amount of a STREAM packet. The answer is the total as it is now, or a refusal."""

    sequence: int


@frozen
class Complete:
    """Complete the payment. The answer is a `View` or a refusal."""

    payment: str


@frozen
class Get:
    """Read the payment. The answer is a `View` or a refusal."""

    payment: str


@frozen
class View:
    """What clients see of a payment."""

    total: int
    is_completed: bool


Action = Create | Credit | Packet | Complete | Get
Answer = str | int | View  # the id of a payment or a refusal, a total, or a view


Credited = tuple[str, int, int | None]  # the id, the amount, and the total just after the credit


@frozen(cache_hash=True)
class State:
    """The payment under the key."""

    payment: str | None = None
    limit: int | None = None
    total: int = 0
    is_closed: bool = False
    credits: frozenset[Credited] = field(default=frozenset(), repr=lambda found: str(len(found)))

    @property
    def view(self) -> View:
        """Return what clients see."""
        return View(self.total, self.is_closed or (self.limit is not None and self.total >= self.limit))

    def credited(self, id: str) -> Credited | None:
        """Return the credit under `id`."""
        return next((credit for credit in self.credits if credit[0] == id), None)


@frozen
class PaymentModel:
    """A model for `linearizability.find_violation`.

    `totals` has the answers to each credit in a history. The model then forgets the totals that no client has seen, and
    takes no credit that would contradict a total that a client has seen. So the order of credits without an answer
    makes no difference between states. Without `totals`, the model is a plain sequential payment.
    """

    totals: Mapping[str, frozenset[int]] | None = None

    @classmethod
    def of(cls, history: Sequence[Operation]) -> "PaymentModel":
        """Return the model for `history`."""
        totals = defaultdict[str, frozenset[int]](frozenset)
        for operation in history:
            is_known = operation.returned is not None and isinstance(operation.answer, int)
            if is_known and type(operation.action) is Credit:
                totals[operation.action.id] |= {operation.answer}
        return cls(dict(totals))

    @property
    def initial(self) -> State:
        """The state before all operations."""
        return State()

    def apply(self, state: State, action: Action) -> tuple[State, Answer | None] | None:
        """Return the state after `action` and the answer, or `None` for a contradiction."""
        if isinstance(action, Create):
            if state.payment is None:
                return evolve(state, payment=action.payment, limit=action.limit), action.payment
            return state, state.payment
        if action.payment != state.payment:
            return state, NOT_FOUND
        if isinstance(action, Credit):
            return self._credit(state, action)
        if isinstance(action, Complete) and not state.view.is_completed:
            state = evolve(state, is_closed=True)
        return state, state.view

    def _credit(self, state: State, action: Credit) -> tuple[State, Answer | None] | None:
        earlier = state.credited(action.id)
        if earlier is not None:
            _, amount, total = earlier
            answer = state.total if isinstance(action, Packet) else total
            return state, answer if amount == action.amount else REUSED
        if state.view.is_completed:
            return state, COMPLETED
        total = state.total + action.amount
        kept: int | None = total
        if self.totals is not None:
            seen = self.totals.get(action.id, frozenset())
            if seen - {total}:
                return None
            kept = total if seen else None
        return evolve(state, total=total, credits=state.credits | {(action.id, action.amount, kept)}), total

    def is_hopeless(self, state: State, operation: Operation) -> bool:
        """Return whether no later state can give the answer: totals only grow, and nothing is ever undone."""
        action, answer = operation.action, operation.answer
        if state.payment is None:
            return False
        if isinstance(action, Create):
            return bool(answer != state.payment)
        if action.payment != state.payment:
            return bool(answer != NOT_FOUND)
        if isinstance(action, Credit):
            return self._is_credit_hopeless(state, action, answer)
        view = state.view
        if not isinstance(answer, View):
            return True
        return answer.total < view.total or (view.is_completed and answer != view)

    def _is_credit_hopeless(self, state: State, action: Credit, answer: Any) -> bool:
        if not isinstance(answer, int):
            return bool(answer == NOT_FOUND)
        if state.credited(action.id) is None:
            return state.view.is_completed or answer < state.total + action.amount
        return isinstance(action, Packet) and answer < state.total


def find_payment_violation(history: Sequence[Operation]) -> Violation[State] | None:
    """Return `None` if the history of one payment is linearizable, else the place where the search got stuck."""
    return find_violation(PaymentModel.of(history), history)

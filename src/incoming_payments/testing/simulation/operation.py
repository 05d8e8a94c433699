"""The common form of all simulated operations, and the call of an operation in a process."""

# ruff: noqa: ARG002 - the default methods of an operation do nothing with their arguments

import abc
from collections.abc import Callable, Hashable
from datetime import datetime, timedelta
from typing import Any, Protocol

from attrs import define, field, frozen

from incoming_payments.domain.listing import PaymentPage
from incoming_payments.domain.payment import Credit, PaymentId
from incoming_payments.errors import IncomingPaymentsError, QuotaExceeded, StoreError
from incoming_payments.flows.complete import complete_payment
from incoming_payments.flows.create import create_payment
from incoming_payments.flows.expire import announce_expired
from incoming_payments.flows.get import get_payment, get_public_payment
from incoming_payments.flows.list import list_for_host, list_payments
from incoming_payments.flows.machinery.effects import Flow
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import receive_packet
from incoming_payments.ilp.receive import Receiver
from incoming_payments.ilp.stream import StreamKeys
from incoming_payments.testing.simulation.ledger import Expected, Ledger, require
from incoming_payments.testing.simulation.state import SimulationState
from incoming_payments.wire import PageView, PaymentView, PublicView, SummaryView

Clock = Callable[[], datetime]


@frozen(kw_only=True)
class Flows:
    """The use cases to simulate. The defaults are the use cases of the library. You can replace them by wrappers."""

    create_payment: Callable[..., Flow[PaymentView]] = create_payment
    receive: Callable[..., Flow[Credit]] = receive
    receive_packet: Callable[..., Flow[bytes]] = receive_packet
    announce_expired: Callable[..., Flow[int]] = announce_expired
    get_payment: Callable[..., Flow[PaymentView]] = get_payment
    get_public_payment: Callable[..., Flow[PublicView]] = get_public_payment
    complete_payment: Callable[..., Flow[SummaryView]] = complete_payment
    list_payments: Callable[..., Flow[PageView]] = list_payments
    list_for_host: Callable[..., Flow[PaymentPage]] = list_for_host


@define(eq=False)
class Account:
    """The payment details that the sender and the host know, and the totals that each side has recorded.

    Neither side reads the store. At the end of a run `sent + credited` must equal the payment's received amount.
    """

    id: PaymentId
    address: str
    keys: StreamKeys
    uses_left: int  # the number of times that the traffic still uses the payment
    sequence: int = 0
    sent: int = 0  # the sum of the fulfilled packets
    credited: int = 0  # the sum of the credits for which the host received an answer
    first_answers: dict[str, Credit] = field(factory=dict)
    counted: set[str | bytes] = field(factory=set)  # conditions and credit ids that are in one of the two sums


class World(Protocol):
    """The part of the scheduler that operations use."""

    flows: Flows
    state: SimulationState

    def add_account(self, account: Account) -> None:
        """Add a payment that a client has created, so that the traffic uses it."""
        ...


@define(eq=False)
class Process:
    """A process of the service, with its clock offset, its store object, and the memory that a crash loses."""

    name: str
    offset: timedelta
    store: Any  # a PaymentStore or an AsyncPaymentStore
    receiver: Receiver
    has_approval_port: bool = False  # whether the host approves each packet
    tasks: dict[int, "Task"] = field(factory=dict)


@define(eq=False)
class Task:
    """One call of an operation in one process, with the flow, its current effect, and facts to check the answer."""

    operation: "Operation"
    process: Process
    flow: Flow[Any]
    clock: Clock  # the clock of the process in which the call started
    began: datetime
    now: datetime  # the time of the decision; until the decision, the time at which the call began
    place: int = 0  # the index in the scheduler's list of tasks
    answered_before: tuple[int, bool] = (
        0,
        False,
    )  # the ledger's `answered_total` and `answered_completed` at the start
    effect: Any = None
    done: bool = False  # the effect has happened, but its `answer` or `error` has not reached the flow yet
    answer: Any = None
    error: IncomingPaymentsError | None = None
    expected: Expected | None = None  # the required result of the effect, or None if the store failed
    needs_approval: bool = False  # whether the packet needs the approval of the host
    is_approved: bool = False  # whether the host approved the packet
    refusal: Expected | None = None  # the answer of the host, or None if the host approved
    seen: tuple[int, str] | None = None  # the total and the state of the payment at the last call of the store


class Operation(abc.ABC):
    """A request by a client, the host or a peer, which can be called several times.

    If `wants_answer` is true, the sender repeats the operation until it gets an answer.
    """

    id: PaymentId | None = None
    wants_answer = False
    reads_clock_in_decision = False  # whether decisions read the clock, or use the time at which the call began

    @property
    def key(self) -> Hashable:
        """The identity of the change. Repeats of an operation have the same key."""
        return (type(self), self.id)

    @abc.abstractmethod
    def start(self, world: World, process: Process, clock: Clock) -> Flow[Any]:
        """Return the flow that handles the operation."""

    def expect(self, ledger: Ledger, now: datetime) -> Expected:
        """Return the required result of the operation's update. By default, no update is allowed."""
        return Expected(f"no update: {self} must not change {ledger.id}")

    def compare(self, ledger: Ledger, answer: Any) -> None:
        """Compare the store's answer to the update with `ledger`, which already contains the update."""
        ledger.compare(answer)

    @abc.abstractmethod
    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        """Check the flow's result, and return whether it is final.

        After a temporary error, the sender must repeat the operation.
        """

    def receive_answer(self, world: World, answer: Any) -> None:
        """Handle a final answer on the sender's side. By default, do nothing."""
        return


def check_error(task: Task, error: IncomingPaymentsError) -> bool:
    """Check that `error` is the required refusal, or a store failure or a quota.

    Return whether this answer is final.
    """
    if isinstance(error, StoreError | QuotaExceeded):
        return False
    expected = task.expected.error if task.expected is not None else None
    require(type(error) is expected, f"the flow raised {error!r}, but the expected error is {expected}")
    return True


def check_total(world: World, task: Task, id: PaymentId, received: int, *, completed: bool | None) -> None:
    """Check that an answer is not older than the answers before the call began.

    `received` is the total in the answer. `completed` is `None` if the answer does not contain the state.
    """
    least, was_completed = task.answered_before
    require(received >= least, f"the answer has the total {received}, but an earlier answer had {least}")
    if completed is not None:
        require(
            completed or not was_completed,
            "the answer shows an open payment, but an earlier answer showed a completed payment",
        )
    ledger = world.state.ledgers[id]
    ledger.answered_total = max(ledger.answered_total, received)
    ledger.answered_completed = ledger.answered_completed or bool(completed)

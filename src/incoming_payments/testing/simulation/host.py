"""The operations of the host: the sweep for expired payments, and credits of money that arrived by another rail."""

# ruff: noqa: ARG002 - all operations have the same signatures, and not every one uses each argument

from collections.abc import Hashable
from datetime import datetime
from typing import Any

from attrs import define

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.payment import Credit, PaymentId
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.flows.machinery.effects import Flow
from incoming_payments.testing.simulation.ledger import Expected, Ledger, require
from incoming_payments.testing.simulation.operation import (
    Account,
    Clock,
    Operation,
    Process,
    Task,
    World,
    check_error,
)


@define(eq=False)
class Sweep(Operation):
    """The host's sweep, which announces expired payments."""

    limit: int

    def start(self, world: World, process: Process, clock: Clock) -> Flow[int]:
        return world.flows.announce_expired(clock(), limit=self.limit)

    def expect(self, ledger: Ledger, now: datetime) -> Expected:
        return ledger.expect_expire(now)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        return error is None or check_error(task, error)

    def __str__(self) -> str:
        return f"announce_expired(limit={self.limit})"


@define(eq=False)
class Receive(Operation):
    """A credit by the host. The host repeats the call until it gets an answer."""

    account: Account
    credit: str
    amount: Amount
    crashes_before: int = 0  # the number of processes that had crashed at the first call
    wants_answer = True
    reads_clock_in_decision = True

    @property
    def id(self) -> PaymentId:  # type: ignore[override]
        return self.account.id

    @property
    def key(self) -> Hashable:
        return (self.account.id, self.credit, self.amount)

    def start(self, world: World, process: Process, clock: Clock) -> Flow[Credit]:
        return world.flows.receive(self.account.id, credit_id=self.credit, amount=self.amount, clock=clock)

    def expect(self, ledger: Ledger, now: datetime) -> Expected:
        return ledger.expect_credit(self.credit, self.amount.value, self.amount.asset, now)

    def compare(self, ledger: Ledger, answer: Any) -> None:
        ledger.compare_credit(self.credit, answer)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        if error is not None:
            return check_error(task, error)
        ledger = world.state.ledgers.get(self.account.id)
        require(ledger is not None and self.credit in ledger.credits, "the answer is a credit that is not stored")
        first = self.account.first_answers.setdefault(self.credit, answer)
        require(first == answer, f"the answer to the credit {self.credit} was {first} before and is {answer} now")
        return True

    def receive_answer(self, world: World, answer: Any) -> None:
        if answer is not None and self.credit not in self.account.counted:
            self.account.counted.add(self.credit)
            self.account.credited += answer.amount.value

    def __str__(self) -> str:
        return f"receive({self.account.id}, {self.credit!r}, {self.amount.value} {self.amount.asset.code})"

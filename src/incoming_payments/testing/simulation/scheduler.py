"""The scheduler of a simulation, with its processes and clocks. A seed decides the order of its steps."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.flows.machinery.approvals import only_approved
from incoming_payments.flows.machinery.effects import UpdatePayment
from incoming_payments.ilp.receive import Receiver
from incoming_payments.ports import AsyncPaymentStore, PaymentStore
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing.simulation.consumers import Consumers
from incoming_payments.testing.simulation.fixtures import METHODS
from incoming_payments.testing.simulation.host import Sweep
from incoming_payments.testing.simulation.ledger import Mismatch
from incoming_payments.testing.simulation.operation import Account, Flows, Operation, Process, Task
from incoming_payments.testing.simulation.peers import SendPacket
from incoming_payments.testing.simulation.ports import FaultyPorts
from incoming_payments.testing.simulation.report import Report, SimulationFailed
from incoming_payments.testing.simulation.rules import QUOTA_EFFECTS
from incoming_payments.testing.simulation.state import SimulationState
from incoming_payments.testing.simulation.traffic import ACTIVE_ACCOUNTS_MAX, Traffic

StoreFactory = Callable[[], PaymentStore | AsyncPaymentStore]

PROCESSES: Final = 3
TASKS_MAX: Final = 24


def simulate(seed: int, steps: int, *, store_factory: StoreFactory | None = None, flows: Flows | None = None) -> Report:
    """Run the service for at least `steps` steps in an order that `seed` decides, then compare all totals.

    A step executes one effect, gives one answer to a flow, or injects a fault. The same arguments give the same run
    if the store gives the same answers.

    The simulation calls `store_factory` for each process that starts. `store_factory` returns a store object for the
    process. All these objects share one database, which is empty at first. The store may be async. A process that
    crashes does not close its store. The default is one `MemoryStore` for all processes. `flows` replaces use cases of
    the library by your own.

    Raises `SimulationFailed`, an `AssertionError`, if a guarantee is broken.

    >>> simulate(7, 2000).met["store committed, then lost its answer"] > 0
    True
    """
    if store_factory is None:
        store = MemoryStore()

        def store_factory() -> PaymentStore:
            return store

    with asyncio.Runner() as runner:
        return _Scheduler(seed, store_factory, flows or Flows(), runner).run(steps)


class _Scheduler:
    """The processes, their tasks, and the random choice of the next step."""

    def __init__(self, seed: int, store_factory: StoreFactory, flows: Flows, runner: asyncio.Runner) -> None:
        self._seed = seed
        self.state = SimulationState(seed)
        self.flows = flows
        self._open_store = store_factory
        self._tasks: list[Task] = []
        self._traffic = Traffic(self.state, self._tasks)
        self._ports = FaultyPorts(self.state, runner, self._tasks)
        self._started = 0
        self._processes = [self._start_process() for _ in range(PROCESSES)]
        self._consumers = Consumers(self.state, self._ports, seed, self._processes[0])

    def add_account(self, account: Account) -> None:
        """Add a payment that a client has created, so that the traffic uses it."""
        self._traffic.add_account(account)

    def run(self, steps: int) -> Report:
        """Run all steps, finish the open operations, and check the final state."""
        state = self.state
        try:
            while state.steps < steps:
                self._step()
                self._consumers.step(self._processes[self.state.steps % PROCESSES])
            self._settle()
            self._consumers.finish(self._processes[0])
            self._check_store()
            self._check_accounts()
        except Exception as error:
            raise self._failed(error) from error
        return Report(self._seed, state.steps, dict(state.met))

    def _failed(self, error: Exception) -> SimulationFailed:
        text = (
            str(error)
            if isinstance(error, Mismatch)
            else (f"a flow or the store raised {type(error).__name__}: {error}")
        )
        return SimulationFailed(text, seed=self._seed, step=self.state.steps, trace=self.state.trace())

    # --- a step --------------------------------------------------------------------------------------

    def _step(self) -> None:
        self.state.steps += 1
        roll = self.state.roll()
        if roll < 0.02:
            self._inject_fault()
        elif self._tasks and (roll < 0.75 or len(self._tasks) >= TASKS_MAX):
            self._advance(self._tasks[self.state.below(len(self._tasks))])
        else:
            self._begin(self._traffic.next_operation())

    def _inject_fault(self) -> None:
        """Crash a process, abandon a call, change a clock, start an outage, or commit a late write."""
        state = self.state
        roll = state.roll()
        if roll < 0.10:
            self._crash(self._any_process())
        elif roll < 0.25 and self._tasks:
            self._abandon(self._tasks[state.below(len(self._tasks))])
        elif roll < 0.55:
            state.now += timedelta(microseconds=state.below(40_000))
        elif roll < 0.60:
            state.count("clock jumped")
            state.now += timedelta(seconds=state.roll() * 40)
        elif roll < 0.65:
            state.count("clock of a process changed")
            self._set_clock(self._any_process())
        elif roll < 0.67:
            self._ports.start_outage()
        else:
            self._ports.commit_late(self._any_process())

    def _any_process(self) -> Process:
        return self._processes[self.state.below(PROCESSES)]

    # --- tasks ---------------------------------------------------------------------------------------

    def _begin(self, operation: Operation) -> None:
        process = self._any_process()

        def clock() -> datetime:
            return self.state.now + process.offset

        now = clock()
        task = Task(operation, process, operation.start(self, process, clock), clock, now, now, len(self._tasks))
        task.needs_approval = process.has_approval_port and isinstance(operation, SendPacket)
        if operation.id is not None and (ledger := self.state.ledgers.get(operation.id)):
            task.answered_before = (ledger.answered_total, ledger.answered_completed)
        self._tasks.append(task)
        process.tasks[id(task)] = task
        self.state.note(f"begins in {process.name}", operation)
        self._resume(task)

    def _advance(self, task: Task) -> None:
        if task.done:
            self._resume(task)
        else:
            self._ports.execute(task)

    def _resume(self, task: Task) -> None:
        """Give the flow the result of its effect, and run the flow to its next effect or to its end."""
        answer, error = task.answer, task.error
        task.done, task.answer, task.error = False, None, None
        try:
            task.effect = task.flow.send(answer) if error is None else task.flow.throw(error)
        except StopIteration as stop:
            self._end(task, stop.value, None)
        except IncomingPaymentsError as raised:
            self._end(task, None, raised)
        else:
            if task.process.has_approval_port and type(task.effect) is UpdatePayment:
                task.effect = only_approved(task.effect)
            # Quotas are in memory, so no other task can run between the request to a quota and the answer.
            if type(task.effect) in QUOTA_EFFECTS:
                self._ports.execute(task)
                self._resume(task)

    def _end(self, task: Task, answer: Any, error: IncomingPaymentsError | None) -> None:
        """Check the result of the flow, and deliver the result to the sender or lose it."""
        operation = task.operation
        self._remove(task)
        self.state.note("is answered" if error is None else f"raises {type(error).__name__}", operation)
        is_final = operation.check(self, task, answer, error)
        if not is_final:
            self._traffic.note_unanswered(operation, outcome_known=False)
        elif not self.state.injects_faults or self.state.roll() > 0.03:
            operation.receive_answer(self, answer)
        else:
            self.state.count("answer lost")
            self._traffic.note_unanswered(operation, outcome_known=True)

    def _remove(self, task: Task) -> None:
        last = self._tasks.pop()
        if last is not task:
            self._tasks[task.place] = last
            last.place = task.place
        del task.process.tasks[id(task)]

    def _abandon(self, task: Task) -> None:
        """Close the flow at its current effect, like a crash of the process or a cancelled caller."""
        name = type(task.effect).__name__
        self.state.count(f"call abandoned {'after' if task.done else 'before'} {name}")
        self.state.note(f"is abandoned at {name}", task.operation)
        self._remove(task)
        task.flow.close()
        self._ports.abandon(task)
        self._traffic.note_unanswered(task.operation, outcome_known=False)

    # --- processes -----------------------------------------------------------------------------------

    def _start_process(self) -> Process:
        self._started += 1
        name, has_approval_port = f"process {self._started}", self._started % 3 == 1
        process = Process(name, timedelta(0), self._open_store(), Receiver(METHODS), has_approval_port)
        self._set_clock(process)
        return process

    def _set_clock(self, process: Process) -> None:
        process.offset = timedelta(microseconds=self.state.below(4_000_000) - 2_000_000)

    def _crash(self, process: Process) -> None:
        """Replace a process, with all its tasks, by a new process, which must find all committed data."""
        self.state.note(f"{process.name} crashes")
        self._traffic.note_crash()
        self._consumers.crash(process)
        for task in list(process.tasks.values()):
            self._abandon(task)
        started = self._start_process()
        self._processes[self._processes.index(process)] = started
        for account in self._traffic.accounts[:ACTIVE_ACCOUNTS_MAX]:
            ledger = self.state.ledgers[account.id]
            ledger.compare(self._ports.inspect(started.store.load, account.id))

    # --- the end -------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Stop all faults, repeat the operations that have no answer, and announce the expired payments."""
        state = self.state
        state.injects_faults = False
        for process in self._processes:
            process.offset = timedelta(0)
        self._ports.recover(self._processes[0])
        self._finish()
        self._run_all(self._traffic.unknown_outcomes())
        self._run_all(iter(self._traffic.next_unanswered, None))  # a store that fails by itself needs several rounds
        state.now += timedelta(days=1)
        while any(self._must_announce(id) for id in state.ledgers):
            self._run_all([Sweep(100)])

    def _must_announce(self, id: PaymentId) -> bool:
        ledger = self.state.ledgers[id]
        return ledger.state(self.state.now) == "expired" and ledger.announced_at is None

    def _run_all(self, operations: Iterable[Operation]) -> None:
        """Run the operations one after the other."""
        for operation in operations:
            self._begin(operation)
            self._finish()

    def _finish(self) -> None:
        while self._tasks:
            self.state.steps += 1
            self._advance(self._tasks[-1])

    def _check_store(self) -> None:
        """Compare all payments, events and credits, as a new process finds them, with the ledgers."""
        store, inspect = self._open_store(), self._ports.inspect
        for id, ledger in self.state.ledgers.items():
            self.state.note("the stored payment is checked", id=id)
            ledger.compare(inspect(store.load, id))
            ledger.compare_events(inspect(store.events, id))
            for key, entry in ledger.credits.items():
                found: list[Any] = []
                inspect(store.update, id, partial(_find_credit, found), CreditId(entry.credit_id))
                ledger.compare_credit(key, found[-1])

    def _check_accounts(self) -> None:
        """Compare the totals of the senders and of the host with the payments."""
        for account in self._traffic.accounts:
            self.state.note("the totals are checked", id=account.id)
            received = self.state.ledgers[account.id].received
            if account.sent + account.credited != received:
                raise Mismatch(
                    f"the payment has received {received}, but its sender has recorded {account.sent} as fulfilled "
                    f"and the host has recorded {account.credited} as credited"
                )


def _find_credit(found: list[Any], _payment: Any, earlier: Any) -> Decision[None]:
    """Append the stored credit to `found`, and change nothing."""
    found.append(earlier)
    return Decision(None)

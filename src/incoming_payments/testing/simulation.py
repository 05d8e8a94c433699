"""A whole service in one thread, under a seeded scheduler that lets go wrong what goes wrong.

`simulate` runs the library's flows in several simulated processes over one store: creates, credits, STREAM packets,
completions, expiries and reads, many at a time, one effect after the other in an order that a seed decides. Processes
die at any effect; packets and credits come twice, at once, in another process, after a crash, with another amount;
answers are lost; clocks differ and jump; the store refuses, loses the answer of what it has committed, commits after
it has said no, rolls back and decides again, takes several updates into one commit, and takes none for a while.

After every step what the service says and what the store holds are compared with books that are kept by other code
than the library's (`_simulated_books.py`), to the unit. At the end all is repeated that was left without an answer, and
the sender's books, the host's and the payments' must agree.

The store can be yours: `simulate(seed, steps, store_factory=...)`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from attrs import field, frozen

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import CreditId
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.ilp.receive import Receiver
from incoming_payments.ports import AsyncPaymentStore, PaymentStore
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing._simulated_books import Contradiction
from incoming_payments.testing._simulated_operations import METHODS, Account, Flows, Operation, Sweep
from incoming_payments.testing._simulated_ports import EFFECTS, TroubledPorts
from incoming_payments.testing._simulated_scene import Process, Scene, Task
from incoming_payments.testing._simulated_traffic import ACCOUNTS_MAX, Traffic

__all__ = ["KINDS", "Flows", "Report", "SimulationFailed", "simulate"]

StoreFactory = Callable[[], PaymentStore | AsyncPaymentStore]

PROCESSES: Final = 3
TASKS_MAX: Final = 24  # calls under way at once


def _kinds() -> Iterator[str]:
    for effect in EFFECTS:
        yield f"died before {effect.__name__} was done"
        yield f"died after {effect.__name__}, before its answer"
    for how in ("credit", "packet"):
        for before in ("pending", "processing"):
            for after in ("processing", "completed"):
                yield f"{how}: {before} -> {after}"
        yield f"{how}: booked before"
        for why in ("completed", "expired", "another asset", "booked before with another amount"):
            yield f"{how} refused: {why}"
    yield "credit refused: overflow"
    yield from ("packet refused: too large", "packet refused: waited until it was too late", "packet of nothing")
    yield from ("packet of nothing refused: another asset", "packet of nothing refused: booked before with an amount")
    yield "update refused: no such payment"
    for before in ("pending", "processing"):
        yield f"complete: {before} -> completed"
        yield f"expire: {before} -> expired"
    yield from ("complete: completed already", "complete refused: expired", "expire: nothing to announce")
    yield from ("created", "create refused: the id is taken", "load", "load refused: no such payment")
    yield from (f"packet answered {code}" for code in ("fulfilled", "F01", "F02", "F03", "F06", "F07", "F08", "F99"))
    yield from ("packet answered R00", "packet answered T00")
    yield from ("packet repeated", "packet repeated with another amount", "packet repeated with another expiry")
    yield from ("packet repeated while the first is under way", "sequence used twice", "packet repeated after a crash")
    yield from ("credit repeated", "credit repeated with another amount", "credit repeated after a crash")
    yield from ("answer lost on the way", "clock jumped", "clock of a process set")
    yield from ("store refused", "store refused, and may commit", "store lost its answer", "store committed late")
    yield "store never committed"
    yield from ("store committed late for a dead process", "store rolled back", "store decided twice")
    yield from ("store read-only for a while", "store read-only", "store full for a while", "store full")
    yield from ("store took a batch", "store lost a batch", "store asked for two updates at once")
    yield "peer told T00 for what was committed"


KINDS: Final[tuple[str, ...]] = tuple(_kinds())
"""What a session of many seeds has to have met, each at least once; the keys of `Report.met`."""


class SimulationFailed(AssertionError):
    """A promise was broken. The text says which, and how to see it again; `seed` and `step` say when."""

    def __init__(self, text: str, *, seed: int, step: int, trace: Sequence[str]) -> None:
        lines = "\n  ".join(trace)
        super().__init__(
            f"{text}\nin step {step} of simulate({seed}, ...); what led to it, the last at the end:\n  {lines}"
        )
        self.seed = seed
        self.step = step
        self.trace = tuple(trace)


@frozen
class Report:
    """What one run did: how many `steps`, and how often it `met` each of `KINDS`."""

    seed: int
    steps: int
    met: Mapping[str, int] = field(repr=False)


def simulate(seed: int, steps: int, *, store_factory: StoreFactory | None = None, flows: Flows | None = None) -> Report:
    """Run the service for `steps` steps, as `seed` decides, then settle everything and compare all books.

    A step is one effect done, or one answer given to a flow, or something going wrong. The same arguments give the
    same run, to the last byte, as long as the store answers the same.

    `store_factory` is called whenever a simulated process starts, and gives that process's way to the one store, which
    has to be empty at first: the connection pool that a process of yours would open. It may be async. A process that
    dies does not close its store: it is let go. By default the store is a `MemoryStore` that outlives the processes.
    `flows` are the use cases, if you have wrapped them.

    Raises `SimulationFailed`, an `AssertionError`, when a promise is broken.

    >>> simulate(7, 2000).met["store lost its answer"] > 0
    True
    """
    if store_factory is None:
        store = MemoryStore()

        def store_factory() -> PaymentStore:
            return store

    with asyncio.Runner() as runner:
        return _World(seed, store_factory, flows or Flows(), runner).run(steps)


class _World:
    """Processes, clocks and the scheduler."""

    def __init__(self, seed: int, store_factory: StoreFactory, flows: Flows, runner: asyncio.Runner) -> None:
        self._seed = seed
        self.scene = Scene(seed)
        self.flows = flows
        self._open_store = store_factory
        self._tasks: list[Task] = []
        self._traffic = Traffic(self.scene, self._tasks)
        self._ports = TroubledPorts(self.scene, runner, self._tasks)
        self._started = 0
        self._processes = [self._start_process() for _ in range(PROCESSES)]

    def opened(self, account: Account) -> None:
        """A client has a payment, and has handed on its details."""
        self._traffic.opened(account)

    def run(self, steps: int) -> Report:
        """All of it."""
        scene = self.scene
        try:
            while scene.steps < steps:
                self._step()
            self._settle()
            self._audit()
        except Exception as error:
            raise self._failed(error) from error
        return Report(self._seed, scene.steps, dict(scene.met))

    def _failed(self, error: Exception) -> SimulationFailed:
        text = str(error) if isinstance(error, Contradiction) else f"{type(error).__name__} was raised: {error}"
        return SimulationFailed(text, seed=self._seed, step=self.scene.steps, trace=self.scene.trace())

    # --- a step --------------------------------------------------------------------------------------

    def _step(self) -> None:
        self.scene.steps += 1
        dice = self.scene.roll()
        if dice < 0.02:
            self._disturb()
        elif self._tasks and (dice < 0.75 or len(self._tasks) >= TASKS_MAX):
            self._advance(self._tasks[self.scene.below(len(self._tasks))])
        else:
            self._begin(self._traffic.next_operation())

    def _disturb(self) -> None:
        """Something happens that nobody asked for."""
        scene = self.scene
        dice = scene.roll()
        if dice < 0.10:
            self._crash(self._any_process())
        elif dice < 0.25 and self._tasks:
            self._drop(self._tasks[scene.below(len(self._tasks))])
        elif dice < 0.55:
            scene.now += timedelta(microseconds=scene.below(40_000))
        elif dice < 0.60:
            scene.meet("clock jumped")
            scene.now += timedelta(seconds=scene.roll() * 40)
        elif dice < 0.65:
            scene.meet("clock of a process set")
            self._set_clock(self._any_process())
        elif dice < 0.67:
            self._ports.become_troubled()
        else:
            self._ports.arrive_late(self._any_process())

    def _any_process(self) -> Process:
        return self._processes[self.scene.below(PROCESSES)]

    # --- tasks ---------------------------------------------------------------------------------------

    def _begin(self, operation: Operation) -> None:
        process = self._any_process()

        def clock() -> datetime:
            return self.scene.now + process.offset

        now = clock()
        task = Task(operation, process, operation.start(self, process, clock), clock, now, now, len(self._tasks))
        if operation.id is not None and (book := self.scene.books.get(operation.id)):
            task.told = (book.told, book.told_completed)
        self._tasks.append(task)
        process.tasks[id(task)] = task
        self.scene.note(f"begins in {process.name}", operation)
        self._resume(task)

    def _advance(self, task: Task) -> None:
        if task.done:
            self._resume(task)
        else:
            self._ports.do(task)

    def _resume(self, task: Task) -> None:
        """Give the flow the outcome of its effect, and let it run to the next one, or to its end."""
        answer, error = task.answer, task.error
        task.done, task.answer, task.error = False, None, None
        try:
            task.effect = task.flow.send(answer) if error is None else task.flow.throw(error)
        except StopIteration as stop:
            self._end(task, stop.value, None)
        except IncomingPaymentsError as raised:
            self._end(task, None, raised)

    def _end(self, task: Task, answer: Any, error: IncomingPaymentsError | None) -> None:
        """An answer leaves the process; perhaps it arrives."""
        operation = task.operation
        self._forget(task)
        self.scene.note("is answered" if error is None else f"is answered {type(error).__name__}", operation)
        is_settled = operation.check(self, task, answer, error)
        if not is_settled:
            self._traffic.left_without_answer(operation, doubtful=True)
        elif self.scene.calm or self.scene.roll() > 0.03:
            operation.heard(self, task, answer)
        else:
            self.scene.meet("answer lost on the way")
            self._traffic.left_without_answer(operation, doubtful=False)

    def _forget(self, task: Task) -> None:
        """It is no longer under way."""
        last = self._tasks.pop()
        if last is not task:
            self._tasks[task.place] = last
            last.place = task.place
        del task.process.tasks[id(task)]

    def _drop(self, task: Task) -> None:
        """The process died, or gave up: nobody will see the answer."""
        name = type(task.effect).__name__
        self.scene.meet(f"died after {name}, before its answer" if task.done else f"died before {name} was done")
        self.scene.note(f"is dropped at {name}", task.operation)
        self._forget(task)
        task.flow.close()
        self._ports.abandon(task)
        self._traffic.left_without_answer(task.operation, doubtful=True)

    # --- processes -----------------------------------------------------------------------------------

    def _start_process(self) -> Process:
        self._started += 1
        process = Process(f"process {self._started}", timedelta(0), self._open_store(), Receiver(METHODS))
        self._set_clock(process)
        return process

    def _set_clock(self, process: Process) -> None:
        process.offset = timedelta(microseconds=self.scene.below(4_000_000) - 2_000_000)

    def _crash(self, process: Process) -> None:
        """The process dies with all it does, and another takes its place: which has to find what was committed."""
        self.scene.note(f"{process.name} dies")
        self._traffic.crashed()
        for task in list(process.tasks.values()):
            self._drop(task)
        heir = self._start_process()
        self._processes[self._processes.index(process)] = heir
        for account in self._traffic.accounts[:ACCOUNTS_MAX]:
            book = self.scene.books[account.id]
            book.compare(self._ports.look(heir.store.load, account.id))

    # --- the end -------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Nothing goes wrong any more; whoever lacks an answer asks again, and what has expired is announced."""
        scene = self.scene
        scene.calm = True
        for process in self._processes:
            process.offset = timedelta(0)
        self._ports.recover(self._processes[0])
        self._finish()
        self._ask(self._traffic.doubts())
        self._ask(iter(self._traffic.unanswered, None))  # until none is left: a store may have trouble of its own
        scene.now += timedelta(days=1)
        while any(book.state(scene.now) == "expired" and book.announced_at is None for book in scene.books.values()):
            self._ask([Sweep(100)])

    def _ask(self, operations: Iterable[Operation]) -> None:
        """One after the other."""
        for operation in operations:
            self._begin(operation)
            self._finish()

    def _finish(self) -> None:
        while self._tasks:
            self.scene.steps += 1
            self._advance(self._tasks[-1])

    def _audit(self) -> None:
        """Everything, as a process finds it that was just started; and the books of all those outside."""
        store, look = self._open_store(), self._ports.look
        for id, book in self.scene.books.items():
            self.scene.note("is audited", id=id)
            book.compare(look(store.load, id))
            book.compare_events(look(store.events, id))
            for name, booked in book.credits.items():
                found: list[Any] = []
                look(store.update, id, partial(_look, found), CreditId(booked.credit_id))
                book.compare_credit(name, found[-1])
        for account in self._traffic.accounts:
            self.scene.note("is summed up", id=account.id)
            received = self.scene.books[account.id].received
            if account.paid + account.booked != received:
                raise Contradiction(
                    f"the payment has received {received}, while {account.paid} was sent by the sender's books, "
                    f"and {account.booked} arrived by the host's"
                )


def _look(found: list[Any], _payment: Any, earlier: Any) -> Decision[None]:
    """A decision that changes nothing, and shows which credit was found."""
    found.append(earlier)
    return Decision(None)

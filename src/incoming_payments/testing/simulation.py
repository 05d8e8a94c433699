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
import inspect
import random
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from attrs import field, frozen

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import CreditId, PaymentId, new_payment_id
from incoming_payments.errors import (
    IncomingPaymentsError,
    PaymentExists,
    PaymentNotFound,
    StoreError,
    StoreUnavailable,
)
from incoming_payments.flows.effects import (
    AllocateMethods,
    DrawRandomness,
    FindExpired,
    FindWalletAddress,
    InsertPayment,
    IntrospectToken,
    LoadPayment,
    UpdatePayment,
    UseNonce,
)
from incoming_payments.ilp.ildcp import ildcp_request
from incoming_payments.ilp.packet import PacketType, Prepare, encode
from incoming_payments.ilp.stream import ConnectionClose, ConnectionNewAddress, StreamMoney, StreamPacket, condition_of
from incoming_payments.ilp.stream import StreamKeys
from incoming_payments.ports import AsyncPaymentStore, Decide, PaymentStore
from incoming_payments.stores.memory import MemoryNonces, MemoryStore
from incoming_payments.testing._simulated_books import UINT64_MAX, Book, Contradiction, Verdict
from incoming_payments.testing._simulated_traffic import (
    EUR,
    FOREIGN_PEER,
    INTROSPECTOR,
    METHODS,
    PEER,
    PREPARE_S,
    USD,
    WALLET,
    Account,
    Complete,
    Create,
    Flows,
    Get,
    GetPublic,
    Operation,
    Process,
    Receive,
    SendPacket,
    Sweep,
    Task,
)
from incoming_payments.testing.values import NOW

__all__ = ["KINDS", "Flows", "Report", "SimulationFailed", "simulate"]

StoreFactory = Callable[[], PaymentStore | AsyncPaymentStore]

PROCESSES: Final = 3
TASKS_MAX: Final = 24  # calls under way at once
ACCOUNTS_MAX: Final = 8  # payments that are being paid at once: few, so that all meet
TRACE_STEPS: Final = 4000  # remembered
TRACE_SHOWN: Final = 40
OVERLAP_S: Final = 0.005  # for a store to let a second update of a payment through, if it does

_WRITES: Final = (InsertPayment, UpdatePayment)
_ASKS_STORE: Final = (InsertPayment, LoadPayment, UpdatePayment, FindExpired)
_EFFECTS: Final = (
    DrawRandomness,
    FindWalletAddress,
    IntrospectToken,
    UseNonce,
    AllocateMethods,
    InsertPayment,
    LoadPayment,
    UpdatePayment,
    FindExpired,
)
_NOT_FOUND: Final = Verdict("update refused: no such payment", PaymentNotFound)
_LOADED: Final = Verdict("load")
_ABSENT: Final = Verdict("load refused: no such payment", PaymentNotFound)


def _kinds() -> Iterator[str]:
    for effect in _EFFECTS:
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
    yield "packet refused: too large"
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
        super().__init__(f"{text}\nin step {step} of simulate({seed}, ...); what led to it, the last at the end:\n  {lines}")
        self.seed = seed
        self.step = step
        self.trace = tuple(trace)


@frozen
class Report:
    """What one run did: how many `steps`, and how often it `met` each of `KINDS`."""

    seed: int
    steps: int
    met: Mapping[str, int] = field(repr=False)


def simulate(
    seed: int, steps: int, *, store_factory: StoreFactory | None = None, flows: Flows | None = None
) -> Report:
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


class _RolledBack(Exception):
    """Raised in place of a decision, so that a store has to forget what was decided."""


class _World:
    """Processes, clocks, a store, those outside, and the scheduler."""

    def __init__(self, seed: int, store_factory: StoreFactory, flows: Flows, runner: asyncio.Runner) -> None:
        self._seed = seed
        self._random = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.random = self._random.random
        self.flows = flows
        self._open = store_factory
        self._runner = runner
        self._steps = 0
        self._now = NOW
        self._met: Counter[str] = Counter()
        self._trace: deque[tuple[int, str, Any]] = deque(maxlen=TRACE_STEPS)
        self._books: dict[PaymentId, Book] = {}
        self._accounts: list[Account] = []
        self._retired: list[Account] = []
        self._creating = 0
        self._tasks: list[Task] = []
        self._unanswered: list[Operation] = []
        self._late: list[Task] = []  # what the store may still commit, although it has said no, or nobody waits
        self._nonces = MemoryNonces()
        self._drawn = b""
        self._trouble = ""  # of the store: "read-only" or "full"
        self._trouble_until = 0
        self._calm = False  # nothing goes wrong any more
        self._names = 0
        self._crashes = 0
        self._processes = [self._start_process() for _ in range(PROCESSES)]

    # --- what operations ask of the world ------------------------------------------------------------

    def book(self, id: PaymentId) -> Book | None:
        """The book of the payment, if the store has it."""
        return self._books.get(id)

    def met(self, what: str) -> None:
        """Count what has happened."""
        self._met[what] += 1

    def opened(self, account: Account) -> None:
        """A client has got a payment, and handed on its details."""
        self._accounts.append(account)

    # --- the schedule --------------------------------------------------------------------------------

    def run(self, steps: int) -> Report:
        """All of it."""
        try:
            while self._steps < steps:
                self._step()
            self._settle()
            self._audit()
        except Contradiction as error:
            raise self._failed(str(error)) from error
        except Exception as error:
            raise self._failed(f"{type(error).__name__} was raised: {error}") from error
        return Report(self._seed, self._steps, dict(self._met))

    def _step(self) -> None:
        self._steps += 1
        dice = self.random()
        if dice < 0.02:
            self._disturb()
        elif self._tasks and (dice < 0.75 or len(self._tasks) >= TASKS_MAX):
            self._advance(self._tasks[self._below(len(self._tasks))])
        else:
            self._begin(self._next_operation())

    def _below(self, bound: int) -> int:
        return int(self.random() * bound)

    def _disturb(self) -> None:
        """Something happens that nobody asked for."""
        dice = self.random()
        if dice < 0.10:
            self._crash(self._processes[self._below(PROCESSES)])
        elif dice < 0.25 and self._tasks:
            self._drop(self._tasks[self._below(len(self._tasks))], may_arrive=True)
        elif dice < 0.55:
            self._now += timedelta(microseconds=self._below(40_000))
        elif dice < 0.60:
            self.met("clock jumped")
            self._now += timedelta(seconds=self.random() * 40)
        elif dice < 0.65:
            self.met("clock of a process set")
            self._set_clock(self._processes[self._below(PROCESSES)])
        elif dice < 0.67 and not self._trouble:
            self._trouble = "read-only" if self.random() < 0.5 else "full"
            self._trouble_until = self._steps + 20 + self._below(150)
            self.met(f"store {self._trouble} for a while")
            self._note(f"the store is {self._trouble}", None)
        elif self._late:
            self._arrive_late(self._late.pop(self._below(len(self._late))))

    def _begin(self, operation: Operation) -> None:
        process = self._processes[self._below(PROCESSES)]
        now = self._now + process.offset
        task = Task(operation, process, operation.start(self, process, now), now, place=len(self._tasks))
        if operation.id is not None and (book := self._books.get(operation.id)):
            task.floor = (book.told, book.told_completed)
        self._tasks.append(task)
        process.tasks[id(task)] = task
        self._note(f"begins in {process.name}", operation)
        self._resume(task)

    def _advance(self, task: Task) -> None:
        if task.done:
            self._resume(task)
        else:
            self._do(task)

    def _resume(self, task: Task) -> None:
        """Give the flow the answer to its effect, and let it run to the next one, or to its end."""
        task.done = False
        try:
            error = task.error
            if error is not None:
                task.error = None
                task.effect = task.flow.throw(error)
            else:
                task.effect = task.flow.send(task.answer)
        except StopIteration as stop:
            self._end(task, stop.value, None)
        except IncomingPaymentsError as raised:
            self._end(task, None, raised)
        else:
            task.answer = None

    def _end(self, task: Task, answer: Any, error: IncomingPaymentsError | None) -> None:
        """An answer leaves the process; perhaps it arrives."""
        operation = task.operation
        self._forget(task)
        self._note(f"is answered {type(error or answer).__name__}" if error else "is answered", operation)
        settled = operation.check(self, task, answer, error)
        if settled and (self._calm or self.random() > 0.03):
            task.answer, task.error = answer, error
            operation.heard(self, task, answer)
            return
        if settled:
            self.met("answer lost on the way")
        elif (
            isinstance(operation, SendPacket)
            and (book := self._books.get(operation.id or PaymentId("")))
            and operation.prepare.condition in book.credits
        ):
            self.met("peer told T00 for what was committed")
        if operation.wants_answer:
            self._unanswered.append(operation)

    def _forget(self, task: Task) -> None:
        """It is no longer under way."""
        last = self._tasks.pop()
        if last is not task:
            self._tasks[task.place] = last
            last.place = task.place
        del task.process.tasks[id(task)]
        if isinstance(task.operation, Create):
            self._creating -= 1

    # --- what goes wrong -----------------------------------------------------------------------------

    def _start_process(self) -> Process:
        self._names += 1
        process = Process(f"process {self._names}", timedelta(0), self._open())
        self._set_clock(process)
        return process

    def _set_clock(self, process: Process) -> None:
        process.offset = timedelta(microseconds=self._below(4_000_000) - 2_000_000)

    def _crash(self, process: Process) -> None:
        """The process dies, and another takes its place."""
        self._crashes += 1
        self._note(f"{process.name} dies", None)
        for task in list(process.tasks.values()):
            self._drop(task, may_arrive=True)
        self._processes[self._processes.index(process)] = self._start_process()
        for account in self._accounts:
            self._check_stored(account.id)

    def _drop(self, task: Task, *, may_arrive: bool) -> None:
        """Nobody will see the answer; what the store was asked may have reached it all the same."""
        name = type(task.effect).__name__
        self.met(f"died after {name}, before its answer" if task.done else f"died before {name} was done")
        self._note(f"is dropped at {name}", task.operation)
        self._forget(task)
        task.flow.close()
        if may_arrive and not task.done and isinstance(task.effect, _WRITES) and self.random() < 0.5:
            self._late.append(_orphan(task, lives=False))
        if task.operation.wants_answer:
            self._unanswered.append(task.operation)

    def _arrive_late(self, task: Task) -> None:
        """The store does what it was asked before, and there is nobody to be answered."""
        if self.random() < 0.2:
            self.met("store never committed")
            return
        self.met("store committed late" if task.done else "store committed late for a dead process")
        self._note("is committed late", task.operation)
        task.process = self._processes[self._below(PROCESSES)]
        self._commit(task)

    # --- effects -------------------------------------------------------------------------------------

    def _do(self, task: Task) -> None:
        """Do the effect that `task` waits for."""
        effect = task.effect
        task.done = True
        kind = type(effect)
        if kind is UpdatePayment or kind is InsertPayment:
            self._write(task)
        elif kind is LoadPayment:
            self._read(task, self._load)
        elif kind is DrawRandomness:
            task.answer = self._draw(effect.count)
        elif kind is AllocateMethods:
            task.answer = METHODS.allocate(effect.payment)
        elif kind is IntrospectToken:
            task.answer = INTROSPECTOR.introspect(effect.token)
        elif kind is FindWalletAddress:
            task.answer = WALLET if effect.url == WALLET.url else None
        elif kind is UseNonce:
            task.answer = self._nonces.use(effect.key, effect.until, effect.now)
        elif kind is FindExpired:
            self._read(task, self._find_expired)
        else:
            raise Contradiction(f"a flow asks for {effect!r}")

    def _draw(self, count: int) -> bytes:
        """Random bytes; now and then those for an id once more, as a broken source would give them."""
        if count == len(self._drawn) and not self._calm and self.random() < 0.2:
            return self._drawn
        drawn = self._random.randbytes(count)
        if count == 10:
            self._drawn = drawn
        return drawn

    def _read(self, task: Task, read: Callable[[Task], None]) -> None:
        task.verdict = None
        if not self._calm and self.random() < 0.02:
            self._refuse(task, "store refused")
            return
        try:
            read(task)
        except StoreError as error:
            task.error = error

    def _load(self, task: Task) -> None:
        id = task.effect.id
        book = self._books.get(id)
        try:
            payment = self._ask(task.process.store.load(id))
        except PaymentNotFound as error:
            if book is not None:
                raise Contradiction(f"the payment {id} is lost") from error
            task.error = error
            task.verdict = _ABSENT
        else:
            if book is None:
                raise Contradiction(f"the payment {id} is there, and nobody stored it")
            book.compare(payment)
            task.answer = payment
            task.seen = (book.received, book.state(task.now))
            task.verdict = _LOADED
        self.met(task.verdict.what)

    def _find_expired(self, task: Task) -> None:
        effect = task.effect
        due = {
            id: book.expires_at
            for id, book in self._books.items()
            if book.expires_at is not None
            and book.expires_at < effect.now
            and book.announced_at is None
            and not book.completed
        }
        found = list(self._ask(task.process.store.find_expired(effect.now, effect.limit)))
        if len(set(found)) != len(found) or not set(found) <= set(due) or len(found) != min(effect.limit, len(due)):
            raise Contradiction(f"{effect.limit} of {sorted(due)} are to be announced, and {found} are found")
        times = [due[id] for id in found]
        left = min((at for id, at in due.items() if id not in set(found)), default=None)
        if times != sorted(times) or (left is not None and times and times[-1] > left):
            raise Contradiction("what has expired is not found in the order of expiresAt")
        task.answer = found

    def _write(self, task: Task) -> None:
        """Have the store write, or go wrong in one of the ways in which stores do."""
        task.verdict = None
        if self._trouble and self._steps >= self._trouble_until:
            self._trouble = ""
        if self._trouble:
            if self._trouble == "full":
                self._roll_back(task)
            if task.error is None:
                self._refuse(task, f"store {self._trouble}")
            return
        dice = 1.0 if self._calm else self.random()
        if dice < 0.02:
            self._refuse(task, "store refused")
        elif dice < 0.04:
            self._commit(task)
            if task.error is None:
                task.verdict = None
                self._refuse(task, "store lost its answer")
        elif dice < 0.06:
            self._refuse(task, "store refused, and may commit")
            self._late.append(_orphan(task, lives=True))
        elif dice < 0.08:
            self._roll_back(task)
            if task.error is None:
                self._refuse(task, "store rolled back")
        elif dice < 0.35 and type(task.effect) is UpdatePayment:
            self._commit_batch(task, is_lost=dice < 0.10)
        elif dice < 0.45 and (other := self._rival(task)) is not None:
            self._commit_two(task, other)
        else:
            self._commit(task)

    def _refuse(self, task: Task, what: str) -> None:
        self.met(what)
        self._note(what, task.operation)
        task.answer = None
        task.error = StoreUnavailable(what)

    def _commit_batch(self, task: Task, *, is_lost: bool) -> None:
        """Several updates of one process go into one commit: all of them, or, when it is lost, none."""
        batch = [
            other
            for other in task.process.tasks.values()
            if other is task or (not other.done and type(other.effect) is UpdatePayment)
        ]
        for other in batch:
            other.done = True
            other.verdict = None
        if is_lost:
            self.met("store lost a batch")
            for other in batch:
                self._roll_back(other)
                if other.error is None:
                    self._refuse(other, "store rolled back")
            return
        if len(batch) > 1:
            self.met("store took a batch")
        self._commit_all(batch)

    def _commit(self, task: Task) -> None:
        """Have the store do what `task` asks, and compare it with the books."""
        if type(task.effect) is InsertPayment:
            self._insert(task)
        else:
            self._commit_all([task])

    def _insert(self, task: Task) -> None:
        decision = task.effect.decision
        id = decision.answer.id
        operation = task.operation
        if not isinstance(operation, Create):
            raise Contradiction(f"{operation} creates a payment")
        try:
            self._ask(task.process.store.insert(decision))
        except PaymentExists as error:
            if id not in self._books:
                raise Contradiction(f"{id} is said to be taken, and is not") from error
            self.met("create refused: the id is taken")
            task.error = error
            return
        except StoreError as error:
            task.error = error
            if not self._is_stored(task.process, id) or id in self._books:
                return
        if id in self._books:
            raise Contradiction(f"the id {id} was taken and is given again")
        self.met("created")
        book = Book(id, USD, operation.limit, operation.expires_at, task.now, task.now)
        self._books[id] = book
        payment = self._ask(task.process.store.load(id))
        book.compare_terms(payment)
        book.compare(payment)

    def _is_stored(self, process: Process, id: PaymentId) -> bool:
        try:
            self._ask(process.store.load(id))
        except PaymentNotFound:
            return False
        return True

    def _rival(self, task: Task) -> Task | None:
        """Another call that waits to change the same payment, if the store is one to be asked in two threads."""
        if type(task.effect) is not UpdatePayment or inspect.iscoroutinefunction(task.process.store.update):
            return None
        return next((other for other in self._tasks if other is not task and self._rivals(task, other)), None)

    def _rivals(self, task: Task, other: Task) -> bool:
        """Whether the one changes what the other decides on, as the payment stands."""
        id = task.effect.id
        if other.done or type(other.effect) is not UpdatePayment or other.effect.id != id or id not in self._books:
            return False
        verdicts = [one.operation.judge(self._books[id], one.now) for one in (task, other)]
        return all(verdict.write is not None for verdict in verdicts)

    def _commit_two(self, task: Task, other: Task) -> None:
        """While the store lets `task` decide, ask it in another thread for another update of the same payment.

        A store that lets the second one through has to decide the first one again. One that lets it wait is given a
        moment to do so, and goes on.
        """
        self.met("store asked for two updates at once")
        other.done, other.verdict = True, None
        self._note("overlaps", other.operation)
        order: list[Task] = []
        outcomes: dict[int, Any] = {}
        thread = threading.Thread(
            target=lambda: outcomes.update({1: _update(other, _recorded(order, other, other.effect.decide))})
        )

        def decide(payment: Any, earlier: Any) -> Decision[Any]:
            if thread.ident is None:
                thread.start()
                thread.join(OVERLAP_S)
            return task.effect.decide(payment, earlier)  # type: ignore[no-any-return]

        outcomes[0] = _update(task, _recorded(order, task, decide))
        if thread.ident is None:
            thread.start()
        thread.join()
        self._judge_all([task, other], [outcomes[0], outcomes[1]], order)

    def _commit_all(self, tasks: Sequence[Task]) -> None:
        """Have the store do several updates, as one batch if it can, and compare it with the books."""
        order: list[Task] = []
        outcomes = [_update(task, self._decide(task, order if len(tasks) > 1 else None)) for task in tasks]
        if inspect.isawaitable(outcomes[0]):
            outcomes = self._runner.run(_gathered(outcomes))
        self._judge_all(tasks, outcomes, order)

    def _judge_all(self, tasks: Sequence[Task], outcomes: Sequence[Any], order: Sequence[Task]) -> None:
        """Compare with the books in the `order` in which the store has decided at last."""
        pairs = list(zip(tasks, outcomes, strict=True))
        if len(pairs) > 1:
            pairs.sort(key=lambda pair: order.index(pair[0]) if pair[0] in order else -1)
        for task, outcome in pairs:
            self._judge(task, outcome)
        store = tasks[0].process.store
        for id in {task.effect.id: None for task in tasks}:
            book = self._books.get(id)
            if book is not None:
                book.compare(self._ask(store.load(id)))
                if book.completed or self.random() < 0.1:
                    book.compare_events(self._ask(store.events(id)))

    def _judge(self, task: Task, outcome: Any) -> None:
        """Compare the outcome of an update with what the books say it has to be, and note it in them."""
        effect = task.effect
        book = self._books.get(effect.id)
        verdict = _NOT_FOUND if book is None else task.operation.judge(book, task.now)
        if isinstance(outcome, Contradiction):
            raise outcome
        if isinstance(outcome, StoreError):
            task.error = outcome
            if book is None or verdict.write is None or not self._has_event(task, book):
                return
            verdict.write(effect.credit_id)
            return
        self.met(verdict.what)
        self._note(verdict.what, task.operation)
        task.verdict = verdict
        if isinstance(outcome, BaseException):
            if type(outcome) is not verdict.error:
                raise Contradiction(f"{verdict.what} is what has to happen, and it is {outcome!r}") from outcome
            task.error = outcome
        else:
            if book is None or verdict.error is not None:
                raise Contradiction(f"{verdict.what} is what has to happen, and it is answered with {outcome!r}")
            if verdict.write is not None:
                verdict.write(effect.credit_id)
            task.operation.expect(book, outcome)
            task.answer = outcome
        if book is not None:
            task.seen = (book.received, book.state(task.now))

    def _has_event(self, task: Task, book: Book) -> bool:
        """Whether a store that has said no has done it all the same: then the next event is there."""
        events = self._ask(task.process.store.events(book.id))
        place = len(book.events)
        return len(events) > place and events[place].credit_id == task.effect.credit_id

    def _decide(self, task: Task, order: list[Task] | None) -> Decide[Any]:
        """The decision of `task`, now and then asked twice, as by a transaction that had to be repeated."""
        decide: Decide[Any] = task.effect.decide
        if not self._calm and self.random() < 0.03:
            self.met("store decided twice")
            decide = partial(_twice, decide)
        return decide if order is None else _recorded(order, task, decide)

    def _roll_back(self, task: Task) -> None:
        """Have the decision made and nothing of it stored. A refusal stands: there was nothing to store."""
        effect = task.effect
        if type(effect) is InsertPayment:
            return
        book = self._books.get(effect.id)
        store = task.process.store
        verdict = _NOT_FOUND if book is None else task.operation.judge(book, task.now)

        def decide(payment: Any, earlier: Any) -> Decision[Any]:
            effect.decide(payment, earlier)
            raise _RolledBack

        outcome = _update(task, decide)
        if inspect.isawaitable(outcome):
            (outcome,) = self._runner.run(_gathered([outcome]))
        if isinstance(outcome, _RolledBack) or isinstance(outcome, StoreError):
            if verdict.error is not None and not isinstance(outcome, StoreError):
                raise Contradiction(f"{verdict.what} is what has to happen, and it was decided otherwise")
        elif type(outcome) is not verdict.error:
            raise Contradiction(f"{verdict.what} is what has to happen, and it is {outcome!r}")
        else:
            task.error, task.verdict = outcome, verdict
        if book is not None:
            task.seen = (book.received, book.state(task.now))
            book.compare(self._ask(store.load(book.id)))

    # --- the store, sync or async --------------------------------------------------------------------

    def _ask(self, answer: Any) -> Any:
        if inspect.isawaitable(answer):
            return self._runner.run(_awaited(answer))
        return answer

    # --- what is asked -------------------------------------------------------------------------------

    def _next_operation(self) -> Operation:
        """What somebody asks next."""
        dice = self.random()
        if len(self._accounts) + self._creating < ACCOUNTS_MAX or not self._accounts:
            return self._create()
        account = self._pick_account()
        if dice < 0.10 and self._unanswered:
            return self._repeat_unanswered()
        if dice < 0.60:
            return self._packet(account)
        if dice < 0.70:
            return self._repeat_packet(account)
        if dice < 0.82:
            return self._receive(account)
        if dice < 0.88:
            return self._repeat_receive(account)
        if dice < 0.90:
            return Complete(account.id)
        if dice < 0.92:
            return Sweep(1 + self._below(5))
        if dice < 0.94:
            return Get(account.id)
        return GetPublic(account.id if dice < 0.99 else self._stranger().id)

    def _pick_account(self) -> Account:
        place = self._below(len(self._accounts))
        account = self._accounts[place]
        book = self._books[account.id]
        account.life -= 1 if book.state(self._now) in {"pending", "processing"} else 6
        if account.life < 0:
            self._accounts[place] = self._accounts[-1]
            self._accounts.pop()
            self._retired.append(account)
        elif self._retired and self.random() < 0.02:
            return self._retired[self._below(len(self._retired))]
        return account

    def _create(self) -> Create:
        self._creating += 1
        limit = (None, 1 + self._below(30), 500, 10_000, 2**63, UINT64_MAX)[self._below(6)]
        expires_at = None
        if self.random() < 0.6:
            expires_at = self._now + timedelta(microseconds=2_100_000 + self._below(30_000_000))
        nonce = f"n{self._steps}" if self.random() < 0.3 else None
        return Create(limit, expires_at, nonce, life=20 + self._below(60))

    def _amount(self, id: PaymentId) -> int:
        """An amount that matters: a part of what is left, all of it, a little or a lot too much."""
        book = self._books[id]
        dice = self.random()
        if book.limit is None or dice < 0.02:
            return (1, 7, 2**62, UINT64_MAX - book.received)[self._below(4)] or 1
        left = book.limit - book.received
        if left < 1 or dice < 0.15:
            return 1 + self._below(3)
        if dice < 0.3:
            return left
        if dice < 0.4:
            return min(left + 1 + self._below(2 + book.limit // 100), UINT64_MAX)
        return 1 + self._below(min(left, 2**53)) // 3

    def _stranger(self) -> Account:
        """Somebody who has the details of a payment that is not stored."""
        id = new_payment_id(self._now, self._random.randbytes(10))
        credentials = METHODS.derive(id)
        return Account(id, credentials.ilp_address, StreamKeys(credentials.shared_secret), 0)

    def _receive(self, account: Account) -> Receive:
        asset = EUR if self.random() < 0.02 else USD
        amount = Amount(self._amount(account.id), asset)
        credit = Receive(account, f"wire-{len(account.credits)}", amount, born=self._crashes)
        account.credits.append(credit)
        return credit

    def _repeat_receive(self, account: Account) -> Operation:
        if not account.credits:
            return self._receive(account)
        credit = account.credits[self._below(len(account.credits))]
        self.met("credit repeated after a crash" if self._crashes > credit.born else "credit repeated")
        if self.random() < 0.1:
            self.met("credit repeated with another amount")
            return Receive(account, credit.credit, Amount(credit.amount.value % UINT64_MAX + 1, credit.amount.asset))
        return credit

    def _packet(self, account: Account) -> SendPacket:
        dice = self.random()
        if dice < 0.80:
            packet = self._seal(account, self._amount(account.id), "money")
            packet.born = self._crashes
            account.packets.append(packet)
            return packet
        if dice < 0.84:
            return self._seal(account, 1 + self._below(10**12), "question")
        if dice < 0.87:
            return self._seal(account, 0, "nothing")
        if dice < 0.90:
            return self._seal(account, 5, "too little")
        if dice < 0.93:
            return self._seal(account, 5, ("money", "question", "nothing")[self._below(3)], abroad=True)
        if dice < 0.95:
            return self._seal(self._stranger(), 5, "money")
        if dice < 0.97:
            return self._seal(account, 5, "F99 close")
        return self._garbage(account)

    def _garbage(self, account: Account) -> SendPacket:
        """What nobody should send."""
        good = self._seal(account, 5, "F06").prepare
        dice = self._below(4)
        if dice == 0:
            return SendPacket(None, good, "F01", 0, PEER, encode(good)[:-1])
        if dice == 1:
            bad = Prepare(5, good.expires_at, good.condition, f"{METHODS.prefix}.{'x' * 43}", good.data)
            return SendPacket(None, bad, "F02", 0, PEER, encode(bad))
        if dice == 2:
            bad = Prepare(5, good.expires_at, good.condition, good.destination, good.data[:-1])
            return SendPacket(None, bad, "F06", 0, PEER, encode(bad))
        asked = ildcp_request(good.expires_at)
        return SendPacket(None, asked, "ILDCP", 0, PEER, encode(asked))

    def _seal(self, account: Account, amount: int, expected: str, *, abroad: bool = False) -> SendPacket:
        """A packet by whoever has the details of the payment."""
        if account.sequence and self.random() < 0.05:
            self.met("sequence used twice")
        else:
            account.sequence += 1
        sequence = account.sequence
        if expected == "nothing":
            amount = 0
        frames = (ConnectionClose(1, ""),) if expected == "F99 close" else (StreamMoney(1, 1),)
        if sequence == 1 and expected != "F99 close":
            frames = (ConnectionNewAddress(""), *frames)  # type: ignore[assignment]
        least = amount + 1 if expected == "too little" else 0
        sealed = StreamPacket(PacketType.PREPARE, sequence, least, frames)
        data = account.keys.seal(sealed, nonce=self._random.randbytes(12))
        condition = bytes(32) if expected == "question" else condition_of(account.keys.fulfillment(data))
        seconds = PREPARE_S if self.random() < 0.98 else -3
        prepare = Prepare(amount, self._now + timedelta(seconds=seconds), condition, account.address, data)
        peer = FOREIGN_PEER if abroad else PEER
        return SendPacket(account, prepare, expected, sequence, peer, encode(prepare))

    def _repeat_packet(self, account: Account) -> Operation:
        """A packet comes again, as its connector had it, or changed by it."""
        if not account.packets:
            return self._packet(account)
        recent = min(len(account.packets), 8)
        packet = account.packets[-1 - self._below(recent)]
        self.met("packet repeated after a crash" if self._crashes > packet.born else "packet repeated")
        if any(task.operation is packet for task in self._tasks):
            self.met("packet repeated while the first is under way")
        dice = self.random()
        if dice < 0.2:
            self.met("packet repeated with another amount")
            return packet.again(amount=self._amount(account.id))
        if dice < 0.5:
            self.met("packet repeated with another expiry")
            return packet.again(expires_at=self._now + timedelta(seconds=PREPARE_S))
        return packet

    def _repeat_unanswered(self) -> Operation:
        """Who was left without an answer asks again."""
        place = self._below(len(self._unanswered))
        operation = self._unanswered[place]
        self._unanswered[place] = self._unanswered[-1]
        self._unanswered.pop()
        if isinstance(operation, SendPacket):
            return operation.again(expires_at=self._now + timedelta(seconds=PREPARE_S))
        return operation

    # --- the end -------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Nothing goes wrong any more; whoever lacks an answer asks again, and what has expired is announced."""
        self._calm = True
        self._trouble = ""
        for process in self._processes:
            process.offset = timedelta(0)
        while self._late:
            self._arrive_late(self._late.pop())
        self._finish()
        while self._unanswered:
            self._begin(self._repeat_unanswered())
            self._finish()
        self._now += timedelta(days=1)
        while any(book.state(self._now) == "expired" and book.announced_at is None for book in self._books.values()):
            self._begin(Sweep(100))
            self._finish()

    def _finish(self) -> None:
        while self._tasks:
            self._steps += 1
            self._advance(self._tasks[-1])

    def _check_stored(self, id: PaymentId) -> None:
        """What the books have is what a process that was just started finds."""
        store = self._processes[-1].store
        book = self._books[id]
        book.compare(self._ask(store.load(id)))

    def _audit(self) -> None:
        """Everything, at the end, as a process finds it that was just started."""
        store = self._open()
        for id, book in self._books.items():
            book.compare(self._ask(store.load(id)))
            book.compare_events(self._ask(store.events(id)))
            for name, booked in book.credits.items():
                found: list[Any] = []
                self._ask(store.update(id, _look(found), CreditId(booked.credit_id)))
                book.compare_credit(name, found[0])
        for account in (*self._accounts, *self._retired):
            received = self._books[account.id].received
            if account.paid + account.booked != received:
                raise Contradiction(
                    f"{account.id} has received {received}; the sender's books say {account.paid}, "
                    f"the host's {account.booked}"
                )

    # --- the trace -----------------------------------------------------------------------------------

    def _note(self, what: str, operation: Operation | None) -> None:
        self._trace.append((self._steps, what, operation))

    def _failed(self, text: str) -> SimulationFailed:
        """The failure, with what was last heard of the payments that the last step was about."""
        concerned = next((operation.id for _, _, operation in reversed(self._trace) if operation is not None), None)
        lines = [
            f"{step}: {what}" if operation is None else f"{step}: {operation} {what}"
            for step, what, operation in self._trace
            if operation is None or operation.id == concerned or isinstance(operation, Sweep)
        ]
        return SimulationFailed(text, seed=self._seed, step=self._steps, trace=lines[-TRACE_SHOWN:])


def _orphan(task: Task, *, lives: bool) -> Task:
    """What the store was asked, without anybody to be answered; `done` says that its process was, with a no."""
    return Task(task.operation, task.process, task.flow, task.now, task.effect, done=lives)


def _update(task: Task, decide: Decide[Any]) -> Any:
    """What the store answers, or what it raises; of an async store, what is to be awaited."""
    try:
        return task.process.store.update(task.effect.id, decide, task.effect.credit_id)
    except (IncomingPaymentsError, _RolledBack, Contradiction) as error:
        return error


def _recorded(order: list[Task], task: Task, decide: Decide[Any]) -> Decide[Any]:
    """`decide`, which puts `task` at the end of `order` whenever it begins."""

    def recording(payment: Any, earlier: Any) -> Decision[Any]:
        if task in order:
            order.remove(task)
        order.append(task)
        return decide(payment, earlier)

    return recording


def _twice(decide: Decide[Any], payment: Any, earlier: Any) -> Decision[Any]:
    first, second = decide(payment, earlier), decide(payment, earlier)
    if first != second:
        raise Contradiction(f"a decision is pure, and this one was {first} and then {second}")
    return second


def _look(found: list[Any]) -> Decide[None]:
    def decide(_: Any, earlier: Any) -> Decision[None]:
        found.append(earlier)
        return Decision(None)

    return decide


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


async def _gathered(outcomes: Sequence[Any]) -> list[Any]:
    waiting = [asyncio.ensure_future(outcome) for outcome in outcomes if inspect.isawaitable(outcome)]
    answers = iter(await asyncio.gather(*waiting, return_exceptions=True))
    return [next(answers) if inspect.isawaitable(outcome) else outcome for outcome in outcomes]

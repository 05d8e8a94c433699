"""The store of a simulation, and the other ports: does the effects of flows, and goes wrong as real stores do.

After each write the payment is loaded and compared with the books, and so is every answer.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import PaymentId
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
from incoming_payments.ports import Decide
from incoming_payments.stores.memory import MemoryNonces
from incoming_payments.testing._simulated_books import Book, Contradiction, Verdict, require
from incoming_payments.testing._simulated_operations import INTROSPECTOR, METHODS, USD, WALLET, Create
from incoming_payments.testing._simulated_scene import Process, Scene, Task

OVERLAP_S: Final = 0.005  # for a store to let a second update of a payment through, if it does
LOOKS_MAX: Final = 20  # at a store that has trouble of its own
ID_BYTES: Final = 10

EFFECTS: Final = (
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
_WRITES: Final = (InsertPayment, UpdatePayment)
_NOT_FOUND: Final = Verdict("update refused: no such payment", PaymentNotFound)
_LOADED: Final = Verdict("load")
_ABSENT: Final = Verdict("load refused: no such payment", PaymentNotFound)


class _RolledBack(Exception):
    """Raised in place of a decision, so that a store has to forget what was decided."""


class TroubledPorts:
    """What answers the effects of all tasks."""

    def __init__(self, scene: Scene, runner: asyncio.Runner, tasks: Sequence[Task]) -> None:
        self._scene = scene
        self._runner = runner
        self._tasks = tasks
        self._late: list[Task] = []  # what the store may still commit, although it has said no, or nobody waits
        self._nonces = MemoryNonces()
        self._drawn = b""
        self._trouble = ""  # "read-only" or "full"
        self._trouble_until = 0

    # --- trouble -------------------------------------------------------------------------------------

    def become_troubled(self) -> None:
        """Take no writes for a while."""
        self._trouble = "read-only" if self._scene.roll() < 0.5 else "full"
        self._trouble_until = self._scene.steps + 20 + self._scene.below(150)
        self._scene.meet(f"store {self._trouble} for a while")
        self._scene.note(f"the store is {self._trouble}")

    def abandon(self, task: Task) -> None:
        """Nobody waits for the effect of `task` any more; it may have reached the store all the same."""
        if not task.done and isinstance(task.effect, _WRITES) and self._scene.roll() < 0.5:
            self._late.append(_orphan(task, lives=False))

    def arrive_late(self, process: Process) -> None:
        """The store does something that it was asked before, and there is nobody to be answered."""
        if not self._late:
            return
        task = self._late.pop(self._scene.below(len(self._late)))
        if self._scene.roll() < 0.2:
            self._scene.meet("store never committed")
            return
        self._scene.meet("store committed late" if task.done else "store committed late for a dead process")
        self._scene.note("is committed late", task.operation)
        task.process = process
        self._commit(task)

    def recover(self, process: Process) -> None:
        """Nothing goes wrong any more; what was under way is done, or not."""
        self._trouble = ""
        while self._late:
            self.arrive_late(process)

    # --- effects -------------------------------------------------------------------------------------

    def do(self, task: Task) -> None:
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
        else:
            require(kind is FindExpired, f"a flow asks for {effect!r}")
            self._read(task, self._find_expired)

    def _draw(self, count: int) -> bytes:
        """Random bytes; now and then those for an id once more, as a broken source would give them."""
        if count == len(self._drawn) and not self._scene.calm and self._scene.roll() < 0.2:
            return self._drawn
        drawn = self._scene.dice.randbytes(count)
        if count == 10:
            self._drawn = drawn
        return drawn

    def _read(self, task: Task, read: Callable[[Task], None]) -> None:
        task.verdict = None
        if not self._scene.calm and self._scene.roll() < 0.02:
            self._refuse(task, "store refused")
            return
        try:
            read(task)
        except StoreError as error:
            task.error = error

    def _load(self, task: Task) -> None:
        id = task.effect.id
        book = self._scene.books.get(id)
        try:
            payment = self._ask(task.process.store.load(id))
        except PaymentNotFound as error:
            require(book is None, "a payment is lost")
            task.error = error
            task.verdict = _ABSENT
        else:
            if book is None:
                raise Contradiction(f"the payment {id} is there, and nobody stored it")
            book.compare(payment)
            task.answer = payment
            task.seen = (book.received, book.state(task.now))
            task.verdict = _LOADED
        self._scene.meet(task.verdict.what)

    def _find_expired(self, task: Task) -> None:
        effect = task.effect
        due = {
            id: book.expires_at
            for id, book in self._scene.books.items()
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
        first = left is None or not times or times[-1] <= left
        require(first and times == sorted(times), "what has expired is found in the order of expiresAt")
        task.answer = found

    def _write(self, task: Task) -> None:
        """Have the store write, or go wrong in one of the ways in which stores do."""
        task.verdict = None
        dice = 1.0 if self._scene.calm else self._scene.roll()
        if self._is_troubled():
            self._refuse_all_writes(task)
        elif dice < 0.08:
            self._fail(task, dice)
        elif dice < 0.35 and type(task.effect) is UpdatePayment:
            self._commit_batch(task, is_lost=dice < 0.10)
        elif dice < 0.45 and (other := self._rival(task)) is not None:
            self._commit_two(task, other)
        else:
            self._commit(task)

    def _is_troubled(self) -> bool:
        if self._trouble and self._scene.steps >= self._trouble_until:
            self._trouble = ""
        return bool(self._trouble)

    def _refuse_all_writes(self, task: Task) -> None:
        """A full disk is noticed when there is something to be written, a file that is read-only before."""
        if self._trouble == "full":
            self._roll_back(task)
        if task.error is None:
            self._refuse(task, f"store {self._trouble}")

    def _fail(self, task: Task, dice: float) -> None:
        """Refuse, having done nothing, all of it, or nothing yet."""
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
        else:
            self._roll_back(task)
            if task.error is None:
                self._refuse(task, "store rolled back")

    def _refuse(self, task: Task, what: str) -> None:
        self._scene.meet(what)
        self._scene.note(what, task.operation)
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
            self._scene.meet("store lost a batch")
            for other in batch:
                self._roll_back(other)
                if other.error is None:
                    self._refuse(other, "store rolled back")
            return
        if len(batch) > 1:
            self._scene.meet("store took a batch")
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
        assert isinstance(operation, Create)  # noqa: S101 - no other flow inserts
        try:
            self._ask(task.process.store.insert(decision))
        except PaymentExists as error:
            require(id in self._scene.books, "an id is said to be taken, and is not")
            self._scene.meet("create refused: the id is taken")
            task.error = error
            return
        except StoreError as error:
            task.error = error
            if not self._is_stored(task.process, id) or id in self._scene.books:
                return
        if id in self._scene.books:
            raise Contradiction(f"the id {id} was taken and is given again")
        self._scene.meet("created")
        book = Book(id, USD, operation.limit, operation.expires_at, task.now, task.now)
        self._scene.books[id] = book
        payment = self.look(task.process.store.load, id)
        book.compare_terms(payment)
        book.compare(payment)

    def _is_stored(self, process: Process, id: PaymentId) -> bool:
        try:
            self.look(process.store.load, id)
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
        if (
            other.done
            or type(other.effect) is not UpdatePayment
            or other.effect.id != id
            or id not in self._scene.books
        ):
            return False
        verdicts = [self._judged(one, self._scene.books[id]) for one in (task, other)]
        return all(verdict.write is not None for verdict in verdicts)

    def _commit_two(self, task: Task, other: Task) -> None:
        """While the store lets `task` decide, ask it in another thread for another update of the same payment.

        A store that lets the second one through has to decide the first one again. One that lets it wait is given a
        moment to do so, and goes on.
        """
        self._scene.meet("store asked for two updates at once")
        other.done, other.verdict = True, None
        self._scene.note("overlaps", other.operation)
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
        if thread.ident is None:  # the store had trouble of its own, or has asked nobody
            thread.start()
        thread.join()
        self._judge_all([task, other], [outcomes[0], outcomes[1]], order)

    def _commit_all(self, tasks: Sequence[Task]) -> None:
        """Have the store do several updates, as one batch if it can, and compare it with the books."""
        order: list[Task] = []
        outcomes = [_update(task, self._decide(task, order if len(tasks) > 1 else None)) for task in tasks]
        self._judge_all(tasks, self._ask_all(outcomes), order)

    def _judge_all(self, tasks: Sequence[Task], outcomes: Sequence[Any], order: Sequence[Task]) -> None:
        """Compare with the books in the `order` in which the store has decided at last."""
        pairs = list(zip(tasks, outcomes, strict=True))
        if len(pairs) > 1:
            pairs.sort(key=lambda pair: order.index(pair[0]) if pair[0] in order else -1)
        for task, outcome in pairs:
            self._judge(task, outcome)
        store = tasks[0].process.store
        for id in {task.effect.id: None for task in tasks}:
            book = self._scene.books.get(id)
            if book is not None:
                book.compare(self.look(store.load, id))
                if book.completed or self._scene.roll() < 0.1:
                    book.compare_events(self.look(store.events, id))

    def _judge(self, task: Task, outcome: Any) -> None:
        """Compare the outcome of an update with what the books say it has to be, and note it in them."""
        effect = task.effect
        book = self._scene.books.get(effect.id)
        verdict = _NOT_FOUND if book is None else self._judged(task, book)
        if isinstance(outcome, StoreError):
            task.error = outcome
            if book is None or verdict.write is None or not self._has_event(task, book):
                return
            verdict.write(effect.credit_id)
            return
        self._scene.meet(verdict.what)
        self._scene.note(verdict.what, task.operation, effect.id)
        task.verdict = verdict
        if isinstance(outcome, BaseException):
            task.error = _required_error(verdict, outcome)
        else:
            if book is None or verdict.error is not None:
                raise Contradiction(f"{verdict.what} is what has to happen, and it is answered with {outcome!r}")
            if verdict.write is not None:
                verdict.write(effect.credit_id)
            task.operation.expect(book, outcome)
            task.answer = outcome
        if book is not None:
            task.seen = (book.received, book.state(task.now))

    def _judged(self, task: Task, book: Book) -> Verdict:
        """What has to become of `task`, which decides by the clock as it is, or by when it began."""
        if task.operation.decides_by_the_clock:
            task.now = task.clock()
        return task.operation.judge(book, task.now)

    def _has_event(self, task: Task, book: Book) -> bool:
        """Whether a store that has said no has done it all the same: then the next event is there."""
        events = self.look(task.process.store.events, book.id)
        place = len(book.events)
        expected = (task.effect.credit_id, max(task.now, book.updated_at))
        return len(events) > place and (events[place].credit_id, events[place].at) == expected

    def _decide(self, task: Task, order: list[Task] | None) -> Decide[Any]:
        """The decision of `task`, now and then asked twice, as by a transaction that had to be repeated."""
        decide: Decide[Any] = task.effect.decide
        if not self._scene.calm and self._scene.roll() < 0.03:
            self._scene.meet("store decided twice")
            decide = partial(_twice, decide)
        return decide if order is None else _recorded(order, task, decide)

    def _roll_back(self, task: Task) -> None:
        """Have the decision made and nothing of it stored. A refusal stands: there was nothing to store."""
        effect = task.effect
        if type(effect) is InsertPayment:
            return
        book = self._scene.books.get(effect.id)
        verdict = _NOT_FOUND if book is None else self._judged(task, book)

        def decide(payment: Any, earlier: Any) -> Decision[Any]:
            effect.decide(payment, earlier)
            raise _RolledBack

        outcome = self._ask_all([_update(task, decide)])[0]
        if isinstance(outcome, _RolledBack):
            if verdict.error is not None:
                raise Contradiction(f"{verdict.what} is what has to happen, and it was decided otherwise")
        elif not isinstance(outcome, StoreError):
            task.error, task.verdict = _required_error(verdict, outcome), verdict
        if book is not None:
            task.seen = (book.received, book.state(task.now))
            book.compare(self.look(task.process.store.load, book.id))

    # --- the store, sync or async --------------------------------------------------------------------

    def look(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """What the simulation asks a store for itself: again, if the store has trouble of its own."""
        for _ in range(LOOKS_MAX):
            try:
                return self._ask(question(*arguments))
            except StoreUnavailable:
                continue
        raise Contradiction(f"the store has trouble, and had it {LOOKS_MAX} times in a row")

    def _ask(self, answer: Any) -> Any:
        """The answer of a store, once it is there."""
        if inspect.isawaitable(answer):
            return self._runner.run(_awaited(answer))
        return answer

    def _ask_all(self, outcomes: list[Any]) -> list[Any]:
        """What came of updates; those of an async store are let go together."""
        if inspect.isawaitable(outcomes[0]):
            return self._runner.run(_gathered(outcomes))
        return outcomes


def _required_error(verdict: Verdict, outcome: Any) -> IncomingPaymentsError:
    if not isinstance(outcome, IncomingPaymentsError) or type(outcome) is not verdict.error:
        raise Contradiction(f"{verdict.what} is what has to happen, and it is {outcome!r}")
    return outcome


def _orphan(task: Task, *, lives: bool) -> Task:
    """What the store was asked, without anybody to be answered; `done` says that its process was, with a no."""
    return Task(
        task.operation, task.process, task.flow, task.clock, task.began, task.now, effect=task.effect, done=lives
    )


def _update(task: Task, decide: Decide[Any]) -> Any:
    """What the store answers, or what it raises; of an async store, what is to be awaited."""
    try:
        return task.process.store.update(task.effect.id, decide, task.effect.credit_id)
    except Exception as error:  # noqa: BLE001 - it is compared with what had to happen
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
    require(first == second, "a decision is pure, and answers the same to the same")
    return second


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


async def _gathered(outcomes: Sequence[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*outcomes, return_exceptions=True)

"""The writes of a simulation.

Each write calls the store, and compares the answer and the content of the store with the ledger.
"""

import inspect
import threading
from collections.abc import Sequence
from typing import Any, Final

from incoming_payments.domain.idempotency import KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import ApprovalRequired, IncomingPaymentsError, PaymentExists, PaymentNotFound, StoreError
from incoming_payments.flows.machinery.effects import InsertPayment, UpdatePayment
from incoming_payments.ports import Decide
from incoming_payments.testing.simulation.clients import Create
from incoming_payments.testing.simulation.fixtures import USD
from incoming_payments.testing.simulation.ledger import Expected, Ledger, Mismatch, require
from incoming_payments.testing.simulation.operation import Process, Task
from incoming_payments.testing.simulation.state import SimulationState
from incoming_payments.testing.simulation.store_calls import StoreCaller, call_update, deciding_twice, recording

OVERLAP_S: Final = 0.005  # the time for which the first of two concurrent updates waits for the second update
UNAPPROVED: Final = Expected("packet needs the approval of the host", ApprovalRequired)
_NOT_FOUND: Final = Expected("update refused: no such payment", PaymentNotFound)


class _RolledBack(Exception):
    """The exception that a decision raises so that the store discards its transaction."""


class Commits:
    """An executor of `InsertPayment` and `UpdatePayment` effects, which checks the results and injects no failure."""

    def __init__(self, state: SimulationState, caller: StoreCaller, tasks: Sequence[Task]) -> None:
        self._state = state
        self._caller = caller
        self._tasks = tasks

    def commit(self, task: Task) -> None:
        """Execute the effect of `task`."""
        if type(task.effect) is InsertPayment:
            self._insert(task)
        else:
            self.commit_all([task])

    def commit_all(self, tasks: Sequence[Task]) -> None:
        """Execute the updates of `tasks`. An async store can combine the updates in one batch."""
        order: list[Task] = []
        outcomes = [call_update(task, self._decision(task, order if len(tasks) > 1 else None)) for task in tasks]
        self._check_all(tasks, self._caller.wait_all(outcomes), order)

    def roll_back(self, task: Task) -> None:
        """Let the store decide, then abort the transaction. If the decision was a refusal, set the task's error."""
        effect = task.effect
        if type(effect) is InsertPayment:
            return
        ledger = self._state.ledgers.get(effect.id)
        expected = _NOT_FOUND if ledger is None else _expected(task, ledger)

        def decide(payment: Any, earlier: Any) -> Decision[Any]:
            effect.decide(payment, earlier)
            raise _RolledBack

        outcome = self._caller.wait_all([call_update(task, decide)])[0]
        if isinstance(outcome, _RolledBack):
            if expected.error is not None:
                raise Mismatch(f"the decision should be '{expected.kind}', but it did not refuse")
        elif not isinstance(outcome, StoreError):
            task.error, task.expected = _required_error(expected, outcome), expected
        if ledger is not None:
            task.seen = (ledger.received, ledger.state(task.now))
            ledger.compare(self._caller.inspect(task.process.store.load, ledger.id))

    def find_competing(self, task: Task) -> Task | None:
        """Return another pending update of the same payment, or `None`. For an async store, return `None`."""
        if type(task.effect) is not UpdatePayment or inspect.iscoroutinefunction(task.process.store.update):
            return None
        return next((other for other in self._tasks if other is not task and self._compete(task, other)), None)

    def commit_concurrently(self, task: Task, other: Task) -> None:
        """Start the update of `other` in a second thread while the decision of `task` runs.

        A store with a lock lets the second update wait until the first update is done. A store that accepts the second
        update first must decide the first update again.
        """
        self._state.count("two concurrent updates of one payment")
        other.done, other.expected = True, None
        self._state.note("runs concurrently", other.operation)
        order: list[Task] = []
        outcomes: dict[int, Any] = {}
        thread = threading.Thread(
            target=lambda: outcomes.update({1: call_update(other, recording(order, other, other.effect.decide))})
        )

        def decide(payment: Any, earlier: Any) -> Decision[Any]:
            if thread.ident is None:
                thread.start()
                thread.join(OVERLAP_S)
            return task.effect.decide(payment, earlier)  # type: ignore[no-any-return]

        outcomes[0] = call_update(task, recording(order, task, decide))
        if thread.ident is None:  # the store failed before it called `decide`
            thread.start()
        thread.join()
        self._check_all([task, other], [outcomes[0], outcomes[1]], order)

    # --- inserts -----------------------------------------------------------------------------------------

    def _insert(self, task: Task) -> None:
        decision = task.effect.decision
        id = decision.answer.id
        operation = task.operation
        assert isinstance(operation, Create)  # noqa: S101 - no other flow inserts
        key = operation.idempotency_key or ""
        try:
            found = self._caller.wait(task.process.store.insert(decision))
            if found is not None or key in self._state.keys:
                self.check_key(key, found)
                self._state.count("create: the key was used in the meantime")
                task.answer = found
                return
        except PaymentExists as error:
            require(id in self._state.ledgers, f"the store raised PaymentExists for the new id {id}")
            self._state.count("create refused: the id exists")
            task.error = error
            return
        except StoreError as error:
            task.error = error
            if not self._is_stored(task.process, id) or id in self._state.ledgers:
                return
        if id in self._state.ledgers:
            raise Mismatch(f"the store inserted a second payment with the id {id}")
        self._state.count("created")
        if key:
            self._state.keys[key] = (id, operation.body)
        at = task.effect.decision.answer.created_at  # the flow read the clock after its other effects
        ledger = Ledger(id, USD, operation.limit, operation.expires_at, at, at)
        self._state.ledgers[id] = ledger
        payment = self._caller.inspect(task.process.store.load, id)
        ledger.compare_terms(payment)
        ledger.compare(payment)

    def check_key(self, key: str, found: KeyedCreation | None) -> None:
        """Raise `Mismatch` unless `found` is the record of the payment that `key` created, or `None`."""
        created, _ = self._state.keys.get(key, (None, b""))
        answered = None if found is None else found.payment
        require(answered == created, f"the key {key} created the payment {created}, but the store answers {answered}")

    def _is_stored(self, process: Process, id: PaymentId) -> bool:
        try:
            self._caller.inspect(process.store.load, id)
        except PaymentNotFound:
            return False
        return True

    # --- updates -----------------------------------------------------------------------------------------

    def _compete(self, task: Task, other: Task) -> bool:
        """Return whether both updates would change the current payment."""
        id = task.effect.id
        if (
            other.done
            or type(other.effect) is not UpdatePayment
            or other.effect.id != id
            or id not in self._state.ledgers
        ):
            return False
        results = [_expected(each, self._state.ledgers[id]) for each in (task, other)]
        return all(expected.record is not None for expected in results)

    def _decision(self, task: Task, order: list[Task] | None) -> Decide[Any]:
        """Return the decision of `task`, which sometimes runs twice, and adds `task` to `order` if it is given."""
        decide: Decide[Any] = task.effect.decide
        if self._state.injects_faults and self._state.roll() < 0.03:
            self._state.count("store decided twice")
            decide = deciding_twice(decide)
        return decide if order is None else recording(order, task, decide)

    def _check_all(self, tasks: Sequence[Task], outcomes: Sequence[Any], order: Sequence[Task]) -> None:
        """Check the outcomes in the `order` of the store's last decisions, then the content of the store."""
        pairs = list(zip(tasks, outcomes, strict=True))
        if len(pairs) > 1:
            pairs.sort(key=lambda pair: order.index(pair[0]) if pair[0] in order else -1)
        for task, outcome in pairs:
            self._check(task, outcome, decided=len(pairs) == 1 or task in order)
        store = tasks[0].process.store
        for id in {task.effect.id: None for task in tasks}:
            ledger = self._state.ledgers.get(id)
            if ledger is not None:
                ledger.compare(self._caller.inspect(store.load, id))
                if ledger.completed or self._state.roll() < 0.1:
                    ledger.compare_events(self._caller.inspect(store.events, id))

    def _check(self, task: Task, outcome: Any, *, decided: bool) -> None:
        """Compare the outcome of an update with the required result, and record the update in the ledger.

        An update that failed before it was `decided` is not stored. Another update may have stored the same credit.
        """
        effect = task.effect
        ledger = self._state.ledgers.get(effect.id)
        expected = _NOT_FOUND if ledger is None else _expected(task, ledger)
        if isinstance(outcome, StoreError):
            task.error = outcome
            if (
                ledger is not None
                and expected.record is not None
                and decided
                and self._has_event(task, ledger, expected)
            ):
                expected.record(effect.credit_id)
            return
        self._state.count(expected.kind)
        self._state.note(expected.kind, task.operation, effect.id)
        task.expected = expected
        if isinstance(outcome, BaseException):
            task.error = _required_error(expected, outcome)
        else:
            if ledger is None or expected.error is not None:
                raise Mismatch(f"the update should be '{expected.kind}', but the store answered {outcome!r}")
            if expected.record is not None:
                expected.record(effect.credit_id)
            task.operation.compare(ledger, outcome)
            task.answer = outcome
        if ledger is not None:
            task.seen = (ledger.received, ledger.state(task.now))

    def _has_event(self, task: Task, ledger: Ledger, expected: Expected) -> bool:
        """Return whether the store raised an error but committed the update, so that the next event is stored."""
        events = self._caller.inspect(task.process.store.events, ledger.id)
        place = len(ledger.events)
        total = ledger.received if expected.total is None else expected.total
        found = [(event.credit_id, event.at, event.received.value) for event in events[place : place + 1]]
        return found == [(task.effect.credit_id, max(task.now, ledger.updated_at), total)]


def _expected(task: Task, ledger: Ledger) -> Expected:
    """Return the required result if the store decides the update of `task` now."""
    if task.operation.reads_clock_in_decision:
        task.now = task.clock()
    expected = task.operation.expect(ledger, task.now)
    if expected.record is None or task.is_approved or not task.needs_approval:
        return expected
    return task.refusal or UNAPPROVED


def _required_error(expected: Expected, outcome: Any) -> IncomingPaymentsError:
    if not isinstance(outcome, IncomingPaymentsError) or type(outcome) is not expected.error:
        raise Mismatch(f"the update should be '{expected.kind}', but the store raised {outcome!r}")
    return outcome

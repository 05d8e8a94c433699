"""The ports of a simulation, which execute the effects of all flows, and fail like real ports."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from incoming_payments.domain.payment import PAYMENT_ID_RANDOM_BYTES
from incoming_payments.errors import PaymentNotFound, StoreError, StoreUnavailable
from incoming_payments.flows.machinery.effects import (
    AllocateMethods,
    DrawRandomness,
    FindCreation,
    FindExpired,
    FindPayments,
    FindWalletAddress,
    InsertPayment,
    IntrospectToken,
    LoadPayment,
    RequestApproval,
    UpdatePayment,
    UseNonce,
)
from incoming_payments.stores.memory import MemoryNonces
from incoming_payments.testing.simulation.commits import Commits
from incoming_payments.testing.simulation.fixtures import INTROSPECTOR, METHODS, WALLET
from incoming_payments.testing.simulation.ledger import Expected, Mismatch, require
from incoming_payments.testing.simulation.operation import Process, Task
from incoming_payments.testing.simulation.rules import QUOTA_EFFECTS, HostRules
from incoming_payments.testing.simulation.state import SimulationState
from incoming_payments.testing.simulation.store_calls import StoreCaller

_WRITES: Final = (InsertPayment, UpdatePayment)
_LOADED: Final = Expected("load")
_NOT_FOUND: Final = Expected("load refused: no such payment", PaymentNotFound)


class FaultyPorts:
    """The executor of the effects of tasks, which also injects failures."""

    def __init__(self, state: SimulationState, runner: asyncio.Runner, tasks: Sequence[Task]) -> None:
        self._state = state
        self._caller = StoreCaller(runner)
        self._commits = Commits(state, self._caller, tasks)
        # Writes that the store can still commit, although it has failed or the caller has ended.
        self._late: list[Task] = []
        self._nonces = MemoryNonces()
        self._hosts = HostRules(state)
        self._reads: dict[type, Callable[[Task], None]] = {
            LoadPayment: self._load,
            FindCreation: self._find_creation,
            FindExpired: self._find_expired,
            FindPayments: self._find_payments,
        }
        self._drawn = b""
        self._outage = ""  # the kind of the outage, "read-only" or "full"
        self._outage_ends = 0  # the step at which the outage ends

    def inspect(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a store on behalf of the simulation itself."""
        return self._caller.inspect(method, *arguments)

    # --- failures between two effects --------------------------------------------------------------------

    def start_outage(self) -> None:
        """Refuse all writes for some steps."""
        self._outage = "read-only" if self._state.roll() < 0.5 else "full"
        self._outage_ends = self._state.steps + 20 + self._state.below(150)
        self._state.count(f"store became {self._outage}")
        self._state.note(f"the store is {self._outage}")

    def abandon(self, task: Task) -> None:
        """Drop the effect of `task`. If a pending write has reached the store, the store can commit it later."""
        if not task.done and isinstance(task.effect, _WRITES) and self._state.roll() < 0.5:
            self._late.append(_detached(task, answered=False))

    def commit_late(self, process: Process) -> None:
        """Commit or lose a late write, if there is any."""
        if not self._late:
            return
        task = self._late.pop(self._state.below(len(self._late)))
        if self._state.roll() < 0.2:
            self._state.count("store lost a late commit")
            return
        self._state.count(
            "store committed late, after an error" if task.done else "store committed late, after a crash"
        )
        self._state.note("commits late", task.operation)
        task.process = process
        self._commits.commit(task)

    def recover(self, process: Process) -> None:
        """End the outage, and commit or lose all late writes."""
        self._outage = ""
        while self._late:
            self.commit_late(process)

    # --- effects -----------------------------------------------------------------------------------------

    def execute(self, task: Task) -> None:
        """Execute the pending effect of `task`, and set its answer or its error."""
        effect = task.effect
        task.done = True
        kind = type(effect)
        if kind is UpdatePayment or kind is InsertPayment:
            self._write(task)
        elif kind in self._reads:
            self._read(task, self._reads[kind])
        elif kind is RequestApproval or kind in QUOTA_EFFECTS:
            self._hosts.execute(task)
        elif kind is DrawRandomness:
            task.answer = self._draw(effect.count)
        elif kind is AllocateMethods:
            task.answer = METHODS.allocate(effect.payment)
        elif kind is IntrospectToken:
            task.answer = INTROSPECTOR.introspect(effect.query)
        elif kind is FindWalletAddress:
            task.answer = WALLET if effect.url == WALLET.url else None
        elif kind is UseNonce:
            task.answer = self._nonces.use(effect.key, effect.until, effect.now)
        else:
            raise Mismatch(f"the simulation does not support the effect {effect!r}")

    def _draw(self, count: int) -> bytes:
        """Return random bytes. Sometimes repeat the last bytes for a payment id, like a broken source."""
        if count == len(self._drawn) and self._state.injects_faults and self._state.roll() < 0.2:
            return self._drawn
        drawn = self._state.random.randbytes(count)
        if count == PAYMENT_ID_RANDOM_BYTES:
            self._drawn = drawn
        return drawn

    # --- reads -------------------------------------------------------------------------------------------

    def _read(self, task: Task, read: Callable[[Task], None]) -> None:
        task.expected = None
        if self._state.injects_faults and self._state.roll() < 0.02:
            self._fail(task, "store unavailable")
            return
        try:
            read(task)
        except StoreError as error:
            task.error = error

    def _load(self, task: Task) -> None:
        id = task.effect.id
        ledger = self._state.ledgers.get(id)
        try:
            payment = self._caller.wait(task.process.store.load(id))
        except PaymentNotFound as error:
            require(ledger is None, f"the store has lost the payment {id}")
            task.error = error
            task.expected = _NOT_FOUND
        else:
            if ledger is None:
                raise Mismatch(f"the store has the payment {id}, which was never inserted")
            ledger.compare(payment)
            task.answer = payment
            task.seen = (ledger.received, ledger.state(task.now))
            task.expected = _LOADED
        self._state.count(task.expected.kind)

    def _find_creation(self, task: Task) -> None:
        effect = task.effect
        task.answer = self._caller.wait(task.process.store.find_creation(effect.client, effect.key, effect.now))
        self._commits.check_key(effect.key, task.answer)
        self._state.count("key found" if task.answer is not None else "key not found")

    def _find_expired(self, task: Task) -> None:
        effect = task.effect
        due = {
            id: ledger.expires_at
            for id, ledger in self._state.ledgers.items()
            if ledger.expires_at is not None
            and ledger.expires_at < effect.now
            and ledger.announced_at is None
            and not ledger.completed
        }
        found = list(self._caller.wait(task.process.store.find_expired(effect.now, effect.limit)))
        count = min(effect.limit, len(due))
        if len(set(found)) != len(found) or not set(found) <= set(due) or len(found) != count:
            raise Mismatch(f"find_expired should return {count} of {sorted(due)}, but returned {found}")
        times = [due[id] for id in found]
        left = min((at for id, at in due.items() if id not in set(found)), default=None)
        first = left is None or not times or times[-1] <= left
        require(first and times == sorted(times), "find_expired must return payments in the order of expiresAt")
        task.answer = found

    def _find_payments(self, task: Task) -> None:
        query = task.effect.query
        places = sorted(
            (ledger.created_at, id)
            for id, ledger in self._state.ledgers.items()
            if query.state is None or ledger.state(query.now) == query.state
        )
        if query.newer_than is not None:
            page = [place for place in places if place > query.newer_than][: query.limit][::-1]
        else:
            page = [place for place in places[::-1] if not query.older_than or place < query.older_than][: query.limit]
        found = list(self._caller.wait(task.process.store.find_payments(query)))
        wanted, got = [id for _, id in page], [payment.id for payment in found]
        require(wanted == got, f"the page should have the payments {wanted}, but has {got}")
        for payment in found:
            self._state.ledgers[payment.id].compare(payment)
        self._state.count("page of a list")
        task.answer = found

    # --- writes ------------------------------------------------------------------------------------------

    def _write(self, task: Task) -> None:
        task.expected = None
        if type(task.effect) is InsertPayment:
            require(task.is_approved, f"the host has not approved {task.operation}")
        roll = self._state.roll() if self._state.injects_faults else 1.0
        if self._has_outage():
            self._fail_by_outage(task)
        elif roll < 0.08:
            self._fail_write(task, roll)
        elif roll < 0.35 and type(task.effect) is UpdatePayment:
            self._commit_batch(task, is_lost=roll < 0.10)
        elif roll < 0.45 and (other := self._commits.find_competing(task)) is not None:
            self._commits.commit_concurrently(task, other)
        else:
            self._commits.commit(task)

    def _has_outage(self) -> bool:
        if self._outage and self._state.steps >= self._outage_ends:
            self._outage = ""
        return bool(self._outage)

    def _fail_by_outage(self, task: Task) -> None:
        """Fail a write. A full disk fails after the decision, and a read-only file before the decision."""
        if self._outage == "full":
            self._commits.roll_back(task)
        if task.error is None:
            self._fail(task, f"write refused: the store is {self._outage}")

    def _fail_write(self, task: Task, roll: float) -> None:
        """Raise an error before the commit, after the commit, or before a commit that can still follow."""
        if roll < 0.02:
            self._fail(task, "store unavailable")
        elif roll < 0.04:
            self._commits.commit(task)
            if task.error is None:
                task.expected = None
                self._fail(task, "store committed, then lost its answer")
        elif roll < 0.06:
            self._fail(task, "store unavailable, with an unknown outcome")
            self._late.append(_detached(task, answered=True))
        else:
            self._commits.roll_back(task)
            if task.error is None:
                self._fail(task, "store rolled back")

    def _fail(self, task: Task, kind: str) -> None:
        self._state.count(kind)
        self._state.note(kind, task.operation)
        task.answer = None
        task.error = StoreUnavailable(kind)

    def _commit_batch(self, task: Task, *, is_lost: bool) -> None:
        """Commit all pending updates of one process together, or lose all of them."""
        batch = [
            other
            for other in task.process.tasks.values()
            if other is task or (not other.done and type(other.effect) is UpdatePayment)
        ]
        for other in batch:
            other.done = True
            other.expected = None
        if is_lost:
            self._state.count("store lost a batch")
            for other in batch:
                self._commits.roll_back(other)
                if other.error is None:
                    self._fail(other, "store rolled back")
            return
        if len(batch) > 1:
            self._state.count("store committed a batch")
        self._commits.commit_all(batch)


def _detached(task: Task, *, answered: bool) -> Task:
    """Return a copy of `task` for a late commit. If `answered` is true, the caller has received an error."""
    return Task(
        task.operation,
        task.process,
        task.flow,
        task.clock,
        task.began,
        task.now,
        effect=task.effect,
        done=answered,
        needs_approval=task.needs_approval,
        is_approved=task.is_approved,
        refusal=task.refusal,
    )

"""Kill processes that insert and credit payments, and then check the data in the store.

```python
from incoming_payments.testing.crash import check_crashes

def test_acknowledged_credits_survive_crashes(tmp_path):
    check_crashes("my_bank.stores:open_store", str(tmp_path / "payments"))
```

`my_bank.stores.open_store(argument)` returns a store on the data that the argument names, for example by a path or a
connection string. The kit calls this function in this process and in each worker process. For an async store, return a
`SyncView`.

SIGKILL ends a process, but not the machine. The operating system still writes the data of the process, so the kit
cannot detect a store that skips the disk sync.
"""

import contextlib
import random
import secrets
import signal
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import IO, Final

from attrs import Factory, define, frozen

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import (
    PAYMENT_ID_RANDOM_BYTES,
    Credit,
    CreditId,
    IncomingPayment,
    PaymentId,
    new_payment_id,
)
from incoming_payments.errors import IncomingPaymentsError, PaymentExists, PaymentNotFound
from incoming_payments.ports import PaymentStore
from incoming_payments.testing._crash_processes import Parent, Worker, parent_process
from incoming_payments.testing._crash_worker import AFTER_ANSWER, WATCHED, Plan, open_store
from incoming_payments.testing.steps import credit, persistently
from incoming_payments.testing.values import NOW, a_creation

_SILENCE_S: Final = 120.0  # the longest time between two reports of a worker, which is usually some milliseconds
_CREDITS_MAX: Final = 40  # the number of credits of a worker that is killed at random
_KEYS_MAX: Final = 10  # the number of idempotency keys of a worker that is killed at random
_CREATORS: Final = 10  # the number of processes that use the same idempotency keys at the same time
_LOG_CHARS_MAX: Final = 4000
_FAULTS_SHOWN_MAX: Final = 10


class CrashFailed(AssertionError):
    """The store broke a guarantee, or a worker failed. The message names the seed."""


@frozen
class CrashReport:
    """The number of killed processes, and of the credits and inserts that the store acknowledged."""

    seed: int
    killed: int
    acknowledged: int


@define
class _Ledger:
    """The credits of one payment, or inserts of payments, as the workers have reported them."""

    payment: PaymentId | None  # the payment to credit, or `None` if the workers insert payments
    # the beginning of the idempotency keys under which the workers insert payments, or `None`
    key: str | None = None
    sent: dict[str, int] = Factory(dict)  # the value for each credit id, or the number of the key for each payment id
    answered: dict[str, int] = Factory(dict)  # the total in each answer, or the number of the key
    moments: list[int] = Factory(list)


@frozen
class _Task:
    """A worker whose calls are recorded in `ledger`.

    The worker ends itself at `moment`, or is killed after some answers.
    """

    ledger: _Ledger
    steps: int = WATCHED + 1
    moment: int | None = None
    answers: int | None = None


def check_crashes(
    factory: str, argument: str, *, moments: int = 8, rounds: int = 3, workers: int = 2, seed: int | None = None
) -> CrashReport:
    """Kill processes that insert and credit payments, and compare their answers with a new store on the same data.

    `factory` is the name of a callable, in the form `module:callable`. `factory(argument)` returns the store. The kit
    kills a worker at `moments` moments of an update, of an insert, and of an insert under an idempotency key. One
    moment is directly after the answer. The other moments are directly after the slowest calls, which are the reads,
    writes and commits. After that, there are `rounds` rounds. In each round, `workers` processes credit one payment at
    the same time, and ten processes insert payments under the same idempotency keys. The kit kills all these processes
    at random. `seed` repeats the random choices of a run, but not the speed of its processes.

    Raises `CrashFailed` when an acknowledged credit or payment is missing, when a credit is doubled or a key has two
    payments, when payment, credits and events disagree, or when a worker fails or does not report for two minutes. The
    kit makes these checks before and after it repeats all calls. An exception of the store that is not an
    `IncomingPaymentsError` reaches the caller unchanged.
    """
    seed = secrets.randbelow(2**32) if seed is None else seed
    try:
        with tempfile.TemporaryFile() as log, parent_process(log) as parent:
            return _Kit(factory, argument, seed, log, parent).run(moments, rounds, workers)
    except CrashFailed as error:
        raise CrashFailed(f"{error}\n(seed={seed})") from error.__cause__


class _Kit:
    """One run of the kit."""

    def __init__(self, factory: str, argument: str, seed: int, log: IO[bytes], parent: Parent) -> None:
        self._factory = factory
        self._argument = argument
        self._seed = seed
        self._log = log
        self._parent = parent
        self._choose = random.Random(seed)  # noqa: S311 - a schedule, not a secret
        self._ledgers: list[_Ledger] = []
        self._killed = 0

    def run(self, moments: int, rounds: int, workers: int) -> CrashReport:
        """See `check_crashes`."""
        for new_ledger in (self._create_payment, self._insert_payments, self._insert_under_keys):
            measured = new_ledger()
            self._crash([_Task(measured)])  # the first worker reports the slowest calls
            chosen = [AFTER_ANSWER, *measured.moments][:moments]
            for first in range(0, len(chosen), workers):
                self._crash([_Task(new_ledger(), moment=moment) for moment in chosen[first : first + workers]])
        for _ in range(rounds):
            shared = self._create_payment()
            answers = [self._choose.randint(_CREDITS_MAX // 4, _CREDITS_MAX) for _ in range(workers)]
            self._crash([_Task(shared, _CREDITS_MAX, answers=number) for number in answers])
            shared = self._insert_under_keys()
            answers = [self._choose.randint(1, _KEYS_MAX) for _ in range(_CREATORS)]
            self._crash([_Task(shared, _KEYS_MAX, answers=number) for number in answers])
        for ledger in self._ledgers:
            self._check(ledger)  # check that no later crash has changed the payment
        return CrashReport(self._seed, self._killed, sum(len(ledger.answered) for ledger in self._ledgers))

    def _create_payment(self) -> _Ledger:
        created = a_creation(id=new_payment_id(NOW, secrets.token_bytes(PAYMENT_ID_RANDOM_BYTES)))
        with self._opened() as store:
            store.insert(created)
        self._ledgers.append(_Ledger(created.answer.id))
        return self._ledgers[-1]

    def _insert_payments(self) -> _Ledger:
        self._ledgers.append(_Ledger(None))
        return self._ledgers[-1]

    def _insert_under_keys(self) -> _Ledger:
        self._ledgers.append(_Ledger(None, secrets.token_hex(8)))
        return self._ledgers[-1]

    def _crash(self, tasks: Sequence[_Task]) -> None:
        """Run a worker for each task until all workers have ended, and check their payments."""
        try:
            with contextlib.ExitStack() as stack:
                workers = [
                    stack.enter_context(self._parent.worker(self._plan(number, task), _SILENCE_S))
                    for number, task in enumerate(tasks)
                ]
                ready = [worker for worker in workers if next(worker.reports, None)]
                for worker in ready:
                    worker.begin()
                with ThreadPoolExecutor(len(tasks)) as executor:
                    list(executor.map(_follow, workers, tasks))
                statuses = [self._parent.wait(worker) for worker in workers]
        except TimeoutError:
            raise self._failed(f"a worker did not report for {_SILENCE_S:g} seconds") from None
        except ConnectionError as error:
            raise self._failed("the parent of the workers has ended") from error
        self._killed += statuses.count(-signal.SIGKILL)
        for task, status in zip(tasks, statuses, strict=True):
            if status not in (0, -signal.SIGKILL):
                raise self._failed(f"a worker ended with status {status}")
            if task.moment == AFTER_ANSWER:  # the worker was killed before it could report the answer
                last, value = list(task.ledger.sent.items())[-1]
                task.ledger.answered[last] = value if task.ledger.payment is None else sum(task.ledger.sent.values())
        for ledger in {id(task.ledger): task.ledger for task in tasks}.values():
            self._check(ledger)

    def _plan(self, number: int, task: _Task) -> Plan:
        return Plan(
            factory=self._factory,
            argument=self._argument,
            payment=task.ledger.payment,
            name=f"worker-{number}",
            steps=task.steps,
            seed=self._choose.randrange(2**32),
            moment=task.moment,
            key=task.ledger.key,
        )

    def _failed(self, message: str) -> CrashFailed:
        """Return a `CrashFailed` with the end of the output of the processes."""
        self._log.seek(0)
        return CrashFailed(f"{message}\n{self._log.read().decode(errors='replace')[-_LOG_CHARS_MAX:]}")

    def _check(self, ledger: _Ledger) -> None:
        """Raise `CrashFailed` unless a new store agrees with `ledger`, before and after all calls are repeated."""
        with self._opened() as store:
            try:
                if ledger.key is not None:
                    found = list(_faults_of_keys(store, ledger))
                elif ledger.payment is None:
                    found = list(_faults_of_inserts(store, ledger))
                else:
                    _await_commit(store, ledger.payment)
                    faults = partial(_faults, store, ledger.payment, ledger)
                    found = [*faults(), *_faults_of_repeats(store, ledger.payment, ledger), *faults()]
            except IncomingPaymentsError as error:
                raise CrashFailed(f"after a crash, the store raised {error!r}") from error
        if found:
            raise CrashFailed("\n".join(["after a crash:", *list(dict.fromkeys(found))[:_FAULTS_SHOWN_MAX]]))

    @contextmanager
    def _opened(self) -> Iterator[PaymentStore]:
        store = open_store(self._factory, self._argument)
        try:
            yield store
        finally:
            close = getattr(store, "close", None)
            if close is not None:
                close()


def _follow(worker: Worker, task: _Task) -> None:
    """Record the reports of the worker until it ends, and kill the worker after the answers of its task."""
    ledger, answers = task.ledger, 0
    for kind, *words in worker.reports:
        if kind == "sent":
            ledger.sent[words[0]] = words[1]
        elif kind == "answered":
            ledger.answered[words[0]] = words[1]
            answers += 1
            if answers == task.answers:
                worker.kill()
        else:
            ledger.moments = words[0]


def _await_commit(store: PaymentStore, id: PaymentId) -> None:
    """Wait for the lock of the payment, because the database may still commit a transaction of a dead process."""
    persistently(partial(store.update, id, lambda *_: Decision(None)))


def _faults_of_inserts(store: PaymentStore, ledger: _Ledger) -> Iterator[str]:
    """Repeat each insert, as a client would, and yield the payments that are missing or have other events."""
    for id in map(PaymentId, ledger.sent):
        created = a_creation(id=id)
        try:
            persistently(partial(store.insert, created))
        except PaymentExists:
            pass
        else:
            if id in ledger.answered:
                yield f"the store answered the insert of payment {id}, but the repeated insert stored the payment again"
        _await_commit(store, id)
        payment, events = store.load(id), list(store.events(id))
        if payment != created.answer or events != list(created.events):
            yield f"payment {id} has version {payment.version} after its insert, and its events are {events}"
        ledger.answered[id] = 0


def _faults_of_keys(store: PaymentStore, ledger: _Ledger) -> Iterator[str]:
    """Repeat each request under its key, as a client would, and yield the keys that do not have exactly one payment."""
    for number in set(ledger.sent.values()):
        key = f"{ledger.key}-{number}"
        created = a_creation(id=new_payment_id(NOW, secrets.token_bytes(PAYMENT_ID_RANDOM_BYTES)), key=key)
        first = persistently(partial(store.insert, created))
        ledger.sent[created.answer.id] = number
        expected = created.answer.id if first is None else first.payment
        with contextlib.suppress(PaymentNotFound):
            _await_commit(store, expected)
        stored = {id for id in map(PaymentId, ledger.sent) if ledger.sent[id] == number and _has_events(store, id)}
        answers = {id for id, of in ledger.answered.items() if of == number}
        if stored != {expected} or not answers <= stored:
            text = (
                f"the repeated request got {expected}, the answers were {sorted(answers)}, and {sorted(stored)} "
                "are stored"
            )
            yield f"the idempotency key {key} must have one payment: {text}"
        ledger.answered[expected] = number


def _has_events(store: PaymentStore, id: PaymentId) -> bool:
    """Return whether the payment and its event are stored."""
    try:
        return store.load(id).version == len(store.events(id))
    except PaymentNotFound:
        return False


def _faults(store: PaymentStore, id: PaymentId, ledger: _Ledger) -> Iterator[str]:
    """Yield the differences between the reports of the workers and the payment, events and credits in the store."""
    payment, events = store.load(id), store.events(id)
    versions = [event.version for event in events]
    if versions != list(range(1, payment.version + 1)):
        yield f"the payment has version {payment.version}, and its events have the versions {versions}"
    credited = [event for event in events if event.credit_id is not None]
    totals = {event.credit_id: event.received.value for event in credited}
    total = 0
    for event in credited:
        value, total = event.received.value - total, event.received.value
        if value != ledger.sent.get(str(event.credit_id)):
            yield f"the event of credit {event.credit_id} adds {value} to the total, but no client sent that credit"
    if len(totals) != len(credited) or payment.received.value != total:
        yield f"the payment has received {payment.received.value}, and the totals in its events are {totals}"
    for credit_id, answer in ledger.answered.items():
        if totals.get(CreditId(credit_id)) != answer:
            kept = totals.get(CreditId(credit_id))
            yield f"the store answered credit {credit_id} with the total {answer}, and its event has {kept}"
    for credit_id in map(CreditId, ledger.sent):
        kept = persistently(partial(store.update, id, _answer_credit, credit_id))
        if kept != totals.get(credit_id):
            yield f"credit {credit_id} is stored with the total {kept}, and its event has {totals.get(credit_id)}"


def _answer_credit(_payment: IncomingPayment, earlier: Credit | None) -> Decision[int | None]:
    """Return a decision that changes nothing and answers with the total in the stored credit."""
    return Decision(None if earlier is None else earlier.received.value)


def _faults_of_repeats(store: PaymentStore, id: PaymentId, ledger: _Ledger) -> Iterator[str]:
    """Repeat all credits, as clients would, and yield the wrong answers. Each credit must then be stored once."""
    for credit_id, value in ledger.sent.items():
        total = persistently(partial(credit, store, id, credit_id, value)).received.value
        expected = ledger.answered.setdefault(credit_id, total)
        if total != expected:
            yield (
                f"the store answered credit {credit_id} with the total {expected}, and the repeated credit with {total}"
            )
    received, sent = store.load(id).received.value, sum(ledger.sent.values())
    if received != sent:
        yield f"the payment has received {received}, but clients have sent {sent}"

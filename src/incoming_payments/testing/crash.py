"""The crash kit: it kills processes that credit a payment, and then checks what the store has kept.

```python
from incoming_payments.testing.crash import check_crashes

def test_acknowledged_credits_survive_crashes(tmp_path):
    check_crashes("my_bank.stores:open_store", str(tmp_path / "payments"))
```

`my_bank.stores.open_store(argument)` returns a store on the data that the argument names: a path, or the connection
string of a database. The kit calls it in this process and in each worker process. For an async store, return a
`SyncView`.

SIGKILL ends a process, but not the machine. The operating system still writes the data that it holds, so the kit cannot
see a store that skips the disk sync.
"""

import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from json import loads
from typing import Final

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
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.ports import PaymentStore
from incoming_payments.testing._crash_worker import AFTER_ANSWER, WATCHED, Plan, open_store
from incoming_payments.testing.steps import credit, persistently
from incoming_payments.testing.values import NOW, a_creation

_WORKER: Final = "incoming_payments.testing._crash_worker"
_DEADLINE_S: Final = 30.0  # for a worker, which needs less than a second on a fast machine
_CREDITS_MAX: Final = 40  # of one worker
_LOG_CHARS_MAX: Final = 4000
_FAULTS_SHOWN_MAX: Final = 10


class CrashFailed(AssertionError):
    """The store broke a promise, or a worker failed. The message names the seed."""


@frozen
class CrashReport:
    """The size of a run: the processes that were killed, and the credits that the store had acknowledged."""

    seed: int
    killed: int
    acknowledged: int


@define
class _Ledger:
    """The credits of one payment, as the workers have reported them."""

    payment: PaymentId
    sent: dict[CreditId, int] = Factory(dict)  # the value of each credit
    answered: dict[CreditId, int] = Factory(dict)  # the total received in each answer
    moments: list[int] = Factory(list)


@frozen
class _Task:
    """A worker that credits the payment of `ledger`. It ends itself at `moment`, or is killed after some answers."""

    ledger: _Ledger
    credits: int
    moment: int | None = None
    answers: int | None = None


def check_crashes(
    factory: str, argument: str, *, moments: int = 8, rounds: int = 3, workers: int = 2, seed: int | None = None
) -> CrashReport:
    """Kill processes that credit payments, and compare a fresh store on the same data with their acknowledged credits.

    `factory` is the name of a callable, `module:callable`. `factory(argument)` returns the store. The kit kills a
    worker at each of `moments` chosen moments of an update: directly after its answer, and directly after each of its
    slowest calls, which are the reads, writes and commits. Then come `rounds` rounds, in which `workers` processes
    credit one payment at the same time, and are killed at random. `seed` repeats the random choices of a run, but not
    the speed of its processes.

    Raises `CrashFailed` when an acknowledged credit is missing or doubled, also when all credits are repeated after the
    crash, when payment, credits and events disagree, or when a worker fails. An exception of the store that is no
    `IncomingPaymentsError` is raised as it is.
    """
    seed = secrets.randbelow(2**32) if seed is None else seed
    try:
        return _Kit(factory, argument, seed).run(moments, rounds, workers)
    except CrashFailed as error:
        raise CrashFailed(f"{error}\n(seed={seed})") from error.__cause__


class _Kit:
    """One run of the kit."""

    def __init__(self, factory: str, argument: str, seed: int) -> None:
        self._factory = factory
        self._argument = argument
        self._seed = seed
        self._choose = random.Random(seed)  # noqa: S311 - a schedule, not a secret
        self._ledgers: list[_Ledger] = []
        self._killed = 0

    def run(self, moments: int, rounds: int, workers: int) -> CrashReport:
        """See `check_crashes`."""
        measured = self._create_payment()
        self._crash([_Task(measured, WATCHED + 1)])  # reports the slowest calls
        chosen = [AFTER_ANSWER, *measured.moments][:moments]
        for first in range(0, len(chosen), workers):
            self._crash(
                _Task(self._create_payment(), WATCHED + 1, moment) for moment in chosen[first : first + workers]
            )
        for _ in range(rounds):
            shared = self._create_payment()
            answers = [self._choose.randint(_CREDITS_MAX // 4, _CREDITS_MAX) for _ in range(workers)]
            self._crash(_Task(shared, _CREDITS_MAX, answers=number) for number in answers)
        for ledger in self._ledgers:
            self._check(ledger)  # no later crash has changed it
        return CrashReport(self._seed, self._killed, sum(len(ledger.answered) for ledger in self._ledgers))

    def _create_payment(self) -> _Ledger:
        created = a_creation(id=new_payment_id(NOW, secrets.token_bytes(PAYMENT_ID_RANDOM_BYTES)))
        with self._opened() as store:
            store.insert(created)
        self._ledgers.append(_Ledger(created.answer.id))
        return self._ledgers[-1]

    def _crash(self, tasks: Iterable[_Task]) -> None:
        """Run a worker for each task, until all have ended, and check their payments."""
        tasks = list(tasks)
        barrier = threading.Barrier(len(tasks))
        plans = [
            Plan(
                factory=self._factory,
                argument=self._argument,
                payment=task.ledger.payment,
                name=f"worker-{number}",
                credits=task.credits,
                seed=self._choose.randrange(2**32),
                moment=task.moment,
            )
            for number, task in enumerate(tasks)
        ]
        with ThreadPoolExecutor(len(tasks)) as executor:
            self._killed += sum(executor.map(lambda task, plan: _run_worker(task, plan, barrier), tasks, plans))
        for ledger in {task.ledger.payment: task.ledger for task in tasks}.values():
            self._check(ledger)

    def _check(self, ledger: _Ledger) -> None:
        """Raise `CrashFailed` unless a fresh store agrees with `ledger`, before and after all credits are repeated."""
        with self._opened() as store:
            try:
                # The database may still commit the last transaction of a dead process. An update waits for its lock.
                persistently(partial(store.update, ledger.payment, lambda *_: Decision(None)))
                found = [*_faults(store, ledger), *_faults_of_repeats(store, ledger), *_faults(store, ledger)]
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


def _run_worker(task: _Task, plan: Plan, barrier: threading.Barrier) -> bool:
    """Run a worker until it ends, and return whether it was killed. Raises `CrashFailed` when it fails."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.curdir for entry in sys.path)}
    command = [sys.executable, "-m", _WORKER, plan.text]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
        ) as process,
    ):
        timer = threading.Timer(_DEADLINE_S, process.kill)
        timer.start()
        try:
            _follow(process, task, barrier)
            status = process.wait()
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
            process.kill()  # it has ended, unless an exception has interrupted this thread
            barrier.abort()  # when this worker has failed, the others need not wait for it
        log.seek(0)
        text = log.read().decode(errors="replace")[-_LOG_CHARS_MAX:]
    if is_late:
        raise CrashFailed(f"a worker did not end within {_DEADLINE_S:g} seconds\n{text}")
    if status not in (0, -signal.SIGKILL):
        raise CrashFailed(f"a worker ended with status {status}\n{text}")
    return status != 0


def _follow(process: "subprocess.Popen[bytes]", task: _Task, barrier: threading.Barrier) -> None:
    """Note the reports of the worker until it ends, and kill it after the answers of its task."""
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    assert process.stdout is not None  # noqa: S101
    ledger, answers = task.ledger, 0
    for line in process.stdout:
        kind, *words = loads(line)
        if kind == "ready":
            with contextlib.suppress(threading.BrokenBarrierError):
                barrier.wait()
            process.stdin.close()  # the worker begins
        elif kind == "sent":
            ledger.sent[words[0]] = words[1]
        elif kind == "answered":
            ledger.answered[words[0]] = words[1]
            answers += 1
            if answers == task.answers:
                process.kill()
        else:
            ledger.moments = words[0]


def _faults(store: PaymentStore, ledger: _Ledger) -> Iterator[str]:
    """Yield the differences between the reports of the workers and the payment, events and credits in the store."""
    payment = store.load(ledger.payment)
    events = store.events(ledger.payment)
    versions = [event.version for event in events]
    if versions != list(range(1, payment.version + 1)):
        yield f"the payment has version {payment.version}, and its events have the versions {versions}"
    credited = [event for event in events if event.credit_id is not None]
    totals = {event.credit_id: event.received.value for event in credited}
    total = 0
    for event in credited:
        value, total = event.received.value - total, event.received.value
        if value != ledger.sent.get(CreditId(str(event.credit_id))):
            yield f"the event of credit {event.credit_id} adds {value} to the total, and no client sent that"
    if len(totals) != len(credited) or payment.received.value != total:
        yield f"the payment has received {payment.received.value}, and the totals in its events are {totals}"
    for id, answer in ledger.answered.items():
        if totals.get(id) != answer:
            yield f"the store answered credit {id} with the total {answer}, and its event has {totals.get(id)}"
    for id in ledger.sent:
        kept = persistently(partial(store.update, payment.id, _answer_credit, id))
        if kept != totals.get(id):
            yield f"credit {id} is stored with the total {kept}, and its event has {totals.get(id)}"


def _answer_credit(_payment: IncomingPayment, earlier: Credit | None) -> Decision[int | None]:
    """Answer with the total in the stored credit, and change nothing."""
    return Decision(None if earlier is None else earlier.received.value)


def _faults_of_repeats(store: PaymentStore, ledger: _Ledger) -> Iterator[str]:
    """Repeat all credits, as clients would, and yield the wrong answers. Then each credit must be there once."""
    for id, value in ledger.sent.items():
        total = persistently(partial(credit, store, ledger.payment, id, value)).received.value
        expected = ledger.answered.setdefault(id, total)
        if total != expected:
            yield f"the store answered credit {id} with the total {expected}, and its repeat with {total}"
    received, sent = store.load(ledger.payment).received.value, sum(ledger.sent.values())
    if received != sent:
        yield f"the payment has received {received}, and clients have sent {sent}"

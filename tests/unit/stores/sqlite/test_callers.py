"""The callers of a SQLite store wait for one thread: interrupts, and calls from inside an update."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, IncomingPayment, PaymentId
from incoming_payments.errors import StoreUnavailable
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.stores.sqlite._log_watch import LogWatch
from incoming_payments.testing.steps import create, credit
from kits.sqlite_jobs import busy_writer, fork

# --- interrupts ---


INTERRUPTED = """
import os, random, signal, sys, threading
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import check_credits, create, credit

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
store = SqliteStore(sys.argv[1])
id = create(store)
seeded, interrupted, answers = random.Random(1), 0, []
for number in range(600):
    try:
        signal.setitimer(signal.ITIMER_REAL, seeded.uniform(0.00001, 0.0008))
        try:
            credit(store, id, f"wire-{number}", 1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
    again = threading.Thread(target=lambda: answers.append(credit(store, id, f"wire-{number}", 1)))
    again.start()
    again.join()
assert interrupted > 0
child = os.fork()
check_credits(store, id, answers)
if child:
    assert os.waitpid(child, 0)[1] == 0
store.close()
"""


def test_interrupts_lose_and_double_no_credit(path: Path) -> None:
    """Each call is repeated in another thread, and once more after a fork. So no lock stays held."""
    run_script(INTERRUPTED, path)


INTERRUPTED_READS = """
import os, random, signal, sys
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import create

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
store = SqliteStore(sys.argv[1])
id = create(store)
seeded = random.Random(1)
for _ in range(2000):
    try:
        signal.setitimer(signal.ITIMER_REAL, seeded.uniform(0.0001, 0.001))
        while True:
            store.load(id)
    except KeyboardInterrupt:
        pass
child = os.fork()
store.load(id)
if child:
    assert os.waitpid(child, 0)[1] == 0
store.close()
"""


def test_fork_does_not_wait_for_interrupted_reads(path: Path) -> None:
    """Each interrupted read has ended."""
    run_script(INTERRUPTED_READS, path)


def run_script(text: str, path: Path) -> None:
    """Run a script that interrupts itself."""
    # An interrupt could leave a lock of `coverage` held.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    subprocess.run([sys.executable, "-W", "error", "-c", text, str(path)], env=environment, check=True, timeout=60)


def test_interrupt_ends_the_wait_and_not_the_update(store: SqliteStore) -> None:
    """The same call again gets the first answer."""
    id = create(store)

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with busy_writer(store, id):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(KeyboardInterrupt):
                credit(store, id, "wire-1", 1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert credit(store, id, "wire-2", 1).received.value == 2
    assert credit(store, id, "wire-1", 1).received.value == 1


def test_failure_after_a_commit_denies_no_credit(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is no final refusal, as after a bad value: the credit may be on the disk."""
    id = create(store)

    def fail(_: LogWatch) -> int:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(LogWatch, "after_commit", fail)
        with pytest.raises(StoreUnavailable, match="was interrupted before its outcome was known"):
            credit(store, id, "wire-1", 1)
    assert store.load(id).received.value == 1
    assert credit(store, id, "wire-1", 1).received.value == 1


# --- calls from inside an update ---


def inside(act: Callable[[], object]) -> Callable[[IncomingPayment, Credit | None], Decision[object]]:
    """Return a `decide` that calls `act`, and changes nothing."""
    return lambda _payment, _earlier: Decision(act())


async def load(store: AsyncSqliteStore, id: PaymentId) -> IncomingPayment:
    """Load a payment."""
    return await store.load(id)


def test_call_inside_an_update_is_refused(store: SqliteStore, tasks: AsyncSqliteStore) -> None:
    """It would wait for itself."""
    id = create(store)
    for call in (lambda: create(store), lambda: store.load(id)):
        with pytest.raises(StoreUnavailable, match="this thread is running an update"):
            store.update(id, inside(call))
    with pytest.raises(StoreUnavailable, match="this thread is running an update"):
        asyncio.run(tasks.update(id, inside(lambda: asyncio.run(load(tasks, id)))))
    assert credit(store, id, "wire-1", 1).received.value == 1


def test_update_that_closes_its_store_ends(path: Path) -> None:
    """The close does not wait for the thread that does the update. The garbage collector may close it there, too."""
    store = SqliteStore(path)
    id = create(store)
    store.update(id, inside(store.close))
    with SqliteStore(path) as other:
        assert credit(other, id, "wire-1", 1).received.value == 1


def test_fork_inside_an_update_does_not_wait_for_it(store: SqliteStore) -> None:
    """The update, and later ones, end after the fork."""
    id = create(store)
    store.update(id, inside(fork))
    assert credit(store, id, "wire-1", 1).received.value == 1

"""The batches of a SQLite store: which calls share a commit, what each sees, and which failures affect one call."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain import lifecycle
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, IncomingPayment, PaymentId
from incoming_payments.errors import BrokenDecision, PaymentCompleted, PaymentNotFound, StoreUnavailable
from incoming_payments.limits import STORE_BATCH_MAX
from incoming_payments.ports import Decide, StoreBatch
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore, _queue
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing.steps import check_credits, create, credit
from kits.service_kit import Recorder
from kits.sqlite_jobs import busy_writer, credit_one, edit, fork, in_one_batch


def raising(error: BaseException) -> Decide[Any]:
    """Return a `decide` that raises `error`."""

    def decide(_payment: IncomingPayment, _earlier: Credit | None) -> Decision[Any]:
        raise error

    return decide


def sizes(recorder: Recorder) -> list[int]:
    """Return the sizes of the batches that an observer has seen."""
    return [batch.size for batch in recorder.take() if isinstance(batch, StoreBatch)]


# --- calls that share a commit ---


@pytest.mark.parametrize("pause_s", [0, 0.01])
def test_calls_of_one_turn_share_a_commit(store: SqliteStore, path: Path, pause_s: float) -> None:
    """The loop wakes the writer at the end of its turn, however long the turn takes. A batch has a maximum size."""
    ids, recorder = [create(store) for _ in range(3)], Recorder()

    async def call(store: AsyncSqliteStore, number: int) -> Credit:
        time.sleep(pause_s)  # noqa: ASYNC251 - a turn that is long enough for the writer
        return await credit_one(store, ids[number % 3], f"wire-{number}")

    async def scenario(count: int) -> list[Credit]:
        async with AsyncSqliteStore(path, observer=recorder) as store:
            return await asyncio.gather(*(call(store, number) for number in range(count)))

    count = 6 if pause_s else STORE_BATCH_MAX + 2
    assert len(asyncio.run(scenario(count))) == count
    assert sizes(recorder) == ([count] if pause_s else [STORE_BATCH_MAX, 2])
    assert sum(store.load(id).received.value for id in ids) == count


@pytest.mark.parametrize("cause", ["busy writer", "lock of another process"])
def test_calls_that_wait_together_share_a_commit(store: SqliteStore, path: Path, cause: str) -> None:
    """Calls that arrive while the writer works or waits for the lock are one batch."""
    id, recorder = create(store), Recorder()

    async def arrive(store: AsyncSqliteStore) -> "list[asyncio.Task[Credit]]":
        first = asyncio.create_task(credit_one(store, id, "wire-0"))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(credit_one(store, id, f"wire-{number}")) for number in (1, 2)]
        await asyncio.sleep(0.05)
        return [first, *others]

    async def scenario() -> list[int]:
        async with AsyncSqliteStore(path, observer=recorder) as store:
            await store.update(id, lambda _payment, _earlier: Decision(None))
            recorder.take()
            if cause == "busy writer":
                with busy_writer(store, id):
                    calls = await arrive(store)
            else:
                with closing(sqlite3.connect(path, isolation_level=None)) as other:
                    other.execute("BEGIN IMMEDIATE")
                    calls = await arrive(store)
            return [credit.received.value for credit in await asyncio.gather(*calls)]

    assert asyncio.run(scenario()) == [1, 2, 3]
    assert sizes(recorder)[-1] == 3


@pytest.mark.parametrize("later", ["close", "fork", "another loop"])
def test_update_of_a_closed_loop_is_committed(store: SqliteStore, path: Path, later: str) -> None:
    """The loop closes directly after the call. The store serves other loops."""
    id = create(store)
    other = AsyncSqliteStore(path)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the task is never done
    task = loop.create_task(credit_one(other, id, "wire-1"))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    if later == "fork":
        fork()
        assert store.load(id).received.value == 1
    elif later == "another loop":
        assert asyncio.run(credit_one(other, id, "wire-2")).received.value == 2
    asyncio.run(other.close())
    assert store.load(id).received.value == (2 if later == "another loop" else 1)
    assert not task.done()


def test_cancelled_task_does_not_stop_the_writer(tasks: AsyncSqliteStore, store: SqliteStore) -> None:
    """The cancelled update is committed all the same, and the other tasks get their answers."""
    id = create(store)

    async def scenario() -> list[int]:
        with busy_writer(tasks, id):
            calls = [asyncio.create_task(credit_one(tasks, id, f"wire-{number}")) for number in range(3)]
            await asyncio.sleep(0)
            calls[1].cancel()
            with pytest.raises(asyncio.CancelledError):
                await calls[1]
        return [(await call).received.value for call in (calls[0], calls[2])]

    assert asyncio.run(scenario()) == [1, 3]
    assert credit(store, id, "wire-1", 1).received.value == 2


def test_many_loops_and_threads_share_a_store(store: SqliteStore, tasks: AsyncSqliteStore) -> None:
    """Three loops and a thread get an answer to every call, and every credit is stored once."""
    id = create(store)
    credited: dict[str, Any] = {}

    async def call(name: str) -> None:
        for turn in range(10):
            credited[f"{name}-{turn}"] = await credit_one(tasks, id, f"{name}-{turn}")

    async def calls(loop: int) -> None:
        await asyncio.gather(*(call(f"wire-{loop}-{number}") for number in range(5)))

    threads = [threading.Thread(target=lambda loop=loop: asyncio.run(calls(loop))) for loop in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(10):
        credited[f"thread-{turn}"] = credit(store, id, f"thread-{turn}", 1)
    for thread in threads:
        thread.join(60)
    assert len(credited) == 160
    check_credits(store, id, credited.values())


def test_full_queue_refuses_calls_at_once(
    tasks: AsyncSqliteStore, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call raises `StoreUnavailable` before it waits. The queued updates are committed."""
    monkeypatch.setattr(_queue, "STORE_QUEUE_MAX", 2)
    id = create(store)

    async def scenario() -> list[int]:
        with busy_writer(tasks, id):
            calls = [asyncio.create_task(credit_one(tasks, id, f"wire-{number}")) for number in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(StoreUnavailable, match=r"^2 updates are already waiting: repeat the call later$"):
                await credit_one(tasks, id, "wire-3")
        return [(await call).received.value for call in calls]

    assert asyncio.run(scenario()) == [1, 2]


# --- what a call sees ---


def test_call_sees_the_decisions_of_earlier_calls(tasks: AsyncSqliteStore, store: SqliteStore) -> None:
    """One batch misses a payment, creates it, credits it, closes it, and refuses the next credit."""
    created = a_creation()
    id = created.answer.id
    missing, _, first, again, second, closed, late = in_one_batch(
        credit_one(tasks, id, "wire-1"),
        tasks.insert(created),
        credit_one(tasks, id, "wire-1"),
        credit_one(tasks, id, "wire-1"),
        credit_one(tasks, id, "wire-2"),
        tasks.update(id, partial(lifecycle.complete, now=NOW)),
        credit_one(tasks, id, "wire-3"),
    )
    assert type(missing) is PaymentNotFound
    assert (first.received.value, second.received.value) == (1, 2)
    assert again == first
    assert closed.closed_at == NOW
    assert type(late) is PaymentCompleted
    assert [event.version for event in store.events(id)] == [1, 2, 3, 4]
    assert store.load(id).received.value == 2


def test_batch_finds_credits_of_earlier_batches(tasks: AsyncSqliteStore, store: SqliteStore) -> None:
    """A duplicate gets the first answer. The same credit id in another payment is another credit."""
    one, two = create(store), create(store)
    before = [credit(store, id, f"wire-{number}", 1) for number in (1, 3) for id in (one, two)]
    outcomes = in_one_batch(*(credit_one(tasks, id, f"wire-{number}") for number in range(1, 5) for id in (one, two)))
    assert before == outcomes[:2] + outcomes[4:6]
    assert [outcome.received.value for outcome in outcomes[2:4] + outcomes[6:]] == [3, 3, 4, 4]


# --- failures of one call ---

NOT_UNICODE = "\ud800"


BAD_DECISIONS: dict[str, tuple[Decide[Any], type[Exception]]] = {
    "raises": (raising(ValueError("a bug")), ValueError),
    "needs memory": (raising(MemoryError()), MemoryError),
    "raises StopIteration": (raising(StopIteration()), RuntimeError),  # as in PEP 479
    "no decision": (lambda *_: None, BrokenDecision),  # type: ignore[dict-item]
    "no payment": (lambda *_: Decision(None, payment="nonsense"), BrokenDecision),  # type: ignore[arg-type]
    "events without a payment": (lambda *_: Decision(None, events=a_creation().events), BrokenDecision),
}
BAD_CALLS: dict[str, tuple[Callable[[AsyncSqliteStore, PaymentId], Coroutine[Any, Any, Any]], type[Exception]]] = {
    "missing payment": (lambda tasks, _: credit_one(tasks, PaymentId("no such"), "wire-2"), PaymentNotFound),
    "text": (lambda tasks, _: tasks.insert(a_creation(metadata=f'"{NOT_UNICODE}"')), BrokenDecision),
    "payment id": (lambda tasks, _: credit_one(tasks, PaymentId(NOT_UNICODE), "wire-2"), BrokenDecision),
    "credit id": (lambda tasks, one: credit_one(tasks, one, NOT_UNICODE), BrokenDecision),
}


@pytest.mark.parametrize("bad", [*BAD_DECISIONS, *BAD_CALLS])
def test_bad_call_fails_alone(tasks: AsyncSqliteStore, store: SqliteStore, bad: str) -> None:
    """The other calls of the batch are committed."""
    id = create(store)
    if bad in BAD_DECISIONS:
        decide, error = BAD_DECISIONS[bad]
        call = tasks.update(id, decide)
    else:
        make, error = BAD_CALLS[bad]
        call = make(tasks, id)
    outcomes = in_one_batch(credit_one(tasks, id, "wire-1"), call, credit_one(tasks, id, "wire-3"))
    assert type(outcomes.pop(1)) is error
    assert [credit.received.value for credit in outcomes] == [1, 2]
    check_credits(store, id, outcomes)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), SystemExit(3), KeyboardInterrupt(), StopIteration()])
def test_any_exception_of_decide_reaches_its_caller(store: SqliteStore, error: BaseException) -> None:
    """The writer continues."""
    id = create(store)
    with pytest.raises(type(error)) as raised:
        store.update(id, raising(error))
    assert raised.value is error
    assert credit(store, id, "wire-1", 1).received.value == 1


@pytest.mark.parametrize("table", ["credits", "events"])
def test_row_that_the_database_refuses_fails_its_call_only(
    tasks: AsyncSqliteStore, store: SqliteStore, path: Path, table: str
) -> None:
    """The writer repeats the batch call by call, so the other credits are committed. The cause of the error stays."""
    id = create(store)
    condition, action = "new.credit_id = 'wire-2'", "SELECT RAISE(ABORT, 'no')"
    edit(path, f"CREATE TRIGGER stop BEFORE INSERT ON {table} WHEN {condition} BEGIN {action}; END")
    outcomes = in_one_batch(*(credit_one(tasks, id, f"wire-{number}") for number in range(5)))
    bad = outcomes.pop(2)
    assert type(bad) is BrokenDecision
    assert bad.description == "the database refused the values to store (no): correct the values that decide returns"
    assert type(bad.__cause__) is sqlite3.IntegrityError
    assert [credit.received.value for credit in outcomes] == [1, 2, 3, 4]
    check_credits(store, id, outcomes)


@pytest.mark.parametrize("kind", ["credit", "close"])
def test_payment_with_another_version_is_not_overwritten(
    tasks: AsyncSqliteStore, store: SqliteStore, path: Path, kind: str
) -> None:
    """Defence in depth: each update names the version that it has read. The writer reads the payment again."""
    one, two = create(store), create(store)
    change = f"UPDATE payments SET version = version + 1 WHERE id = '{two}'"  # noqa: S608
    edit(path, f"CREATE TRIGGER change AFTER UPDATE ON payments WHEN old.id = '{one}' BEGIN {change}; END")
    complete = partial(lifecycle.complete, now=NOW)
    second = credit_one(tasks, two, "wire-1") if kind == "credit" else tasks.update(two, complete)
    in_one_batch(credit_one(tasks, one, "wire-1"), second)
    assert [store.load(id).version for id in (one, two)] == [2, 3]

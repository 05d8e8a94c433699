"""The batches of a SQLite store: which jobs share a commit, what a job sees, and which failures affect one job."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain import lifecycle
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import BrokenDecision, PaymentCompleted, PaymentNotFound, StoreUnavailable, StoreUnusable
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore, _engine, _queue
from incoming_payments.stores.sqlite._queue import Job, Jobs
from incoming_payments.stores.sqlite._rows import Batch
from incoming_payments.stores.sqlite._store import _insertion, _updating
from incoming_payments.stores.sqlite._writer import Writer
from incoming_payments.testing import NOW, a_creation, crediting
from incoming_payments.testing.steps import check_credits, create, credit
from kits.sqlite_jobs import busy_writer, crediting_one, edit, outcomes_of_one_batch, queue, updating


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the database."""
    return tmp_path / "payments.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    """Yield a store in a new file."""
    with SqliteStore(path) as store:
        yield store


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of each batch."""
    sizes: list[int] = []
    run = Writer.run

    def note(writer: Writer, jobs: list[Job[Any]]) -> None:
        run(writer, jobs)
        sizes.append(len(jobs))

    monkeypatch.setattr(Writer, "run", note)
    return sizes


def queue_in_loop(store: AsyncSqliteStore, id: PaymentId, credit_id: str) -> "asyncio.Future[Any]":
    """Queue a credit of one minor unit from a running loop, without waiting for it."""
    return store._write(_updating(id, crediting(credit_id, 1), CreditId(credit_id)))


# --- the queue ---


def test_calls_during_a_batch_share_the_next_commit(store: SqliteStore, path: Path, batches: list[int]) -> None:
    """Twenty calls of one event loop that arrive while the writer is busy are one batch."""
    id = create(store)

    async def scenario() -> list[int]:
        async with AsyncSqliteStore(path) as store:
            with busy_writer(store._engine):
                futures = [queue_in_loop(store, id, f"wire-{n}") for n in range(20)]
            return [credit.received.value for credit in await asyncio.gather(*futures)]

    assert asyncio.run(scenario()) == list(range(1, 21))
    assert [size for size in batches if size][-1] == 20


def test_calls_before_the_lock_share_the_commit(
    store: SqliteStore, path: Path, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that arrive while the writer waits for another process belong to its batch."""
    id = create(store)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        jobs: list[Job[Any]] = []

        def sleep(_: float) -> None:
            jobs.extend(queue(store, id, crediting(f"wire-{n}", 1), f"wire-{n}") for n in range(2))
            monkeypatch.undo()
            other.execute("ROLLBACK")

        batches.clear()
        monkeypatch.setattr(time, "sleep", sleep)
        queue(store, id, crediting("wire-2", 1), "wire-2").wait()
    assert [job.wait().received.value for job in jobs] == [2, 3]
    assert batches == [3]


def test_a_batch_grows_until_it_is_full_or_the_queue_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """`take_more` leaves the jobs that do not fit, and the end of the queue with all that follows."""
    monkeypatch.setattr(_queue, "STORE_BATCH_MAX", 4)
    jobs = Jobs()
    waiting = [Job(lambda _: None) for _ in range(4)]
    for job in (*waiting[:3], None, waiting[3]):
        jobs.put(job)
    assert list(jobs.take_more(2)) == waiting[:2]
    assert jobs.expected == 4
    assert list(jobs.take_more(2)) == waiting[2:3]
    assert list(jobs.take_more(0)) == []
    assert jobs.take() == [None, waiting[3]]


@pytest.mark.parametrize("end", ["closing", "a fork", "another loop", "a fork's child"])
def test_updates_of_a_closed_loop_are_committed(store: SqliteStore, path: Path, end: str) -> None:
    """An update is committed even if its loop stops and closes directly after the call."""
    id = create(store)
    other = AsyncSqliteStore(path)
    loop = asyncio.new_event_loop()
    loop.call_soon(queue_in_loop, other, id, "wire-1")
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    if end == "another loop":
        asyncio.run(other.update(id, crediting("wire-2", 1), CreditId("wire-2")))
    elif end != "closing":
        _engine._before_fork()
        if end == "a fork":
            _engine._after_fork_in_parent()
        else:
            _engine._after_fork_in_child()
        assert store.load(id).received.value == 1
    asyncio.run(other.close())
    assert store.load(id).received.value == (2 if end == "another loop" else 1)


def test_many_loops_and_threads_share_a_store(store: SqliteStore, path: Path) -> None:
    """Three loops and a thread get an answer to every call, and every credit is stored once."""
    id = create(store)
    other = AsyncSqliteStore(path)
    credited: dict[str, Any] = {}

    async def call(name: str) -> None:
        for turn in range(10):
            credit_id = f"{name}-{turn}"
            credited[credit_id] = await other.update(id, crediting(credit_id, 1), CreditId(credit_id))

    async def calls(loop: int) -> None:
        await asyncio.gather(*(call(f"wire-{loop}-{number}") for number in range(5)))

    threads = [threading.Thread(target=lambda loop=loop: asyncio.run(calls(loop))) for loop in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(10):
        credited[f"thread-{turn}"] = credit(store, id, f"thread-{turn}", 1)
    for thread in threads:
        thread.join(60)
    asyncio.run(other.close())
    assert len(credited) == 160
    check_credits(store, id, credited.values())


def test_full_queue_refuses_tasks_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call raises `StoreUnavailable` before it waits. The queued updates are committed."""
    monkeypatch.setattr(_queue, "STORE_QUEUE_MAX", 2)

    async def scenario() -> list[int]:
        async with AsyncSqliteStore(path) as store:
            created = a_creation()
            await store.insert(created)
            id = created.answer.id
            with busy_writer(store._engine):
                futures = [queue_in_loop(store, id, f"wire-{number}") for number in range(2)]
                with pytest.raises(StoreUnavailable, match=r"^2 updates are waiting already: repeat the call later$"):
                    queue_in_loop(store, id, "wire-3")
            return [(await future).received.value for future in futures]

    assert asyncio.run(scenario()) == [1, 2]


def test_as_many_jobs_are_expected_as_the_last_batches_had() -> None:
    """Their callers may call again. After smaller batches, fewer are expected, step by step."""
    jobs = Jobs()
    expected = []
    for count in (3, 1, 1, 1, 2):
        for _ in range(count):
            jobs.put(Job(lambda _: None))
        jobs.take()
        expected.append(jobs.expected)
    assert expected == [3, 2, 1, 1, 2]


@pytest.mark.parametrize(
    ("expected", "taken", "sleeps_expected"),
    [(0, 1, 0), (1, 1, 0), (2, 2, 1), (4, 4, 3), (9, 4, 4)],
    ids=["none expected", "as expected", "one more", "three more", "more than arrive"],
)
def test_take_waits_for_the_expected_jobs(
    monkeypatch: pytest.MonkeyPatch, expected: int, taken: int, sleeps_expected: int
) -> None:
    """The jobs that arrive meanwhile are in the same batch. The writer stops waiting when no more arrive."""
    jobs = Jobs()
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) <= 3:
            jobs.put(Job(lambda _: None))

    monkeypatch.setattr(time, "sleep", sleep)
    jobs.expected = expected
    jobs.put(Job(lambda _: None))
    assert len(jobs.take()) == taken
    assert sleeps == [0] * sleeps_expected


def test_event_loop_wakes_the_writer_at_the_end_of_its_turn() -> None:
    """The jobs of one turn are in one batch, however long the turn takes."""
    jobs = Jobs()
    batches: list[list[Job[Any] | None]] = []
    writer = threading.Thread(target=lambda: batches.append(jobs.take()))

    async def turn() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            jobs.put(Job(lambda _: None, loop))
            time.sleep(0.01)  # noqa: ASYNC251 - a turn that is long enough for the writer
        await asyncio.to_thread(writer.join)

    writer.start()
    asyncio.run(turn())
    assert [len(batch) for batch in batches] == [3]


@pytest.mark.parametrize(
    ("expected", "arrivals", "wake_ups"),
    [
        pytest.param(1, [1, 1, 0, 1], [(1, 1), (2, 2), (4, 3)], id="one caller: after each turn"),
        pytest.param(2, [1, 0, 0, 0, 0, 0], [(5, 1)], id="no more arrive: after four more turns"),
        pytest.param(2, [1, 0, 0, 0, 1, 1, 0, 0], [(7, 3)], id="more arrive: after the first turn without any"),
        pytest.param(2, [4] * 5, [(4, 16), (5, 20)], id="enough for one commit"),
        pytest.param(2, [1, 0, 0, 0, *[1] * 14], [(17, 14), (18, 15)], id="always more: after sixteen more turns"),
    ],
)
def test_event_loop_waits_for_more_jobs_some_turns(
    monkeypatch: pytest.MonkeyPatch, expected: int, arrivals: list[int], wake_ups: list[tuple[int, int]]
) -> None:
    """It wakes the writer once enough jobs wait, or when no more arrive."""
    jobs = Jobs()
    jobs.expected = expected
    woken: list[tuple[int, int]] = []  # the turn, and the jobs that wait
    turn = 0
    monkeypatch.setattr(jobs, "_wake", lambda: woken.append((turn, len(jobs))))

    async def scenario() -> None:
        nonlocal turn
        for count in arrivals:
            for _ in range(count):
                jobs.put(Job(lambda _: None, asyncio.get_running_loop()))
            turn += 1
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert woken[: len(wake_ups)] == wake_ups


def test_batch_takes_as_many_jobs_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other jobs are in the next batch. The writer does not wait for more once a batch is full."""
    monkeypatch.setattr(_queue, "STORE_BATCH_MAX", 3)
    jobs = Jobs()
    sleeps: list[float] = []
    monkeypatch.setattr(time, "sleep", sleeps.append)
    for waiting, batches, sleeps_expected in ((6, [3, 3], 0), (4, [3, 1], 1), (2, [2], 1)):
        for _ in range(waiting):
            jobs.put(Job(lambda _: None))
        assert [len(jobs.take()) for _ in batches] == batches
        assert len(sleeps) == sleeps_expected


# --- statements ---


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the first words of each statement on the credits, from connections that open later."""
    noted: list[str] = []
    connect = sqlite3.connect

    def note(statement: str) -> None:
        if "credits" in statement:
            noted.append(" ".join(statement.split()[:2]))

    def connect_and_trace(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **settings)
        connection.set_trace_callback(note)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_and_trace)
    return noted


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        (1, ["SELECT amount,", "INSERT INTO"]),
        (2, ["WITH wanted", "INSERT INTO"]),
        (4, ["WITH wanted", "INSERT INTO"]),
        (5, ["WITH wanted"] * 2 + ["INSERT INTO"] * 2),
    ],
)
def test_batch_shares_its_statements(path: Path, statements: list[str], jobs: int, expected: list[str]) -> None:
    """A batch reads and writes its credits in few statements, each for a power of two."""
    with SqliteStore(path) as store:
        id = create(store)
        statements.clear()
        outcomes_of_one_batch(store, [crediting_one(id, f"wire-{number}") for number in range(jobs)])
        assert statements == expected


def test_calls_of_threads_and_tasks_share_their_statements(path: Path, statements: list[str]) -> None:
    """`update` names the credit that it looks up, so the writer can read the credits of a batch together."""

    async def from_tasks(id: PaymentId) -> None:
        async with AsyncSqliteStore(path) as store:
            with busy_writer(store._engine):
                statements.clear()
                calls = [
                    asyncio.create_task(store.update(id, crediting(name, 1), CreditId(name))) for name in ("a", "b")
                ]
                await asyncio.sleep(0)
            await asyncio.gather(*calls)

    with SqliteStore(path) as store:
        id = create(store)
        threads = [threading.Thread(target=credit, args=(store, id, name, 1)) for name in ("c", "d")]
        with busy_writer(store._engine):
            statements.clear()
            for thread in threads:
                thread.start()
            assert store._engine._writer is not None
            while len(store._engine._writer[1].jobs) < 2:
                time.sleep(0.001)
        for thread in threads:
            thread.join()
        assert statements == ["WITH wanted", "INSERT INTO"]
        asyncio.run(from_tasks(id))
        assert statements == ["WITH wanted", "INSERT INTO"]


def test_decision_gets_the_payment_that_the_last_one_stored(store: SqliteStore) -> None:
    """The writer builds it again only when its row has changed."""
    id = create(store)
    stored: list[IncomingPayment | None] = []
    seen: list[IncomingPayment] = []

    def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[Credit]:
        decision = crediting(f"wire-{len(stored)}", 1)(payment, earlier)
        seen.append(payment)
        stored.append(decision.payment)
        return decision

    for number in range(3):
        store.update(id, decide, CreditId(f"wire-{number}"))
    assert [after is before for after, before in zip(stored[:-1], seen[1:], strict=True)] == [True, True]


# --- the view of a job ---


def test_a_job_sees_the_decisions_of_earlier_jobs(store: SqliteStore) -> None:
    """One batch misses a payment, creates it, credits it, closes it, and refuses the next credit."""
    created = a_creation()
    id = created.answer.id
    missing, _, first, again, second, closed, late = outcomes_of_one_batch(
        store,
        [
            crediting_one(id, "wire-1"),
            Job(_insertion(created)),
            crediting_one(id, "wire-1"),
            crediting_one(id, "wire-1"),
            crediting_one(id, "wire-2"),
            updating(id, partial(lifecycle.complete, now=NOW)),
            crediting_one(id, "wire-3"),
        ],
    )
    assert type(missing) is PaymentNotFound
    assert (first.received.value, second.received.value) == (1, 2)
    assert again == first
    assert closed.closed_at == NOW
    assert type(late) is PaymentCompleted
    assert store.load(id).received.value == 2


def test_a_batch_finds_credits_of_earlier_batches(store: SqliteStore) -> None:
    """A duplicate gets the first answer. The same credit id in another payment is another credit."""
    one, two = create(store), create(store)
    before = {(id, n): credit(store, id, f"wire-{n}", 1) for id in (one, two) for n in (1, 3)}
    keys = [(id, n) for n in range(1, 5) for id in (one, two)]
    outcomes = dict(
        zip(keys, outcomes_of_one_batch(store, [crediting_one(id, f"wire-{n}") for id, n in keys]), strict=True)
    )

    assert before == {key: outcomes[key] for key in before}
    assert (
        [outcomes[one, n].received.value for n in (2, 4)] == [outcomes[two, n].received.value for n in (2, 4)] == [3, 4]
    )


def test_a_batch_reads_the_updates_of_other_processes(store: SqliteStore, path: Path) -> None:
    """The next batch on the same connection sees them, because a batch keeps nothing of the one before."""
    ids = [create(store) for _ in range(2)]
    writer = Writer(store._engine._file)
    with SqliteStore(path) as other:
        for turn in range(3):
            jobs = [crediting_one(id, f"wire-{turn}") for id in ids]
            writer.run(jobs)
            assert [2 * turn + 1] * 2 == [job.wait().received.value for job in jobs]
            assert writer._open is not None
            for kept in ("_changed", "_credits", "_events"):
                assert not getattr(writer._open.batch, kept)
            for id in ids:
                credit(other, id, f"other-{turn}", 1)
    writer.disconnect()


@pytest.mark.parametrize("count", [1, 2])
def test_a_payment_with_another_version_is_not_overwritten(store: SqliteStore, count: int) -> None:
    """Defence in depth: each update names the version that it has read."""
    ids = [create(store) for _ in range(count)]
    connection = store._engine._file.connect_writer()
    batch = Batch(connection)
    credits = [(batch.payment(id), crediting("wire-1", 1)(batch.payment(id), None)) for id in ids]
    for before, decision in credits:
        assert decision.payment is not None
        batch.update(before, decision.payment, decision)
    credit(store, ids[-1], "wire-2", 1)
    with pytest.raises(StoreUnusable) as caught:
        batch.flush()
    assert caught.value.description == (
        "a payment was not there to update, although this transaction had read it: check the database"
    )
    store._engine._file.disconnect(connection)


# --- failures of one job ---


@pytest.mark.parametrize("key", [("\ud800", "wire-2"), ("no such", "\ud800")])
def test_a_key_that_is_not_unicode_fails_its_job_only(store: SqliteStore, key: tuple[str, str]) -> None:
    """SQLite cannot store a lone surrogate, be it in a payment id or in a credit id."""
    id = create(store)
    payment = id if key[0] == "no such" else PaymentId(key[0])
    first, bad, last = outcomes_of_one_batch(
        store, [crediting_one(id, "wire-1"), crediting_one(payment, key[1]), crediting_one(id, "wire-3")]
    )
    assert type(bad) is BrokenDecision
    assert (first.received.value, last.received.value) == (1, 2)


@pytest.mark.parametrize("table", ["credits", "events"])
def test_a_row_that_the_database_refuses_fails_its_job_only(store: SqliteStore, path: Path, table: str) -> None:
    """The writer repeats the batch job by job, so the other credits are committed. The cause of the error stays."""
    id = create(store)
    condition, action = "new.credit_id = 'wire-2'", "SELECT RAISE(ABORT, 'no')"
    edit(path, f"CREATE TRIGGER stop BEFORE INSERT ON {table} WHEN {condition} BEGIN {action}; END")
    outcomes = outcomes_of_one_batch(store, [crediting_one(id, f"wire-{number}") for number in range(5)])
    bad = outcomes.pop(2)
    assert type(bad) is BrokenDecision
    assert bad.description == "the database refused the values to store: no"
    assert type(bad.__cause__) is sqlite3.IntegrityError
    assert [credit.received.value for credit in outcomes] == [1, 2, 3, 4]
    check_credits(store, id, outcomes)

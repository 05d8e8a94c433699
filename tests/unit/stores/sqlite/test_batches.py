"""How the writer of a SQLite store is woken, what it reads ahead, and that it reads and writes many rows at once."""

import asyncio
import itertools
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from incoming_payments.domain import lifecycle
from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.errors import BrokenDecision, PaymentCompleted, PaymentNotFound, StoreUnavailable, StoreUnusable
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore, _engine, _rows, _writer
from incoming_payments.stores.sqlite._engine import Engine
from incoming_payments.stores.sqlite._file import DatabaseFile
from incoming_payments.stores.sqlite._queue import Job, Jobs
from incoming_payments.stores.sqlite._rows import Batch
from incoming_payments.stores.sqlite._store import _insertion, _updating
from incoming_payments.stores.sqlite._writer import Writer
from incoming_payments.testing import NOW, a_creation, crediting
from incoming_payments.testing.steps import check_credits, create, credit
from kits.sqlite_jobs import crediting_one, edit, held, outcomes_of_one_batch, queue, updating

TABLES: Final = {"payments", "credits", "events"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file of a test goes."""
    return tmp_path / "payments.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    """A store in a new file."""
    with SqliteStore(path) as store:
        yield store


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each batch has had, from now on."""
    sizes: list[int] = []
    run = Writer.run

    def note(writer: Writer, jobs: Sequence[Job[Any]]) -> None:
        sizes.append(len(jobs))
        run(writer, jobs)

    monkeypatch.setattr(Writer, "run", note)
    return sizes


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that begins asleep, and does not look round before somebody rings."""
    serve = _writer.serve

    def serve_when_rung(file: DatabaseFile, jobs: Jobs) -> None:
        jobs._wake_ups.get()
        serve(file, jobs)

    monkeypatch.setattr(_engine, "serve", serve_when_rung)


def ask(store: AsyncSqliteStore, id: PaymentId, credit_id: str) -> "asyncio.Future[Any]":
    """Ask in a running loop for one minor unit to be booked, without waiting for it."""
    credit = CreditId(credit_id)
    return store._write(_updating(id, crediting(credit_id, 1), credit), lookup=(id, credit))


def ask_in_a_loop_that_stops(store: AsyncSqliteStore, id: PaymentId, credit_id: str) -> None:
    """Ask in a loop that ends with that turn, so that it never rings."""
    loop = asyncio.new_event_loop()
    loop.call_soon(ask, store, id, credit_id)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()


# --- the bell ---


def test_a_loop_rings_when_its_turn_is_over() -> None:
    """Once, for all that was asked in it; and for what is asked in the next turn again."""

    async def scenario() -> None:
        jobs, loop = Jobs(), asyncio.get_running_loop()
        for turn in (1, 2):
            for _ in range(3):
                jobs.put(Job(lambda _: None, loop.create_future()))
            assert (len(jobs), jobs._wake_ups.qsize()) == (3 * turn, 0)
            await asyncio.sleep(0)
            assert jobs._wake_ups.qsize() == 1
            jobs._wake_ups.get()

    asyncio.run(scenario())


def test_a_thread_rings_at_once() -> None:
    """It asks for nothing more before it is answered. One bell is enough for all who come before it is heard."""
    jobs = Jobs()
    for _ in range(3):
        jobs.put(Job(lambda _: None))
    assert (len(jobs), jobs._wake_ups.qsize()) == (3, 1)


def test_an_interrupt_does_not_silence_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come when a loop is about to be told: then the next job tells it."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    async def scenario() -> None:
        jobs, loop = Jobs(), asyncio.get_running_loop()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon", interrupt)
            with pytest.raises(KeyboardInterrupt):
                jobs.put(Job(lambda _: None, loop.create_future()))
        jobs.put(Job(lambda _: None, loop.create_future()))
        await asyncio.sleep(0)
        assert (len(jobs), jobs._wake_ups.qsize()) == (1, 1)

    asyncio.run(scenario())


@pytest.mark.usefixtures("asleep")
def test_the_calls_of_one_turn_share_a_commit(store: SqliteStore, path: Path, batches: list[int]) -> None:
    """However soon the writer could have begun with the first of them."""
    id = create(store)
    batches.clear()

    async def scenario() -> list[int]:
        async with AsyncSqliteStore(path) as store:
            calls = [store.update(id, crediting(f"wire-{n}", 1), CreditId(f"wire-{n}")) for n in range(20)]
            return [credit.received.value for credit in await asyncio.gather(*calls)]

    assert asyncio.run(scenario()) == list(range(1, 21))
    assert [size for size in batches if size] == [20]


@pytest.mark.usefixtures("asleep")
@pytest.mark.parametrize("end", ["closing", "a fork", "another loop", "a fork's child"])
def test_what_a_loop_asked_in_its_last_turn_is_done(store: SqliteStore, path: Path, end: str) -> None:
    """Though it is gone, and never rang: when the store is closed, the process forks, or somebody else asks."""
    id = create(store)
    other = AsyncSqliteStore(path)
    ask_in_a_loop_that_stops(other, id, "wire-1")
    assert store.load(id).received.value == 0
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
    """Each loop rings for itself, and nobody is left waiting."""
    id = create(store)
    other = AsyncSqliteStore(path)
    booked: dict[str, Any] = {}

    async def call(name: str) -> None:
        for turn in range(10):
            credit_id = f"{name}-{turn}"
            booked[credit_id] = await other.update(id, crediting(credit_id, 1), CreditId(credit_id))

    async def calls(loop: int) -> None:
        await asyncio.gather(*(call(f"wire-{loop}-{number}") for number in range(5)))

    threads = [threading.Thread(target=lambda loop=loop: asyncio.run(calls(loop))) for loop in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(10):
        booked[f"thread-{turn}"] = credit(store, id, f"thread-{turn}", 1)
    for thread in threads:
        thread.join(60)
    asyncio.run(other.close())
    assert len(booked) == 160
    check_credits(store, id, booked.values())


def test_too_many_tasks_are_refused_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call itself raises, as that of a thread does; those that wait are served."""
    monkeypatch.setattr(_engine, "STORE_QUEUE_MAX", 2)

    async def scenario() -> list[int]:
        async with AsyncSqliteStore(path) as store:
            created = a_creation()
            await store.insert(created)
            id = created.answer.id
            with held(store._engine):
                futures = [ask(store, id, f"wire-{number}") for number in range(2)]
                with pytest.raises(StoreUnavailable):
                    ask(store, id, "wire-3")
            return [(await future).received.value for future in futures]

    assert asyncio.run(scenario()) == [1, 2]


@pytest.mark.parametrize(("callers", "expected"), [("threads", [False, False, True]), ("tasks", [False, False, False])])
def test_the_writer_gives_way_to_threads_only(
    path: Path, monkeypatch: pytest.MonkeyPatch, callers: str, expected: list[bool]
) -> None:
    """After a batch of theirs. A loop has asked for all of its turn when it rings."""
    takes: list[bool] = []
    take = Jobs.take

    def note(jobs: Jobs, *, patiently: bool) -> list[Job[Any] | None]:
        takes.append(patiently)
        return take(jobs, patiently=patiently)

    monkeypatch.setattr(Jobs, "take", note)
    with SqliteStore(path) as threads:
        id = create(threads)
    takes.clear()

    def from_threads() -> None:
        with SqliteStore(path) as store:
            with held(store._engine):
                jobs = [queue(store, id, crediting(f"wire-{number}", 1), f"wire-{number}") for number in range(3)]
            for job in jobs:
                job.wait()

    async def from_tasks() -> None:
        async with AsyncSqliteStore(path) as store:
            with held(store._engine):
                futures = [ask(store, id, f"wire-{number}") for number in range(3)]
            await asyncio.gather(*futures)

    if callers == "threads":
        from_threads()
    else:
        asyncio.run(from_tasks())
    assert expected == takes  # what keeps the writer, the batch, the end


def test_giving_way_lasts_as_long_as_more_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come meanwhile are in the same batch. Who does not wait patiently takes what is there."""
    jobs = Jobs()
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) <= 3:
            jobs.put(Job(lambda _: None))

    monkeypatch.setattr(time, "sleep", sleep)
    for patiently, expected in ((False, 1), (True, 4)):
        jobs.put(Job(lambda _: None))
        assert len(jobs.take(patiently=patiently)) == expected
    assert sleeps == [0] * 4


# --- what is read ahead ---


def test_updates_say_what_they_will_ask_for(store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of threads and those of tasks; nobody else does."""
    asked: list[object] = []
    submit = Engine.submit

    def note(engine: Engine, job: Job[Any]) -> None:
        asked.append(job.lookup)
        submit(engine, job)

    monkeypatch.setattr(Engine, "submit", note)
    id = create(store)
    credit(store, id, "wire-1", 1)
    store.update(id, partial(lifecycle.complete, now=NOW))

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as other:
            await other.update(id, crediting("wire-1", 1), CreditId("wire-1"))
            await other.nonces.use("0" * 64, NOW, NOW)

    asyncio.run(scenario())
    assert asked == [None, (id, "wire-1"), (id, None), (id, "wire-1"), None]


class Traced(sqlite3.Connection):
    """A connection that notes the beginnings of what it executes."""

    executed: ClassVar[list[str]] = []

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        """And note it."""
        self.executed.append(" ".join(sql.split(" ", 3)[:3]))
        return super().execute(sql, *arguments)

    def executemany(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        """And note it."""
        self.executed.append(" ".join(sql.split(" ", 3)[:3]))
        return super().executemany(sql, *arguments)


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The beginnings of all statements on connections that are opened from now on."""
    noted: list[str] = []
    monkeypatch.setattr(Traced, "executed", noted)
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Traced))
    return noted


@pytest.mark.parametrize(
    ("payments", "credits", "expected"),
    [
        pytest.param(1, 1, ["SELECT version, received_amount,", "SELECT amount, received_amount,"], id="a job alone"),
        pytest.param(2, 2, ["WITH asked (payment)", "WITH asked (payment,"], id="two jobs"),
        pytest.param(1, 64, ["WITH asked (payment)", "WITH asked (payment,"], id="one payment"),
        pytest.param(5, 37, ["WITH asked (payment)"] * 2 + ["WITH asked (payment,"] * 3, id="several payments"),
    ],
)
def test_a_batch_takes_few_statements(
    store: SqliteStore, executed: list[str], payments: int, credits: int, expected: list[str]
) -> None:
    """As many as there are ones in the binary number of its rows."""
    ids = [create(store) for _ in range(payments)]
    jobs = [crediting_one(id, f"wire-{n}") for n, id in zip(range(credits), itertools.cycle(ids))]
    executed.clear()
    assert all(credit.received.value for credit in outcomes_of_one_batch(store, jobs))

    begun = executed[executed.index("BEGIN IMMEDIATE") :]
    assert begun == [
        "BEGIN IMMEDIATE",
        "PRAGMA user_version",
        *expected,
        *["UPDATE payments SET"] * payments.bit_count(),
        *["INSERT INTO credits"] * credits.bit_count(),
        *["INSERT INTO events"] * credits.bit_count(),
        "COMMIT",
        "PRAGMA wal_checkpoint(PASSIVE)",  # when it disconnects
    ]
    assert sum(store.load(id).received.value for id in ids) == credits


def test_a_database_that_takes_few_variables_has_more_statements(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was built, or set."""
    connect = DatabaseFile.connect_writer

    def connect_narrow(file: DatabaseFile) -> sqlite3.Connection:
        connection = connect(file)
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 20)
        return connection

    monkeypatch.setattr(DatabaseFile, "connect_writer", connect_narrow)
    ids = [create(store) for _ in range(7)]
    jobs = [crediting_one(id, f"wire-{n}") for n, id in zip(range(49), itertools.cycle(ids))]
    outcomes = outcomes_of_one_batch(store, jobs)
    for id in ids:
        assert store.load(id).received.value == 7
        check_credits(store, id, [credit for credit in outcomes if credit.payment_id == id])


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 256])
@pytest.mark.parametrize(
    ("statement", "searched"),
    [
        (_rows._FIND_PAYMENTS, "SEARCH payments USING PRIMARY KEY (id=?)"),
        (_rows._FIND_CREDITS, "SEARCH credits USING PRIMARY KEY (payment_id=? AND credit_id=?)"),
        (_rows._UPDATE_TOTALS, "SEARCH payments USING PRIMARY KEY (id=?)"),
        (_rows._INSERT_CREDIT, None),
        (_rows._INSERT_EVENT, None),
    ],
)
def test_no_statement_for_many_rows_reads_a_whole_table(
    store: SqliteStore, path: Path, statement: str, searched: str | None, count: int, analyzed: bool
) -> None:
    """Whatever SQLite has been told of the tables' sizes."""
    credit(store, create(store), "wire-1", 1)
    if analyzed:
        edit(path, "ANALYZE")
    connection = store._engine._file.connect_reader()
    sql = _rows._for_many(statement, count)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", ["x"] * sql.count("?"))]
    store._engine._file.disconnect(connection)
    assert count * statement.count("?") == sql.count("?")
    assert TABLES.isdisjoint(step.split()[1] for step in plan if step.startswith("SCAN"))
    assert ([] if searched is None else [searched]) == [step for step in plan if step.startswith("SEARCH")]


def test_what_was_not_announced_is_looked_up(store: SqliteStore) -> None:
    """Work may ask for anything: a payment or a credit that nobody has named, or that another job has."""
    one, two = create(store), create(store)
    booked = credit(store, two, "wire-1", 7)
    works = [_updating(id, crediting("wire-1", 7), CreditId("wire-1")) for id in (one, two)]
    jobs = [
        Job(works[0], lookup=(one, None)),
        Job(works[1]),
        crediting_one(one, "wire-2"),
        Job(works[0], lookup=(two, None)),
    ]
    outcomes = outcomes_of_one_batch(store, jobs)

    assert outcomes[1] == booked
    assert outcomes[3] == outcomes[0]
    assert (outcomes[0].received.value, outcomes[2].received.value) == (7, 8)


def test_what_earlier_jobs_decided_goes_before_what_was_read(store: SqliteStore) -> None:
    """A payment that was not there is created, credited, closed and refuses: all in one batch."""
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


def test_what_was_booked_before_is_found_ahead(store: SqliteStore) -> None:
    """Of other batches, and under the same id in another payment it is another credit."""
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


def test_a_row_that_another_process_has_changed_is_read_anew(store: SqliteStore, path: Path) -> None:
    """By the next batch of the same connection; nothing that was read ahead stays in memory."""
    ids = [create(store) for _ in range(2)]
    writer = Writer(store._engine._file)
    with SqliteStore(path) as other:
        for turn in range(3):
            jobs = [crediting_one(id, f"wire-{turn}") for id in ids]
            writer.run(jobs)
            assert [2 * turn + 1] * 2 == [job.wait().received.value for job in jobs]
            assert writer._open is not None
            for kept in ("_payment_rows", "_credit_rows", "_changed", "_credits", "_events"):
                assert not getattr(writer._open.batch, kept)
            for id in ids:
                credit(other, id, f"other-{turn}", 1)
    writer.disconnect()


@pytest.mark.parametrize("count", [1, 2])
def test_a_payment_that_is_not_as_it_was_read_is_not_written(store: SqliteStore, count: int) -> None:
    """Defence in depth: by its version, whether one is written or many."""
    ids = [create(store) for _ in range(count)]
    connection = store._engine._file.connect_writer()
    batch = Batch(connection)
    credits = [(batch.payment(id), crediting("wire-1", 1)(batch.payment(id), None)) for id in ids]
    for before, decision in credits:
        assert decision.payment is not None
        batch.update(before, decision.payment, decision)
    credit(store, ids[-1], "wire-2", 1)
    with pytest.raises(StoreUnusable, match="not there to update"):
        batch.flush()
    store._engine._file.disconnect(connection)


# --- what fails alone ---


@pytest.mark.parametrize("key", [("\ud800", "wire-2"), ("no such", "\ud800")])
def test_a_key_that_is_not_unicode_fails_alone(store: SqliteStore, key: tuple[str, str]) -> None:
    """Also where it is what was to be read ahead."""
    id = create(store)
    payment = id if key[0] == "no such" else PaymentId(key[0])
    first, bad, last = outcomes_of_one_batch(
        store, [crediting_one(id, "wire-1"), crediting_one(payment, key[1]), crediting_one(id, "wire-3")]
    )
    assert type(bad) is BrokenDecision
    assert (first.received.value, last.received.value) == (1, 2)


@pytest.mark.parametrize("table", ["credits", "events"])
def test_a_row_that_the_file_refuses_fails_alone(store: SqliteStore, path: Path, table: str) -> None:
    """Though one statement writes the rows of many."""
    id = create(store)
    condition, action = "new.credit_id = 'wire-2'", "SELECT RAISE(ABORT, 'no')"
    edit(path, f"CREATE TRIGGER stop BEFORE INSERT ON {table} WHEN {condition} BEGIN {action}; END")
    outcomes = outcomes_of_one_batch(store, [crediting_one(id, f"wire-{number}") for number in range(5)])
    assert type(outcomes.pop(2)) is BrokenDecision
    assert [credit.received.value for credit in outcomes] == [1, 2, 3, 4]
    check_credits(store, id, outcomes)

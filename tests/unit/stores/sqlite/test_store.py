"""The SQLite stores keep the contract, and their word about durability, batches and asyncio."""

import asyncio
import gc
import signal
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import (
    BrokenDecision,
    InvalidValue,
    PaymentNotFound,
    StoreUnavailable,
)
from incoming_payments.ports import Decide, Nonces, PaymentStore
from incoming_payments.stores.sqlite import (
    AsyncSqliteNonces,
    AsyncSqliteStore,
    SqliteNonces,
    SqliteStore,
    _engine,
    _rows,
    _writer,
)
from incoming_payments.stores.sqlite._queue import Job
from incoming_payments.testing import NOW, SyncNonces, SyncView, a_creation, crediting
from incoming_payments.testing.contract import StoreContract
from incoming_payments.testing.nonces import KEYS, NonceContract
from incoming_payments.testing.steps import create, credit
from kits.sqlite_jobs import busy_writer, queue


class TestSqliteStore(StoreContract):
    """The contract suite against `SqliteStore`."""

    def make_store(self, directory: Path) -> PaymentStore:
        """A store in a new file."""
        return SqliteStore(directory / "payments.db")


class TestAsyncSqliteStore(StoreContract):
    """The contract suite against `AsyncSqliteStore`, whose callers are concurrent tasks of one event loop."""

    def make_store(self, directory: Path) -> PaymentStore:
        """A store in a new file, in an event loop of its own."""

        async def open_store() -> AsyncSqliteStore:
            return AsyncSqliteStore(directory / "payments.db")

        return SyncView(open_store, AsyncSqliteStore.close)


class TestSqliteNonces(NonceContract):
    """The contract suite against `SqliteNonces`."""

    def make_nonces(self, directory: Path) -> Nonces:
        """In a new file."""
        return SqliteNonces(SqliteStore(directory / "payments.db"), self.capacity)

    def close_nonces(self, nonces: Nonces) -> None:
        """Close the store they are in."""
        assert isinstance(nonces, SqliteNonces)
        nonces._store.close()


class TestAsyncSqliteNonces(NonceContract):
    """The contract suite against `AsyncSqliteNonces`, whose callers are concurrent tasks of one event loop."""

    def make_nonces(self, directory: Path) -> Nonces:
        """In a new file, in an event loop of their own."""

        async def open_store() -> AsyncSqliteStore:
            return AsyncSqliteStore(directory / "payments.db")

        view = SyncView(open_store, AsyncSqliteStore.close)
        assert isinstance(view.store, AsyncSqliteStore)
        return SyncNonces(view, AsyncSqliteNonces(view.store, self.capacity))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file of a test goes."""
    return tmp_path / "payments.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    """A store in a new file."""
    with SqliteStore(path, busy_s=0.05) as store:
        yield store


def raising(error: BaseException) -> Decide[Any]:
    """A decision that raises `error`."""

    def decide(_payment: IncomingPayment, _earlier: Credit | None) -> Decision[Any]:
        raise error

    return decide


# --- durability ---


def test_what_was_acknowledged_is_there_after_reopening(path: Path) -> None:
    """Payment, credits and events outlive the store object."""
    with SqliteStore(path) as store:
        id = create(store)
        booked = credit(store, id, "wire-1", 300)
        before = store.load(id), list(store.events(id))

    with SqliteStore(path) as store:
        assert before == (store.load(id), list(store.events(id)))
        assert booked == credit(store, id, "wire-1", 300)


def test_other_connections_see_an_update_as_soon_as_it_is_answered(store: SqliteStore, path: Path) -> None:
    """An answer is given after the commit. And an auditor can read the file: amounts are decimal text."""
    id = create(store)
    connection = sqlite3.connect(path)
    for number in range(1, 4):
        credit(store, id, f"wire-{number}", 2**62)

        row = connection.execute("SELECT received_amount FROM payments WHERE id = ?", (id,)).fetchone()
        assert row == (str(number * 2**62),)
    connection.close()


def test_the_writer_syncs_every_commit(store: SqliteStore) -> None:
    """`synchronous` is FULL (2) and the journal a write-ahead log; readers cannot write."""
    file = store._engine._file
    writer, reader = file.connect_writer(), file.connect_reader()
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    with pytest.raises(sqlite3.OperationalError):
        reader.execute("DELETE FROM payments")
    file.disconnect(writer)
    file.disconnect(reader)


def test_updates_of_other_stores_on_the_file_are_seen(store: SqliteStore, path: Path) -> None:
    """A store remembers rows it has read, and uses them only while they are what the file says."""
    id = create(store)
    credit(store, id, "wire-1", 1)
    with SqliteStore(path) as other:
        for number in range(2, 6):
            one = store if number % 2 else other
            assert credit(one, id, f"wire-{number}", 1).received.value == number
            assert store.load(id) == other.load(id)


def test_a_store_remembers_few_payments(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its memory does not grow with the table."""
    monkeypatch.setattr(_rows, "_LOADED_MAX", 2)
    ids = [create(store) for _ in range(5)]
    for turn in range(2):
        for id in ids:
            assert credit(store, id, f"wire-{turn}", 1).received.value == turn + 1
            assert store.load(id).received.value == turn + 1
    (_, rows) = store._engine._idle[0]
    assert len(rows._loaded) == 2


# --- batches ---


def test_a_batch_of_many_payments_shares_a_commit(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of more payments than are remembered: none of its jobs has to be run again."""
    monkeypatch.setattr(_rows, "_LOADED_MAX", 2)
    blamed: list[BaseException] = []
    monkeypatch.setattr(_writer, "blames_the_statement", blamed.append)
    ids = [create(store) for _ in range(6)]
    with busy_writer(store._engine):
        jobs = [queue(store, id, crediting("wire-1", 1), "wire-1") for id in ids]
    assert [job.wait().received.value for job in jobs] == [1] * 6
    assert blamed == []


def test_what_waits_shares_a_commit(store: SqliteStore) -> None:
    """Each job sees what the ones before it decided, also about credit ids, and each gets an answer of its own."""
    id = create(store)
    with busy_writer(store._engine):
        jobs = [queue(store, id, crediting(f"wire-{number % 3}", 5), f"wire-{number % 3}") for number in range(6)]
    answers = [job.wait() for job in jobs]

    assert [answer.received.value for answer in answers] == [5, 10, 15, 5, 10, 15]
    assert store.load(id).received.value == 15
    assert [event.version for event in store.events(id)] == [1, 2, 3, 4]


def test_after_a_crowd_the_writer_waits_for_nobody(store: SqliteStore) -> None:
    """It gives way to callers that come in a crowd; one that comes alone is served all the same."""
    id = create(store)
    for turn in range(3):
        with busy_writer(store._engine):
            jobs = [
                queue(store, id, crediting(f"wire-{turn}-{number}", 1), f"wire-{turn}-{number}") for number in range(3)
            ]
        assert [3 * turn + number for number in (1, 2, 3)] == [job.wait().received.value for job in jobs]
    assert credit(store, id, "wire-alone", 1).received.value == 10
    assert credit(store, id, "wire-again", 1).received.value == 11


@pytest.mark.parametrize("error", [RuntimeError("a bug"), SystemExit(3), KeyboardInterrupt(), StopIteration()])
def test_what_a_decision_raises_is_for_its_caller_only(store: SqliteStore, error: BaseException) -> None:
    """Whatever it is. The others of the batch commit and the writer lives."""
    id = create(store)
    with busy_writer(store._engine):
        first = queue(store, id, crediting("wire-1", 1), "wire-1")
        bad = queue(store, id, raising(error), "wire-2")
        missing = queue(store, PaymentId("no such"), crediting("wire-3", 1), "wire-3")
        last = queue(store, id, crediting("wire-4", 1), "wire-4")

    with pytest.raises(type(error)):
        bad.wait()
    with pytest.raises(PaymentNotFound):
        missing.wait()
    assert (first.wait().received.value, last.wait().received.value) == (1, 2)
    assert store.load(id).received.value == 2


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(None, id="no decision"),
        pytest.param(Decision(None, payment="nonsense"), id="no payment"),  # type: ignore[arg-type]
        pytest.param(Decision(None, events=a_creation().events), id="events without a payment"),
    ],
)
def test_a_decision_that_cannot_be_stored_fails_alone(store: SqliteStore, answer: Any) -> None:
    """Its caller is told that it is broken; the others of the batch commit."""
    id = create(store)
    with busy_writer(store._engine):
        first = queue(store, id, crediting("wire-1", 1), "wire-1")
        bad = queue(store, id, lambda _payment, _earlier: answer)
        last = queue(store, id, crediting("wire-2", 1), "wire-2")

    with pytest.raises(BrokenDecision):
        bad.wait()
    assert (first.wait().received.value, last.wait().received.value) == (1, 2)
    assert store.load(id).received.value == 2


def test_text_that_is_not_unicode_fails_alone(store: SqliteStore) -> None:
    """A lone surrogate cannot be written. That comes up in the midst of a batch, which is run again without it."""
    id = create(store)
    broken = a_creation(metadata='{"ref":"\ud800"}')
    with busy_writer(store._engine):
        first = queue(store, id, crediting("wire-1", 1), "wire-1")
        bad = Job(lambda batch: batch.insert(broken.answer, broken))
        store._engine.submit(bad)
        last = queue(store, id, crediting("wire-2", 1), "wire-2")

    with pytest.raises(BrokenDecision):
        bad.wait()
    assert (first.wait().received.value, last.wait().received.value) == (1, 2)
    with pytest.raises(PaymentNotFound):
        store.load(broken.answer.id)


def test_a_constraint_of_the_file_is_the_last_defence(store: SqliteStore) -> None:
    """What the guard would let through by mistake, the file refuses, and nothing of it stays."""
    created = a_creation()
    with sqlite3.connect(store._engine._file.path) as connection:
        connection.execute("CREATE TRIGGER stop BEFORE INSERT ON payments BEGIN SELECT RAISE(ABORT, 'no'); END")
    connection.close()

    with pytest.raises(BrokenDecision):
        store.insert(created)
    with pytest.raises(PaymentNotFound):
        store.load(created.answer.id)


def test_too_many_waiting_are_refused_at_once(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than queued without end; those that wait are served."""
    monkeypatch.setattr(_engine, "STORE_QUEUE_MAX", 2)
    id = create(store)
    with busy_writer(store._engine):
        jobs = [queue(store, id, crediting(f"wire-{number}", 1), f"wire-{number}") for number in range(2)]
        with pytest.raises(StoreUnavailable):
            credit(store, id, "wire-3", 1)
    assert [job.wait().received.value for job in jobs] == [1, 2]
    assert credit(store, id, "wire-3", 1).received.value == 3


def test_an_interrupted_caller_leaves_the_writer_well(store: SqliteStore) -> None:
    """Ctrl-C ends the waiting; the update happens, and the same call again finds it booked."""
    id = create(store)

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with busy_writer(store._engine):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(KeyboardInterrupt):
                credit(store, id, "wire-1", 1)
    finally:
        signal.signal(signal.SIGALRM, before)

    assert credit(store, id, "wire-1", 1).received.value == 1


# --- asyncio ---


def test_a_cancelled_task_leaves_the_writer_well(path: Path) -> None:
    """While the writer is held the loop goes on; the cancelled update may happen, the others are answered."""

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            created = a_creation()
            await store.insert(created)
            id = created.answer.id
            with busy_writer(store._engine):
                tasks = [
                    asyncio.create_task(store.update(id, crediting(f"wire-{number}", 1), CreditId(f"wire-{number}")))
                    for number in range(3)
                ]
                await asyncio.sleep(0)
                tasks[1].cancel()
                with pytest.raises(asyncio.CancelledError):
                    await tasks[1]
            assert ((await tasks[0]).received.value, (await tasks[2]).received.value) == (1, 3)
            again = await store.update(id, crediting("wire-1", 1), CreditId("wire-1"))
            assert again.received.value == 2

    asyncio.run(scenario())


def test_a_loop_that_is_closed_is_not_waited_for(path: Path) -> None:
    """An update whose loop has ended is committed; the store serves the next loop."""
    store = AsyncSqliteStore(path)
    created = a_creation()
    id = created.answer.id
    asyncio.run(store.insert(created))

    async def ask() -> None:
        task = asyncio.create_task(store.update(id, crediting("wire-1", 1), CreditId("wire-1")))
        await asyncio.sleep(0)
        task.cancel()

    with busy_writer(store._engine):
        asyncio.run(ask())
    later = asyncio.run(store.update(id, crediting("wire-2", 1), CreditId("wire-2")))
    assert later.received.value == 2
    asyncio.run(store.close())


def test_a_decision_that_stops_iteration_is_an_error_in_asyncio(path: Path) -> None:
    """A future cannot carry `StopIteration`; as in a generator (PEP 479), it comes as a `RuntimeError`."""

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            created = a_creation()
            await store.insert(created)
            with pytest.raises(RuntimeError):
                await store.update(created.answer.id, raising(StopIteration()))

    asyncio.run(scenario())


# --- nonces ---

UNTIL = NOW + timedelta(seconds=300)


def test_nonces_outlive_the_process_and_are_shared(path: Path) -> None:
    """Every store on the file knows what any of them was asked, also after all were closed."""
    with SqliteStore(path) as one, SqliteStore(path) as other:
        assert one.nonces.use(KEYS[0], UNTIL, NOW)
        assert not other.nonces.use(KEYS[0], UNTIL, NOW)
        assert other.nonces.use(KEYS[1], UNTIL, NOW)
    with SqliteStore(path) as store:
        assert [store.nonces.use(key, UNTIL, NOW) for key in KEYS[:3]] == [False, False, True]


def test_nonces_keep_their_store_open(path: Path) -> None:
    """Whoever holds nothing else need not know of it."""
    nonces = SqliteStore(path).nonces
    gc.collect()
    assert nonces.use(KEYS[0], UNTIL, NOW)
    nonces._store.close()


def test_nonces_of_an_async_store(path: Path) -> None:
    """Of callers at once in one batch, one is first."""

    async def scenario() -> list[bool]:
        async with AsyncSqliteStore(path) as store:
            return await asyncio.gather(*[store.nonces.use(KEYS[0], UNTIL, NOW) for _ in range(5)])

    assert sorted(asyncio.run(scenario())) == [False] * 4 + [True]


def test_nonces_that_ended_are_swept_in_small_steps(store: SqliteStore, path: Path) -> None:
    """Two go for each that comes, and the count of those held is what is there."""
    for key in KEYS[:8]:
        store.nonces.use(key, NOW, NOW)
    for key in KEYS[8:11]:
        store.nonces.use(key, UNTIL, NOW + timedelta(seconds=1))

    with sqlite3.connect(path) as connection:
        there = connection.execute("SELECT count(*), (SELECT held FROM nonce_count) FROM nonces").fetchone()
    connection.close()
    assert there == (5, 5)


@pytest.mark.parametrize("nonces", [SqliteNonces, AsyncSqliteNonces])
def test_no_room_at_all_is_refused(store: SqliteStore, nonces: Any) -> None:
    """A memory that could hold nothing would refuse everything."""
    with pytest.raises(InvalidValue) as caught:
        nonces(store, 0)
    assert caught.value.details == {"member": "capacity"}

"""The contract suites against the SQLite stores, and their durability, batches, asyncio calls and nonces."""

import asyncio
import gc
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import (
    BrokenDecision,
    ClockBehind,
    InvalidValue,
    PaymentExists,
    PaymentNotFound,
    StoreUnavailable,
)
from incoming_payments.limits import STORE_LOG_KEPT_BYTES_MAX
from incoming_payments.ports import Decide, Nonces, PaymentStore
from incoming_payments.stores.sqlite import (
    AsyncSqliteNonces,
    AsyncSqliteStore,
    SqliteNonces,
    SqliteStore,
    _queue,
    _writer,
)
from incoming_payments.stores.sqlite._queue import Job
from incoming_payments.testing import NOW, SyncNonces, SyncView, a_creation, crediting
from incoming_payments.testing.contract import StoreContract
from incoming_payments.testing.nonces import KEYS, NonceContract
from incoming_payments.testing.steps import create, credit
from kits.breakable_sqlite import BreakableSqlite
from kits.sqlite_jobs import busy_writer, queue


class TestSqliteStore(StoreContract):
    """The contract suite against `SqliteStore`."""

    def make_store(self, directory: Path) -> PaymentStore:
        """Return a store in a new file."""
        store = SqliteStore(directory / "payments.db")
        self.breakable = BreakableSqlite(store)
        return store

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return another store on the same file."""
        return SqliteStore(directory / "payments.db")

    def break_store(self, store: PaymentStore, directory: Path) -> None:  # noqa: ARG002 - part of the hook
        """Break the connections of the store."""
        self.breakable.break_connections()


class TestAsyncSqliteStore(StoreContract):
    """The contract suite against `AsyncSqliteStore`, whose callers are concurrent tasks of one event loop."""

    def make_store(self, directory: Path) -> PaymentStore:
        """Return a store in a new file, with its own event loop."""
        view = self._open(directory)
        assert isinstance(view.store, AsyncSqliteStore)
        self.breakable = BreakableSqlite(view.store)
        return view

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return another store on the same file."""
        return self._open(directory)

    def break_store(self, store: PaymentStore, directory: Path) -> None:  # noqa: ARG002 - part of the hook
        """Break the connections of the store."""
        self.breakable.break_connections()

    def _open(self, directory: Path) -> SyncView:
        async def open_store() -> AsyncSqliteStore:
            return AsyncSqliteStore(directory / "payments.db")

        return SyncView(open_store, AsyncSqliteStore.close)


class TestSqliteNonces(NonceContract):
    """The contract suite against `SqliteNonces`."""

    def make_nonces(self, directory: Path) -> Nonces:
        """Return nonces in a new file."""
        return SqliteNonces(SqliteStore(directory / "payments.db"), self.capacity)

    def open_again(self, nonces: Nonces, directory: Path) -> Nonces:  # noqa: ARG002 - part of the hook
        """Return the nonces of another store on the same file."""
        return self.make_nonces(directory)

    def close_nonces(self, nonces: Nonces) -> None:
        """Close the store of the nonces."""
        assert isinstance(nonces, SqliteNonces)
        nonces._store.close()


class TestAsyncSqliteNonces(NonceContract):
    """The contract suite against `AsyncSqliteNonces`, whose callers are concurrent tasks of one event loop."""

    def open_again(self, nonces: Nonces, directory: Path) -> Nonces:  # noqa: ARG002 - part of the hook
        """Return the nonces of another store on the same file."""
        return self.make_nonces(directory)

    def make_nonces(self, directory: Path) -> Nonces:
        """Return nonces in a new file, with their own event loop."""

        async def open_store() -> AsyncSqliteStore:
            return AsyncSqliteStore(directory / "payments.db")

        view = SyncView(open_store, AsyncSqliteStore.close)
        assert isinstance(view.store, AsyncSqliteStore)
        return SyncNonces(view, AsyncSqliteNonces(view.store, self.capacity))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the database."""
    return tmp_path / "payments.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    """Yield a store in a new file."""
    with SqliteStore(path, busy_s=1) as store:
        yield store


def raising(error: BaseException) -> Decide[Any]:
    """Return a `decide` that raises `error`."""

    def decide(_payment: IncomingPayment, _earlier: Credit | None) -> Decision[Any]:
        raise error

    return decide


# --- durability ---


def test_acknowledged_data_survives_reopening(path: Path) -> None:
    """A second store on the file finds the payment, its credits and its events."""
    with SqliteStore(path) as store:
        id = create(store)
        first = credit(store, id, "wire-1", 300)
        before = store.load(id), list(store.events(id))

    with SqliteStore(path) as store:
        assert before == (store.load(id), list(store.events(id)))
        assert first == credit(store, id, "wire-1", 300)


def test_answered_update_is_committed(store: SqliteStore, path: Path) -> None:
    """Another connection sees each update after its answer. Amounts are decimal text, which an auditor can read."""
    id = create(store)
    connection = sqlite3.connect(path)
    for number in range(1, 4):
        credit(store, id, f"wire-{number}", 2**62)

        row = connection.execute("SELECT received_amount FROM payments WHERE id = ?", (id,)).fetchone()
        assert row == (str(number * 2**62),)
    connection.close()


def test_writer_syncs_every_commit(store: SqliteStore) -> None:
    """The writer has `synchronous` FULL (2) and a write-ahead log. Readers cannot write."""
    file = store._engine._file
    writer, reader = file.connect_writer(), file.connect_reader()
    settings = {
        "synchronous": 2,
        "fullfsync": 1,
        "checkpoint_fullfsync": 1,
        "journal_mode": "wal",
        "journal_size_limit": STORE_LOG_KEPT_BYTES_MAX,
        "wal_autocheckpoint": 0,
        "busy_timeout": 0,  # the store waits itself
    }
    assert settings == {name: writer.execute(f"PRAGMA {name}").fetchone()[0] for name in settings}
    assert reader.execute("PRAGMA busy_timeout").fetchone() == (0,)
    with pytest.raises(sqlite3.OperationalError):
        reader.execute("DELETE FROM payments")
    file.disconnect(writer)
    file.disconnect(reader)


def test_messages_name_the_payment(store: SqliteStore, path: Path) -> None:
    """The host finds the payment in its own records, or that the path names another file than it meant."""
    created = a_creation()
    store.insert(created)
    with pytest.raises(PaymentExists) as exists:
        store.insert(created)
    assert exists.value.description == f"payment {created.answer.id} exists already"
    for call in (store.load, store.events):
        with pytest.raises(PaymentNotFound) as missing:
            call(PaymentId("no such"))
        assert missing.value.description == f"there is no payment no such in {path}"


def test_negative_limit_finds_no_payment(store: SqliteStore) -> None:
    """SQLite would take a negative limit for no limit."""
    create(store, a_creation(expires_in_s=1))
    assert list(store.find_expired(NOW + timedelta(days=1), -1)) == []


def test_updates_of_other_stores_are_seen(store: SqliteStore, path: Path) -> None:
    """A cached payment is used only while its row in the file is the same."""
    id = create(store)
    credit(store, id, "wire-1", 1)
    with SqliteStore(path) as other:
        for number in range(2, 6):
            one = store if number % 2 else other
            assert credit(one, id, f"wire-{number}", 1).received.value == number
            assert store.load(id) == other.load(id)


# --- batches ---


def test_batch_of_many_payments_shares_a_commit(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer repeats no job of a batch with several payments."""
    blamed: list[BaseException] = []
    monkeypatch.setattr(_writer, "blames_the_statement", blamed.append)
    ids = [create(store) for _ in range(6)]
    with busy_writer(store._engine):
        jobs = [queue(store, id, crediting("wire-1", 1), "wire-1") for id in ids]
    assert [job.wait().received.value for job in jobs] == [1] * 6
    assert blamed == []


def test_waiting_updates_share_a_commit(store: SqliteStore) -> None:
    """Each job sees the decisions and credit ids of the jobs before it, and gets its own answer."""
    id = create(store)
    with busy_writer(store._engine):
        jobs = [queue(store, id, crediting(f"wire-{number % 3}", 5), f"wire-{number % 3}") for number in range(6)]
    answers = [job.wait() for job in jobs]

    assert [answer.received.value for answer in answers] == [5, 10, 15, 5, 10, 15]
    assert store.load(id).received.value == 15
    assert [event.version for event in store.events(id)] == [1, 2, 3, 4]


def test_single_call_after_a_batch_is_answered(store: SqliteStore) -> None:
    """The writer waits for more jobs after a batch of threads, but answers a single call too."""
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
def test_exception_of_decide_goes_to_its_caller_only(store: SqliteStore, error: BaseException) -> None:
    """The other jobs of the batch are committed, and the writer continues, for any exception."""
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
def test_broken_decision_fails_its_job_only(store: SqliteStore, answer: Any) -> None:
    """Its caller gets `BrokenDecision`. The other jobs of the batch are committed."""
    id = create(store)
    with busy_writer(store._engine):
        first = queue(store, id, crediting("wire-1", 1), "wire-1")
        bad = queue(store, id, lambda _payment, _earlier: answer)
        last = queue(store, id, crediting("wire-2", 1), "wire-2")

    with pytest.raises(BrokenDecision):
        bad.wait()
    assert (first.wait().received.value, last.wait().received.value) == (1, 2)
    assert store.load(id).received.value == 2


def test_decision_that_ignores_an_earlier_credit_is_refused(store: SqliteStore) -> None:
    """The store gives the earlier credit to the guard as well."""
    id = create(store)
    credit(store, id, "wire-1", 1)
    with pytest.raises(BrokenDecision, match="that id must be unused"):
        store.update(id, lambda payment, _earlier: crediting("wire-1", 1)(payment, None), CreditId("wire-1"))
    assert store.load(id).received.value == 1


def test_text_that_is_not_unicode_fails_its_job_only(store: SqliteStore) -> None:
    """SQLite cannot store a lone surrogate. The writer repeats the batch job by job."""
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


def test_database_constraint_refuses_a_row(store: SqliteStore) -> None:
    """Defence in depth: the database refuses a row that the guard has accepted, and nothing is written."""
    created = a_creation()
    with sqlite3.connect(store._engine._file.path) as connection:
        connection.execute("CREATE TRIGGER stop BEFORE INSERT ON payments BEGIN SELECT RAISE(ABORT, 'no'); END")
    connection.close()

    with pytest.raises(BrokenDecision):
        store.insert(created)
    with pytest.raises(PaymentNotFound):
        store.load(created.answer.id)


def test_full_queue_refuses_threads_at_once(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call raises `StoreUnavailable`. The queued updates are committed."""
    monkeypatch.setattr(_queue, "STORE_QUEUE_MAX", 2)
    id = create(store)
    with busy_writer(store._engine):
        jobs = [queue(store, id, crediting(f"wire-{number}", 1), f"wire-{number}") for number in range(2)]
        with pytest.raises(StoreUnavailable, match=r"^2 updates are waiting already: repeat the call later$"):
            credit(store, id, "wire-3", 1)
    assert [job.wait().received.value for job in jobs] == [1, 2]
    assert credit(store, id, "wire-3", 1).received.value == 3


def test_interrupted_caller_does_not_stop_the_writer(store: SqliteStore) -> None:
    """Ctrl-C ends the wait and not the update. The same call again gets the first answer."""
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


def test_cancelled_task_does_not_stop_the_writer(path: Path) -> None:
    """The cancelled update is committed all the same, and the other tasks get their answers."""

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


def test_closed_loop_does_not_stop_the_writer(path: Path) -> None:
    """The update of a closed event loop is committed, and the store serves the next loop."""
    store = AsyncSqliteStore(path)
    created = a_creation()
    id = created.answer.id
    asyncio.run(store.insert(created))

    async def call_and_cancel() -> None:
        task = asyncio.create_task(store.update(id, crediting("wire-1", 1), CreditId("wire-1")))
        await asyncio.sleep(0)
        task.cancel()

    with busy_writer(store._engine):
        asyncio.run(call_and_cancel())
    later = asyncio.run(store.update(id, crediting("wire-2", 1), CreditId("wire-2")))
    assert later.received.value == 2
    asyncio.run(store.close())


def test_stop_iteration_becomes_runtime_error_in_asyncio(path: Path) -> None:
    """An asyncio future cannot hold `StopIteration`. The caller gets `RuntimeError`, as in PEP 479."""

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            created = a_creation()
            await store.insert(created)
            with pytest.raises(RuntimeError, match=r"^decide raised StopIteration$"):
                await store.update(created.answer.id, raising(StopIteration()))

    asyncio.run(scenario())


# --- nonces ---

UNTIL = NOW + timedelta(seconds=300)


def test_nonces_are_durable_and_shared(path: Path) -> None:
    """Every store on the file knows the nonces of all others, also after all were closed."""
    with SqliteStore(path) as one, SqliteStore(path) as other:
        assert one.nonces.use(KEYS[0], UNTIL, NOW)
        assert not other.nonces.use(KEYS[0], UNTIL, NOW)
        assert other.nonces.use(KEYS[1], UNTIL, NOW)
    with SqliteStore(path) as store:
        assert [store.nonces.use(key, UNTIL, NOW) for key in KEYS[:3]] == [False, False, True]


def test_nonces_keep_their_store_open(path: Path) -> None:
    """The nonces work while they are the only reference to the store."""
    nonces = SqliteStore(path).nonces
    gc.collect()
    assert nonces.use(KEYS[0], UNTIL, NOW)
    nonces._store.close()


def test_async_nonce_is_used_once(path: Path) -> None:
    """Exactly one of five concurrent calls is the first use."""

    async def scenario() -> list[bool]:
        async with AsyncSqliteStore(path) as store:
            return await asyncio.gather(*[store.nonces.use(KEYS[0], UNTIL, NOW) for _ in range(5)])

    assert sorted(asyncio.run(scenario())) == [False] * 4 + [True]


def test_way_back_after_a_clock_that_was_ahead(store: SqliteStore, path: Path) -> None:
    """The documented statement lets the store accept new nonces. Nonces that it still holds stay used."""
    now = datetime.now(UTC)
    ahead, minute = now + timedelta(days=1), timedelta(minutes=1)
    assert store.nonces.use("ahead", ahead, ahead)
    assert store.nonces.use("later", ahead + minute, ahead + minute)
    for until in (now + minute, ahead):
        with pytest.raises(ClockBehind, match=f"nonces are accepted again after {re.escape(str(ahead))}"):
            store.nonces.use("new", until, now)

    page = Path(__file__).parents[4] / "docs" / "http.md"
    [statement] = re.findall(r'sqlite3 payments.sqlite3 "(UPDATE nonce_count .*)"', page.read_text())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)

    with pytest.raises(ClockBehind):  # a request from before the statement
        store.nonces.use("new", now + minute, now)
    assert store.nonces.use("new", now + 60 * minute, now + 54 * minute)
    assert not store.nonces.use("later", now + 60 * minute, now + 54 * minute)


def test_expired_nonces_are_removed_in_small_steps(store: SqliteStore, path: Path) -> None:
    """Each new nonce removes at most two expired ones, and `held` is the number of rows."""
    for key in KEYS[:8]:
        store.nonces.use(key, NOW, NOW)
    for key in KEYS[8:11]:
        store.nonces.use(key, UNTIL, NOW + timedelta(seconds=1))

    with sqlite3.connect(path) as connection:
        there = connection.execute("SELECT count(*), (SELECT held FROM nonce_count) FROM nonces").fetchone()
    connection.close()
    assert there == (5, 5)


@pytest.mark.parametrize("nonces", [SqliteNonces, AsyncSqliteNonces])
def test_capacity_of_zero_is_refused(store: SqliteStore, nonces: Any) -> None:
    """The least capacity is one, because a store without any capacity would refuse every nonce."""
    with pytest.raises(InvalidValue) as caught:
        nonces(store, 0)
    assert caught.value.details == {"member": "capacity"}

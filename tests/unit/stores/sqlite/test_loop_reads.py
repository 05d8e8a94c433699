"""Loads in the thread of an event loop, and the limits for slow ones."""

import asyncio
import gc
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.errors import PaymentNotFound, StoreStopped, StoreUnavailable, StoreUnusable
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore, _engine, _slow_reads
from incoming_payments.stores.sqlite._engine import Engine
from incoming_payments.stores.sqlite._file import DatabaseFile
from incoming_payments.stores.sqlite._rows import Rows
from incoming_payments.stores.sqlite._slow_reads import SlowReads
from incoming_payments.testing import a_creation
from incoming_payments.testing.steps import create

LOADER = "incoming-payments-read"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the database."""
    return tmp_path / "payments.db"


@pytest.fixture(autouse=True)
def _no_read_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no read slow, unless a test says so."""
    monkeypatch.setattr(_slow_reads, "STORE_SLOW_READ_S_MIN", 600.0)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the threads that read a payment, which each read extends."""
    names: list[str] = []
    payment = Rows.payment

    def noted(rows: Rows, id: PaymentId) -> IncomingPayment:
        names.append(threading.current_thread().name.partition("_")[0])
        return payment(rows, id)

    monkeypatch.setattr(Rows, "payment", noted)
    return names


def busy() -> sqlite3.OperationalError:
    """Return the error of SQLite while another process holds the file."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


def with_engine(path: Path, check: Callable[[Engine], None]) -> None:
    """Run `check` with an engine that has one idle connection, and close it."""
    engine = Engine(DatabaseFile(path, busy_s=0))
    try:
        engine.read(lambda _: None)
        check(engine)
    finally:
        engine.close()


async def opened(store: AsyncSqliteStore) -> PaymentId:
    """Create a payment, and load it once, which opens a connection in another thread. Return its id."""
    created = a_creation()
    await store.insert(created)
    await store.load(created.answer.id)
    return created.answer.id


def test_load_reads_in_the_thread_of_the_loop(path: Path, threads: list[str]) -> None:
    """The first load opens the connection in another thread. The next loads see the latest commit at once."""

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            id = await opened(store)
            assert (await store.load(id)).id == id
            with pytest.raises(PaymentNotFound):
                await store.load(PaymentId("no such"))
            await store.load(id)

    asyncio.run(scenario())
    assert threads == [LOADER, *["MainThread"] * 3]


def test_load_of_a_busy_file_waits_in_another_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop does not wait for the lock, and the other thread repeats the read until it gets the lock."""
    names: list[str] = []
    payment = Rows.payment

    def locked(rows: Rows, id: PaymentId) -> IncomingPayment:
        names.append(threading.current_thread().name.partition("_")[0])
        if len(names) < 4:
            raise busy()
        return payment(rows, id)

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            id = await opened(store)
            monkeypatch.setattr(Rows, "payment", locked)
            assert (await store.load(id)).id == id

    asyncio.run(scenario())
    assert names == ["MainThread", *[LOADER] * 3]


def test_busy_file_is_temporary(path: Path) -> None:
    """A read that does not get the lock within `busy_s` raises `StoreUnavailable`."""

    def query(_: Rows) -> None:
        raise busy()

    def check(engine: Engine) -> None:
        assert engine.read_at_once(query) is None
        with pytest.raises(StoreUnavailable, match="locked"):
            engine.read(query)

    with_engine(path, check)


def test_load_after_slow_loads_reads_in_another_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch, threads: list[str]
) -> None:
    """The loop does not wait for the next read of a slow disk."""

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            id = await opened(store)
            monkeypatch.setattr(_slow_reads, "STORE_SLOW_READ_S_MIN", 0.0)
            monkeypatch.setattr(_slow_reads, "STORE_SLOW_READS_S_MAX", 0.0)
            monkeypatch.setattr(_slow_reads, "STORE_SLOW_READS_SHARE_MAX", 1e-9)
            for _ in range(3):
                await store.load(id)

    asyncio.run(scenario())
    assert threads == [LOADER, "MainThread", LOADER, LOADER]


@pytest.mark.parametrize(
    ("milliseconds", "pause_s"),
    [
        pytest.param([], 0.0, id="no read"),
        pytest.param([0.5] * 99, 0.0, id="no slow read"),
        pytest.param([9.0] * 4, 0.0, id="slow reads below the limit"),
        pytest.param([10.0] * 5, 0.1, id="slow reads beyond the limit"),
        pytest.param([1000.0], 9.6, id="a disk that did not answer for a second"),
        pytest.param([1000.0, 0.5], 9.6, id="a fast read ends no pause"),
    ],
)
def test_slow_reads_pause_the_reads_of_the_loop(
    milliseconds: list[float], pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow reads may take 40 ms at once and a tenth of the time. The next read has to wait for `pause_s`."""
    monkeypatch.setattr(_slow_reads, "STORE_SLOW_READ_S_MIN", 0.001)
    monkeypatch.setattr(_slow_reads, "STORE_SLOW_READS_S_MAX", 0.04)
    monkeypatch.setattr(_slow_reads, "STORE_SLOW_READS_SHARE_MAX", 0.1)
    slow = SlowReads()
    for each in milliseconds:
        slow.add(100.0 - each / 1000, 100.0)
    assert slow.may_read(100.0 + pause_s + 1e-6)
    assert slow.may_read(100.0 + pause_s - 1e-6) is (pause_s == 0)


def test_store_on_a_slow_disk_does_not_stop_the_loop_for_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 loads that take 20 ms each, the loop waits for few, and its other tasks run during the rest."""
    monkeypatch.setattr(_slow_reads, "STORE_SLOW_READ_S_MIN", 0.001)
    in_loop: list[bool] = []
    payment = Rows.payment

    def slow(rows: Rows, id: PaymentId) -> IncomingPayment:
        in_loop.append(threading.current_thread() is threading.main_thread())
        time.sleep(0.02)
        return payment(rows, id)

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            id = await opened(store)
            monkeypatch.setattr(Rows, "payment", slow)
            await asyncio.gather(*(store.load(id) for _ in range(40)))

    asyncio.run(scenario())
    assert len(in_loop) == 40
    assert 1 <= sum(in_loop) <= 4


# --- ownership ---


def test_loops_do_not_share_a_connection(path: Path) -> None:
    """A read of a second loop during the read of the first one has to use another thread."""

    def check(engine: Engine) -> None:
        found: list[Any] = []

        def other() -> None:
            found.append(engine.read_at_once(lambda _: "read"))

        def query(_: Rows) -> str:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            return "first"

        assert engine.read_at_once(query) == "first"
        assert found == [None]
        other()
        assert found == [None, "read"]

    with_engine(path, check)


def test_fork_closes_the_connection_of_the_loop(path: Path) -> None:
    """No read of a loop begins during a fork."""

    def check(engine: Engine) -> None:
        connection = engine.read_at_once(lambda rows: rows.connection)
        assert connection is not None
        _engine._before_fork()
        try:
            assert engine.read_at_once(lambda _: "read") is None
            with pytest.raises(sqlite3.ProgrammingError, match="closed"):
                connection.execute("SELECT 1")
        finally:
            _engine._after_fork_in_parent()
        assert engine.read_at_once(lambda _: "read") is None  # until another thread has opened a connection
        assert engine.read_elsewhere(lambda _: "read").result(30) == "read"
        assert engine.read_at_once(lambda _: "read") == "read"

    with_engine(path, check)


def test_pending_fork_refuses_a_read_of_the_loop(path: Path) -> None:
    """A fork waits for the read of the first loop. A second loop does not begin to read in the meantime."""

    def check(engine: Engine) -> None:
        forked = threading.Event()

        def fork() -> None:
            _engine._before_fork()
            forked.set()
            _engine._after_fork_in_parent()

        forking = threading.Thread(target=fork)

        def query(_: Rows) -> list[object]:
            forking.start()
            while not engine._fork_pending:
                time.sleep(0.001)
            return [engine.read_at_once(lambda _: "read"), forked.is_set()]

        engine._idle.append(Rows(engine._file.connect_reader()))
        assert engine.read_at_once(query) == [None, False]
        forking.join(30)
        assert forked.is_set()
        assert engine._idle == []

    with_engine(path, check)


def test_closed_store_refuses_loads(path: Path) -> None:
    """The connection of the loop is closed with the store."""

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            id = await opened(store)
            connection = store._engine.read_at_once(lambda rows: rows.connection)
            assert connection is not None
        with pytest.raises(StoreUnusable, match="closed"):
            await store.load(id)
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")

    asyncio.run(scenario())


def test_store_that_is_closed_during_a_load_closes_its_connection(path: Path) -> None:
    """The connection of the loop is closed when its read ends."""

    def check(engine: Engine) -> None:
        def query(rows: Rows) -> sqlite3.Connection:
            engine.close()
            return rows.connection

        connection = engine.read_at_once(query)
        assert connection is not None
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")

    with_engine(path, check)


def test_garbage_collected_store_closes_the_connection_of_the_loop(path: Path) -> None:
    """Loads leave no reference to the store."""
    connections: list[sqlite3.Connection | None] = []

    async def scenario() -> weakref.ref[AsyncSqliteStore]:
        store = AsyncSqliteStore(path)
        await store.load(await opened(store))
        connections.append(store._engine.read_at_once(lambda rows: rows.connection))
        return weakref.ref(store)

    dropped = asyncio.run(scenario())
    gc.collect()
    assert dropped() is None
    (connection,) = connections
    assert connection is not None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


# --- stopped stores and damaged rows ---


def test_stopped_store_refuses_loads_in_the_loop(path: Path) -> None:
    """Each load looks at the mark of a stop in another process, and at the identity of the file."""

    async def scenario() -> None:
        stops: list[StoreStopped] = []
        async with AsyncSqliteStore(path, on_stop=stops.append) as store:
            id = await opened(store)
            os.rename(path, f"{path}.moved")
            for _ in range(2):
                with pytest.raises(StoreStopped, match="was removed or replaced"):
                    await store.load(id)
        assert len(stops) == 1

    asyncio.run(scenario())


def test_failed_read_of_the_loop_closes_its_connection(path: Path) -> None:
    """The state of a connection is unknown after an error of SQLite, and the error is explained."""

    def check(engine: Engine) -> None:
        def query(rows: Rows) -> None:
            rows.connection.execute("SELECT * FROM missing")

        with pytest.raises(StoreUnusable, match="no such table: missing"):
            engine.read_at_once(query)
        assert engine._idle == []

    with_engine(path, check)


def test_backup_leaves_a_connection_that_does_not_wait(path: Path, tmp_path: Path) -> None:
    """A backup waits for a lock, and a loop that reads on its connection later does not."""
    with SqliteStore(path) as store:
        create(store)
        store.backup(tmp_path / "copy.db")
        timeout = store._engine.read_at_once(lambda rows: rows.connection.execute("PRAGMA busy_timeout").fetchone())
    assert timeout == (0,)

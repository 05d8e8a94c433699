"""Loads in the thread of an event loop, and the limits for slow ones."""

import asyncio
import fcntl
import gc
import os
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.errors import PaymentNotFound, StoreStopped, StoreUnavailable, StoreUnusable
from incoming_payments.stores.sqlite import AsyncSqliteStore, _slow_reads
from incoming_payments.stores.sqlite._rows import Rows
from incoming_payments.testing import a_creation
from incoming_payments.testing.steps import together
from kits.sqlite_jobs import before_reads, beside, busy_writer, edit, fork, leave_a_sync

LOADER = "incoming-payments-read"


@pytest.fixture(autouse=True)
def _no_read_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no read slow, unless a test says so."""
    monkeypatch.setattr(_slow_reads, "STORE_SLOW_READ_S_MIN", 600.0)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the threads that read a payment, which each read extends."""
    names: list[str] = []
    before_reads(monkeypatch, "payment", lambda _: names.append(thread_name()))
    return names


def thread_name() -> str:
    """Return the name of the current thread without its number."""
    return threading.current_thread().name.partition("_")[0]


def busy() -> sqlite3.OperationalError:
    """Return the error of SQLite while another process holds the file."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


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


@pytest.mark.parametrize("busy_s", [1, 0])
def test_load_of_a_busy_file_waits_in_another_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch, busy_s: float
) -> None:
    """The loop does not wait for the lock. The other thread repeats the read until it gets the lock, for `busy_s`."""
    names: list[str] = []

    def lock(_: Rows) -> None:
        names.append(thread_name())
        if len(names) < 4:
            raise busy()

    async def scenario() -> None:
        async with AsyncSqliteStore(path, busy_s=busy_s) as store:
            id = await opened(store)
            before_reads(monkeypatch, "payment", lock)
            if busy_s:
                assert (await store.load(id)).id == id
            else:
                with pytest.raises(StoreUnavailable, match="locked"):
                    await store.load(id)

    asyncio.run(scenario())
    assert names == ["MainThread", *[LOADER] * (3 if busy_s else 1)]


def test_load_during_a_sync_waits_in_another_thread(path: Path) -> None:
    """Another process makes a checkpoint, whose sync may fail and takes long. Other tasks of the loop run meanwhile."""

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            id = await opened(store)
            with beside(path, "wal").open("rb") as log:
                fcntl.flock(log, fcntl.LOCK_EX)
                leave_a_sync(path)
                load, began_s = asyncio.ensure_future(store.load(id)), time.monotonic()
                await asyncio.sleep(0.1)
                assert time.monotonic() - began_s < 2
                assert not load.done()
                leave_a_sync(path, b"\1")
            assert (await load).id == id

    asyncio.run(scenario())


def test_store_on_a_slow_disk_does_not_stop_the_loop_for_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 loads that take 20 ms each, the loop waits for few, and its other tasks run during the rest."""
    monkeypatch.setattr(_slow_reads, "STORE_SLOW_READ_S_MIN", 0.001)
    in_loop: list[bool] = []

    def wait(_: Rows) -> None:
        in_loop.append(threading.current_thread() is threading.main_thread())
        time.sleep(0.02)

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            id = await opened(store)
            before_reads(monkeypatch, "payment", wait)
            await asyncio.gather(*(store.load(id) for _ in range(40)))

    asyncio.run(scenario())
    assert len(in_loop) == 40
    assert 1 <= sum(in_loop) <= 4


# --- ownership ---


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Return the list of the connections that have read a payment, which each read extends."""
    used: list[sqlite3.Connection] = []
    before_reads(monkeypatch, "payment", lambda rows: used.append(rows.connection))
    return used


def is_closed(connection: sqlite3.Connection) -> bool:
    """Return whether the connection is closed."""
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False


def test_loops_do_not_share_a_connection(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load of a second loop during the load of the first one has to use another thread."""
    used: list[sqlite3.Connection] = []

    def load_again(rows: Rows) -> None:
        used.append(rows.connection)
        if len(used) == 2:
            together([lambda: asyncio.run(load(store, id))])

    before_reads(monkeypatch, "payment", load_again)
    store = AsyncSqliteStore(path)
    id = asyncio.run(opened(store))
    asyncio.run(load(store, id))
    first, again, other = used
    assert first is again is not other
    asyncio.run(store.close())


async def load(store: AsyncSqliteStore, id: PaymentId) -> IncomingPayment:
    """Load a payment."""
    return await store.load(id)


def test_fork_closes_the_connection_of_the_loop(
    path: Path, connections: list[sqlite3.Connection], threads: list[str]
) -> None:
    """The next load opens another connection, in another thread."""

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            id = await opened(store)
            fork()
            assert is_closed(connections[0])
            await store.load(id)
            await store.load(id)

    asyncio.run(scenario())
    assert threads == [LOADER, LOADER, "MainThread"]


def test_load_waits_for_a_fork(path: Path) -> None:
    """No read of a loop begins while a fork is pending or under way."""
    store = AsyncSqliteStore(path)
    id = asyncio.run(opened(store))
    with ThreadPoolExecutor(2) as pool:
        with busy_writer(store, id):
            forking = pool.submit(fork)
            time.sleep(0.05)
            loading = pool.submit(asyncio.run, load(store, id))
            time.sleep(0.05)
            assert not loading.done()
        forking.result(30)
        assert loading.result(30).id == id
    asyncio.run(store.close())


@pytest.mark.parametrize("when", ["after the load", "during the load", "by the garbage collector"])
def test_closed_store_closes_the_connection_of_the_loop(
    path: Path, connections: list[sqlite3.Connection], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Loads leave no reference to the store. A closed store refuses loads."""

    async def scenario() -> PaymentId:
        id = await opened(stores[0])
        if when == "during the load":
            before_reads(monkeypatch, "payment", lambda _: together([lambda: asyncio.run(stores[0].close())]))
        await stores[0].load(id)
        if when == "after the load":
            await stores[0].close()
        if when != "by the garbage collector":
            with pytest.raises(StoreUnusable, match="closed"):
                await stores[0].load(id)
        return id

    stores = [AsyncSqliteStore(path)]
    asyncio.run(scenario())
    if when == "by the garbage collector":
        stores.clear()
        gc.collect()
    assert all(map(is_closed, connections))


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


def test_failed_read_of_the_loop_closes_its_connection(
    path: Path, connections: list[sqlite3.Connection], threads: list[str]
) -> None:
    """The state of a connection is unknown after an error of SQLite, and the error is explained."""

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            id = await opened(store)
            edit(path, "ALTER TABLE payments RENAME TO away")
            with pytest.raises(StoreUnusable, match="no such table: payments"):
                await store.load(id)
            edit(path, "ALTER TABLE away RENAME TO payments")
            await store.load(id)

    asyncio.run(scenario())
    assert threads == [LOADER, "MainThread", LOADER]
    assert is_closed(connections[0])

"""The life of a store on PostgreSQL: its end, the garbage collector, forks, and threads that cannot start."""

import asyncio
import gc
import runpy
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from incoming_payments.errors import StoreUnavailable, StoreUnusable
from incoming_payments.stores.postgres import AsyncPostgresStore, PostgresStore
from incoming_payments.testing.steps import create, credit, together
from kits.postgres import async_view, end_connections, execute
from kits.postgres_callers import OTHERS, Hold, await_waiting
from kits.processes import free_port, serving, unsigned


def test_a_closed_store_refuses_every_call(database: str) -> None:
    """Updates that wait are finished first. A second close does nothing."""
    with PostgresStore(database) as store, ThreadPoolExecutor(3) as executor:
        id = create(store)
        hold = Hold(store, id, executor)
        update = executor.submit(credit, store, id, "wire-1", 1)
        await_waiting(store, id, 1)
        closing = executor.submit(store.close)
        while not store._engine._workers._is_at_end:
            time.sleep(0.001)
        hold.end()
        closing.result()
        assert update.result().received.value == 1
        store.close()
        for call in (partial(store.load, id), partial(credit, store, id, "wire-1", 1)):
            with pytest.raises(StoreUnusable, match="the store is closed"):
                call()
    with async_view(database) as view:
        assert isinstance(view.store, AsyncPostgresStore)
        view.run(view.store.close())
        with pytest.raises(StoreUnusable, match="the store is closed"):
            view.load(id)
    with async_view(database) as view:
        view.load(id)
        assert isinstance(view.store, AsyncPostgresStore)
        view.run(view.store.close())
        view.run(view.store.close())
        with pytest.raises(StoreUnusable, match="the store is closed"):
            credit(view, id, "wire-1", 1)


def test_an_async_store_serves_one_event_loop(database: str) -> None:
    """In another loop, the store could not replace a lost connection. A call there changes nothing."""
    with async_view(database) as view:
        id = create(view)
        assert isinstance(view.store, AsyncPostgresStore)
        with pytest.raises(StoreUnusable, match="the store belongs to another event loop"):
            asyncio.run(view.store.load(id))
        assert view.load(id).terms.id == id


def test_a_forgotten_store_closes_its_connections(database: str) -> None:
    """The garbage collector closes a store that nothing refers to."""

    def held() -> tuple[int, int]:
        return threading.active_count(), len(execute(database, OTHERS))

    end_connections(database)
    before = held()
    store = PostgresStore(database)
    id = create(store)
    together([partial(store.load, id)] * 4)
    assert held() > before
    del store
    gc.collect()
    end_s = time.monotonic() + 5
    while held() > before and time.monotonic() < end_s:
        time.sleep(0.01)
    assert held() <= before


FORKING = """
import os, sys
from incoming_payments.domain.payment import PaymentId
from incoming_payments.stores.postgres import PostgresStore
from incoming_payments.testing.steps import credit

store, id = PostgresStore(sys.argv[1]), PaymentId(sys.argv[2])
store.load(id)
child = os.fork()
credit(store, id, "wire-parent" if child else "wire-child", 1)
store.close()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_opens_connections_of_its_own(store: PostgresStore, database: str) -> None:
    """Parent and child use the store that was opened before the fork."""
    id = create(store)
    subprocess.run([sys.executable, "-c", FORKING, database, id], check=True, timeout=60)
    assert [event.credit_id for event in store.events(id)[1:]] in (
        ["wire-child", "wire-parent"],
        ["wire-parent", "wire-child"],
    )


def test_threads_that_cannot_start_are_unavailable(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that did start are ended."""
    before, start = threading.active_count(), threading.Thread.start
    started: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "incoming-payments" and len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreUnavailable, match="can't start new thread"):
            PostgresStore(database)
    assert threading.active_count() == before


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """psycopg is an extra."""
    monkeypatch.setitem(sys.modules, "psycopg_pool", None)
    with pytest.raises(ImportError, match=r"needs psycopg .*: run pip install 'incoming-payments"):
        runpy.run_module("incoming_payments.stores.postgres.__init__")


FORKING_LATER = """
import os, sys, threading
from incoming_payments.stores.postgres import PostgresStore

store = PostgresStore(sys.argv[1])
store.close()
assert threading.active_count() == 1
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.exit(threading.active_count() - 1)
"""


def test_a_forked_child_does_not_open_a_closed_store(database: str) -> None:
    """Neither the parent nor the child has a thread of the store."""
    subprocess.run([sys.executable, "-c", FORKING_LATER, database], check=True, timeout=60)


PRELOADED = """
import os, uuid
from datetime import UTC, datetime, timedelta
from incoming_payments.stores.postgres import PostgresStore

store = PostgresStore(os.environ["DATABASE_URL"])

def application(_, start_response):
    now = datetime.now(UTC)
    assert store.nonces.use(uuid.uuid4().hex, now + timedelta(minutes=1), now)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Connection", "close")])
    return [str(os.getpid()).encode()]
"""


def test_gunicorn_may_load_the_application_before_it_forks(tmp_path: Path, database: str) -> None:
    """Each worker has connections and threads of its own."""
    (tmp_path / "preloaded.py").write_text(PRELOADED, "utf-8")
    port = free_port()
    command: list[str | Path] = [
        *(sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", f"127.0.0.1:{port}"),
        *("--chdir", tmp_path, "preloaded:application"),
    ]
    workers = set()
    with serving(command, port, tmp_path / "log", env={"DATABASE_URL": database}):
        for _ in range(50):
            answer = unsigned("GET", f"http://127.0.0.1:{port}/")
            assert answer.status_code == 200, (tmp_path / "log").read_text("utf-8")
            workers.add(answer.text)
    assert len(workers) == 2

"""Steps for tests of the SQLite stores: calls in one batch, a busy writer, faults, forks, and other programs."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore, _engine
from incoming_payments.stores.sqlite._rows import Rows
from incoming_payments.testing import crediting


def in_one_batch(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Make the calls of an `AsyncSqliteStore` in one turn of an event loop. Return their answers and errors."""

    async def gather() -> list[Any]:
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(gather())


def credit_one(store: AsyncSqliteStore, id: PaymentId, credit_id: str) -> Coroutine[Any, Any, Credit]:
    """Return the call that credits one minor unit."""
    return store.update(id, crediting(credit_id, 1), CreditId(credit_id))


@contextmanager
def busy_writer(store: SqliteStore | AsyncSqliteStore, id: PaymentId) -> Iterator[None]:
    """Keep the writer of the store busy with an update of the payment `id` that changes nothing."""
    entered, go = threading.Event(), threading.Event()

    def wait(_payment: IncomingPayment, _earlier: Credit | None) -> Decision[None]:
        entered.set()
        assert go.wait(30)
        return Decision(None)

    def update() -> None:
        if isinstance(store, SqliteStore):
            store.update(id, wait)
        else:
            asyncio.run(store.update(id, wait))

    thread = threading.Thread(target=update)
    thread.start()
    assert entered.wait(30)
    try:
        yield
    finally:
        go.set()
        thread.join(30)


def fail_on(monkeypatch: pytest.MonkeyPatch, statement: str, error: int | BaseException) -> None:
    """Let connections that open later fail in statements that begin with `statement`: by a SQLite code, or `error`."""
    if isinstance(error, int):
        code, error = error, sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = code, "SQLITE_IOERR_TEST"

    def fail(*_: object) -> None:
        raise error

    act_on(monkeypatch, statement, fail)


def act_on(
    monkeypatch: pytest.MonkeyPatch,
    statement: str | tuple[str, ...],
    act: Callable[[sqlite3.Connection, str], object],
) -> None:
    """Let connections that open later call `act` before each statement that begins with `statement`."""

    class Acting(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if sql.startswith(statement):
                act(self, sql)
            return super().execute(sql, *arguments)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, **kwargs, factory=Acting))


def before_reads(
    monkeypatch: pytest.MonkeyPatch, method: Literal["payment", "events"], act: Callable[[Rows], object]
) -> None:
    """Call `act` in the thread and with the connection of each read, before `method` reads from it."""
    read = getattr(Rows, method)

    def act_and_read(rows: Rows, id: PaymentId) -> object:
        act(rows)
        return read(rows, id)

    monkeypatch.setattr(Rows, method, act_and_read)


def fork(in_child: Callable[[], object] = lambda: None) -> None:
    """Fork this process. Check that the child runs `in_child` without an exception."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            in_child()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@contextmanager
def during_a_fork() -> Iterator[None]:
    """Stay between the hooks of a fork, as the parent."""
    _engine._before_fork()
    try:
        yield
    finally:
        _engine._after_fork_in_parent()


def writers() -> list[threading.Thread]:
    """Return the threads that write."""
    return [thread for thread in threading.enumerate() if thread.name == "incoming-payments-write"]


def leave_a_log(path: Path) -> PaymentId:
    """Credit a payment in a process that is killed, so that its log stays."""
    script = f"""
import os, signal
from datetime import UTC, datetime
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import a_creation
from incoming_payments.testing.steps import create, credit
store = SqliteStore({str(path)!r})
id = create(store, a_creation(now=datetime.now(UTC)))
credit(store, id, "wire-1", 1)
print(id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == -9
    return PaymentId(done.stdout.strip())


@contextmanager
def another_process(script: str, *arguments: object) -> Iterator[Callable[[], str]]:
    """Run `script`, which reads a line before each step. Yield a function that sends a line and returns the answer."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        requests, answers = process.stdin, process.stdout
        assert requests is not None
        assert answers is not None

        def step() -> str:
            requests.write("\n")
            requests.flush()
            return answers.readline().strip()

        yield step
        process.communicate("\n", timeout=30)


def edit(path: Path, *statements: str) -> None:
    """Execute `statements` on the file, as a program other than the store."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def rows(path: Path, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows that another program reads."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def beside(path: Path, ending: str) -> Path:
    """Return the file beside the database with this ending."""
    return path.with_name(f"{path.name}-{ending}")


def leave_a_sync(path: Path, state: bytes = b"\2") -> None:
    """Note in the lock file that a checkpoint has begun which syncs what an earlier one has copied."""
    with beside(path, "lock").open("r+b") as lock:
        lock.seek(-1, os.SEEK_END)
        lock.write(state)

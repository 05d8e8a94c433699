"""A call does its update in its own thread while no other call waits, and an interrupt may end it at any point."""

import dis
import itertools
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import StoreStopped
from incoming_payments.stores.sqlite import SqliteStore, _engine, _writer
from incoming_payments.stores.sqlite._queue import Job
from incoming_payments.testing import crediting
from incoming_payments.testing.steps import create, credit
from kits.sqlite_jobs import busy_writer, crediting_one, queue

# After one of these instructions, CPython handles a signal that has arrived.
SIGNAL_POINTS = ("RESUME", "CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the database."""
    return tmp_path / "payments.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    """Yield a store in a new file."""
    with SqliteStore(path) as store:
        yield store


def writer_of(store: SqliteStore) -> _writer.Writer:
    """Return the writer of a store that has written."""
    assert store._engine._writer is not None
    return store._engine._writer[1]


def thread_of(store: SqliteStore) -> str:
    """Make an update that changes nothing, and return the name of the thread that did it."""
    return store._write(lambda _: threading.current_thread().name)


# --- which thread ---


def test_call_alone_is_done_in_its_own_thread(store: SqliteStore) -> None:
    """The hand-over to the writer's thread would take longer than the work."""
    assert thread_of(store) == threading.current_thread().name


def test_calls_together_are_done_in_the_thread_of_the_writer(store: SqliteStore) -> None:
    """After a batch of several jobs, the writer expects several. After a batch of one, it does not."""
    id = create(store)
    with busy_writer(store._engine):
        jobs = [queue(store, id, crediting(name, 1), name) for name in ("wire-1", "wire-2")]
    assert [job.wait().received.value for job in jobs] == [1, 2]
    assert thread_of(store) == "incoming-payments-write"
    assert thread_of(store) == threading.current_thread().name


def test_call_waits_in_the_queue_while_another_works(store: SqliteStore) -> None:
    """It is done in the thread of the writer, with all others that wait."""
    create(store)
    names: list[str] = []
    waiting = threading.Thread(target=lambda: names.append(thread_of(store)))
    with busy_writer(store._engine):
        waiting.start()
        while not len(writer_of(store).jobs):
            pass
    waiting.join()
    assert names == ["incoming-payments-write"]


def test_checkpoint_is_left_to_the_thread_of_the_writer(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller waits for a checkpoint that is due."""
    threads: list[str] = []
    checkpoint = _writer.Writer._checkpoint

    def note(*args: Any, **kwargs: Any) -> bool:
        threads.append(threading.current_thread().name)
        return checkpoint(*args, **kwargs)

    id = create(store)
    monkeypatch.setattr(_writer.Writer, "_checkpoint", note)
    for number in range(100):
        credit(store, id, f"wire-{number}", 1)
    store.close()
    assert set(threads) == {"incoming-payments-write"}
    assert len(threads) >= 3


def test_update_that_closes_its_store_ends(path: Path) -> None:
    """The store does not wait for the thread that does the update."""
    store = SqliteStore(path)
    store._write(lambda _: store.close())
    assert thread_of_new_store(path) == threading.current_thread().name


def thread_of_new_store(path: Path) -> str:
    """Open another store on the file, and return the thread of its update."""
    with SqliteStore(path) as store:
        return thread_of(store)


def test_close_waits_for_a_call_that_has_begun(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call would open the file again after the close."""
    entered, go = threading.Event(), threading.Event()
    run = _writer.Writer.run

    def pause_and_run(writer: _writer.Writer, jobs: Sequence[Job[Any]]) -> None:
        if threading.current_thread() is caller:
            entered.set()
            assert go.wait(30)
        run(writer, jobs)

    monkeypatch.setattr(_writer.Writer, "run", pause_and_run)
    store = SqliteStore(path)
    answers: list[str] = []
    caller = threading.Thread(target=lambda: answers.append(thread_of(store)), name="caller")
    caller.start()
    assert entered.wait(30)
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go.set()
    closing.join(30)
    caller.join(30)
    assert answers == ["caller"]
    assert writer_of(store)._open is None


def test_fork_waits_for_a_call_in_its_own_thread(store: SqliteStore) -> None:
    """No connection may be open during a fork."""
    create(store)
    entered, go = threading.Event(), threading.Event()

    def work(_: object) -> bool:
        entered.set()
        return go.wait(30)

    caller = threading.Thread(target=lambda: store._write(work))
    caller.start()
    assert entered.wait(30)
    forking = threading.Thread(target=_engine._before_fork)
    forking.start()
    forking.join(0.05)
    assert forking.is_alive()
    go.set()
    caller.join(30)
    forking.join(30)
    assert not forking.is_alive()
    assert store._engine.is_paused
    after_fork_in(forking)


def after_fork_in(_: threading.Thread) -> None:
    """End the fork. The lock of forks belongs to a thread that has ended, so a new one replaces it."""
    while _engine._paused:
        _engine._paused.pop().after_fork_in_parent()
    _engine._forking = threading.RLock()


# --- interrupts ---


class Interrupter:
    """Raises `KeyboardInterrupt` once, at the n-th point where CPython handles signals during the traced code."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self._last: dict[FrameType, str] = {}
        self._names: dict[CodeType, bytes] = {}

    def __call__(self, frame: FrameType, _event: str, _: object) -> Callable[..., Any] | None:
        """Trace the functions of the library and of `threading`."""
        name = frame.f_code.co_filename
        if "incoming_payments" not in name and not name.endswith("threading.py"):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.instruction

    def instruction(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        """Count the points, and raise at the right one."""
        if event == "opcode":
            code = self._names.setdefault(frame.f_code, frame.f_code.co_code)
            before, self._last[frame] = self._last.get(frame, ""), dis.opname[code[frame.f_lasti]]
            if before.startswith(SIGNAL_POINTS):
                self.left -= 1
                if self.left == 0:
                    raise KeyboardInterrupt
        elif event == "exception":  # CPython handles no signal on the way to a handler
            self._last[frame] = ""
        return self.instruction


@contextmanager
def interrupted_at(nth: int) -> Iterator[Interrupter]:
    """Interrupt the code of the context at its n-th point."""
    interrupter, before = Interrupter(nth), sys.gettrace()
    sys.settrace(interrupter)
    try:
        yield interrupter
    finally:
        sys.settrace(before)


@pytest.fixture
def without_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make no checkpoint due, so that each call alone is done in its own thread."""
    monkeypatch.setattr(_writer._Connection, "needs_checkpoint", False)


@pytest.mark.usefixtures("without_checkpoints")
def test_interrupt_at_any_point_loses_and_doubles_no_credit(store: SqliteStore, path: Path) -> None:
    """No lock stays held. Other threads and processes go on, and the repeated call gets the answer of one credit."""
    id = create(store)
    credit(store, id, "first", 1)
    total, checked = 1, list[int]()

    def check_credit(store: SqliteStore, id: PaymentId, name: str, total: int) -> None:
        assert credit(store, id, name, 1).received.value == total
        checked.append(total)

    for nth in itertools.count(1):
        name, was_interrupted = f"wire-{nth}", False
        with interrupted_at(nth) as interrupter:
            try:
                assert credit(store, id, name, 1).received.value == total + 1
            except KeyboardInterrupt:
                was_interrupted = True
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
        assert not store._engine._own
        total += 1
        thread = threading.Thread(target=check_credit, args=(store, id, name, total))
        thread.start()
        thread.join(30)
        assert checked == list(range(2, total + 1))
        if interrupter.left > 0:
            break
        assert was_interrupted
    assert nth > 100
    assert store.load(id).received.value == total
    assert [event.received.value for event in store.events(id)] == list(range(total + 1))
    _engine._before_fork()
    _engine._after_fork_in_parent()


@pytest.mark.usefixtures("without_checkpoints")
def test_interrupt_at_any_point_hides_no_failure_of_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync, the next call finds a stopped store, even if an interrupt ended the call that failed."""

    class Failing(sqlite3.Connection):
        is_failing = False

        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if sql == "COMMIT" and Failing.is_failing:
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC"
                failures.append(error)
                raise error
            return super().execute(sql, *arguments)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, **kwargs, factory=Failing))
    failures: list[sqlite3.Error] = []
    stores: list[SqliteStore] = []  # so that no store is collected, and closed, in interrupted code

    def open_store() -> tuple[SqliteStore, PaymentId]:
        stores.append(SqliteStore(path.with_name(f"{len(stores)}.db")))
        id = create(stores[-1])
        credit(stores[-1], id, "first", 1)
        return stores[-1], id

    store, id = open_store()
    for nth in itertools.count(1):
        Failing.is_failing = True
        with interrupted_at(nth) as interrupter, pytest.raises((KeyboardInterrupt, StoreStopped)):
            credit(store, id, f"wire-{nth}", 1)
        Failing.is_failing = False
        if failures:
            with pytest.raises(StoreStopped):
                credit(store, id, f"wire-{nth}", 1)
            assert Path(f"{store._engine._file.path}-lock").stat().st_size == 1  # the mark for other processes
            store.close()
            failures.clear()
            store, id = open_store()
        else:
            assert credit(store, id, f"wire-{nth}", 1).id == f"wire-{nth}"
        if interrupter.left > 0:
            break
    assert nth > 100
    assert len(stores) > 10
    store.close()


def test_interrupted_job_of_the_queue_does_not_run_twice(store: SqliteStore) -> None:
    """A writer drops the work of a run that an interrupt has ended, before it does the next job."""
    id = create(store)
    writer = _writer.Writer(store._engine._file)

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer.run([crediting_one(id, "wire-1"), Job(interrupted)])
    writer.run([crediting_one(id, "wire-2")])
    writer.disconnect()
    assert store.load(id).received.value == 1

"""A call does its update in its own thread while no other call waits, and an interrupt may end it at any point."""

import dis
import itertools
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import BrokenDecision, StoreStopped, StoreUnavailable, StoreUnusable
from incoming_payments.stores.sqlite import SqliteStore, _engine, _writer
from incoming_payments.stores.sqlite._log_watch import LogWatch
from incoming_payments.stores.sqlite._queue import Job
from incoming_payments.stores.sqlite._watch import FileWatch
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
    """The hand-over to the writer's thread would take longer than the work. That thread opens the connection."""
    assert thread_of(store) == "incoming-payments-write"
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
    create(store)
    store._write(lambda _: store.close())
    assert thread_of_new_store(path) == threading.current_thread().name


def thread_of_new_store(path: Path) -> str:
    """Open another store on the file, and return the thread of its update."""
    with SqliteStore(path) as store:
        create(store)
        return thread_of(store)


def test_close_waits_for_a_call_that_has_begun(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call would open the file again after the close."""
    entered, go = threading.Event(), threading.Event()
    run_here = _writer.Writer.run_here

    def pause_and_run(writer: _writer.Writer, job: Job[Any]) -> bool:
        entered.set()
        assert go.wait(30)
        return run_here(writer, job)

    monkeypatch.setattr(_writer.Writer, "run_here", pause_and_run)
    store = SqliteStore(path)
    create(store)
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
    end_fork()


def end_fork() -> None:
    """End the fork. The lock of forks belongs to a thread that has ended, so a new one replaces it."""
    while _engine._paused:
        _engine._paused.pop().after_fork_in_parent()
    _engine._forking = threading.RLock()


def test_update_inside_an_update_is_refused(store: SqliteStore) -> None:
    """It would wait for itself, in the thread of the caller and in that of the writer."""
    threads: list[str] = []

    def work(_: object) -> bool:
        threads.append(threading.current_thread().name)
        with pytest.raises(StoreUnavailable, match="in the middle of an update"):
            create(store)
        return True

    assert [store._write(work) for _ in range(2)] == [True, True]
    assert threads == ["incoming-payments-write", threading.current_thread().name]


def test_fork_inside_an_update_does_not_wait_for_it(store: SqliteStore) -> None:
    """The update, and the updates that wait for it, end after the fork."""
    id = create(store)

    def fork(_: object) -> bool:
        _engine._before_fork()
        _engine._after_fork_in_parent()
        return True

    forked: list[bool] = []
    thread = threading.Thread(target=lambda: forked.append(store._write(fork)), daemon=True)
    thread.start()
    thread.join(30)
    assert forked == [True]
    assert credit(store, id, "wire-1", 1).received.value == 1


def test_handler_may_close_the_store_before_the_call_has_its_turn(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The close does not wait for the call, which a signal has interrupted. The call is refused then."""
    run_here = _writer.Writer.run_here

    def close_and_run(writer: _writer.Writer, job: Job[Any]) -> bool:
        closed.close()
        return run_here(writer, job)

    monkeypatch.setattr(_writer.Writer, "run_here", close_and_run)
    closed = SqliteStore(path)
    create(closed)
    refused: list[StoreUnusable] = []

    def call() -> None:
        with pytest.raises(StoreUnusable, match="is closed") as raised:
            create(closed)
        refused.append(raised.value)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(30)
    assert refused
    assert not path.with_name(f"{path.name}-wal").exists()


def test_close_finds_the_end_of_a_call_that_could_not_notify(path: Path) -> None:
    """An interrupt may end a call before it notifies the threads that wait for it."""
    store = SqliteStore(path)
    create(store)
    job = Job(lambda _: None)
    store._engine._own[job] = 0
    closing = threading.Thread(target=store.close, daemon=True)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    store._engine._own.pop(job)
    closing.join(30)
    assert not closing.is_alive()


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


class LateError(Exception):
    """The exception of a program's signal handler."""


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (LateError(), LateError),
        (TimeoutError("too late"), TimeoutError),
        (SystemExit(), SystemExit),
        (RuntimeError(), StoreUnavailable),  # it could be Python's own, so it is explained
    ],
)
def test_interrupt_after_a_commit_denies_no_credit(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, error: BaseException, outcome: type[BaseException]
) -> None:
    """The exception of a signal handler reaches the caller. No exception becomes a final refusal, as by a bad value."""
    id = create(store)
    after_commit = LogWatch.after_commit

    def interrupted(log: LogWatch) -> int:
        after_commit(log)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(LogWatch, "after_commit", interrupted)
        with pytest.raises(outcome):
            credit(store, id, "wire-1", 1)
    assert store.load(id).received.value == 1
    assert credit(store, id, "wire-1", 1).received.value == 1
    assert store.load(id).received.value == 1


def test_call_after_an_interrupt_is_left_to_the_thread_of_the_writer(store: SqliteStore) -> None:
    """That thread handles no signals, so it opens a connection without losing a descriptor."""
    create(store)

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store._write(interrupted)
    assert thread_of(store) == "incoming-payments-write"
    assert thread_of(store) == threading.current_thread().name


def test_interrupt_does_not_end_the_thread_of_the_writer(store: SqliteStore) -> None:
    """It fails its batch. Without that thread, every call would wait for ever."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    job = Job(interrupted)
    store._engine.submit(job)
    with pytest.raises(BrokenDecision):
        job.wait()
    assert thread_of(store) == "incoming-payments-write"


def test_interrupt_at_any_point_of_a_disconnection_leaks_no_descriptor(store: SqliteStore) -> None:
    """A second call of `close` must not close a descriptor that belongs to another file by then."""
    create(store)
    for nth in itertools.count(1):
        log = LogWatch(store._engine._file.watch)
        descriptor = log._log
        with interrupted_at(nth) as interrupter, suppress(KeyboardInterrupt):
            log.close()
        if log._log == descriptor:
            log.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
        if interrupter.left > 0:
            break


def test_interrupt_hides_no_change_of_the_log(store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store stops when its log was shortened, even if an interrupt ends the call that found it."""
    id = create(store)
    credit(store, id, "wire-1", 1)
    log = path.with_name(f"{path.name}-wal")
    os.truncate(log, log.stat().st_size - 1)
    stop, interrupts = FileWatch.stop, [KeyboardInterrupt()]

    def interrupted(watch: FileWatch, why: str) -> StoreStopped:
        if interrupts:
            raise interrupts.pop()
        return stop(watch, why)

    monkeypatch.setattr(FileWatch, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        credit(store, id, "wire-2", 1)
    with pytest.raises(StoreStopped, match="was shortened"):
        credit(store, id, "wire-2", 1)


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
            assert Path(f"{store._engine._file.path}-lock").read_bytes()[1:2] == b"\0"  # the mark for other processes
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


def test_interrupted_job_does_not_run_twice(store: SqliteStore) -> None:
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

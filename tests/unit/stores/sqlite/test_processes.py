"""Several processes on one file: killed processes, forks, and stores that are never closed."""

import gc
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.payment import PaymentId
from incoming_payments.stores.sqlite import SqliteStore, _engine
from incoming_payments.stores.sqlite._engine import Engine
from incoming_payments.stores.sqlite._rows import Rows
from incoming_payments.testing.steps import check_credits, credit
from kits.sqlite_jobs import act_on, before_reads, beside, busy_writer, during_a_fork, fork

# each of the scripts below begins with these lines
BEGIN = """
import os, sys
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import credit
path, *arguments = sys.argv[1:]
store = SqliteStore(path)
"""

CREDITING = """
import itertools
id, prefix, turns = arguments
for turn in itertools.islice(itertools.count(), int(turns) or None):
    credit(store, id, f"{prefix}-{turn}", turn + 1)
    print(f"{prefix}-{turn}", flush=True)
"""

USING = """
from datetime import timedelta
from incoming_payments.testing import NOW
for number in range(40):
    key = f"{number:064x}"
    if store.nonces.use(key, NOW + timedelta(seconds=300), NOW):
        print(key)
store.close()
"""

FORKING = """
[id] = arguments
credit(store, id, "parent-1", 1)
store.load(id)
child = os.fork()
name = "parent-2" if child else "child-1"
for turn in range(20):
    credit(store, id, f"{name}-{turn}", 1)
    store.load(id)
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    credit(store, id, "parent-3", 1)
"""

OUTLIVED = """
import signal
id, how = arguments
credit(store, id, "parent", 1)
store.load(id)
went, gone = os.pipe()
child = os.fork()
if child:
    store.close()
    os.write(gone, b"x")
    os.waitpid(child, 0)
else:
    store.load(id)
    os.read(went, 1)
    for turn in range(20):
        credit(store, id, f"child-{turn}", 1)
        print(f"child-{turn}", flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""

BUSY = """
import threading
[id] = arguments
go_on = True
def credit_all(name):
    turn = 0
    while go_on:
        credit(store, id, f"{name}-{turn}", 1)
        store.load(id)
        os.write(1, f"{name}-{turn}\\n".encode())
        turn += 1
threads = [threading.Thread(target=credit_all, args=(f"thread-{number}",)) for number in range(4)]
for thread in threads:
    thread.start()
for number in range(6):
    child = os.fork()
    if not child:
        for turn in range(3):
            credit(store, id, f"child-{number}-{turn}", 1)
            os.write(1, f"child-{number}-{turn}\\n".encode())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
go_on = False
for thread in threads:
    thread.join()
store.close()
"""

NO_GROWTH = """
import resource
from incoming_payments.errors import StoreStopped
[id] = arguments
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
turn = 0
while True:
    turn += 1
    try:
        credit(store, id, f"wire-{turn}", 1)
    except StoreStopped:
        break
    print(f"wire-{turn}")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
for call in (lambda: store.load(id), lambda: credit(store, id, "wire-1", 1)):
    try:
        call()
    except StoreStopped:
        continue
    sys.exit("a stopped store has answered")
store.close()
"""


def start(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start `BEGIN` and `script` in a new process, in which a warning is an error."""
    command = [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", BEGIN + script]
    return subprocess.Popen([*command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]") -> list[str]:
    """Return the lines that `process` has printed. It must end without an error."""
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    return output.split()


def check(path: Path, id: PaymentId, acknowledged: list[str]) -> int:
    """Check that each acknowledged credit is stored once and the sums agree. Return the number of all credits."""
    with SqliteStore(path) as store:
        events = store.events(id)
        credited = [event.credit_id for event in events if event.credit_id is not None]
        assert set(acknowledged) <= set(credited)
        amounts = [after.received.value - before.received.value for before, after in pairwise(events)]
        credits = [credit(store, id, credit_id, amount) for credit_id, amount in zip(credited, amounts, strict=True)]
        check_credits(store, id, credits)
        return len(credited)


def test_processes_share_a_file(path: Path, id: PaymentId) -> None:
    """Two of three processes use the same credit ids. No credit is lost or doubled, although no store is closed."""
    processes = [start(CREDITING, path, id, prefix, 40) for prefix in ("a", "b", "b")]
    lines = [line for process in processes for line in finish(process)]

    assert check(path, id, lines) == 80


def test_processes_share_nonces(path: Path) -> None:
    """Each nonce is new to exactly one process."""
    with SqliteStore(path):
        processes = [start(USING, path) for _ in range(3)]
        lines = [line for process in processes for line in finish(process)]

    assert [f"{number:064x}" for number in range(40)] == sorted(lines)


def test_killed_process_loses_no_acknowledged_credit(path: Path, id: PaymentId) -> None:
    """After each SIGKILL, the file has all acknowledged credits and at most one more."""
    acknowledged: list[str] = []
    for turn in range(3):
        process = start(CREDITING, path, id, f"process-{turn}", 0)
        assert process.stdout is not None
        acknowledged += [process.stdout.readline().strip() for _ in range(10 * turn + 5)]
        process.kill()
        # Not `communicate`, which would skip the buffer of `readline`.
        acknowledged += re.findall(r".+(?=\n)", process.stdout.read())
        process.communicate(timeout=60)

    assert len(acknowledged) <= check(path, id, acknowledged) <= len(acknowledged) + 3


def test_store_opened_before_a_fork_serves_both(path: Path, id: PaymentId) -> None:
    """Parent and child have their own connections, and both end without an error although they close nothing."""
    assert finish(start(FORKING, path, id)) == []

    assert check(path, id, [f"{name}-{turn}" for name in ("parent-2", "child-1") for turn in range(20)]) == 42


@pytest.mark.parametrize("how", ["killed", "ends"])
def test_child_outlives_the_store_of_its_parent(path: Path, id: PaymentId, how: str) -> None:
    """SQLite would remove the log that the child uses if the child had inherited an open connection."""
    lines = finish(start(OUTLIVED, path, id, how))

    assert [f"child-{turn}" for turn in range(20)] == lines
    assert check(path, id, lines) == 21


def test_fork_during_writes(path: Path, id: PaymentId) -> None:
    """The fork waits for calls in flight. Children can write at once, and the threads of the parent continue."""
    lines = finish(start(BUSY, path, id))

    assert {f"child-{number}-{turn}" for number in range(6) for turn in range(3)} <= set(lines)
    assert check(path, id, lines) == len(lines)


def test_no_connection_is_open_during_a_fork(path: Path, id: PaymentId) -> None:
    """A call during a fork waits, and gets its answer afterwards."""
    with SqliteStore(path) as store:
        credit(store, id, "wire-1", 1)
        store.load(id)
        with ThreadPoolExecutor(2) as pool, during_a_fork():
            # SQLite removes its log with the last connection.
            assert sorted(path.parent.iterdir()) == [path, beside(path, "lock")]
            calls: list[Future[Any]] = [
                pool.submit(credit, store, id, "wire-2", 1),
                pool.submit(store.load, id),
            ]
            time.sleep(0.02)
            assert sorted(path.parent.iterdir()) == [path, beside(path, "lock")]
            assert not any(call.done() for call in calls)
        assert calls[1].result().id == id
        assert calls[0].result().received.value == 2


@pytest.mark.parametrize("call", ["update", "read"])
def test_fork_waits_for_calls_in_flight(path: Path, id: PaymentId, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that arrive meanwhile wait for the fork."""
    entered, go = threading.Event(), threading.Event()

    def wait(_: Rows) -> None:
        entered.set()
        assert go.wait(30)

    before_reads(monkeypatch, "events", wait)
    with SqliteStore(path) as store, ThreadPoolExecutor(3) as pool:
        with ExitStack() as stack:
            if call == "update":
                stack.enter_context(busy_writer(store, id))
            else:
                pool.submit(store.events, id)
                assert entered.wait(30)
                stack.callback(go.set)
            forking = pool.submit(fork)
            time.sleep(0.05)
            later = pool.submit(store.load, id)
            time.sleep(0.05)
            assert not forking.done()
            assert not later.done()
        forking.result(30)
        assert later.result(30).id == id


def test_store_dropped_during_a_fork_does_not_wait(path: Path, id: PaymentId) -> None:
    """The garbage collector closes it, and the thread that forks may have called the garbage collector."""
    store = SqliteStore(path)
    store.load(id)
    with during_a_fork():
        del store
        gc.collect()
    SqliteStore(path).close()


def test_close_waits_for_a_fork(path: Path) -> None:
    """It is no part of the garbage collection, so it may wait."""
    store = SqliteStore(path)
    with ThreadPoolExecutor(1) as pool:
        with during_a_fork():
            closing = pool.submit(store.close)
            time.sleep(0.02)
            assert not closing.done()
        closing.result(30)


def test_fork_waits_for_a_close_that_has_begun(path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have waited for the writer. The child gets no connection that the close has not closed yet."""
    act_on(monkeypatch, "PRAGMA wal_checkpoint", lambda *_: time.sleep(0.05))
    for turn in range(8):  # either thread may continue first
        store = SqliteStore(path)
        credit(store, id, f"wire-{turn}", 1)
        with ThreadPoolExecutor(2) as pool:
            with busy_writer(store, id):
                closing = pool.submit(store.close)
                time.sleep(0.02)
                forking = pool.submit(_files_during_a_fork, path)
                time.sleep(0.02)
            assert forking.result(30) == [path, beside(path, "lock")]
            closing.result(30)


def _files_during_a_fork(path: Path) -> list[Path]:
    with during_a_fork():
        return sorted(path.parent.iterdir())


def test_interrupted_fork_closes_every_connection(path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python forks even after Ctrl-C in a hook, so the hook closes every connection before it raises."""
    interrupts = [KeyboardInterrupt(), KeyboardInterrupt()]
    stop = Engine.before_fork

    def interrupted(engine: Engine) -> None:
        if interrupts:
            raise interrupts.pop()
        stop(engine)

    with SqliteStore(path) as store:
        credit(store, id, "wire-1", 1)
        monkeypatch.setattr(Engine, "before_fork", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _engine._before_fork()
        assert sorted(path.parent.iterdir()) == [path, beside(path, "lock")]
        _engine._after_fork_in_parent()
        assert credit(store, id, "wire-2", 1).received.value == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="file size limits and forks need POSIX")
def test_file_size_limit_stops_the_store(path: Path, id: PaymentId) -> None:
    """The first write beyond the limit fails and stops the store. The file has every acknowledged credit."""
    lines = finish(start(NO_GROWTH, path, id))

    assert len(lines) >= 1
    assert check(path, id, lines) == len(lines)

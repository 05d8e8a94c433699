"""Several processes on one file, processes that are killed, that fork, and that forget to close."""

import os
import re
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.errors import StoreUnusable
from incoming_payments.stores.sqlite import SqliteStore, _engine
from incoming_payments.stores.sqlite._engine import Engine
from incoming_payments.stores.sqlite._rows import Rows
from incoming_payments.testing import crediting
from incoming_payments.testing.steps import check_credits, create, credit

CREDITING = """
import itertools, sys
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.values import crediting
path, id, prefix, turns = sys.argv[1:]
store = SqliteStore(path)
for turn in itertools.islice(itertools.count(), int(turns) or None):
    credit_id = f"{prefix}-{turn}"
    store.update(id, crediting(credit_id, turn + 1), credit_id)
    print(credit_id, flush=True)
"""

USING = """
import sys
from datetime import timedelta
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import NOW
store = SqliteStore(sys.argv[1])
for number in range(40):
    key = f"{number:064x}"
    if store.nonces.use(key, NOW + timedelta(seconds=300), NOW):
        print(key)
store.close()
"""

FORKING = """
import os, sys
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.values import crediting
path, id = sys.argv[1:]
store = SqliteStore(path)
store.update(id, crediting("parent-1", 1), "parent-1")
store.load(id)
child = os.fork()
name = "parent-2" if child else "child-1"
for turn in range(20):
    store.update(id, crediting(f"{name}-{turn}", 1), f"{name}-{turn}")
    store.load(id)
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    store.update(id, crediting("parent-3", 1), "parent-3")
"""

OUTLIVED = """
import os, signal, sys
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.values import crediting
path, id, how = sys.argv[1:]
store = SqliteStore(path)
store.update(id, crediting("parent", 1), "parent")
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
        store.update(id, crediting(f"child-{turn}", 1), f"child-{turn}")
        print(f"child-{turn}", flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""

BUSY = """
import os, sys, threading
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.values import crediting
path, id = sys.argv[1:]
store = SqliteStore(path)
go_on = True
def credit(name):
    turn = 0
    while go_on:
        store.update(id, crediting(f"{name}-{turn}", 1), f"{name}-{turn}")
        store.load(id)
        os.write(1, f"{name}-{turn}\\n".encode())
        turn += 1
threads = [threading.Thread(target=credit, args=(f"thread-{number}",)) for number in range(4)]
for thread in threads:
    thread.start()
for number in range(6):
    child = os.fork()
    if not child:
        for turn in range(3):
            store.update(id, crediting(f"child-{number}-{turn}", 1), f"child-{number}-{turn}")
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
import resource, sys
from incoming_payments.errors import StoreStopped
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.values import crediting
path, id = sys.argv[1:]
store = SqliteStore(path)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
turn = 0
while True:
    turn += 1
    try:
        store.update(id, crediting(f"wire-{turn}", 1), f"wire-{turn}")
    except StoreStopped:
        break
    print(f"wire-{turn}")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
for call in (lambda: store.load(id), lambda: store.update(id, crediting("wire-1", 1), "wire-1")):
    try:
        call()
    except StoreStopped:
        continue
    sys.exit("a stopped store has answered")
store.close()
"""


def start(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """A process of its own, in which a warning is an error."""
    command = [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", script]
    return subprocess.Popen([*command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]") -> list[str]:
    """The lines it printed, once it has ended well."""
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    return output.split()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file of a test goes."""
    return tmp_path / "payments.db"


@pytest.fixture
def id(path: Path) -> PaymentId:
    """A payment in it."""
    with SqliteStore(path) as store:
        return create(store)


def check(path: Path, id: PaymentId, acknowledged: list[str]) -> int:
    """Every acknowledged credit is in the file once, and the sums agree. Returns how many are there in all."""
    with SqliteStore(path) as store:
        events = store.events(id)
        booked = [event.credit_id for event in events if event.credit_id is not None]
        assert set(acknowledged) <= set(booked)
        amounts = [after.received.value - before.received.value for before, after in pairwise(events)]
        credits = [credit(store, id, credit_id, amount) for credit_id, amount in zip(booked, amounts, strict=True)]
        check_credits(store, id, credits)
        return len(booked)


def test_several_processes_share_a_file(path: Path, id: PaymentId) -> None:
    """Some with credit ids of their own and some with the same: nothing is lost or doubled. None closes its store."""
    processes = [start(CREDITING, path, id, prefix, 40) for prefix in ("a", "b", "b")]
    lines = [line for process in processes for line in finish(process)]

    assert check(path, id, lines) == 80


def test_several_processes_agree_on_nonces(path: Path) -> None:
    """Each is new to exactly one of them."""
    with SqliteStore(path):
        processes = [start(USING, path) for _ in range(3)]
        lines = [line for process in processes for line in finish(process)]

    assert [f"{number:064x}" for number in range(40)] == sorted(lines)


def test_what_a_killed_process_was_told_is_in_the_file(path: Path, id: PaymentId) -> None:
    """SIGKILL comes when it will; what was acknowledged is there, and at most one more, once."""
    acknowledged: list[str] = []
    for turn in range(3):
        process = start(CREDITING, path, id, f"process-{turn}", 0)
        assert process.stdout is not None
        acknowledged += [process.stdout.readline().strip() for _ in range(10 * turn + 5)]
        process.kill()
        # Not `communicate`, which would pass over what `readline` has in its buffer.
        acknowledged += re.findall(r".+(?=\n)", process.stdout.read())
        process.communicate(timeout=60)

    assert len(acknowledged) <= check(path, id, acknowledged) <= len(acknowledged) + 3


def test_a_store_opened_before_a_fork_serves_both(path: Path, id: PaymentId) -> None:
    """Parent and child each with connections of their own; both end without a complaint, and closing nothing."""
    assert finish(start(FORKING, path, id)) == []

    assert check(path, id, [f"{name}-{turn}" for name in ("parent-2", "child-1") for turn in range(20)]) == 42


@pytest.mark.parametrize("how", ["killed", "ends"])
def test_a_child_that_outlives_its_parents_store_loses_nothing(path: Path, id: PaymentId, how: str) -> None:
    """SQLite would take the log away under the child, if it had inherited a connection that was open."""
    lines = finish(start(OUTLIVED, path, id, how))

    assert [f"child-{turn}" for turn in range(20)] == lines
    assert check(path, id, lines) == 21


def test_forks_while_others_write(path: Path, id: PaymentId) -> None:
    """A fork waits for what is under way, the children can write at once, and the parent's threads go on."""
    lines = finish(start(BUSY, path, id))

    assert {f"child-{number}-{turn}" for number in range(6) for turn in range(3)} <= set(lines)
    assert check(path, id, lines) == len(lines)


def test_nothing_is_open_during_a_fork(path: Path, id: PaymentId) -> None:
    """What the hooks do, in this process: a call that comes meanwhile waits, and is answered afterwards."""
    with SqliteStore(path) as store:
        credit(store, id, "wire-1", 1)
        store.load(id)
        engine = store._engine
        _engine._before_fork()
        assert (engine._writer, engine._idle) == (None, [])
        # SQLite removes its log with the last connection.
        assert sorted(path.parent.iterdir()) == [path, path.with_name(f"{path.name}-lock")]
        received: list[int] = []
        calls = [
            threading.Thread(target=lambda: received.append(credit(store, id, "wire-2", 1).received.value)),
            threading.Thread(target=lambda: received.append(store.load(id).version)),
        ]
        for call in calls:
            call.start()
        assert (engine._writer, engine._idle, received) == (None, [], [])
        _engine._after_fork_in_parent()
        for call in calls:
            call.join(30)
        assert received[0] + received[1] in {4, 5}  # the total is 2; the version is 2 or 3, as the two may overtake


def test_a_store_that_is_dropped_during_a_fork_does_not_wait(path: Path, id: PaymentId) -> None:
    """The garbage collector may find it in the very thread that the fork waits for."""
    store = SqliteStore(path)
    store.load(id)
    _engine._before_fork()
    store._engine.close_unattended()
    _engine._after_fork_in_parent()
    with pytest.raises(StoreUnusable, match="closed"):
        store.load(id)


def test_a_reader_that_comes_back_during_a_fork_is_closed(path: Path) -> None:
    """The fork waits for it."""
    with SqliteStore(path) as store:
        engine = store._engine
        began, go_on = threading.Event(), threading.Event()

        def read(_: Rows) -> None:
            began.set()
            assert go_on.wait(30)

        reader = threading.Thread(target=engine.read, args=(read,))
        reader.start()
        assert began.wait(30)
        fork = threading.Thread(target=_fork_around, args=(engine,))
        fork.start()
        while not engine._fork_pending:
            time.sleep(0.001)
        assert fork.is_alive()
        go_on.set()
        for thread in (reader, fork):
            thread.join(30)
        assert engine._idle == []


def _fork_around(engine: Engine) -> None:
    _engine._before_fork()
    assert engine._reading == 0
    _engine._after_fork_in_parent()


def test_an_interrupt_leaves_nothing_open_and_nothing_stopped(
    path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a fork waits is for afterwards: the fork goes on, so every connection has to be closed first."""
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
        assert (store._engine._writer, store._engine._idle) == (None, [])
        _engine._after_fork_in_parent()
        assert credit(store, id, "wire-2", 1).received.value == 2


def test_a_child_begins_anew(path: Path, id: PaymentId) -> None:
    """What the hook does there, in this process: a writer and connections of its own, and no lock of the parent's."""
    with SqliteStore(path) as store:
        credit(store, id, "wire-1", 1)
        _engine._before_fork()
        _engine._after_fork_in_child()
        assert credit(store, id, "wire-2", 1).received.value == 2
        assert store.load(id).received.value == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="file size limits and forks are of POSIX")
def test_a_file_that_cannot_grow_stops_the_store(path: Path, id: PaymentId) -> None:
    """A write beyond the limit of file sizes fails, and the store stops. Everything acknowledged before is there."""
    lines = finish(start(NO_GROWTH, path, id))

    assert len(lines) >= 1
    assert check(path, id, lines) == len(lines)


def test_stores_of_one_process_share_a_file(path: Path, id: PaymentId) -> None:
    """As stores of several processes do."""
    with SqliteStore(path) as one, SqliteStore(path) as other:
        for turn in range(10):
            for store in (one, other):
                answer = store.update(id, crediting(f"wire-{turn}", 1), CreditId(f"wire-{turn}"))
                assert answer.received.value == turn + 1

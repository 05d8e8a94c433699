"""Several processes on one file, processes that are killed, that fork, and that forget to close."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.stores import _sqlite_engine
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import crediting
from incoming_payments.testing.steps import book, check_books, create

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

FULL = """
import resource, sys
from incoming_payments.errors import StoreUnavailable
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
    except StoreUnavailable:
        break
    print(f"wire-{turn}")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
assert store.load(id).received.value == turn - 1
store.update(id, crediting(f"wire-{turn}", 1), f"wire-{turn}")
print(f"wire-{turn}")
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
        credits = [book(store, id, credit_id, amount) for credit_id, amount in zip(booked, amounts, strict=True)]
        check_books(store, id, credits)
        return len(booked)


def test_several_processes_share_a_file(path: Path, id: PaymentId) -> None:
    """Some with credit ids of their own and some with the same: nothing is lost or doubled. None closes its store."""
    processes = [start(CREDITING, path, id, prefix, 40) for prefix in ("a", "b", "b")]
    lines = [line for process in processes for line in finish(process)]

    assert check(path, id, lines) == 80


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


def test_a_forked_child_begins_anew(path: Path, id: PaymentId) -> None:
    """What the hook does, in this process: threads and connections are left alone, not closed, and new ones serve."""
    with SqliteStore(path) as store:
        book(store, id, "wire-1", 1)
        store.load(id)
        engine = store._engine
        writer, ((inherited, _),) = engine._writer, engine._idle
        assert writer is not None

        _sqlite_engine._begin_anew()

        assert book(store, id, "wire-2", 1).received.value == 2
        assert store.load(id).received.value == 2
        assert writer is not engine._writer
        assert inherited not in [connection for connection, _ in engine._idle]
        assert inherited.execute("PRAGMA query_only").fetchone() == (1,)
    writer[1].put(None)  # in a real child there is no such thread
    writer[0].join(30)
    inherited.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="file size limits and forks are of POSIX")
def test_a_full_disk_takes_back_nothing(path: Path, id: PaymentId) -> None:
    """A file that cannot grow refuses a credit for now; the same credit is taken when it can."""
    lines = finish(start(FULL, path, id))

    assert check(path, id, lines) == len(lines)


def test_stores_of_one_process_share_a_file(path: Path, id: PaymentId) -> None:
    """As stores of several processes do."""
    with SqliteStore(path) as one, SqliteStore(path) as other:
        for turn in range(10):
            for store in (one, other):
                answer = store.update(id, crediting(f"wire-{turn}", 1), CreditId(f"wire-{turn}"))
                assert answer.received.value == turn + 1

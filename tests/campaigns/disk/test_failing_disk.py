"""After a sync that fails, the store acknowledges nothing that the disk may not hold."""

import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from campaigns.crash.check import check
from campaigns.crash.payer import Payer
from campaigns.crash.records import NO_ANSWER
from campaigns.crash.service import Service
from campaigns.disk.campaign import run_campaign
from campaigns.disk.faults import (
    DEAD,
    FATES,
    HEALTHY,
    HOLDING,
    KILLING,
    KILLING_IN_DATABASE,
    LOSING_DATABASE,
    FaultyDisk,
    build,
)
from incoming_payments.domain.payment import PaymentId
from incoming_payments.stores.sqlite import SqliteStore


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the compiled library."""
    return build(tmp_path_factory.mktemp("library"))


@pytest.fixture
def disk(tmp_path: Path, library: Path) -> FaultyDisk:
    """Return a disk that works."""
    return FaultyDisk(tmp_path / "disk", library)


class Caller:
    """A process that calls a store on the disk."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.opened = self._line()

    def answer_to(self, *command: str) -> str:
        """Send a command, and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(command) + "\n")
        self._process.stdin.flush()
        return self._line()

    def end(self) -> None:
        """Close the input, and wait for the end of the process."""
        self._process.communicate(timeout=60)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def callers(disk: FaultyDisk) -> Iterator["Callers"]:
    """Start callers, and end them after the test."""
    with ExitStack() as stack:
        yield Callers(disk, stack)


class Callers:
    """Starts processes on the disk."""

    def __init__(self, disk: FaultyDisk, stack: ExitStack) -> None:
        self._disk, self._stack = disk, stack

    def start(self) -> Caller:
        """Start a process that opens the database."""
        return Caller(self._stack.enter_context(self._disk.start("caller", self._disk.folder / "payments.db")))


def created(caller: Caller) -> str:
    """Return the id of a new payment with one credit."""
    id = caller.answer_to("create").removeprefix("ok ")
    assert caller.answer_to("credit", id, "wire-1") == "ok 1"
    return id


def test_repeat_in_the_same_process_is_not_acknowledged(disk: FaultyDisk, callers: Callers) -> None:
    """A second sync would succeed, but the data of the first is lost. So the store refuses each repeat."""
    caller = callers.start()
    id = created(caller)
    disk.set(DEAD)
    assert caller.answer_to("credit", id, "wire-2") == "StoreStopped"
    disk.set(HEALTHY)
    for _ in range(3):
        assert caller.answer_to("credit", id, "wire-2") == "StoreStopped"
    assert caller.answer_to("read", id) == "StoreStopped"


@pytest.mark.parametrize("command", ["create", "nonce a"])
def test_creation_or_nonce_after_a_failed_sync_is_not_acknowledged(
    disk: FaultyDisk, callers: Callers, command: str
) -> None:
    """The store stops."""
    caller = callers.start()
    created(caller)
    disk.set(DEAD)
    for _ in range(2):
        assert caller.answer_to(*command.split()) == "StoreStopped"


def test_restart_while_the_disk_is_dead_acknowledges_nothing(disk: FaultyDisk, callers: Callers) -> None:
    """The kernel has the lost commit in its cache, so SQLite would recover it. Opening the store fails."""
    caller = callers.start()
    id = created(caller)
    disk.set(DEAD)
    assert caller.answer_to("credit", id, "wire-2") == "StoreStopped"
    caller.end()
    for _ in range(3):
        assert callers.start().opened == "StoreStopped"
    disk.set(HEALTHY)
    caller = callers.start()
    assert caller.opened == "ok open"
    assert caller.answer_to("credit", id, "wire-2") == "ok 2"
    assert caller.answer_to("read", id) == "ok 2"


def test_second_process_with_the_database_open_stops(disk: FaultyDisk, callers: Callers) -> None:
    """It commits nothing after the lost data. A third process can open the store when both have ended."""
    first, second = callers.start(), callers.start()
    id = created(first)
    assert second.answer_to("read", id) == "ok 1"
    disk.set(DEAD)
    assert first.answer_to("credit", id, "wire-2") == "StoreStopped"
    disk.set(HEALTHY)
    for _ in range(2):
        assert second.answer_to("credit", id, "wire-2") == "StoreStopped"
    assert second.answer_to("read", id) == "StoreStopped"
    first.end()
    assert callers.start().opened == "StoreStopped"
    second.end()
    third = callers.start()
    assert third.answer_to("credit", id, "wire-2") == "ok 2"


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("first", ["read", "credit again"])
def test_worker_that_replaces_a_killed_one_answers_what_is_on_the_disk(
    tmp_path: Path, library: Path, fate: str, first: str
) -> None:
    """A worker is killed inside a sync. No other has the database open, so the next one recovers the log.

    The parent opened the store, and each worker is a child of its own. After a power cut, the credit is still there if
    it was in an answer.
    """
    disk = FaultyDisk(tmp_path / "disk", library, platter=True)
    database = disk.folder / "payments.sqlite3"
    with disk.start("caller", database, "fork") as process:
        caller = Caller(process)
        assert caller.opened == "ok open"
        id = created(caller)
        disk.set(KILLING, 255, FATES[fate], survived=1)  # a worker syncs the log before its first commit
        assert caller.answer_to("credit", id, "wire-2") == "killed"
        disk.set(HEALTHY)
        if first == "read":
            answer = caller.answer_to("read", id)
        else:
            answer = caller.answer_to("credit", id, "wire-2")
            assert answer == "ok 2"
        caller.end()
    disk.cut_power(database)
    with SqliteStore(database) as store:
        assert f"ok {store.load(PaymentId(id)).received.value}" == answer


@pytest.mark.parametrize("fate", FATES)
def test_worker_killed_inside_the_sync_of_a_checkpoint_loses_no_credit(
    tmp_path: Path, library: Path, fate: str
) -> None:
    """An earlier checkpoint has copied a part of the log, because a reader needed the older state, and synced nothing.

    If the sync of the next one has failed, no other process learns of it. So the others stop. A process that opens the
    database later copies the whole log again.
    """
    disk = FaultyDisk(tmp_path / "disk", library, platter=True)
    database = disk.folder / "payments.sqlite3"
    with disk.start("caller", database) as first, disk.start("caller", database) as second:
        callers = Caller(first), Caller(second)
        ids = [callers[0].answer_to("create").removeprefix("ok ") for _ in range(40)]
        with closing(sqlite3.connect(database, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            acknowledged = credit_until(callers[0], ids[-1], 1, lambda number: number == 20)
        disk.set(KILLING_IN_DATABASE, 255, FATES[fate])
        acknowledged = credit_until(callers[0], ids[-1], acknowledged + 1, lambda _: first.poll() is not None)
        disk.set(HEALTHY)
        acknowledged = credit_until(callers[1], ids[-1], acknowledged + 1, lambda number: number == 200)
        callers[1].end()
    disk.cut_power(database)
    with SqliteStore(database) as store:
        credited = [store.load(PaymentId(id)).received.value for id in ids]
    assert credited[-1] >= acknowledged


def test_commit_during_a_checkpoint_is_not_lost_with_a_later_sync(tmp_path: Path, library: Path) -> None:
    """SQLite does not sync the database when another process commits while it copies the log.

    So the checkpoint keeps other processes from committing, or does not count as synced.
    """
    disk = FaultyDisk(tmp_path / "disk", library, platter=True)
    database = disk.folder / "payments.sqlite3"
    with disk.start("caller", database) as first, disk.start("caller", database) as second:
        callers = Caller(first), Caller(second)
        ids = [callers[0].answer_to("create").removeprefix("ok ") for _ in range(40)]
        disk.set(HOLDING)
        acknowledged = credit_until(callers[0], ids[-1], 1, lambda _: is_held_soon(disk))
        number = acknowledged + 1
        acknowledged += callers[1].answer_to("credit", ids[-1], f"wire-{number}") == f"ok {number}"
        disk.set(KILLING_IN_DATABASE, 255, FATES["failed, evicted"], survived=1)
        acknowledged = credit_until(callers[0], ids[-1], acknowledged + 1, lambda _: first.poll() is not None)
        disk.set(HEALTHY)
        with disk.start("caller", database) as third:
            Caller(third).end()
        callers[1].end()
    disk.cut_power(database)
    with SqliteStore(database) as store:
        credited = [store.load(PaymentId(id)).received.value for id in ids]
    assert credited[-1] >= acknowledged


def is_held_soon(disk: FaultyDisk) -> bool:
    """Return whether the disk holds a write. A checkpoint begins when the answer has been given."""
    time.sleep(0.1)
    return disk.holds_a_write


def test_store_opens_only_when_sqlite_recovers_an_unfinished_checkpoint(tmp_path: Path, library: Path) -> None:
    """While another program has the database open, SQLite recovers nothing, and copies only the rest of the log."""
    disk = FaultyDisk(tmp_path / "disk", library, platter=True)
    database = disk.folder / "payments.sqlite3"
    with disk.start("caller", database) as first:
        caller = Caller(first)
        ids = [caller.answer_to("create").removeprefix("ok ") for _ in range(40)]
        report = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, isolation_level=None)
        report.execute("BEGIN")
        report.execute("SELECT count(*) FROM sqlite_master").fetchone()
        acknowledged = credit_until(caller, ids[-1], 1, lambda number: number == 20)
        report.rollback()  # the report has ended, and stays connected
        disk.set(KILLING_IN_DATABASE, 255, FATES["failed, evicted"])
        acknowledged = credit_until(caller, ids[-1], acknowledged + 1, lambda _: first.poll() is not None)
        disk.set(HEALTHY)
    with disk.start("caller", database) as second:
        assert Caller(second).opened == "StoreUnavailable"
    report.close()
    with disk.start("caller", database) as third:
        caller = Caller(third)
        assert caller.opened == "ok open"
        caller.end()
    disk.cut_power(database)
    with SqliteStore(database) as store:
        credited = [store.load(PaymentId(id)).received.value for id in ids]
    assert credited[-1] >= acknowledged


def test_process_that_has_not_noticed_the_stop_of_another_keeps_the_log_at_its_end(
    tmp_path: Path, library: Path
) -> None:
    """One has copied a part of the log, and the sync of its next checkpoint fails. The other ends without a call.

    It would sync only the rest, and remove the log.
    """
    disk = FaultyDisk(tmp_path / "disk", library, platter=True)
    database = disk.folder / "payments.sqlite3"
    with disk.start("caller", database) as first, disk.start("caller", database) as second:
        callers = Caller(first), Caller(second)
        ids = [callers[0].answer_to("create").removeprefix("ok ") for _ in range(40)]
        with closing(sqlite3.connect(database, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            acknowledged = credit_until(callers[0], ids[-1], 1, lambda number: number == 20)
        disk.set(LOSING_DATABASE)
        acknowledged = credit_until(callers[0], ids[-1], acknowledged + 1, lambda _: False)
        disk.set(HEALTHY)
        for caller in callers:
            caller.end()
    disk.cut_power(database)
    with SqliteStore(database) as store:
        credited = [store.load(PaymentId(id)).received.value for id in ids]
    assert credited[-1] >= acknowledged


def credit_until(caller: Caller, id: str, number: int, is_over: Callable[[int], bool]) -> int:
    """Credit a payment with `wire-{number}` and so on, and return the number of the last credit that has an answer."""
    while not is_over(number) and caller.answer_to("credit", id, f"wire-{number}").startswith("ok"):
        number += 1
    return number - 1


def test_failed_checkpoint_stops_the_store(disk: FaultyDisk, callers: Callers) -> None:
    """A checkpoint by SQLite itself would hide the error behind a successful commit."""
    caller = callers.start()
    id = created(caller)
    for number in range(2, 16):
        assert caller.answer_to("credit", id, f"wire-{number}") == f"ok {number}"
    # About the sixteenth commit of a connection is followed by a checkpoint, which syncs the log and the database.
    disk.set(DEAD)
    answers = [caller.answer_to("credit", id, f"wire-{number}") for number in range(16, 20)]
    assert answers[-1] == "StoreStopped"


def test_serve_ends_with_a_message(disk: FaultyDisk, tmp_path: Path, library: Path) -> None:
    """`serve` ends with a non-zero status, for the supervisor. While the disk is dead it does not start."""
    disk = FaultyDisk(tmp_path / "bank", library)
    with Service(disk.folder, environment=disk.environment()) as service:
        payer = Payer(service, limit=100)
        first, second = payer.packet(70), payer.packet(30)
        service.up()
        assert payer.send(first) == "fulfilled"
        disk.set(DEAD)
        assert payer.send(second) in {"T00", NO_ANSWER}
        assert service.wait() == 1
        assert "has stopped: the disk failed" in service.log_text()
        for _ in range(2):
            service.start()
            assert service.wait() == 1
        assert "cannot be written and synced (Input/output error)" in service.log_text()
        disk.set(HEALTHY)
        service.up()
        assert [payer.send(packet) for packet in (first, second)] == ["fulfilled", "fulfilled"]
        service.stop()
        report = check(service.database, [payer.path])
    assert report.violations == []
    assert report.figures.credits == 2


def test_no_acknowledged_credit_is_missing_after_a_power_cut(library: Path, tmp_path: Path) -> None:
    """A short form of `nox -s disk`: syncs fail at random, and the disk is rebuilt from the synced data."""
    report = run_campaign(tmp_path, library, images=30, runs=3, seed=1)
    assert report.missing == []
    assert report.images == 30
    assert report.acknowledged > 0
    assert report.failed_syncs > 0

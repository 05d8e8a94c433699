"""A store refuses a file under two names and a log of another database, and notices damage by an operator."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, IncomingPayment, credit_id
from incoming_payments.errors import StoreStopped, StoreUnavailable, StoreUnusable
from incoming_payments.stores.sqlite import SqliteStore, _disk, _second_name
from incoming_payments.testing import crediting
from incoming_payments.testing.steps import create, credit
from kits.sqlite_jobs import beside, leave_a_log

# --- one file under two names ---


@pytest.mark.parametrize("ending", ["", "-wal", "-lock"])
def test_file_with_two_hard_links_is_refused(path: Path, ending: str) -> None:
    """Each name of the database would get a log of its own. The message says how to find the other name."""
    leave_a_log(path)
    other = path.with_name("another name")
    os.link(f"{path}{ending}", other)
    with pytest.raises(StoreUnusable, match=r"has 2 names \(hard links\).*find DIRECTORY -samefile"):
        SqliteStore(path)
    other.unlink()
    SqliteStore(path).close()


def test_name_without_the_log_is_the_one_to_remove(path: Path) -> None:
    """The log is beside the other name, and holds credits. The message tells the operator to use that name."""
    id = leave_a_log(path)
    second = path.with_name("second.sqlite3")
    os.link(path, second)
    with pytest.raises(StoreUnusable, match=r"Keep the name with a log \(-wal\) beside it") as caught:
        SqliteStore(second)
    assert "copy" not in str(caught.value)
    second.unlink()
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 1


@pytest.mark.parametrize("name", ["payments.db", "my payments.db"])
def test_file_that_is_mounted_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The list of mounts writes a space as an octal number."""
    path = tmp_path / name
    mounts = tmp_path / "mountinfo"
    escaped = str(path).replace(" ", "\\040")
    mounts.write_text(f"22 28 0:21 / /proc rw - proc proc rw\n36 35 98:0 /payments {escaped} rw - ext4 /dev/sda rw\n")
    monkeypatch.setattr(_second_name, "_MOUNTS", str(mounts))
    with pytest.raises(StoreUnusable, match=r"is mounted as a single file.*mount its directory"):
        SqliteStore(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file")
def test_database_behind_a_bind_mount_is_refused(path: Path, tmp_path: Path) -> None:
    """A bind mount of the file, as `docker -v payments.db:/app/payments.db` makes one."""
    SqliteStore(path).close()
    app = tmp_path / "app"
    app.mkdir()
    (app / "payments.db").touch()
    if subprocess.run(["mount", "--bind", path, app / "payments.db"], capture_output=True).returncode:
        pytest.skip("mounts are not possible here")
    try:
        with pytest.raises(StoreUnusable, match="is mounted as a single file"):
            SqliteStore(app / "payments.db")
    finally:
        subprocess.run(["umount", app / "payments.db"], check=True)


def test_system_without_a_list_of_mounts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Linux has the list."""
    monkeypatch.setattr(_second_name, "_MOUNTS", "/no such file")
    SqliteStore(path).close()


# --- a log of another database ---


@pytest.fixture
def backup(path: Path) -> Path:
    """Return a backup of the database, which has changed since and has left a log."""
    with SqliteStore(path) as store:
        create(store)
        store.backup(path.with_name("backup.db"))
    leave_a_log(path)
    return path.with_name("backup.db")


def test_backup_beside_an_old_log_is_refused(path: Path, backup: Path) -> None:
    """SQLite would apply the log to the backup, and damage it. Without the log, the backup opens."""
    log = beside(path, "wal").read_bytes()
    shutil.copy(backup, path)
    for _ in range(2):
        with pytest.raises(StoreUnusable, match=r"payments.db-wal belongs to another database"):
            SqliteStore(path)
    assert beside(path, "wal").read_bytes() == log
    beside(path, "wal").unlink()
    beside(path, "shm").unlink()
    with SqliteStore(path) as store:
        create(store)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM payments").fetchone() == (2,)


def test_lock_file_of_zeros_does_not_refuse_the_log(path: Path) -> None:
    """A power cut can leave zeros where the id was. The store opens the log, which has the only copy of a payment."""
    leave_a_log(path)
    lock = beside(path, "lock")
    lock.write_bytes(lock.read_bytes()[:-17] + bytes(17))  # the id, and the state of the checkpoints
    with SqliteStore(path), closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM payments").fetchone()[0] >= 1


def test_interrupt_while_the_log_is_written_again_stops_no_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler may raise `TimeoutError` in the sync. This says nothing about the disk."""

    def interrupted(_: int) -> None:
        raise TimeoutError("too late")

    with SqliteStore(path) as store:
        id = create(store)
        with monkeypatch.context() as patch:
            patch.setattr(_disk, "sync", interrupted)
            with pytest.raises(StoreUnavailable, match="too late"):
                SqliteStore(path)
        credit(store, id, "wire-1", 1)
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 1


def test_backup_beside_an_old_log_is_refused_after_a_stop(path: Path, backup: Path) -> None:
    """A failed disk is the usual reason to restore a backup. The stopped store keeps the id in the lock file."""
    store = SqliteStore(path)
    create(store)
    beside(path, "shm").unlink()
    with pytest.raises(StoreStopped):
        create(store)
    # Its process has ended by now, as far as other stores can see.
    store._engine._file.watch.lock.close()
    shutil.copy(backup, path)
    with pytest.raises(StoreUnusable, match="belongs to another database"):
        SqliteStore(path)


def test_each_backup_has_an_id_of_its_own(path: Path, backup: Path) -> None:
    """The database, its backup and a backup of that are three databases."""
    second = path.with_name("second.db")
    with SqliteStore(backup) as store:
        store.backup(second)
    ids = set()
    for file in (path, backup, second):
        with closing(sqlite3.connect(file)) as connection:
            ids |= set(connection.execute("SELECT id FROM database_id").fetchall())
    assert len(ids) == 3


def test_database_without_an_id_gets_one(path: Path) -> None:
    """A database of an earlier release opens, with its log. A backup of it beside a later log is refused."""
    id = leave_a_log(path)
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 1
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE database_id")
    old = path.read_bytes()
    os.truncate(beside(path, "lock"), 60)  # the lock file of an earlier release ends here
    leave_a_log(path)
    assert len(beside(path, "lock").read_bytes()) == 77
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 1
    leave_a_log(path)
    path.write_bytes(old)
    with pytest.raises(StoreUnusable, match="belongs to another database"):
        SqliteStore(path)


def test_half_written_page_is_left_to_the_log(path: Path) -> None:
    """A process was killed in a checkpoint. The id cannot be read without the log, which has the whole page."""
    id = leave_a_log(path)
    data = bytearray(path.read_bytes())
    root = root_page_in_the_log(path)
    data[(root - 1) * 4096 : (root - 1) * 4096 + 2048] = bytes(2048)
    path.write_bytes(data)
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 1


def root_page_in_the_log(path: Path) -> int:
    """Write the page of the id to the log in a process that is killed, and return its number."""
    script = f"""
import os, signal, sqlite3
connection = sqlite3.connect({str(path)!r}, isolation_level=None)
[(id,)] = connection.execute("SELECT id FROM database_id")
connection.execute("BEGIN")
connection.execute("UPDATE database_id SET id = zeroblob(16)")  # SQLite writes no page for an equal value
connection.execute("UPDATE database_id SET id = ?", [id])
connection.execute("COMMIT")
print(*connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'database_id'").fetchone(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""  # noqa: S608 - the path of this test
    return int(subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60).stdout)


# --- damage under a running service ---


SECOND_PROCESS = """
import sys
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import credit
with SqliteStore(sys.argv[1]) as store:
    for number in range(int(sys.argv[3])):
        credit(store, sys.argv[2], f"second-{number}", 1)
"""


def test_index_removed_while_a_process_is_idle_loses_no_credit(path: Path) -> None:
    """Another process makes a new index and commits. The idle process stops before it writes, reads or copies."""
    store = SqliteStore(path)
    id = create(store)
    credit(store, id, "first-1", 1)
    beside(path, "shm").unlink()
    command = [sys.executable, "-c", SECOND_PROCESS, str(path), id, "20"]
    subprocess.run(command, check=True, timeout=60)
    with pytest.raises(StoreStopped, match=r"payments.db-shm was removed or replaced"):
        credit(store, id, "first-2", 1)
    with pytest.raises(StoreStopped):
        store.load(id)
    store.close()
    # In another process: SQLite uses one index for all connections of a process.
    script = f"""
import sqlite3
connection = sqlite3.connect({str(path)!r})
print(connection.execute("PRAGMA integrity_check").fetchall(), *connection.execute("SELECT count(*) FROM credits"))
"""  # noqa: S608 - the path of this test
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.stdout == "[('ok',)] (21,)\n"


def test_log_shortened_during_a_commit_stops_the_store(path: Path) -> None:
    """SQLite writes behind the new end, and leaves a hole. The commit is not acknowledged."""
    with SqliteStore(path) as store:
        id = create(store)
        for number in range(5):
            credit(store, id, f"wire-{number}", 1)

        def shorten_and_decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[Credit]:
            os.truncate(beside(path, "wal"), 4096)
            return crediting("wire-10", 1)(payment, earlier)

        with pytest.raises(StoreStopped):
            store.update(id, shorten_and_decide, credit_id("wire-10"))
        with pytest.raises(StoreStopped):
            store.load(id)

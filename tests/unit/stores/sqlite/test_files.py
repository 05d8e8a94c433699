"""The files of a store: symbolic links, the size of the log, backups, and the version of SQLite."""

import asyncio
import fcntl
import itertools
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import PaymentId
from incoming_payments.domain.transitions import State
from incoming_payments.errors import BackupFailed, StoreUnusable
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore, _backup, _writer
from incoming_payments.testing import NOW
from incoming_payments.testing.steps import create, credit, together
from kits.sqlite_jobs import beside, edit, fail_on

# --- symbolic links ---


def test_path_may_be_a_symbolic_link(tmp_path: Path) -> None:
    """The store uses the target of the link. The log and the lock file are beside the target."""
    target, link = tmp_path / "data" / "payments.db", tmp_path / "payments.db"
    target.parent.mkdir()
    SqliteStore(target).close()
    link.symlink_to(target)
    with SqliteStore(link) as store:
        id = create(store)
        assert credit(store, id, "wire-1", 1).received.value == 1
        names = ["payments.db", "payments.db-lock", "payments.db-shm", "payments.db-wal"]
        assert sorted(file.name for file in target.parent.iterdir()) == names
        with SqliteStore(target) as other:
            assert other.load(id).received.value == 1
    assert [file.name for file in tmp_path.iterdir() if not file.is_dir()] == ["payments.db"]


def test_dangling_link_creates_a_private_database(tmp_path: Path) -> None:
    """The database is created at the target, and only its owner can read it."""
    target, link = tmp_path / "target.db", tmp_path / "payments.db"
    link.symlink_to(target)
    with SqliteStore(link) as store:
        create(store)
        for file in tmp_path.glob("target.db*"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


# --- the size of the log ---


# 100,000 payments like the first one. Their ids and times come before those of the first one.
MANY_MORE = """
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 100000) INSERT INTO payments
    (id, version, received_amount, updated_at, wallet_address, client, asset_code, asset_scale, incoming_amount,
    expires_at, metadata, created_at, closed_at, expiry_announced_at, sweep_at) SELECT
    printf('00000000-0000-7000-8000-%012x', n), version, received_amount, updated_at, wallet_address, client,
    asset_code, asset_scale, incoming_amount, expires_at, metadata, created_at - n, closed_at, expiry_announced_at,
    sweep_at FROM payments, numbers
"""


def log_bytes(path: Path) -> int:
    """Return the size of the log."""
    return beside(path, "wal").stat().st_size


def test_log_stays_short(store: SqliteStore, path: Path) -> None:
    """The writer makes checkpoints, after which SQLite writes the log from its beginning again."""
    id = create(store)
    for number in range(1500):
        credit(store, id, f"wire-{number}", 1)
    assert log_bytes(path) < 8 * 1024 * 1024
    assert path.stat().st_size > 100_000


def test_log_stays_short_under_overlapping_readers(
    path: Path, monkeypatch: pytest.MonkeyPatch, store: SqliteStore
) -> None:
    """Beyond a size, the writer waits for the readers, one of which would otherwise always block the checkpoint."""
    bound = 1_000_000
    monkeypatch.setattr(_writer, "STORE_LOG_BYTES_MAX", bound)
    id = create(store)
    ended = threading.Event()

    def read(phase: int) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            while not ended.is_set():
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM payments").fetchone()
                ended.wait(0.005 + phase / 1000)
                connection.execute("COMMIT")

    readers = [threading.Thread(target=read, args=(phase,)) for phase in range(6)]
    for reader in readers:
        reader.start()
    sizes: list[int] = []
    try:
        for number in range(1200):
            credit(store, id, f"wire-{number:04}-{'x' * 150}", 1)
            sizes.append(log_bytes(path))
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    # Without the bound the log would grow to 15 MB.
    assert max(sizes) < 8 * bound
    shortened = any(later < earlier for earlier, later in itertools.pairwise(sizes))
    assert shortened
    assert store.load(id).received.value == 1200


@pytest.mark.parametrize("lists", [1, 4])
def test_log_stays_short_under_long_lists(path: Path, monkeypatch: pytest.MonkeyPatch, lists: int) -> None:
    """A list that passes over all payments is read in slices, and no slice begins while the log is emptied."""
    bound = 1_000_000
    monkeypatch.setattr(_writer, "STORE_LOG_BYTES_MAX", bound)
    query = PaymentQuery(now=NOW, limit=20, state=State.COMPLETED)
    ended = threading.Event()
    found: list[int] = []
    sizes: list[int] = []
    with SqliteStore(path) as store:
        id = create(store)
    edit(path, MANY_MORE)

    def read() -> None:
        while not ended.is_set():
            found.append(len(store.find_payments(query)))

    with SqliteStore(path) as store, ThreadPoolExecutor(lists) as pool:
        readers = [pool.submit(read) for _ in range(lists)]
        try:
            for number in range(800):
                credit(store, id, f"wire-{number:04}-{'x' * 150}", 1)
                sizes.append(log_bytes(path))
        finally:
            ended.set()
        for reader in readers:
            reader.result()
    assert set(found) == {0}
    # If one of these lists were one read, the log would almost always be in use, and grow to 20 MB.
    assert max(sizes) < 2 * bound


def test_long_reader_lets_the_log_grow(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer empties the log when the reader has ended."""
    monkeypatch.setattr(_writer, "STORE_LOG_BYTES_MAX", 200_000)
    with SqliteStore(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as reader:
        id = create(store)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM payments").fetchone()
        numbers = itertools.count()
        while log_bytes(path) < 800_000:
            credit(store, id, f"wire-{next(numbers):04}-{'x' * 150}", 1)
        reader.execute("COMMIT")
        while log_bytes(path) >= 800_000:
            credit(store, id, f"wire-{next(numbers):04}-{'x' * 150}", 1)
        assert store.load(id).received.value == next(numbers)


def test_log_is_emptied_between_slow_commits_of_another_process(
    path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process begins to write after each commit of this one, and its disk is slow."""
    monkeypatch.setattr(_writer, "STORE_LOG_BYTES_MAX", 1)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    commit = threading.Timer(0.05, other.rollback)

    class SlowWriter:
        def observe(self, _: object) -> None:
            other.execute("BEGIN IMMEDIATE")
            commit.start()

    with closing(other), SqliteStore(path, observer=SlowWriter()) as store:
        credit(store, id, "wire-1", 1)
        end = time.monotonic() + 5
        while log_bytes(path) and time.monotonic() < end:
            time.sleep(0.01)
        assert log_bytes(path) == 0
        commit.join()


def test_checkpoint_of_another_process_only_delays_this_one(
    path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log grows until the other process has ended its checkpoint."""
    monkeypatch.setattr(_writer, "STORE_LOG_BYTES_MAX", 1)
    with SqliteStore(path) as store:
        with beside(path, "wal").open("rb") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            for number in range(20):
                credit(store, id, f"wire-{number}", 1)
            assert log_bytes(path) > 0
        while log_bytes(path):
            credit(store, id, "wire-20", 1)
        assert store.load(id).received.value == 21
    assert caplog.messages == []


def test_checkpoint_without_space_is_logged(
    path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The credits stay in the log, and a later checkpoint copies them."""
    monkeypatch.setattr(_writer, "STORE_LOG_BYTES_MAX", 1)
    with SqliteStore(path) as store, monkeypatch.context() as patch:
        fail_on(patch, "PRAGMA wal_checkpoint", sqlite3.SQLITE_FULL)
        for number in range(3):
            credit(store, id, f"wire-{number}", 1)
        store.load(id)
        start = "incoming payments: the log could not be copied into the database, and the next checkpoint tries again"
        assert f"{start}: disk I/O error" in caplog.messages
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 3


# --- backups ---


def test_backup_has_every_acknowledged_credit(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    """The backup is one private file, made while others write. A store opens it like any other database."""
    id = create(store)
    target = tmp_path / "backup.db"
    acknowledged: list[int] = []
    begun = threading.Event()

    def credit_all() -> None:
        for number in range(200):
            credit(store, id, f"wire-{number}", 1)
            acknowledged.append(number)
            if number == 20:
                begun.set()

    def back_up() -> int:
        assert begun.wait(30)
        before = len(acknowledged)
        store.backup(target)
        return before

    _, before = together([credit_all, back_up])
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir() if file.name.startswith("backup")) == ["backup.db"]
    with SqliteStore(target) as copy:
        received = copy.load(id).received.value
        assert before is not None
        assert before <= received <= 200
        assert len(copy.events(id)) == received + 1
        assert credit(copy, id, "wire-0", 1).received.value == 1
    assert store.load(id).received.value == 200
    assert path.exists()


def test_backup_of_an_async_store(path: Path, tmp_path: Path) -> None:
    """`AsyncSqliteStore.backup` makes a backup in another thread."""

    async def scenario() -> None:
        async with AsyncSqliteStore(path) as store:
            await store.backup(tmp_path / "backup.db")

    asyncio.run(scenario())
    SqliteStore(tmp_path / "backup.db").close()


def test_backup_replaces_no_file(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    """An existing target is refused, also the database itself."""
    create(store)
    for target in (path, tmp_path / "other"):
        target.touch()
        with pytest.raises(BackupFailed, match="exists: choose the path of a new file"):
            store.backup(target)
    (tmp_path / "backup.db.partial").touch()
    with pytest.raises(BackupFailed, match="exists: remove it, unless another backup is running"):
        store.backup(tmp_path / "backup.db")
    assert not (tmp_path / "backup.db").exists()


@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm", "-lock", ".partial"])
def test_backup_under_a_name_of_the_database_is_refused(path: Path, suffix: str) -> None:
    """SQLite would take the backup for a file of its own, and no process could open the database any more."""
    target = path.with_name(path.name + suffix)
    with SqliteStore(path) as store:
        id = create(store)
        link = path.with_name("link")
        link.symlink_to(target)
        for name in (target, link):
            with pytest.raises(
                BackupFailed, match=f"{target} is the name of a file that the database {path} uses: choose"
            ):
                store.backup(name)
    with SqliteStore(path) as store:
        assert store.load(id).id == id


def test_backup_to_a_missing_folder_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    """The message has the reason of the operating system."""
    with pytest.raises(BackupFailed, match="No such file or directory"):
        store.backup(tmp_path / "nowhere" / "backup.db")


def test_backup_that_does_not_read_back_is_removed(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup with damaged pages raises `BackupFailed`."""
    create(store)
    sync = _backup._sync

    def damage(path: Path) -> None:
        if path.suffix == ".partial":
            content = bytearray(path.read_bytes())
            content[4096 * 2 : 4096 * 3] = bytes(4096)
            path.write_bytes(content)
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(_backup, "_sync", damage)
        with pytest.raises(BackupFailed, match="and was removed"):
            store.backup(tmp_path / "backup.db")
    assert not list(tmp_path.glob("backup*"))
    store.backup(tmp_path / "backup.db")


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA application_id = 7",
        "PRAGMA user_version = 1",
        "DELETE FROM payments",
        "DELETE FROM events",
        "INSERT INTO nonces (key, until) VALUES ('a', 1)",
    ],
)
def test_backup_that_differs_is_refused(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """The message says what is wrong with the copy."""
    create(store)

    def change(path: Path) -> None:
        if path.suffix == ".partial":
            edit(path, statement)

    monkeypatch.setattr(_backup, "_sync", change)
    with pytest.raises(BackupFailed) as caught:
        store.backup(tmp_path / "backup.db")
    assert caught.value.description == (
        "the backup differs from what was written, and was removed "
        "(its header or its row counts differ from those of the database): check the disk"
    )
    assert not list(tmp_path.glob("backup*"))


def test_damaged_backup_names_its_first_problems(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite lists a problem for each row that the index misses. The message has three problems."""
    for key in "abcde":
        store.nonces.use(key, NOW, NOW)

    def lose_the_index(path: Path) -> None:
        if path.suffix == ".partial":
            edit(
                path,
                "PRAGMA writable_schema = ON",
                "CREATE INDEX empty ON payments (id)",
                "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'empty') "
                "WHERE name = 'nonces_to_sweep'",
                "DELETE FROM sqlite_schema WHERE name = 'empty'",
            )

    monkeypatch.setattr(_backup, "_sync", lose_the_index)
    with pytest.raises(BackupFailed) as caught:
        store.backup(tmp_path / "backup.db")
    missing = "row {} missing from index nonces_to_sweep".format
    assert f"never used; {missing(1)}; {missing(2)}): check the disk" in caught.value.description


def test_backup_is_read_back_from_the_disk(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel forgets the data of the copy, from its first byte to its last, after it is synced."""
    calls: list[tuple[str, tuple[int, ...]]] = []
    sync = os.fsync

    def note_sync(descriptor: int) -> None:
        calls.append(("fsync", ()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *arguments: calls.append(("fadvise", arguments)))
    store.backup(tmp_path / "backup.db")
    assert calls == [("fsync", ()), ("fadvise", (0, 0, os.POSIX_FADV_DONTNEED))] * 2  # the file, and its directory


def test_failed_backup_leaves_no_journal(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite may leave the journal, the log or the index of a copy that has failed."""

    def fail(path: Path) -> None:
        for suffix in ("-journal", "-wal", "-shm"):
            path.with_name(f"{path.name}{suffix}").touch()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(_backup, "_sync", fail)
    with pytest.raises(BackupFailed, match="Input/output error"):
        store.backup(tmp_path / "backup.db")
    assert not list(tmp_path.glob("backup*"))


def test_a_backup_whose_name_cannot_be_synced_is_removed(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut could take it away after the command has succeeded."""
    sync = _backup._sync

    def fail_for_folders(path: Path) -> None:
        if path.is_dir():
            raise OSError(5, "Input/output error")
        sync(path)

    monkeypatch.setattr(_backup, "_sync", fail_for_folders)
    with pytest.raises(BackupFailed, match="and was removed"):
        store.backup(tmp_path / "backup.db")
    assert not list(tmp_path.glob("backup*"))


@pytest.mark.parametrize("target", ["/", "", "a\0b", b"backup.db"])
def test_a_backup_needs_the_path_of_a_file(store: SqliteStore, target: str) -> None:
    """The message shows the target."""
    with pytest.raises(BackupFailed, match="needs the path of a new file"):
        store.backup(target)


def test_backup_without_space_is_removed(store: SqliteStore, tmp_path: Path) -> None:
    """The store continues."""
    id = create(store)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    store.load(id)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(BackupFailed, match="failed, and was removed"):
            store.backup(tmp_path / "backup.db")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.glob("backup*"))
    assert credit(store, id, "wire-1", 1).received.value == 1


def test_copying_the_file_drops_its_locks(path: Path, tmp_path: Path) -> None:
    """The docs warn of this: closing a descriptor of the database drops all locks of the process."""
    script = """
import subprocess, sys
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import create
store = SqliteStore(sys.argv[1])
create(store)
lock = ["import sqlite3, sys", "c = sqlite3.connect(sys.argv[1])"]
lock += ["c.execute('PRAGMA locking_mode = EXCLUSIVE')", "c.execute('BEGIN EXCLUSIVE')"]
other = [sys.executable, "-c", "; ".join(lock), sys.argv[1]]
assert subprocess.run(other, stderr=subprocess.DEVNULL).returncode != 0
open(sys.argv[1], "rb").close()
assert subprocess.run(other).returncode == 0
import os; os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


# --- the version of SQLite ---


def test_oldest_accepted_sqlite(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 3.37.0 has everything that the store needs."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 0))
    SqliteStore(path).close()


def test_old_sqlite_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the version of SQLite and the lowest accepted version."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.36.0")
    with pytest.raises(StoreUnusable, match=r"SQLite 3\.36\.0, and the store needs 3\.37\.0"):
        SqliteStore(path)
    assert not os.listdir(path.parent)

"""Failures of the file and the disk: temporary ones, lasting ones, and damaged rows."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from incoming_payments.domain import lifecycle
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import StoreUnavailable, StoreUnusable
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore, _versions
from incoming_payments.stores.sqlite._file import DatabaseFile
from incoming_payments.stores.sqlite._schema import APPLICATION_ID, STATEMENTS, VERSION, VERSION_1
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing.steps import check_credits, create, credit, together
from kits.sqlite_jobs import act_on, credit_one, edit, fail_on, in_one_batch, rows

# --- temporary failures ---


@pytest.mark.parametrize("setting", ["PRAGMA max_page_count = 1", "PRAGMA query_only = ON"])
def test_failed_write_fails_its_batch_only(
    tasks: AsyncSqliteStore, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """The disk is full, or read-only. Every call of the batch gets `StoreUnavailable`, and the next ones work."""
    id = create(store)
    # Long ids fill pages, so that the disk is full in the middle of the batch.
    ids = [f"wire-{number}-{'x' * 150}" for number in range(1, 100)]
    with monkeypatch.context() as patch:
        act_on(patch, "BEGIN IMMEDIATE", lambda connection, _: connection.execute(setting))
        outcomes = in_one_batch(*(credit_one(tasks, id, credit_id) for credit_id in ids))
    assert {StoreUnavailable} == {type(outcome) for outcome in outcomes}
    assert store.load(id).received.value == 0
    check_credits(store, id, in_one_batch(*(credit_one(tasks, id, credit_id) for credit_id in ids)))


def test_memory_error_is_temporary(
    tasks: AsyncSqliteStore, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole batch gets `StoreUnavailable`, as for any failure of the machine."""
    id = create(store)
    with monkeypatch.context() as patch:
        fail_on(patch, "SELECT version", MemoryError())
        outcomes = in_one_batch(credit_one(tasks, id, "wire-1"), credit_one(tasks, id, "wire-2"))
    assert [StoreUnavailable] * 2 == [type(outcome) for outcome in outcomes]
    assert credit(store, id, "wire-1", 1).received.value == 1


def test_lock_of_another_program_is_temporary(path: Path) -> None:
    """A write is refused after `busy_s`. Reads continue, and writes do when the lock is released."""
    with SqliteStore(path, busy_s=0) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        id = create(store)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            credit(store, id, "wire-1", 1)
        assert store.load(id).received.value == 0
        other.execute("ROLLBACK")
        assert credit(store, id, "wire-1", 1).received.value == 1


def test_writer_waits_for_a_lock(store: SqliteStore, path: Path) -> None:
    """The writer repeats its attempt until it gets the lock or `busy_s` has passed."""
    id = create(store)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.05, other.execute, ("ROLLBACK",))
        release.start()
        assert credit(store, id, "wire-1", 1).received.value == 1
        release.join()


# --- lasting failures ---


def test_file_that_is_no_database_is_refused(path: Path) -> None:
    """The message names the file, and the file is unchanged."""
    path.write_bytes(b"important notes, and no database at all" * 100)
    with pytest.raises(StoreUnusable, match=str(path)):
        SqliteStore(path)
    assert path.read_bytes() == b"important notes, and no database at all" * 100


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE theirs (x)", "PRAGMA user_version = 1", "PRAGMA application_id = 7"]
)
def test_database_of_another_application_is_refused(path: Path, statement: str) -> None:
    """The file is unchanged, including its journal mode."""
    edit(path, statement)
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match="another application"):
        SqliteStore(path)
    assert before == path.read_bytes()


def test_empty_file_is_accepted(path: Path) -> None:
    """Some tools create the file first to set its permissions."""
    path.touch()
    with SqliteStore(path) as store:
        create(store)


def test_newer_schema_is_refused(path: Path) -> None:
    """The message has the version of the file and the version that this release knows."""
    SqliteStore(path).close()
    edit(path, "PRAGMA user_version = 99")
    with pytest.raises(StoreUnusable, match=f"schema version 99, which is newer than version {VERSION} .*: upgrade"):
        SqliteStore(path)


@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("DROP TABLE idempotency_keys", "table idempotency_keys, index idempotency_keys_to_sweep"),
        ("DROP TABLE nonce_count", "table nonce_count"),
        ("DROP INDEX payments_of_client", "index payments_of_client"),
    ],
)
def test_file_that_lacks_a_table_is_refused(path: Path, statement: str, missing: str) -> None:
    """The first call that needs the table would fail. So the constructor names the table or the index."""
    SqliteStore(path).close()
    edit(path, statement)
    with pytest.raises(
        StoreUnusable, match=f"schema version {VERSION}, but lacks {missing}: restore the file from a backup"
    ):
        SqliteStore(path)


def test_read_only_folder_is_named() -> None:
    """SQLite needs files beside the database. The message says what to change, and not only to repeat the call."""
    with TemporaryDirectory(prefix="read-only-") as name, as_owner_of(folder := Path(name)):
        path = folder / "payments.db"
        with SqliteStore(path) as store:
            id = create(store)
        folder.chmod(0o555)
        try:
            with pytest.raises(
                StoreUnavailable, match=f"let the process write to the file and to its directory {name}"
            ):
                SqliteStore(path)
        finally:
            folder.chmod(0o755)
        with SqliteStore(path) as store:
            assert store.load(id).id == id


@contextmanager
def as_owner_of(folder: Path) -> Iterator[None]:
    """Give `folder` to a user who is not root, and run as this user, because root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_new_database_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong folder in the path creates an empty database. The log names the file, once."""
    caplog.set_level("INFO")
    for _ in range(2):
        SqliteStore(path).close()
    assert caplog.messages == [f"incoming payments: created the database {path}, which holds no payments yet"]
    assert [(record.levelname, record.__dict__["event"]) for record in caplog.records] == [("INFO", "database_created")]


def test_schema_upgrade_while_open_is_detected(store: SqliteStore, path: Path) -> None:
    """Neither open connections nor new ones write to a newer schema."""
    id = create(store)
    edit(path, "PRAGMA user_version = 99")
    for _ in range(2):
        with pytest.raises(StoreUnusable, match="99"):
            credit(store, id, "wire-1", 1)
    edit(path, f"PRAGMA user_version = {VERSION}")
    assert credit(store, id, "wire-1", 1).received.value == 1


def test_change_by_another_program_is_seen_by_the_next_credit(store: SqliteStore, path: Path) -> None:
    """The writer reads each payment in the transaction that changes it."""
    id = create(store)
    assert credit(store, id, "wire-1", 1).received.value == 1
    edit(path, "UPDATE payments SET received_amount = '70'")
    assert credit(store, id, "wire-2", 1).received.value == 71
    assert store.load(id).received.value == 71


def test_new_connections_refuse_a_newer_schema(tasks: AsyncSqliteStore, store: SqliteStore, path: Path) -> None:
    """Connections check the version when they open."""
    id = create(store)
    edit(path, "PRAGMA user_version = 99")
    with pytest.raises(StoreUnusable, match="99"):
        store.load(id)
    outcomes = in_one_batch(*(credit_one(tasks, id, f"wire-{number}") for number in range(3)))
    assert [type(outcome) for outcome in outcomes] == [StoreUnusable] * 3


def test_connection_that_cannot_be_closed_is_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors at the close hide no other error, and break nothing."""

    class Broken(sqlite3.Connection):
        def close(self) -> None:
            super().close()
            raise sqlite3.OperationalError("disk I/O error")

    connect = sqlite3.connect
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, **kwargs, factory=Broken))
        with SqliteStore(path) as store:
            id = create(store)
    with SqliteStore(path) as store:
        assert store.load(id).id == id


def test_tables_are_created_all_or_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that fails leaves an empty file, which the next store takes."""
    with monkeypatch.context() as patch:
        patch.setattr(_versions, "VERSION_1", (*VERSION_1, "CREATE nonsense"))
        with pytest.raises(StoreUnusable, match="nonsense"):
            SqliteStore(path)
    with SqliteStore(path) as store:
        create(store)


def test_concurrent_opens_create_one_schema(path: Path) -> None:
    """One store creates the tables, and the others find them."""

    def open_and_create() -> PaymentId:
        with SqliteStore(path) as store:
            return create(store)

    ids = together([open_and_create] * 8)
    with SqliteStore(path) as store:
        assert ids == [store.load(id).id for id in ids]


def test_tables_of_another_process_are_found_under_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process creates the tables after the first check. The check under the lock finds them."""
    version, seen = _versions._version, list[int]()

    def check(connection: sqlite3.Connection, checked: Path, *, may_be_moved: bool) -> int:
        seen.append(version(connection, checked, may_be_moved=may_be_moved))
        if len(seen) == 2:
            identity = f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {VERSION}"
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                for statement in (*STATEMENTS, *identity):
                    other.execute(statement)
        return seen[-1]

    monkeypatch.setattr(_versions, "_version", check)
    with SqliteStore(path) as store:
        create(store)


def test_file_system_without_wal_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a write-ahead log, readers and writers would block each other."""

    def open(file: DatabaseFile, _busy_s: float = 0) -> sqlite3.Connection:
        return sqlite3.connect(f"{file.path.as_uri()}?mode=rw&vfs=unix-none", uri=True, isolation_level=None)

    monkeypatch.setattr(DatabaseFile, "_open", open)
    with pytest.raises(StoreUnusable, match="WAL"):
        SqliteStore(path)


# --- damage ---


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE payments SET received_amount = '007'",
        "UPDATE payments SET received_amount = '99999999999999999999'",
        "UPDATE payments SET asset_code = ''",
        "UPDATE payments SET created_at = -9223372036854775808",
        "UPDATE payments SET wallet_address = 'ftp://bank.example'",
        "UPDATE payments SET metadata = CAST(x'ff' AS TEXT)",
    ],
)
def test_damaged_payment_is_refused(tasks: AsyncSqliteStore, store: SqliteStore, path: Path, statement: str) -> None:
    """`load` and `update` raise `StoreUnusable`. The other jobs of the batch are committed."""
    id = create(store)
    edit(path, statement)
    good = create(store)
    with pytest.raises(StoreUnusable, match=f"^the row of payment {id} holds an invalid|not decode to UTF-8"):
        store.load(id)

    bad, credited = in_one_batch(*(credit_one(tasks, one, "wire-1") for one in (id, good)))
    assert type(bad) is StoreUnusable
    assert credited.received.value == 1


@pytest.mark.parametrize(
    "statement", ["UPDATE credits SET amount = '01'", "UPDATE credits SET at = 9223372036854775807"]
)
def test_damaged_credit_is_refused(tasks: AsyncSqliteStore, store: SqliteStore, path: Path, statement: str) -> None:
    """A duplicate of the credit raises `StoreUnusable`. The other jobs of the batch are committed."""
    id = create(store)
    credit(store, id, "wire-1", 1)
    edit(path, statement)
    with pytest.raises(StoreUnusable, match=f"^the row of credit wire-1 of payment {id} holds an invalid value .*: "):
        credit(store, id, "wire-1", 1)
    assert credit(store, id, "wire-2", 1).received.value == 2

    good, bad, last = in_one_batch(*(credit_one(tasks, id, f"wire-{number}") for number in (2, 1, 3)))
    assert type(bad) is StoreUnusable
    assert (good.received.value, last.received.value) == (2, 3)


def test_damaged_event_is_refused(store: SqliteStore, path: Path) -> None:
    """An event of an unknown kind raises `StoreUnusable`."""
    id = create(store)
    edit(path, "UPDATE events SET kind = 'nonsense'")
    with pytest.raises(StoreUnusable) as caught:
        store.events(id)
    assert caught.value.description == (
        f"the row of event 1 of payment {id} holds an invalid value ('nonsense' is not a valid EventKind): restore the "
        "database from a backup"
    )


def test_damaged_pages_are_refused(path: Path) -> None:
    """SQLite detects the damage. It is `StoreUnusable`, and not a temporary failure."""
    with SqliteStore(path) as store:
        id = create(store)
    data = bytearray(path.read_bytes())
    for (page,) in rows(path, "SELECT rootpage FROM sqlite_master WHERE tbl_name IN ('payments', 'events')"):
        data[(page - 1) * 4096 : page * 4096] = b"\xa5" * 4096
    path.write_bytes(data)

    with SqliteStore(path) as store:
        with pytest.raises(StoreUnusable):
            store.load(id)
        with pytest.raises(StoreUnusable):
            credit(store, id, "wire-1", 1)


def test_update_without_a_row_is_an_error(tasks: AsyncSqliteStore, store: SqliteStore, path: Path) -> None:
    """Defence in depth: the store counts the updated rows, and rolls the batch back when one is missing."""
    id, good = create(store), create(store)
    edit(
        path,
        f"CREATE TRIGGER lose BEFORE UPDATE ON payments WHEN old.id = '{id}' BEGIN SELECT RAISE(IGNORE); END",
    )
    bad, credited = in_one_batch(*(credit_one(tasks, one, "wire-1") for one in (id, good)))
    assert type(bad) is StoreUnusable
    assert credited.received.value == 1
    assert store.load(id).received.value == 0
    assert len(store.events(id)) == 1


def test_constraints_refuse_invalid_rows(store: SqliteStore, path: Path) -> None:
    """The constraints also protect the file from other programs."""
    id = create(store, a_creation(limit=5, expires_in_s=5))
    credit(store, id, "wire-1", 1)
    for statement in (
        "UPDATE payments SET version = 0",
        "UPDATE payments SET received_amount = '-1'",
        "UPDATE payments SET received_amount = '1.5'",
        "UPDATE payments SET updated_at = created_at - 1",
        "UPDATE payments SET asset_scale = 256",
        "UPDATE payments SET sweep_at = 1",
        "UPDATE payments SET expires_at = 'tomorrow'",
        "UPDATE credits SET amount = '0'",
        "UPDATE credits SET completes = 2",
        "UPDATE events SET version = 1",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            edit(path, statement)
    assert store.update(id, partial(lifecycle.complete, now=NOW)).closed_at == NOW

"""What goes wrong with the file or the disk is told apart, leaves nothing half done, and passes when its cause does."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from incoming_payments.domain import lifecycle
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import StoreUnavailable, StoreUnusable
from incoming_payments.stores.sqlite import SqliteStore, _file
from incoming_payments.stores.sqlite._file import DatabaseFile
from incoming_payments.stores.sqlite._queue import Job
from incoming_payments.stores.sqlite._schema import STATEMENTS, VERSION
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing.steps import check_credits, create, credit, together
from kits.sqlite_jobs import crediting_one, edit, outcomes_of_one_batch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file of a test goes."""
    return tmp_path / "payments.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    """A store in a new file, that waits for nobody."""
    with SqliteStore(path, busy_s=0) as store:
        yield store


# --- trouble that passes ---


@pytest.mark.parametrize(
    "setting",
    [pytest.param("PRAGMA max_page_count = 1", id="disk full"), pytest.param("PRAGMA query_only = ON", id="read-only")],
)
def test_a_disk_that_takes_nothing_costs_the_batch_and_nothing_more(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """Everybody in the batch is told to repeat, nothing of it is stored, and service is back when the disk is."""
    id = create(store)
    booked = {"wire-0": credit(store, id, "wire-0", 5)}
    # Long ids fill pages, so that a full disk is met in the middle of the batch.
    ids = [f"wire-{number}-{'x' * 150}" for number in range(1, 100)]
    jobs = [crediting_one(id, credit_id) for credit_id in ids]
    connect = DatabaseFile.connect_writer

    def connect_spoilt(file: DatabaseFile) -> sqlite3.Connection:
        connection = connect(file)
        connection.execute(setting)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(DatabaseFile, "connect_writer", connect_spoilt)
        outcomes = outcomes_of_one_batch(store, jobs)

    assert {StoreUnavailable} == {type(outcome) for outcome in outcomes}
    assert store.load(id).received.value == 5
    for credit_id in ids:
        booked[credit_id] = credit(store, id, credit_id, 1)
    assert store.load(id).received.value == 5 + len(ids)
    check_credits(store, id, booked.values())


def test_memory_that_runs_out_is_trouble_that_passes(store: SqliteStore) -> None:
    """For the whole batch, as of any other trouble of the machine."""
    id = create(store)

    def work(_: object) -> None:
        raise MemoryError

    jobs = [crediting_one(id, "wire-1"), Job(work)]
    assert [StoreUnavailable] * 2 == [type(outcome) for outcome in outcomes_of_one_batch(store, jobs)]
    assert credit(store, id, "wire-1", 1).received.value == 1


def test_a_lock_that_is_held_too_long_is_trouble_that_passes(store: SqliteStore, path: Path) -> None:
    """Writers are refused after `busy_s`, readers go on, and the next call is served when the lock is gone."""
    id = create(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            credit(store, id, "wire-1", 1)
        assert store.load(id).received.value == 0
    assert credit(store, id, "wire-1", 1).received.value == 1


def test_a_lock_that_is_let_go_in_time_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer asks again, until `busy_s` is over."""
    with (
        SqliteStore(path) as store,
        closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other,
    ):
        id = create(store)
        other.execute("BEGIN IMMEDIATE")
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                other.execute("ROLLBACK")

        monkeypatch.setattr(time, "sleep", sleep)
        assert credit(store, id, "wire-1", 1).received.value == 1
        assert len(waits) == 3


# --- trouble that stays ---


def test_a_file_that_is_no_database_is_named(path: Path) -> None:
    """And left as it is."""
    path.write_bytes(b"important notes, and no database at all" * 100)
    with pytest.raises(StoreUnusable, match=str(path)):
        SqliteStore(path)
    assert path.read_bytes() == b"important notes, and no database at all" * 100


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE theirs (x)", "PRAGMA user_version = 1", "PRAGMA application_id = 7"]
)
def test_the_database_of_another_application_is_left_alone(path: Path, statement: str) -> None:
    """Not even its journal mode is changed."""
    edit(path, statement)
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match="another application"):
        SqliteStore(path)
    assert before == path.read_bytes()


def test_an_empty_file_is_taken(path: Path) -> None:
    """Some tools create it beforehand, for its permissions."""
    path.touch()
    with SqliteStore(path) as store:
        create(store)


def test_a_schema_of_a_newer_release_is_refused(path: Path) -> None:
    """The message says which version the file has and which one is known."""
    SqliteStore(path).close()
    edit(path, "PRAGMA user_version = 99")
    with pytest.raises(StoreUnusable, match=f"schema version 99.* version {VERSION}"):
        SqliteStore(path)


def test_a_schema_that_becomes_newer_stops_the_older_release(store: SqliteStore, path: Path) -> None:
    """Neither the connections it has nor new ones write what the newer one does not expect."""
    id = create(store)
    edit(path, "PRAGMA user_version = 99")
    for _ in range(2):
        with pytest.raises(StoreUnusable, match="99"):
            credit(store, id, "wire-1", 1)
    edit(path, f"PRAGMA user_version = {VERSION}")
    assert credit(store, id, "wire-1", 1).received.value == 1


def test_tables_are_created_all_or_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that fails leaves an empty file, which the next store takes."""
    with monkeypatch.context() as patch:
        patch.setattr(_file, "STATEMENTS", (*STATEMENTS, "CREATE nonsense"))
        with pytest.raises(StoreUnusable, match="nonsense"):
            SqliteStore(path)
    with SqliteStore(path) as store:
        create(store)


def test_many_may_open_a_new_file_at_once(path: Path) -> None:
    """One of them creates the tables, the others find them."""

    def open_and_create() -> PaymentId:
        with SqliteStore(path) as store:
            return create(store)

    ids = together([open_and_create] * 8)
    with SqliteStore(path) as store:
        assert ids == [store.load(id).id for id in ids]


def test_tables_that_appear_while_a_file_is_looked_at_are_our_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process creates them just then: the second look, under the lock, finds nothing left to do."""
    looks: list[int] = []
    version = DatabaseFile._version

    def look(file: DatabaseFile, connection: sqlite3.Connection) -> int:
        seen = version(file, connection)
        looks.append(seen)
        if len(looks) == 2:
            monkeypatch.undo()
            SqliteStore(path).close()
        return seen

    monkeypatch.setattr(DatabaseFile, "_version", look)
    with SqliteStore(path) as store:
        create(store)
    assert looks == [0, 0]


def test_a_file_system_without_a_write_ahead_log_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it readers and writers would stop each other."""

    def open(file: DatabaseFile, mode: str, **_: object) -> sqlite3.Connection:
        return sqlite3.connect(f"{file.path.as_uri()}?mode={mode}&vfs=unix-none", uri=True, isolation_level=None)

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
def test_a_damaged_payment_is_not_used(store: SqliteStore, path: Path, statement: str) -> None:
    """Nor does it stop the others of the batch."""
    id = create(store)
    edit(path, statement)
    good = create(store)
    with pytest.raises(StoreUnusable):
        store.load(id)

    bad, booked = outcomes_of_one_batch(store, [crediting_one(one, "wire-1") for one in (id, good)])
    assert type(bad) is StoreUnusable
    assert booked.received.value == 1


@pytest.mark.parametrize(
    "statement", ["UPDATE credits SET amount = '01'", "UPDATE credits SET at = 9223372036854775807"]
)
def test_a_damaged_credit_is_not_used(store: SqliteStore, path: Path, statement: str) -> None:
    """The caller that repeats it is told, and nobody else of the batch."""
    id = create(store)
    credit(store, id, "wire-1", 1)
    edit(path, statement)
    with pytest.raises(StoreUnusable, match="wire-1"):
        credit(store, id, "wire-1", 1)
    assert credit(store, id, "wire-2", 1).received.value == 2

    good, bad, last = outcomes_of_one_batch(store, [crediting_one(id, f"wire-{number}") for number in (2, 1, 3)])
    assert type(bad) is StoreUnusable
    assert (good.received.value, last.received.value) == (2, 3)


def test_a_damaged_event_is_not_used(store: SqliteStore, path: Path) -> None:
    """An unknown kind, say."""
    id = create(store)
    edit(path, "UPDATE events SET kind = 'nonsense'")
    with pytest.raises(StoreUnusable, match="event 1"):
        store.events(id)


def test_damaged_pages_are_told(path: Path) -> None:
    """SQLite's own checks find them, and it is not taken for trouble that passes."""
    with SqliteStore(path) as store:
        id = create(store)
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)

    with SqliteStore(path) as store:
        with pytest.raises(StoreUnusable):
            store.load(id)
        with pytest.raises(StoreUnusable):
            credit(store, id, "wire-1", 1)


def test_an_update_that_finds_no_row_is_not_taken_for_done(store: SqliteStore, path: Path) -> None:
    """Defence in depth: it is counted, whatever is written for payments, and the batch rolled back if it is short."""
    id, good = create(store), create(store)
    edit(
        path,
        f"CREATE TRIGGER lose BEFORE UPDATE ON payments WHEN old.id = '{id}' BEGIN SELECT RAISE(IGNORE); END",
    )
    bad, booked = outcomes_of_one_batch(store, [crediting_one(one, "wire-1") for one in (id, good)])
    assert type(bad) is StoreUnusable
    assert booked.received.value == 1
    assert store.load(id).received.value == 0
    assert len(store.events(id)) == 1


def test_sqlite_itself_refuses_what_no_payment_can_be(store: SqliteStore, path: Path) -> None:
    """Constraints guard the file against other programs, too."""
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

"""The contract suites against the SQLite stores, and their durability and nonces."""

import gc
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import BrokenDecision, ClockBehind, InvalidValue, PaymentExists, PaymentNotFound
from incoming_payments.limits import STORE_LOG_KEPT_BYTES_MAX
from incoming_payments.ports import Nonces, PaymentStore
from incoming_payments.stores.sqlite import AsyncSqliteNonces, AsyncSqliteStore, SqliteNonces, SqliteStore
from incoming_payments.testing import NOW, SyncNonces, SyncView, a_creation
from incoming_payments.testing.contract import StoreContract
from incoming_payments.testing.nonces import KEYS, NonceContract
from incoming_payments.testing.steps import create
from kits.breakable_sqlite import BreakableSqlite
from kits.sqlite_jobs import edit


class TestSqliteStore(StoreContract):
    """The contract suite against `SqliteStore`."""

    def make_store(self, directory: Path) -> PaymentStore:
        """Return a store in a new file."""
        store = SqliteStore(directory / "payments.db")
        self.breakable = BreakableSqlite(store)
        return store

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return another store on the same file."""
        return SqliteStore(directory / "payments.db")

    def break_store(self, store: PaymentStore, directory: Path) -> None:  # noqa: ARG002 - part of the hook
        """Break the connections of the store."""
        self.breakable.break_connections()


class TestAsyncSqliteStore(StoreContract):
    """The contract suite against `AsyncSqliteStore`, whose callers are concurrent tasks of one event loop."""

    def make_store(self, directory: Path) -> PaymentStore:
        """Return a store in a new file, with its own event loop."""
        view = self._open(directory)
        assert isinstance(view.store, AsyncSqliteStore)
        self.breakable = BreakableSqlite(view.store)
        return view

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - part of the hook
        """Return another store on the same file."""
        return self._open(directory)

    def break_store(self, store: PaymentStore, directory: Path) -> None:  # noqa: ARG002 - part of the hook
        """Break the connections of the store."""
        self.breakable.break_connections()

    def _open(self, directory: Path) -> SyncView:
        async def open_store() -> AsyncSqliteStore:
            return AsyncSqliteStore(directory / "payments.db")

        return SyncView(open_store, AsyncSqliteStore.close)


class TestSqliteNonces(NonceContract):
    """The contract suite against `SqliteNonces`."""

    def make_nonces(self, directory: Path) -> Nonces:
        """Return nonces in a new file."""
        return SqliteNonces(SqliteStore(directory / "payments.db"), self.capacity)

    def open_again(self, nonces: Nonces, directory: Path) -> Nonces:  # noqa: ARG002 - part of the hook
        """Return the nonces of another store on the same file."""
        return self.make_nonces(directory)

    def close_nonces(self, nonces: Nonces) -> None:
        """Close the store of the nonces."""
        assert isinstance(nonces, SqliteNonces)
        nonces._store.close()


class TestAsyncSqliteNonces(NonceContract):
    """The contract suite against `AsyncSqliteNonces`, whose callers are concurrent tasks of one event loop."""

    def open_again(self, nonces: Nonces, directory: Path) -> Nonces:  # noqa: ARG002 - part of the hook
        """Return the nonces of another store on the same file."""
        return self.make_nonces(directory)

    def make_nonces(self, directory: Path) -> Nonces:
        """Return nonces in a new file, with their own event loop."""

        async def open_store() -> AsyncSqliteStore:
            return AsyncSqliteStore(directory / "payments.db")

        view = SyncView(open_store, AsyncSqliteStore.close)
        assert isinstance(view.store, AsyncSqliteStore)
        return SyncNonces(view, AsyncSqliteNonces(view.store, self.capacity))


# --- durability ---


def test_writer_syncs_every_commit(store: SqliteStore) -> None:
    """The writer has `synchronous` FULL (2) and a write-ahead log. Readers cannot write."""
    file = store._engine._file
    writer, reader = file.connect_writer(), file.connect_reader()
    settings = {
        "synchronous": 2,
        "fullfsync": 1,
        "checkpoint_fullfsync": 1,
        "journal_mode": "wal",
        "journal_size_limit": STORE_LOG_KEPT_BYTES_MAX,
        "wal_autocheckpoint": 0,
        "busy_timeout": 0,  # the store waits itself
    }
    assert settings == {name: writer.execute(f"PRAGMA {name}").fetchone()[0] for name in settings}
    assert reader.execute("PRAGMA busy_timeout").fetchone() == (0,)
    with pytest.raises(sqlite3.OperationalError):
        reader.execute("DELETE FROM payments")
    file.disconnect(writer)
    file.disconnect(reader)


def test_messages_name_the_payment(store: SqliteStore, path: Path) -> None:
    """The host finds the payment in its own records, or that the path names another file than it meant."""
    created = a_creation()
    store.insert(created)
    with pytest.raises(PaymentExists) as exists:
        store.insert(created)
    assert exists.value.description.startswith(f"payment {created.answer.id} exists already:")
    for call in (store.load, store.events):
        with pytest.raises(PaymentNotFound) as missing:
            call(PaymentId("no such"))
        assert missing.value.description == f"there is no payment no such in {path}"


def test_negative_limit_finds_no_payment(store: SqliteStore) -> None:
    """SQLite would take a negative limit for no limit."""
    create(store, a_creation(expires_in_s=1))
    assert list(store.find_expired(NOW + timedelta(days=1), -1)) == []


def test_database_constraint_refuses_a_row(store: SqliteStore, path: Path) -> None:
    """Defence in depth: the database refuses a row that the guard has accepted, and nothing is written."""
    created = a_creation()
    edit(path, "CREATE TRIGGER stop BEFORE INSERT ON payments BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(BrokenDecision):
        store.insert(created)
    with pytest.raises(PaymentNotFound):
        store.load(created.answer.id)


# --- nonces ---

UNTIL = NOW + timedelta(seconds=300)


def test_nonces_keep_their_store_open(path: Path) -> None:
    """The nonces work while they are the only reference to the store."""
    nonces = SqliteStore(path).nonces
    gc.collect()
    assert nonces.use(KEYS[0], UNTIL, NOW)
    nonces._store.close()


def test_way_back_after_a_clock_that_was_ahead(store: SqliteStore, path: Path) -> None:
    """The documented statement lets the store accept new nonces. Nonces that it still holds stay used."""
    now = datetime.now(UTC)
    ahead, minute = now + timedelta(days=1), timedelta(minutes=1)
    assert store.nonces.use("ahead", ahead, ahead)
    assert store.nonces.use("later", ahead + minute, ahead + minute)
    for until in (now + minute, ahead):
        with pytest.raises(ClockBehind, match=f"nonces again after {re.escape(str(ahead))}"):
            store.nonces.use("new", until, now)

    page = Path(__file__).parents[4] / "docs" / "http.md"
    [statement] = re.findall(r'sqlite3 payments.sqlite3 "(UPDATE nonce_count .*)"', page.read_text())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)

    with pytest.raises(ClockBehind):  # a request from before the statement
        store.nonces.use("new", now + minute, now)
    assert store.nonces.use("new", now + 60 * minute, now + 54 * minute)
    assert not store.nonces.use("later", now + 60 * minute, now + 54 * minute)


def test_expired_nonces_are_removed_in_small_steps(store: SqliteStore, path: Path) -> None:
    """Each new nonce removes at most two expired ones, and `held` is the number of rows."""
    for key in KEYS[:8]:
        store.nonces.use(key, NOW, NOW)
    for key in KEYS[8:11]:
        store.nonces.use(key, UNTIL, NOW + timedelta(seconds=1))

    with sqlite3.connect(path) as connection:
        there = connection.execute("SELECT count(*), (SELECT held FROM nonce_count) FROM nonces").fetchone()
    connection.close()
    assert there == (5, 5)


@pytest.mark.parametrize("nonces", [SqliteNonces, AsyncSqliteNonces])
def test_capacity_of_zero_is_refused(store: SqliteStore, nonces: Any) -> None:
    """The least capacity is one, because a store without any capacity would refuse every nonce."""
    with pytest.raises(InvalidValue) as caught:
        nonces(store, 0)
    assert caught.value.details == {"member": "capacity"}

"""The batches that a SQLite store reports to an observer."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from incoming_payments.errors import ConfigurationError, StoreUnavailable
from incoming_payments.ports import StoreBatch
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing import a_creation
from incoming_payments.testing.steps import create
from kits.service_kit import BrokenObserver, Recorder
from kits.sqlite_jobs import credit_one


def test_batches_are_reported(path: Path) -> None:
    """A commit is reported with its size. A batch that fails because of one call is reported call by call."""
    created, recorder = a_creation(), Recorder()
    not_unicode = a_creation(metadata='"\ud800"')

    async def scenario() -> None:
        async with AsyncSqliteStore(path, observer=recorder) as store:
            await store.insert(created)
            id = created.answer.id
            await asyncio.gather(*(credit_one(store, id, f"wire-{number}") for number in range(3)))
            await asyncio.gather(credit_one(store, id, "wire-9"), store.insert(not_unicode), return_exceptions=True)

    asyncio.run(scenario())
    one, broken = (StoreBatch(size=1, outcome=outcome, duration_s=0.0) for outcome in ("committed", "broken_decision"))
    three = StoreBatch(size=3, outcome="committed", duration_s=0.0)
    assert recorder.take() == [one, three, one, broken]


def test_failures_are_reported(path: Path) -> None:
    """The outcome is the code of the error that the callers get."""
    recorder = Recorder()
    with (
        SqliteStore(path, observer=recorder, busy_s=0) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            create(store)
    assert recorder.take() == [StoreBatch(size=1, outcome="store_unavailable", duration_s=0.0)]


def test_failing_observer_breaks_no_commit(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The store continues, and the log has the failure."""
    created = a_creation()
    with SqliteStore(path, observer=BrokenObserver()) as store:
        store.insert(created)
        assert store.load(created.answer.id) == created.answer
    assert [record.__dict__["event"] for record in caplog.records] == ["observer_failed"]


@pytest.mark.parametrize("kind", [SqliteStore, AsyncSqliteStore])
def test_wrong_observer_is_refused(path: Path, kind: type[SqliteStore | AsyncSqliteStore]) -> None:
    """The error is raised before a file is created."""
    with pytest.raises(ConfigurationError, match="observer must be"):
        kind(path, observer=object())  # type: ignore[arg-type]
    assert not list(path.parent.iterdir())

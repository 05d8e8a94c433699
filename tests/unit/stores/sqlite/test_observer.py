"""The batches that a SQLite store reports to an observer."""

from pathlib import Path

import pytest

from incoming_payments.errors import BrokenDecision, ConfigurationError, StoreUnavailable
from incoming_payments.ports import StoreBatch
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.stores.sqlite._queue import Job
from incoming_payments.stores.sqlite._rows import Batch
from incoming_payments.testing import a_creation
from kits.service_kit import BrokenObserver, Recorder
from kits.sqlite_jobs import busy_writer, crediting_one


def test_batches_are_reported(tmp_path: Path) -> None:
    """A commit is reported with its size. A batch that fails because of one job is reported job by job."""
    created, recorder = a_creation(), Recorder()

    def overflow(rows: Batch) -> None:
        rows.connection.execute("INSERT INTO payments DEFAULT VALUES")

    with SqliteStore(tmp_path / "payments.db", observer=recorder) as store:
        store.insert(created)
        with busy_writer(store._engine):
            jobs = [crediting_one(created.answer.id, f"wire-{number}") for number in range(3)]
            for job in jobs:
                store._engine.submit(job)
        for job in jobs:
            job.wait()
        with busy_writer(store._engine):
            good, bad = crediting_one(created.answer.id, "wire-9"), Job(overflow)
            store._engine.submit(good)
            store._engine.submit(bad)
        good.wait()
        with pytest.raises(BrokenDecision):
            bad.wait()
    batches = recorder.take()
    one, broken = (StoreBatch(size=1, outcome=outcome, duration_s=0.0) for outcome in ("committed", "broken_decision"))
    three = StoreBatch(size=3, outcome="committed", duration_s=0.0)
    assert batches == [one, one, three, one, one, broken]


def test_failures_are_reported(tmp_path: Path) -> None:
    """The outcome is the code of the error that the callers get."""
    recorder = Recorder()

    def fail(_: Batch) -> None:
        raise OSError("no space")

    with SqliteStore(tmp_path / "payments.db", observer=recorder) as store:
        job = Job(fail)
        store._engine.submit(job)
        with pytest.raises(StoreUnavailable):
            job.wait()
    assert recorder.take() == [StoreBatch(size=1, outcome="store_unavailable", duration_s=0.0)]


def test_failing_observer_breaks_no_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The store continues, and the log has the failure."""
    created = a_creation()
    with SqliteStore(tmp_path / "payments.db", observer=BrokenObserver()) as store:
        store.insert(created)
        assert store.load(created.answer.id) == created.answer
    assert [record.__dict__["event"] for record in caplog.records] == ["observer_failed"]


@pytest.mark.parametrize("kind", [SqliteStore, AsyncSqliteStore])
def test_wrong_observer_is_refused(tmp_path: Path, kind: type[SqliteStore | AsyncSqliteStore]) -> None:
    """The error is raised before a file is created."""
    with pytest.raises(ConfigurationError, match="observer must be"):
        kind(tmp_path / "payments.db", observer=object())  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())

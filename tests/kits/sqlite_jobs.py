"""Steps for tests of the SQLite stores: queue jobs without waiting, and keep the writer busy."""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.ports import Decide
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.stores.sqlite._engine import Engine
from incoming_payments.stores.sqlite._queue import Job
from incoming_payments.stores.sqlite._rows import Batch
from incoming_payments.stores.sqlite._store import _key, _updating
from incoming_payments.stores.sqlite._writer import Writer
from incoming_payments.testing import crediting


@contextmanager
def busy_writer(engine: Engine) -> Iterator[None]:
    """Keep the writer busy, so that the jobs queued meanwhile become one batch."""
    entered, go = threading.Event(), threading.Event()

    def work(_: Batch) -> None:
        entered.set()
        assert go.wait(30)

    job = Job(work)
    engine.submit(job)
    assert entered.wait(30)
    try:
        yield
    finally:
        go.set()
    job.wait()


def queue(store: SqliteStore, id: PaymentId, decide: Decide[Any], credit_id: str | None = None) -> Job[Any]:
    """Queue an update without waiting for it."""
    job = updating(id, decide, credit_id)
    store._engine.submit(job)
    return job


def updating(id: PaymentId, decide: Decide[Any], credit_id: str | None = None) -> Job[Any]:
    """Return the job that `update` makes."""
    key = None if credit_id is None else CreditId(credit_id)
    return Job(_updating(id, decide, key), credit=_key(id, key))


def crediting_one(id: PaymentId, credit_id: str) -> Job[Any]:
    """Return a job that credits one minor unit."""
    return updating(id, crediting(credit_id, 1), credit_id)


def outcomes_of_one_batch(store: SqliteStore, jobs: Sequence[Job[Any]]) -> list[Any]:
    """Run `jobs` as one batch of a writer with a new connection, and return their answers and errors."""
    writer = Writer(store._engine._file)
    writer.run(list(jobs))
    writer.disconnect()
    return [_outcome(job) for job in jobs]


def _outcome(job: Job[Any]) -> Any:
    try:
        return job.wait()
    except IncomingPaymentsError as error:
        return error


def edit(path: Path, *statements: str) -> None:
    """Execute `statements` on the file, as a program other than the store."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)

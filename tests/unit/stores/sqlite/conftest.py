"""A database, and the stores on it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from incoming_payments.domain.payment import PaymentId
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing.steps import create


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the database."""
    return tmp_path / "payments.db"


@pytest.fixture
def id(path: Path) -> PaymentId:
    """Return the id of a payment in the database, which is closed."""
    with SqliteStore(path) as store:
        return create(store)


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    """Yield a store on `path` that waits a second for locks."""
    with SqliteStore(path, busy_s=1) as store:
        yield store


@pytest.fixture
def tasks(store: SqliteStore, path: Path) -> Iterator[AsyncSqliteStore]:  # noqa: ARG001 - opened first, closed last
    """Yield a second store on `path`, for event loops, whose writer has not opened its connection."""
    tasks = AsyncSqliteStore(path, busy_s=1)
    yield tasks
    asyncio.run(tasks.close())

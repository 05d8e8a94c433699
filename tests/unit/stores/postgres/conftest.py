"""A database, and the stores on it."""

from collections.abc import Iterator

import pytest

from incoming_payments.stores.postgres import PostgresStore
from incoming_payments.testing import SyncView
from kits.postgres import async_view, empty_database


@pytest.fixture
def database() -> str:
    """Return the connection string of an empty database with tables."""
    return empty_database()


@pytest.fixture
def store(database: str) -> Iterator[PostgresStore]:
    """Yield a store in the database."""
    with PostgresStore(database) as store:
        yield store


@pytest.fixture
def view(database: str) -> Iterator[SyncView]:
    """Yield a view of an `AsyncPostgresStore` in the database."""
    with async_view(database) as view:
        yield view

"""A sync view calls its async store, and closes its event loop."""

import asyncio
from pathlib import Path

import pytest

from incoming_payments.errors import StoreUnusable
from incoming_payments.stores.sqlite import AsyncSqliteStore
from incoming_payments.testing import NOW, SyncNonces, SyncView, a_creation


def test_a_view_opens_and_closes_its_store(tmp_path: Path) -> None:
    """The store runs in the event loop of the view. A second `close` does nothing."""

    async def open_store() -> AsyncSqliteStore:
        return AsyncSqliteStore(tmp_path / "payments.db")

    with SyncView(open_store, AsyncSqliteStore.close) as view:
        created = a_creation()
        view.insert(created)
        assert created.answer == view.run(view.store.load(created.answer.id))
        assert list(view.find_expired(NOW, 1)) == []
    view.close()
    with pytest.raises(StoreUnusable, match="the view of the store is closed"):
        view.load(created.answer.id)


def test_a_view_without_a_close_function_does_not_close_the_store(tmp_path: Path) -> None:
    """The store still works after the view is closed."""
    stores: list[AsyncSqliteStore] = []

    async def open_store() -> AsyncSqliteStore:
        stores.append(AsyncSqliteStore(tmp_path / "payments.db"))
        return stores[0]

    view = SyncView(open_store)
    view.insert(a_creation())
    view.close()
    asyncio.run(stores[0].insert(a_creation()))
    asyncio.run(stores[0].close())


def test_the_view_raises_the_error_of_a_store_that_does_not_open(tmp_path: Path) -> None:
    """The event loop of the view is closed."""

    async def open_store() -> AsyncSqliteStore:
        return AsyncSqliteStore(tmp_path)

    with pytest.raises(StoreUnusable):
        SyncView(open_store)


def test_nonces_run_in_the_loop_of_their_view(tmp_path: Path) -> None:
    """Closing the nonces closes the view and the store."""

    async def open_store() -> AsyncSqliteStore:
        return AsyncSqliteStore(tmp_path / "payments.db")

    view = SyncView(open_store, AsyncSqliteStore.close)
    assert isinstance(view.store, AsyncSqliteStore)
    nonces = SyncNonces(view, view.store.nonces)
    assert [nonces.use("0" * 64, NOW, NOW) for _ in range(2)] == [True, False]
    nonces.close()
    nonces.close()

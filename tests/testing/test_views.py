"""A sync view does what its async store does, and leaves no event loop behind."""

import asyncio
from pathlib import Path

import pytest

from incoming_payments.errors import StoreUnusable
from incoming_payments.stores.sqlite import AsyncSqliteStore
from incoming_payments.testing import NOW, SyncNonces, SyncView, a_creation


def test_a_view_opens_and_closes_its_store(tmp_path: Path) -> None:
    """In its own event loop; it may be closed again."""

    async def open_store() -> AsyncSqliteStore:
        return AsyncSqliteStore(tmp_path / "payments.db")

    with SyncView(open_store, AsyncSqliteStore.close) as view:
        created = a_creation()
        view.insert(created)
        assert created.answer == view.run(view.store.load(created.answer.id))
        assert list(view.find_expired(NOW, 1)) == []
    view.close()


def test_a_view_without_close_leaves_the_store_alone(tmp_path: Path) -> None:
    """Some stores need no end; this one gets it from the test."""
    stores: list[AsyncSqliteStore] = []

    async def open_store() -> AsyncSqliteStore:
        stores.append(AsyncSqliteStore(tmp_path / "payments.db"))
        return stores[0]

    view = SyncView(open_store)
    view.insert(a_creation())
    view.close()
    asyncio.run(stores[0].insert(a_creation()))
    asyncio.run(stores[0].close())


def test_a_store_that_does_not_open_is_an_error_of_the_view(tmp_path: Path) -> None:
    """And its event loop is closed."""

    async def open_store() -> AsyncSqliteStore:
        return AsyncSqliteStore(tmp_path)

    with pytest.raises(StoreUnusable):
        SyncView(open_store)


def test_nonces_are_asked_in_the_loop_of_their_view(tmp_path: Path) -> None:
    """And closing them closes it, with the store."""

    async def open_store() -> AsyncSqliteStore:
        return AsyncSqliteStore(tmp_path / "payments.db")

    view = SyncView(open_store, AsyncSqliteStore.close)
    assert isinstance(view.store, AsyncSqliteStore)
    nonces = SyncNonces(view, view.store.nonces)
    assert [nonces.use("0" * 64, NOW, NOW) for _ in range(2)] == [True, False]
    nonces.close()
    nonces.close()

"""Factories of stores for the crash kit, which names a factory as `module:callable`."""

from incoming_payments.stores.sqlite import AsyncSqliteStore
from incoming_payments.testing import SyncView


def open_async_sqlite(path: str) -> SyncView:
    """Return a view of an async store on the file `path`."""

    async def open_store() -> AsyncSqliteStore:
        return AsyncSqliteStore(path)

    return SyncView(open_store, AsyncSqliteStore.close)

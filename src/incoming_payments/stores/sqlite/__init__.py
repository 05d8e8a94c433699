"""The durable default: payments in one SQLite file, for threads, for asyncio, and for several processes at once.

The store answers a write only when the data is on the disk. It uses a write-ahead log with `synchronous = FULL`. Each
store has one thread that writes. This thread commits many updates together. When the disk or the files fail, the store
stops (see `StoreStopped`).
"""

from incoming_payments.stores.sqlite._quotas import AsyncSqliteQuotas, SqliteQuotas
from incoming_payments.stores.sqlite._store import AsyncSqliteNonces, AsyncSqliteStore, SqliteNonces, SqliteStore

__all__ = ["AsyncSqliteNonces", "AsyncSqliteQuotas", "AsyncSqliteStore", "SqliteNonces", "SqliteQuotas", "SqliteStore"]

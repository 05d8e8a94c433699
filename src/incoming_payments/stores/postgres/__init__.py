"""Payments in a PostgreSQL database, for many processes. This package needs `incoming-payments[postgres]`.

The store answers a write only when the commit has succeeded without a warning. Run `migrate` once before the first
store is opened.
"""

from incoming_payments.stores.postgres._migrations import migrate
from incoming_payments.stores.postgres._store import (
    AsyncPostgresNonces,
    AsyncPostgresStore,
    PostgresNonces,
    PostgresStore,
)

__all__ = ["AsyncPostgresNonces", "AsyncPostgresStore", "PostgresNonces", "PostgresStore", "migrate"]

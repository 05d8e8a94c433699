"""Payments in a PostgreSQL database, for many processes. This package needs `incoming-payments[postgres]`.

The store answers a write only when the commit has succeeded without a warning. Run `migrate` once before the first
store is opened.
"""

try:
    import psycopg_pool  # noqa: F401 - psycopg also fails to import without libpq
except ImportError as error:
    text = f"a store on PostgreSQL needs psycopg ({error})"
    raise ImportError(f"{text}: run pip install 'incoming-payments[postgres]' 'psycopg[binary]'") from error

from incoming_payments.stores.postgres._migrations import migrate
from incoming_payments.stores.postgres._store import (
    AsyncPostgresNonces,
    AsyncPostgresStore,
    PostgresNonces,
    PostgresStore,
)

__all__ = ["AsyncPostgresNonces", "AsyncPostgresStore", "PostgresNonces", "PostgresStore", "migrate"]

"""Open the database of the configuration, for the commands. Only this module knows the two kinds of databases."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from incoming_payments.errors import ConfigurationError, StoreStopped, StoreUnusable
from incoming_payments.ports import Observer
from incoming_payments.server.config.postgres import PostgresDatabase, conninfo_of
from incoming_payments.server.config.settings import Settings
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.stores.sqlite._lock_file import Text, text_of_open

if TYPE_CHECKING:
    from typing import TypeAlias

    from incoming_payments.stores.postgres import AsyncPostgresStore, PostgresStore

    Store: TypeAlias = SqliteStore | PostgresStore
    AsyncStore: TypeAlias = AsyncSqliteStore | AsyncPostgresStore


@contextmanager
def opened(settings: Settings, purpose: str) -> "Iterator[Store]":
    """Open the database, which must exist, and close it at the end. `purpose` completes the error if it does not exist.

    Raises `ConfigurationError` when the database does not exist or cannot be opened, and `StoreUnavailable` when it
    does not answer.
    """
    database = settings.given.database
    store = _file(database, purpose) if isinstance(database, Path) else _on_server(database, settings)
    with store:
        yield store


@contextmanager
def opened_file(settings: Settings, purpose: str, *, instead: str) -> Iterator[SqliteStore]:
    """Open the database as `opened` does, for a command that needs a SQLite file.

    Raises `ConfigurationError` also when the database is on a PostgreSQL server. `instead` names what to do then.
    """
    database = settings.given.database
    if isinstance(database, PostgresDatabase):
        raise ConfigurationError(f"database: {database} is not a SQLite file: {instead}", setting="database")
    with _file(database, purpose) as store:
        yield store


def _file(database: Path, purpose: str) -> SqliteStore:
    if not database.exists():
        how = f"correct the path of the database {purpose}, or start serve, which creates it"
        text = f"database: {database} does not exist: {how}"
        raise ConfigurationError(text, setting="database")
    with naming_database():
        return SqliteStore(database)


def _on_server(database: PostgresDatabase, settings: Settings, reference: str | None = None) -> "PostgresStore":
    from incoming_payments.stores.postgres import PostgresStore

    with naming_database():
        conninfo = conninfo_of(database, settings.given.postgres)
        return PostgresStore(conninfo, connections=1, prepares=False, reference=reference)


def store_for_workers(
    settings: Settings, on_stop: Callable[[StoreStopped], None], observer: Observer | None
) -> "AsyncStore":
    """Return the store of `serve`. Each worker opens its own connections, after the fork.

    A SQLite file is created if it does not exist. Raises `ConfigurationError` when the database cannot be opened, and
    `StoreUnavailable` when it does not answer.
    """
    given = settings.given
    if isinstance(given.database, Path):
        with naming_database():
            return AsyncSqliteStore(given.database, on_stop=on_stop, observer=observer, reference=given.reference)
    # Report a wrong database before the fork. After `close`, this store has no threads and no connections.
    _on_server(given.database, settings, given.reference).close()
    from incoming_payments.stores.postgres import AsyncPostgresStore

    return AsyncPostgresStore(
        conninfo_of(given.database, given.postgres),
        connections=given.postgres.connections,
        prepares=given.postgres.prepares,
        observer=observer,
        reference=given.reference,
    )


def is_served(settings: Settings) -> bool:
    """Return whether a process has the SQLite file of the database open. Raises `OSError`."""
    database = settings.given.database
    return isinstance(database, Path) and text_of_open(f"{database}-lock") == Text.IN_USE


def postgres_conninfo(settings: Settings, command: str) -> str:
    """Return the connection string of the database, for a command that needs PostgreSQL.

    Raises `ConfigurationError` when the database is a SQLite file.
    """
    database = settings.given.database
    if isinstance(database, Path):
        text = (
            f"database: {command} needs a URL of PostgreSQL, and {database} is a SQLite file, which serve creates and "
            "upgrades by itself"
        )
        raise ConfigurationError(text, setting="database")
    return conninfo_of(database, settings.given.postgres)


@contextmanager
def naming_database() -> Iterator[None]:
    """Turn the error for a database that cannot be opened into a `ConfigurationError` that names the setting.

    The store raises a `ConfigurationError` only for `reference`, because the other settings are checked before.
    """
    try:
        yield
    except StoreStopped:
        raise
    except ConfigurationError as error:
        raise ConfigurationError(f"reference: {error.description}", **error.details) from None
    except StoreUnusable as error:
        raise ConfigurationError(f"database: {error.description}", setting="database") from None

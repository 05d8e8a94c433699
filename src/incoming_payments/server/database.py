"""Open the database of the configuration, for the commands."""

from collections.abc import Iterator
from contextlib import contextmanager

from incoming_payments.errors import ConfigurationError, StoreStopped, StoreUnusable
from incoming_payments.server.config.settings import Settings
from incoming_payments.stores.sqlite import SqliteStore


@contextmanager
def opened(settings: Settings, purpose: str, *, reference: str | None = None) -> Iterator[SqliteStore]:
    """Open the database, which must exist, and close it at the end. `purpose` completes the error if it does not exist.

    Raises `ConfigurationError` when the database does not exist or cannot be opened.
    """
    database = settings.given.database
    if not database.exists():
        how = f"correct the path of the database {purpose}, or start serve, which creates it"
        text = f"database: {database} does not exist: {how}"
        raise ConfigurationError(text, setting="database")
    with naming_database():
        store = SqliteStore(database, reference=reference)
    with store:
        yield store


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

"""`incoming-payments backup`: a verified copy of the database."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from incoming_payments.errors import BackupFailed, ConfigurationError, StoreStopped, StoreUnusable
from incoming_payments.server.config.settings import Settings
from incoming_payments.stores.sqlite import SqliteStore


def backup(settings: Settings, target: Path) -> int:
    """Copy the database to the new file `target`, read the copy back, and return the exit status.

    Raises `ConfigurationError` when there is no database, `BackupFailed` when there is no folder for `target` or the
    copy fails, and `StoreError` when the database fails.
    """
    if not settings.given.database.exists():
        raise ConfigurationError(
            f"database: {settings.given.database} does not exist: nothing to back up", setting="database"
        )
    if not target.parent.is_dir():
        raise BackupFailed(f"{target}: the folder {target.parent} does not exist: create it, or name another target")
    if target.is_dir():
        raise BackupFailed(f"{target} is a folder: name a new file in it, such as {target / 'backup.sqlite3'}")
    with naming_database():
        store = SqliteStore(settings.given.database)
    with store:
        store.backup(target)
    print(f"Wrote {target}, and read it back. Keep the configuration and its secrets with it.")
    return 0


@contextmanager
def naming_database() -> Iterator[None]:
    """Turn the error of a database that cannot be opened into a `ConfigurationError` that names the setting."""
    try:
        yield
    except StoreStopped:
        raise
    except StoreUnusable as error:
        raise ConfigurationError(f"database: {error.description}", setting="database") from None

"""`incoming-payments backup`: a verified copy of the database."""

from pathlib import Path

from incoming_payments.errors import ConfigurationError
from incoming_payments.server.settings import Settings
from incoming_payments.stores.sqlite import SqliteStore


def backup(settings: Settings, target: Path) -> int:
    """Copy the database to the new file `target`, read the copy back, and return the exit status.

    Raises `ConfigurationError` when there is no database, and `StoreError` when the copy fails.
    """
    if not settings.database.exists():
        raise ConfigurationError(f"{settings.database} does not exist: nothing to back up", setting="database")
    with SqliteStore(settings.database) as store:
        store.backup(target)
    print(f"Wrote {target}, and read it back. Keep the configuration and its secrets with it.")
    return 0

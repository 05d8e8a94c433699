"""`incoming-payments backup`: a verified copy of the database."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from incoming_payments.errors import BackupFailed, ConfigurationError, StoreStopped, StoreUnusable
from incoming_payments.server.audit import audit
from incoming_payments.server.config.settings import Settings
from incoming_payments.stores.sqlite import SqliteStore


def backup(settings: Settings, target: Path, *, with_audit: bool = False) -> int:
    """Copy the database to the new file `target`, read the copy back, and return the exit status.

    If `with_audit` is true, audit the copy, and return the exit status of the audit. The copy stays in any case.

    Raises `ConfigurationError` when the database does not exist, `BackupFailed` when the folder of `target` does not
    exist or the copy fails, `StoreError` when the database fails, and `AuditFailed` when the copy cannot be audited.
    """
    if not settings.given.database.exists():
        raise ConfigurationError(
            f"database: {settings.given.database} does not exist: correct the path of the database to back up",
            setting="database",
        )
    if not target.parent.is_dir():
        raise BackupFailed(
            f"{target}: the folder {target.parent} does not exist: create the folder, or choose another target"
        )
    if target.is_dir():
        raise BackupFailed(
            f"{target} is a folder: give the path of a new file in the folder, such as {target / 'backup.sqlite3'}"
        )
    with naming_database():
        store = SqliteStore(settings.given.database)
    with store:
        store.backup(target)
    print(f"Wrote and verified the backup {target}. Keep the configuration and its secrets together with the backup.")
    return audit(target, as_json=False) if with_audit else 0


@contextmanager
def naming_database() -> Iterator[None]:
    """Turn the error for a database that cannot be opened into a `ConfigurationError` that names the setting."""
    try:
        yield
    except StoreStopped:
        raise
    except StoreUnusable as error:
        raise ConfigurationError(f"database: {error.description}", setting="database") from None

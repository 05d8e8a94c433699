"""`incoming-payments backup`, a verified copy of the database, and `incoming-payments reindex`."""

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
    _check_exists(settings.given.database, "to back up")
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


def reindex(settings: Settings) -> int:
    """Index the member `reference` of the metadata of all payments, and return the exit status.

    Raises `ConfigurationError` when the database does not exist, and `StoreError` when the database fails.
    """
    _check_exists(settings.given.database, "to index")
    member = settings.given.reference
    with naming_database():
        store = SqliteStore(settings.given.database)
    with store:
        store.reindex(member)
    indexed = "No member" if member is None else f"The member {member}"
    print(f"{indexed} of the metadata is indexed as the reference. Restart the processes that find payments by it.")
    return 0


def _check_exists(database: Path, purpose: str) -> None:
    if not database.exists():
        text = f"database: {database} does not exist: correct the path of the database {purpose}"
        raise ConfigurationError(text, setting="database")


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

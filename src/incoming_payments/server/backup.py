"""`incoming-payments backup`, a verified copy of the database, and `incoming-payments reindex`."""

from pathlib import Path

from incoming_payments.errors import BackupFailed
from incoming_payments.server.audit import audit
from incoming_payments.server.config.settings import Settings
from incoming_payments.server.database import opened, opened_file


def backup(settings: Settings, target: Path, *, with_audit: bool = False) -> int:
    """Copy the database to the new file `target`, read the copy back, and return the exit status.

    If `with_audit` is true, audit the copy, and return the exit status of the audit. The copy stays in any case.

    Raises `ConfigurationError` when the database does not exist, `BackupFailed` when the folder of `target` does not
    exist or the copy fails, `StoreError` when the database fails, and `AuditFailed` when the copy cannot be audited.
    """
    with opened_file(settings, "to back up", instead="back up the server with pg_dump or pg_basebackup") as store:
        if not target.parent.is_dir():
            raise BackupFailed(
                f"{target}: the folder {target.parent} does not exist: create the folder, or choose another target"
            )
        if target.is_dir():
            raise BackupFailed(
                f"{target} is a folder: give the path of a new file in the folder, such as {target / 'backup.sqlite3'}"
            )
        store.backup(target)
    print(f"Wrote and verified the backup {target}. Keep the configuration and its secrets together with the backup.")
    return audit(target, as_json=False) if with_audit else 0


def reindex(settings: Settings) -> int:
    """Index the member `reference` of the metadata of all payments, and return the exit status.

    Raises `ConfigurationError` when the database does not exist, and `StoreError` when the database fails.
    """
    member = settings.given.reference
    with opened(settings, "to index") as store:
        store.reindex(member)
    indexed = "No member" if member is None else f"The member {member}"
    print(f"{indexed} of the metadata is indexed as the reference. Restart the processes that find payments by it.")
    return 0

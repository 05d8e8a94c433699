"""The audit of one database."""

import os
from collections.abc import Callable

from incoming_payments.audit._database import Damaged, Database, unsound_pages
from incoming_payments.audit._passes import passes
from incoming_payments.audit._report import FILE, AuditReport, Counts, Tally


def audit(path: str | os.PathLike[str], *, on_progress: Callable[[Counts], None] | None = None) -> AuditReport:
    """Compare every row of the SQLite database at `path` with the rules, and return the differences.

    The database is a copy that `SqliteStore.backup` has made, or a database that a store has open. The audit writes
    nothing, and needs constant memory. It reads in transactions of about `limits.AUDIT_SLICE_S_MAX` seconds, and calls
    `on_progress` after each of them. Changes during the audit cause no differences. Payments that are created during
    the audit may not be part of it.

    Run the audit in a process that does not fork meanwhile. Raises `AuditFailed` when the database cannot be audited.
    """
    database, tally = Database(path), Tally(on_progress)
    try:
        if not database.is_live:
            with database.read() as snapshot:
                for text in unsound_pages(snapshot):
                    tally.add(None, FILE, text)
        for each in passes(tally, is_live=database.is_live):
            is_complete = False
            while not is_complete:
                with database.read() as snapshot:
                    is_complete = each.run(snapshot)
                tally.show_progress()
    except Damaged as error:
        tally.add(None, FILE, f"the audit cannot continue: {error}")
    return tally.report(str(database.path), is_live=database.is_live)

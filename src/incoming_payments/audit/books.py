"""The audit of one database."""

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TypeVar

from incoming_payments.audit._database import Database
from incoming_payments.audit._passes import Pass, passes
from incoming_payments.audit._report import FILE, AuditReport, Counts, Tally
from incoming_payments.audit._snapshot import Damaged
from incoming_payments.audit._sqlite import SqliteSnapshot
from incoming_payments.audit._sqlite_metadata import Numbers, Texts, ToErase
from incoming_payments.errors import AuditFailed

AnySnapshot = TypeVar("AnySnapshot")


def audit(database: str | os.PathLike[str], *, on_progress: Callable[[Counts], None] | None = None) -> AuditReport:
    """Compare every row of a database with the rules, and return the differences.

    `database` is the path of a SQLite database, or the URL of a PostgreSQL database, such as
    `postgresql://bank@db.internal/bank`. A SQLite database is a copy that `SqliteStore.backup` has made, or a database
    that a store has open. The audit writes nothing, and needs constant memory. It calls `on_progress` about every
    `limits.AUDIT_SLICE_S_MAX` seconds.

    The audit reads SQLite in transactions of about this time. Changes during the audit cause no differences. The audit
    may leave out payments that are created while it runs. Run it in a process that does not fork meanwhile. The audit
    reads PostgreSQL in one transaction, which sees the database as it was when the audit began.

    Raises `AuditFailed` when the database cannot be audited, and `ConfigurationError` for an invalid URL.
    """
    tally = Tally(on_progress)
    if isinstance(database, str) and database.startswith(("postgresql://", "postgres://")):
        return _audit_postgres(database, tally)
    file = Database(database)
    steps: list[Pass[SqliteSnapshot]] = [*passes(tally), Texts(tally), ToErase(tally)]
    if not file.is_live:
        steps = [_Pages(tally), *steps, Numbers(tally)]
    _run(steps, file.read, tally)
    return tally.report(str(file.path), is_live=file.is_live)


def _audit_postgres(url: str, tally: Tally) -> AuditReport:
    try:
        from incoming_payments.audit._postgres import Metadata, PostgresDatabase
    except ImportError as error:  # psycopg is an extra
        how = "run pip install 'incoming-payments[postgres]' 'psycopg[binary]'"
        raise AuditFailed(f"an audit of PostgreSQL needs psycopg ({error}): {how}") from error
    with PostgresDatabase(url) as database:
        _run([*passes(tally), Metadata(tally)], database.read, tally)
    return tally.report(database.name, is_live=True)


def _run(
    steps: Iterable[Pass[AnySnapshot]], read: Callable[[], AbstractContextManager[AnySnapshot]], tally: Tally
) -> None:
    try:
        for step in steps:
            is_complete = False
            while not is_complete:
                with read() as snapshot:
                    is_complete = step.run(snapshot)
                tally.show_progress()
    except Damaged as error:
        tally.add(None, FILE, f"the audit cannot continue: {error}")


class _Pages:
    """The pages, the indexes and the constraints of a SQLite database that no store has open."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def run(self, snapshot: SqliteSnapshot) -> bool:
        """See `Pass`."""
        for text in snapshot.unsound_pages():
            self._tally.add(None, FILE, text)
        return True

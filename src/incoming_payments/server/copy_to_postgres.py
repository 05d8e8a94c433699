"""`incoming-payments copy-to-postgres`: move the payments of a SQLite database to PostgreSQL."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from incoming_payments.errors import CopyFailed
from incoming_payments.server.output import say

if TYPE_CHECKING:
    from incoming_payments.copying import CopyProgress

_PROGRESS_S: Final = 2.0  # seconds between two lines of progress


def copy_to_postgres(file: Path, url: str, *, abandon: bool) -> int:
    """Move the payments of `file` to the database `url`, or abandon the copy, and return the exit status.

    Raises the errors of `copying.copy_to_postgres` and `copying.abandon_copy`.
    """
    try:
        from incoming_payments.copying import abandon_copy
        from incoming_payments.copying import copy_to_postgres as move
    except ImportError as error:  # psycopg is an extra
        how = "run pip install 'incoming-payments[postgres]' 'psycopg[binary]'"
        raise CopyFailed(f"a copy to PostgreSQL needs psycopg ({error}): {how}") from error
    if abandon:
        abandon_copy(file, url)
        print(f"The copy is abandoned. {file} accepts writes again, and the rows of the copy are removed.")
        return 0
    report = move(file, url, on_progress=_Progress())
    if report.rows:
        print(
            f"Copied {report.copied:,} rows in {report.copy_s:.1f} s, and compared {report.rows:,} rows, of "
            f"{report.payments:,} payments, in {report.compare_s:.1f} s. Both sides are the same."
        )
    print(f"The payments of {file} are in {report.target}. No process can write to {file} any more.")
    if not report.is_one_file:
        print(f"A process still has {file} open: end it, and run this command again before you audit the file.")
    return 0


class _Progress:
    """Write the number of rows to stderr from time to time."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._due_s = self._began_s + _PROGRESS_S

    def __call__(self, progress: "CopyProgress") -> None:
        now_s = time.monotonic()
        if now_s >= self._due_s:
            rate = progress.rows / (now_s - self._began_s)
            say(f"copied so far: {progress.rows:,} rows, {rate:,.0f} a second; now {progress.table}", sys.stderr)
            self._due_s = now_s + _PROGRESS_S

"""`incoming-payments audit`: compare every row of a database with the rules."""

import json
import sys
import time
from pathlib import Path
from typing import Final

from attrs import asdict, filters

from incoming_payments.audit import AuditReport, Counts
from incoming_payments.audit import audit as audit_database
from incoming_payments.server.output import say

_PROGRESS_S: Final = 2.0  # seconds between two lines of progress


def audit(database: str | Path, *, as_json: bool) -> int:
    """Audit `database`, print the report, and return the exit status, which is 1 if there is a difference.

    `database` is a path, or the URL of a PostgreSQL database.
    Raises `AuditFailed` when the database cannot be audited.
    """
    report = audit_database(database, on_progress=_Progress())
    if as_json:
        members = {"isSound": report.is_sound, "isLive": report.is_live}
        print(json.dumps({**members, **asdict(report, filter=filters.exclude("is_live"))}, indent=2))
    else:
        print(_text(report))
    return 0 if report.is_sound else 1


class _Progress:
    """Write the counts to stderr from time to time."""

    def __init__(self) -> None:
        self._due_s = time.monotonic() + _PROGRESS_S

    def __call__(self, counts: Counts) -> None:
        if time.monotonic() >= self._due_s:
            say(f"audited so far: {_numbers(counts)}", sys.stderr)
            self._due_s = time.monotonic() + _PROGRESS_S


def _text(report: AuditReport) -> str:
    lines = [str(difference) for difference in report.differences]
    if report.found > len(lines):
        lines.append(f"and {report.found - len(lines)} other differences")
    lines.append(f"Audited {report.database}: {_numbers(report.counts)}.")
    if report.is_live:
        lines.append("The pages and indexes were not checked, because the database is in use.")
    if report.is_sound:
        lines.append("There is no difference: the books are proved.")
    else:
        lines.append(f"Differences: {report.found}. Keep this database, and compare it with a backup.")
    return "\n".join(lines)


def _numbers(counts: Counts) -> str:
    return ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in asdict(counts).items())

"""An audit that compares a SQLite or PostgreSQL database with the rules of `domain`.

The audit replays the history of each payment with the decisions of `domain.lifecycle`, and compares the result with
every row. It does not trust the code that wrote the rows.
"""

from incoming_payments.audit._report import AuditReport, Counts, Difference
from incoming_payments.audit.books import audit

__all__ = ["AuditReport", "Counts", "Difference", "audit"]

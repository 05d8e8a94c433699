"""An audit that proves the books from a database and the rules of `domain` alone.

The audit replays the history of each payment by the decisions of `domain.lifecycle`, and compares the result with every
row. It trusts no code that has written the rows.
"""

from incoming_payments.audit._report import AuditReport, Counts, Difference
from incoming_payments.audit.books import audit

__all__ = ["AuditReport", "Counts", "Difference", "audit"]

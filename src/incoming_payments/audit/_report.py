"""The result of an audit."""

from collections.abc import Callable
from typing import Final

from attrs import asdict, field, frozen

from incoming_payments.limits import AUDIT_DIFFERENCES_MAX

FILE: Final = "file"  # the place of a difference that belongs to no table


@frozen
class Difference:
    """A place where the database contradicts the rules. `payment` is the id of the payment, if it belongs to one.

    `table` is the name of the table with the contradiction, or "file" for the file itself.
    """

    payment: str | None
    table: str
    text: str

    def __str__(self) -> str:
        subject = self.table if self.payment is None else f"payment {self.payment}: {self.table}"
        return f"{subject}: {self.text}"


@frozen(kw_only=True)
class Counts:
    """The rows that the audit has compared so far."""

    payments: int = 0
    credits: int = 0
    events: int = 0
    idempotency_keys: int = 0
    nonces: int = 0
    metadata: int = 0
    metadata_to_erase: int = 0
    streams: int = 0
    deliveries: int = 0


@frozen(kw_only=True)
class AuditReport:
    """The result of an audit.

    `is_live` is true for PostgreSQL, and for a file that a store had open. The audit has then not checked the pages.
    `found` is the number of differences. `differences` are the first of them, at most `limits.AUDIT_DIFFERENCES_MAX`.
    """

    database: str
    is_live: bool
    counts: Counts
    found: int
    differences: tuple[Difference, ...] = field(repr=False)

    @property
    def is_sound(self) -> bool:
        """Whether the audit has found no difference."""
        return self.found == 0


class Tally:
    """The counts and differences of an audit in progress."""

    def __init__(self, on_progress: Callable[[Counts], None] | None) -> None:
        self.counts = dict.fromkeys(asdict(Counts()), 0)
        self.found = 0
        self.differences: list[Difference] = []
        self._on_progress = on_progress

    def add(self, payment: str | None, table: str, text: str) -> None:
        """Note a difference."""
        self.found += 1
        if len(self.differences) < AUDIT_DIFFERENCES_MAX:
            # A damaged id may be no text.
            self.differences.append(Difference(None if payment is None else str(payment), table, text))

    def show_progress(self) -> None:
        """Call the function of the caller with the counts."""
        if self._on_progress is not None:
            self._on_progress(Counts(**self.counts))

    def report(self, database: str, *, is_live: bool) -> AuditReport:
        """Return the result."""
        return AuditReport(
            database=database,
            is_live=is_live,
            counts=Counts(**self.counts),
            found=self.found,
            differences=tuple(self.differences),
        )

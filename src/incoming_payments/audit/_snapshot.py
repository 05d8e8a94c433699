"""The rows that the audit reads from a database, ordered by their keys.

`_history`, `_metadata` and `_rules` define the rows, and `_sqlite` and `_postgres` read them. The rules and the passes
are the same for both.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from incoming_payments.audit._history import INVALID, Contradiction, CreditRow, EventRow, PaymentRow
from incoming_payments.audit._rules import ConsumerRow, DeliveryRow, KeyRow, SettingsRow, StreamRow
from incoming_payments.domain.reference import reference_text


class Damaged(Exception):
    """The database cannot read its pages, tables or columns."""


class Snapshot(Protocol):
    """A view of the database in one transaction. Methods raise `Damaged`, or an error of the driver.

    The passes ask for keys in ascending order only, and for the rows of a key before those of the next one.
    """

    @property
    def is_over(self) -> bool:
        """Whether the pass must stop, and continue later."""

    def unsound_tables(self) -> Iterator[tuple[str, str]]:
        """Yield the table and the text of each difference in the definitions, and in tables with few rows."""

    def count_nonces(self) -> int:
        """Return the number of nonces."""

    def settings(self) -> Sequence[SettingsRow]:
        """Return the rows of the settings."""

    def has_payment(self, id: str) -> bool:
        """Return whether there is a payment `id`."""

    def consumers(self) -> Iterable[ConsumerRow]:
        """Return the consumers, in the order of their names."""

    def next_payment(self, after: str) -> Any:
        """Return the first payment after the id `after` that has a row, a credit or an event, or `None`."""

    def payments(self, id: str) -> Sequence[tuple[PaymentRow, Any]]:
        """Return the rows of the payment `id`, each with the values for `check_columns`. There must be one."""

    def events(self, id: str, after: int) -> Iterable[tuple[EventRow, CreditRow]]:
        """Return the events after the version `after` in order, each with the credit that it names."""

    def counts(self, id: str) -> tuple[int, int]:
        """Return how many events and credits a payment has. The caller has read all of its events before."""

    def check_columns(self, payment: PaymentRow, columns: Any, settings: SettingsRow | None) -> None:
        """Raise `Contradiction` unless the columns that only this database has follow from the payment.

        `settings` is `None` if the settings are invalid.
        """

    def keys(self, after: tuple[str, str]) -> Iterable[KeyRow]:
        """Return the idempotency keys after the client and key `after`, in order."""

    def next_streams(self, after: tuple[str, str]) -> Sequence[Any]:
        """Return the key of the first stream after `after`, and the key of the first delivery after `after`.

        A key is a consumer and a payment id."""

    def streams(self, consumer: str, id: str) -> tuple[Sequence[StreamRow], Any]:
        """Return the rows of a stream (at most one if sound), and the version of its payment, or `None`."""

    def deliveries(self, consumer: str, id: str) -> Iterable[DeliveryRow]:
        """Return the deliveries of a stream, in order."""


def next_key(before: Any, *candidates: Any) -> Any:
    """Return the first of the keys `candidates`, which must follow `before`.

    Raises `Damaged` if it does not follow, because a pass over rows without an order might never end.
    """
    try:
        first = min(candidates)
        if before < first:
            return first
    except TypeError:  # a key is not text
        pass
    raise Damaged(f"the rows of a table are not in order: {candidates[0]!r} follows {before!r}")


def only_payment(snapshot: Snapshot, id: str) -> tuple[PaymentRow, Any]:
    """Return the row of the payment `id` and its other columns. Raises `Contradiction` unless it has one row."""
    rows = snapshot.payments(id)
    if len(rows) != 1:
        raise Contradiction("payments", f"there must be one row of the payment, and there are {len(rows)}")
    return rows[0]


def valid_settings(snapshot: Snapshot) -> SettingsRow:
    """Return the settings. Raises `Contradiction` unless they are valid."""
    rows = snapshot.settings()
    if len(rows) != 1:
        raise Contradiction("settings", f"there must be one row, and there are {len(rows)}")
    [row] = rows
    try:
        if row.reference is not None:
            reference_text(row.reference)
        is_valid = 0 <= row.emptied <= row.erasures
    except INVALID as error:
        raise Contradiction("settings", f"the row is invalid: {error}") from error
    if not is_valid:
        raise Contradiction("settings", f"the log was emptied after {row.emptied} of {row.erasures} erasures")
    if row.reindexed_to and not snapshot.has_payment(row.reindexed_to):
        raise Contradiction("settings", f"reindexed_to is {row.reindexed_to}, and there is no such payment")
    return row

"""The rules for the metadata of payments: its place, its reference, and the list of the metadata that may be erased.

`payments.metadata_number` names the row of the table `metadata` that has the text. For a payment that an earlier
release has stored, `payments.metadata` has the text. An erasure removes the text, the number and the reference
together.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from incoming_payments.audit._database import Snapshot, next_key
from incoming_payments.audit._history import INVALID, Contradiction, PaymentRow
from incoming_payments.audit._report import Tally
from incoming_payments.domain.reference import reference_of, reference_text

_DIGEST_BYTES: Final = 16


class MetadataRow(NamedTuple):
    """The columns of the table `payments` for metadata. `text` is the text in the row that the number names."""

    metadata: Any
    metadata_number: Any
    text: Any
    reference: Any


class SettingsRow(NamedTuple):
    """The columns of the table `settings`."""

    reference: Any
    reindexed_to: Any
    erasures: Any
    emptied: Any


_TEXT: Final = "(SELECT text FROM metadata AS texts WHERE texts.number = metadata_number)"
_OWN_COLUMNS: Final = {"metadata": f"coalesce(metadata, {_TEXT})"}
_SELECT_PAYMENT: Final = (
    f"SELECT {', '.join(_OWN_COLUMNS.get(name, name) for name in PaymentRow._fields)}, "  # noqa: S608 - constants
    f"metadata, metadata_number, {_TEXT}, reference FROM payments WHERE id = ?"
)
_PAYMENT_COLUMNS: Final = len(PaymentRow._fields)
_SELECT_SETTINGS: Final = f"SELECT {', '.join(SettingsRow._fields)} FROM settings"  # noqa: S608 - constants
_HAS_PAYMENT: Final = "SELECT count(*) FROM payments WHERE id = ?"
_COUNT_TO_ERASE: Final = "SELECT count(*) FROM metadata_to_erase WHERE ended_at = ? AND payment_id = ?"
_SELECT_TEXTS: Final = "SELECT number FROM metadata WHERE number > ? ORDER BY number"
_SELECT_TO_ERASE: Final = (
    "SELECT ended_at, payment_id FROM metadata_to_erase WHERE (ended_at, payment_id) > (?, ?) "
    "ORDER BY ended_at, payment_id"
)
_SELECT_SHARED: Final = (
    "SELECT metadata_number, max(id) FROM payments WHERE metadata_number IS NOT NULL "
    "GROUP BY metadata_number HAVING count(*) > 1"
)
_COUNT_TEXTS: Final = (
    "SELECT (SELECT count(*) FROM metadata WHERE text IS NOT NULL), (SELECT count(metadata_number) FROM payments)"
)


def select_payment(snapshot: Snapshot, id: str) -> tuple[PaymentRow, MetadataRow]:
    """Return the columns of the payment `id`. Raises `Contradiction` unless it has one row."""
    rows = list(snapshot.rows(_SELECT_PAYMENT, (id,)))
    if len(rows) != 1:
        raise Contradiction("payments", f"there must be one row of the payment, and there are {len(rows)}")
    [values] = rows
    return PaymentRow(*values[:_PAYMENT_COLUMNS]), MetadataRow(*values[_PAYMENT_COLUMNS:])


def select_settings(snapshot: Snapshot) -> SettingsRow:
    """Return the settings. Raises `Contradiction` unless they are valid."""
    rows = [SettingsRow(*values) for values in snapshot.rows(_SELECT_SETTINGS)]
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
    if row.reindexed_to and not snapshot.one(_HAS_PAYMENT, (row.reindexed_to,))[0]:
        raise Contradiction("settings", f"reindexed_to is {row.reindexed_to}, and there is no such payment")
    return row


def check_metadata(snapshot: Snapshot, payment: PaymentRow, row: MetadataRow, settings: SettingsRow | None) -> None:
    """Raise `Contradiction` unless the metadata of a payment is in one place, with its reference.

    The metadata of an ended payment must be in the table `metadata_to_erase`. `settings` is `None` if the settings are
    invalid.
    """
    if row.metadata is not None and row.metadata_number is not None:
        raise Contradiction("payments", "it has metadata, and the number of another text")
    if row.metadata_number is not None and row.text is None:
        raise Contradiction("metadata", f"there is no text {row.metadata_number}, which the payment names")
    if settings is not None and _is_indexed(payment.id, settings):
        _check_reference(row.reference, _digest(payment.metadata, settings.reference))
    elif row.reference is not None:  # `reindex` has not come to this payment
        _check_old_reference(row.reference, payment.metadata)
    ended_at = _ended_at(payment)
    if payment.metadata is not None and ended_at is not None:
        (found,) = snapshot.one(_COUNT_TO_ERASE, (ended_at, payment.id))
        if found != 1:
            raise Contradiction("metadata_to_erase", f"there must be one row with the time {ended_at}, not {found}")


def _is_indexed(id: str, settings: SettingsRow) -> bool:
    return settings.reindexed_to is None or id <= str(settings.reindexed_to)


def _check_reference(found: object, expected: bytes | None) -> None:
    if found != expected:
        raise Contradiction("payments", f"reference is {_hex(found)}, and must be {_hex(expected)}")


def _check_old_reference(found: object, metadata: object) -> None:
    if metadata is None or type(found) is not bytes or len(found) != _DIGEST_BYTES:
        text = f"reference is {_hex(found)}, and must be {_DIGEST_BYTES} bytes of a payment with metadata"
        raise Contradiction("payments", text)


def _hex(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else repr(value)


def _digest(metadata: Any, member: str | None) -> bytes | None:
    """Return the digest of the reference in `metadata`, which is valid."""
    text = None if member is None else reference_of(metadata, member)
    return None if text is None else hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]


def _ended_at(row: PaymentRow) -> Any:
    """Return the time at which the payment of a valid row has ended, or `None`."""
    limit = row.incoming_amount
    if row.closed_at is not None or (limit is not None and int(row.received_amount) >= int(limit)):
        return row.updated_at  # nothing changes after the completion
    return None if row.expiry_announced_at is None else row.expires_at


class Texts:
    """The rows of the table `metadata`. Their numbers have no gap, because an erasure keeps the row."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._number = 0  # the last number

    def run(self, snapshot: Snapshot) -> bool:
        """See `Pass`."""
        for (number,) in snapshot.rows(_SELECT_TEXTS, (self._number,)):
            self._tally.counts["metadata"] += 1
            if number == self._number:
                self._tally.add(None, "metadata", f"number {number} is there twice")
            elif next_key(self._number, number) != self._number + 1:
                self._tally.add(None, "metadata", f"number {self._number + 1} is missing, and {number} follows")
            self._number = number
            if snapshot.is_over:
                return False
        return True


class ToErase:
    """The rows of the table `metadata_to_erase`."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._place = (-(2**63), "")

    def run(self, snapshot: Snapshot) -> bool:
        """See `Pass`."""
        for place in snapshot.rows(_SELECT_TO_ERASE, self._place):
            self._tally.counts["metadata_to_erase"] += 1
            try:
                self._check(snapshot, place)
            except Contradiction as found:
                self._tally.add(place[1], found.table, found.text)
            self._place = place[0], place[1]
            if snapshot.is_over:
                return False
        return True

    def _check(self, snapshot: Snapshot, place: Sequence[Any]) -> None:
        if place == self._place:
            raise Contradiction("metadata_to_erase", "the row is there twice")
        _, id = next_key(self._place, (place[0], place[1]))
        payment, _ = select_payment(snapshot, id)
        try:
            ended_at = None if payment.metadata is None else _ended_at(payment)
        except INVALID as error:
            raise Contradiction("payments", f"its amounts are invalid: {error}") from error
        if ended_at != place[0]:
            raise Contradiction("metadata_to_erase", f"ended_at is {place[0]}, and must be {ended_at}")


class Numbers:
    """The numbers of the metadata of all payments. One read compares them, so this pass is only for a copy."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def run(self, snapshot: Snapshot) -> bool:
        """See `Pass`."""
        for number, id in snapshot.rows(_SELECT_SHARED):
            self._tally.add(id, "payments", f"metadata_number {number} is also that of another payment")
        texts, named = snapshot.one(_COUNT_TEXTS)
        if texts != named:
            self._tally.add(None, "metadata", f"there are {texts} texts, and {named} payments name one")
        return True

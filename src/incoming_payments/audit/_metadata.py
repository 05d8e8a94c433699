"""The rules for the metadata of payments: its place, its reference, and the list of the metadata that may be erased.

`payments.metadata_number` names the row of the table `metadata` that has the text. For a payment that an earlier
release has stored, `payments.metadata` has the text. An erasure removes the text, the number and the reference
together. A PostgreSQL database has the text in `payments.metadata`. It needs no list, because `payments.ended_at` has
the time.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from incoming_payments.audit._history import Contradiction, PaymentRow
from incoming_payments.audit._rules import SettingsRow
from incoming_payments.domain.payment import HOST
from incoming_payments.domain.reference import reference_of

_DIGEST_BYTES: Final = 16


class MetadataRow(NamedTuple):
    """The columns for metadata of a SQLite database. `text` is the text in the row that the number names."""

    metadata: Any
    metadata_number: Any
    text: Any
    reference: Any


class DerivedRow(NamedTuple):
    """The columns of the table `payments` of a PostgreSQL database that follow from the others."""

    reference: Any
    ended_at: Any
    is_unpaid: Any


def check_place(row: MetadataRow) -> None:
    """Raise `Contradiction` unless the metadata of a payment is in one place of a SQLite database."""
    if row.metadata is not None and row.metadata_number is not None:
        raise Contradiction("payments", "it has metadata in its own row, and also names a row of the table metadata")
    if row.metadata_number is not None and row.text is None:
        raise Contradiction("metadata", f"there is no text {row.metadata_number}, which the payment names")


def check_reference(payment: PaymentRow, reference: object, settings: SettingsRow | None) -> None:
    """Raise `Contradiction` unless the metadata has this `reference`. `settings` is `None` if they are invalid."""
    if settings is not None and _is_indexed(payment.id, settings):
        _check_reference(reference, _digest(payment.metadata, settings.reference))
    elif reference is not None:  # `reindex` has not reached this payment
        _check_old_reference(reference, payment.metadata)


def check_to_erase(payment: PaymentRow, count: Callable[[int], int]) -> None:
    """Raise `Contradiction` unless the metadata of an ended payment is in the table `metadata_to_erase`.

    `count` returns the number of rows of the payment with this end.
    """
    ended_at = ended_at_of(payment)
    if payment.metadata is not None and ended_at is not None:
        found = count(ended_at)
        if found != 1:
            raise Contradiction("metadata_to_erase", f"there must be one row with the time {ended_at}, not {found}")


def check_derived(payment: PaymentRow, row: DerivedRow) -> None:
    """Raise `Contradiction` unless the derived columns of a payment in a PostgreSQL database follow from the others."""
    ended_at = ended_at_of(payment)
    is_unpaid = int(ended_at is None and payment.received_amount == "0" and payment.client != HOST)
    if (row.ended_at, row.is_unpaid) != (ended_at, is_unpaid):
        text = f"ended_at is {row.ended_at} and is_unpaid is {row.is_unpaid}"
        raise Contradiction("payments", f"{text}, and they must be {ended_at} and {is_unpaid}")


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


def ended_at_of(row: PaymentRow) -> Any:
    """Return the time at which the payment of a valid row has ended, or `None`."""
    limit = row.incoming_amount
    if row.closed_at is not None or (limit is not None and int(row.received_amount) >= int(limit)):
        return row.updated_at  # nothing changes after the completion
    return None if row.expiry_announced_at is None else row.expires_at

"""Convert rows to values of the feed, for the stores on SQL databases. See `_rows`."""

from collections.abc import Sequence
from typing import Any, Final

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import DeliveryRecord, Ending, FeedEvent
from incoming_payments.domain.payment import PaymentId
from incoming_payments.stores._rows import corrupt, optional_time_of, time_of

LATER: Final = 2**63 - 1  # the time at which a stream without waiting events is due
LEASE_BYTES: Final = 16
RECORD: Final = (
    "consumer, payment_id, first_version, last_version, attempts, created_at, due_at, ending, ended_at, error"
)


def feed_event_of(id: PaymentId, row: Sequence[Any]) -> FeedEvent:
    """Return an event of the payment `id` from its columns. Raises `StoreUnusable`."""
    version, kind, at, received, credit_id, peer, amount, code, scale, wallet_address = row
    try:
        asset = Asset(code, scale)
        return FeedEvent(
            payment_id=id,
            version=version,
            kind=EventKind(kind),
            at=time_of(at),
            wallet_address=wallet_address,
            received=Amount.parse(received, asset),
            amount=None if amount is None else Amount.parse(amount, asset),
            credit_id=credit_id,
            peer=peer,
        )
    except (ValueError, OverflowError) as error:
        raise corrupt(f"event {version} of payment {id}", error) from error


def record_of(row: Sequence[Any]) -> DeliveryRecord:
    """Return a delivery from its columns `RECORD`. Raises `StoreUnusable`."""
    consumer, payment_id, first, last, attempts, created_at, due_at, ending, ended_at, error = row
    try:
        return DeliveryRecord(
            consumer=consumer,
            payment_id=payment_id,
            first_version=first,
            last_version=last,
            attempts=attempts,
            created_at=time_of(created_at),
            due_at=optional_time_of(due_at),
            ending=None if ending is None else Ending(ending),
            ended_at=optional_time_of(ended_at),
            error=error,
        )
    except (ValueError, OverflowError) as problem:
        raise corrupt(f"a delivery of payment {payment_id}", problem) from problem

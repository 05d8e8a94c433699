"""Convert values to the columns of rows, and rows to values, for the stores on SQL databases.

Amounts are decimal text in the program, because not every database has integers for an unsigned 64-bit integer. Times
are microseconds since 1970. Rows become values through the constructors of the domain, so an invalid row raises
`StoreUnusable`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId, Progress, Terms
from incoming_payments.errors import StoreUnusable

Row = tuple[Any, ...]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def micros(time: datetime) -> int:
    """Return the microseconds since 1970 at `time`."""
    return (time - _EPOCH) // _MICROSECOND


def optional_micros(time: datetime | None) -> int | None:
    """Return the microseconds since 1970 at `time`, or `None`."""
    return None if time is None else micros(time)


def time_of(micros: int) -> datetime:
    """Return the time that is this many microseconds after 1970. Raises `OverflowError`."""
    return _EPOCH + timedelta(microseconds=micros)


def optional_time_of(micros: int | None) -> datetime | None:
    """Return the time that is this many microseconds after 1970, or `None`. Raises `OverflowError`."""
    return None if micros is None else time_of(micros)


def corrupt(name: str, error: Exception) -> StoreUnusable:
    """Return the error for an invalid row of `name`."""
    return StoreUnusable(f"the row of {name} holds an invalid value ({error}): restore the database from a backup")


def total_row(payment: IncomingPayment) -> tuple[int, str, int]:
    """Return the columns that every credit changes."""
    return payment.version, str(payment.received.value), micros(payment.updated_at)


def state_row(payment: IncomingPayment) -> tuple[int | None, int | None]:
    """Return the other columns that change, except those that are derived from the payment."""
    return optional_micros(payment.closed_at), optional_micros(payment.expiry_announced_at)


def payment_row(payment: IncomingPayment, metadata: object) -> Row:
    """Return the columns that `payment_of` reads, with `metadata` in place of the metadata."""
    limit = None if payment.limit is None else payment.limit.text
    expires, created = optional_micros(payment.expires_at), micros(payment.created_at)
    terms = payment.wallet_address, payment.client, payment.asset.code, payment.asset.scale
    return (*total_row(payment), *terms, limit, expires, metadata, created, *state_row(payment))


def payment_of(id: PaymentId, row: Sequence[Any]) -> IncomingPayment:
    """Return the payment `id` from its columns. Raises `StoreUnusable`."""
    version, received, updated, wallet, client, code, scale, limit, expires, metadata, created, closed, announced = row
    try:
        asset = Asset(code, scale)
        terms = Terms(
            id=id,
            wallet_address=wallet,
            client=client,
            asset=asset,
            created_at=time_of(created),
            limit=None if limit is None else Amount.parse(limit, asset),
            expires_at=optional_time_of(expires),
            metadata=metadata,
        )
        progress = Progress(
            received=Amount.parse(received, asset),
            updated_at=time_of(updated),
            version=version,
            closed_at=optional_time_of(closed),
            expiry_announced_at=optional_time_of(announced),
        )
        return IncomingPayment(terms, progress)
    except (ValueError, OverflowError) as error:  # InvalidValue is a ValueError
        raise corrupt(f"payment {id}", error) from error


def credit_row(credit: Credit) -> Row:
    """Return the ids of `credit` and the columns that `credit_of` reads."""
    amount, received = str(credit.amount.value), str(credit.received.value)
    return credit.payment_id, credit.id, amount, received, credit.completes, micros(credit.at)


def credit_of(payment: IncomingPayment, id: CreditId, row: Row) -> Credit:
    """Return the credit `id` of `payment` from its columns. Raises `StoreUnusable`."""
    amount, received, completes, at = row
    try:
        return Credit(
            payment_id=payment.id,
            id=id,
            amount=Amount.parse(amount, payment.asset),
            received=Amount.parse(received, payment.asset),
            completes=completes == 1,
            at=time_of(at),
        )
    except (ValueError, OverflowError) as error:
        raise corrupt(f"credit {id} of payment {payment.id}", error) from error


def event_row(event: Event) -> Row:
    """Return the id of the payment of `event` and the columns that `event_of` reads, except those of the asset."""
    at, received = micros(event.at), str(event.received.value)
    return event.payment_id, event.version, event.kind.value, at, received, event.credit_id, event.peer


def event_of(id: PaymentId, row: Row) -> Event:
    """Return an event of the payment `id` from its columns. Raises `StoreUnusable`."""
    version, kind, at, received, credit_id, peer, code, scale = row
    try:
        return Event(
            payment_id=id,
            version=version,
            kind=EventKind(kind),
            at=time_of(at),
            received=Amount.parse(received, Asset(code, scale)),
            credit_id=credit_id,
            peer=peer,
        )
    except (ValueError, OverflowError) as error:
        raise corrupt(f"event {version} of payment {id}", error) from error

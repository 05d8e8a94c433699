"""Write the `expired` events. No other rule depends on these events, because every decision checks the time itself."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from incoming_payments.domain import lifecycle
from incoming_payments.domain.checks import check_time
from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.errors import InvalidValue
from incoming_payments.flows.machinery.effects import FindExpired, Flow, UpdatePayment, flow
from incoming_payments.limits import SWEEP_PAYMENTS_MAX


@flow
def announce_expired(now: datetime, *, limit: int = SWEEP_PAYMENTS_MAX) -> Flow[int]:
    """Write the `expired` event of at most `limit` payments that have expired by `now`.

    Return the number of payments found. Raises `InvalidValue` unless `limit` is from 1 to `limits.SWEEP_PAYMENTS_MAX`
    and `now` is in UTC.

    Call this function periodically. If the result is `limit`, call it again at once, because more payments may have
    expired. Two concurrent sweeps never write an event twice.
    """
    found = yield from find_expired(now, limit=limit)
    for id in found:
        yield from announce_expiry(id, now)
    return len(found)


def find_expired(now: datetime, *, limit: int) -> Flow[Sequence[PaymentId]]:
    """Return at most `limit` payments that have expired by `now` and have no `expired` event."""
    if type(limit) is not int or not 1 <= limit <= SWEEP_PAYMENTS_MAX:
        raise InvalidValue(f"limit must be an integer from 1 to {SWEEP_PAYMENTS_MAX}", member="limit")
    check_time(now)
    return (yield from FindExpired(now, limit))


def announce_expiry(id: PaymentId, now: datetime) -> Flow[IncomingPayment]:
    """Write the `expired` event of the payment, unless it is written already."""
    return (yield from UpdatePayment(id, partial(lifecycle.expire, now=now)))

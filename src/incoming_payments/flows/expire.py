"""Write the `expired` events. No other rule depends on these events, because every decision checks the time itself."""

from datetime import datetime
from functools import partial

from incoming_payments.domain import lifecycle
from incoming_payments.domain.checks import check_time
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
    if type(limit) is not int or not 1 <= limit <= SWEEP_PAYMENTS_MAX:
        raise InvalidValue(f"limit must be an integer from 1 to {SWEEP_PAYMENTS_MAX}", member="limit")
    check_time(now)
    found = yield from FindExpired(now, limit)
    for id in found:
        yield from UpdatePayment(id, partial(lifecycle.expire, now=now))
    return len(found)

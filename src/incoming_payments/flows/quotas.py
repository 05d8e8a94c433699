"""The quotas of clients: requests, and unpaid payments."""

from datetime import datetime, timedelta
from typing import Final

from incoming_payments.domain.lifecycle import state_of
from incoming_payments.domain.payment import ClientId, IncomingPayment, PaymentId, id_time
from incoming_payments.domain.transitions import State
from incoming_payments.errors import ConfigurationError, PaymentNotFound, QuotaExceeded
from incoming_payments.flows.machinery.effects import CountRequest, Flow, LoadPayment, ReleaseUnpaid, ReserveUnpaid
from incoming_payments.limits import QUOTA_RESERVED_S_MAX, QUOTA_RETRY_S_MAX

_RESERVED_MAX: Final = timedelta(seconds=QUOTA_RESERVED_S_MAX)


def admit(client: ClientId, now: datetime) -> Flow[None]:
    """Count a request of `client`. Raises `QuotaExceeded`."""
    wait_s = yield from CountRequest(client, now)
    given: object = wait_s
    if isinstance(given, bool):  # a `bool`, which a port may return by mistake, is also an `int`
        text = (
            f"{CountRequest.method} returned {wait_s}: return None to admit the request, or the number of "
            "seconds to wait"
        )
        raise ConfigurationError(text, setting="quotas")
    if wait_s is not None:
        text = "you have sent too many requests: wait for the number of seconds in Retry-After before the next request"
        raise QuotaExceeded("too_many_requests", text, retry_after_s=wait_s)


def reserve(payment: IncomingPayment) -> Flow[None]:
    """Count `payment`, which is not stored yet, as unpaid. Raises `QuotaExceeded`.

    When the quota is used up, this function looks for a counted payment that is no longer unpaid, oldest first, and
    counts `payment` instead. So a credit does not have to release its payment, and a lost release cannot lock a client
    out.
    """
    counted = yield from ReserveUnpaid(payment.client, payment.id)
    retry_s: float = QUOTA_RETRY_S_MAX
    for id in counted:
        unpaid_s = yield from _unpaid_s(id, payment.created_at)
        if unpaid_s is None:
            yield from ReleaseUnpaid(payment.client, id)
            counted = yield from ReserveUnpaid(payment.client, payment.id)
            break
        retry_s = min(retry_s, unpaid_s)
    if counted:
        text = "you have too many unpaid payments: complete a payment, or wait until a payment is paid or expires"
        raise QuotaExceeded("too_many_unpaid_payments", text, retry_after_s=retry_s)


def _unpaid_s(id: PaymentId, now: datetime) -> Flow[float | None]:
    """Return the number of seconds for which the payment can stay unpaid, or `None` if it is no longer unpaid.

    A payment that is not stored yet may be stored soon. Its id contains the time at which the create began.
    """
    try:
        payment = yield from LoadPayment(id)
    except PaymentNotFound:
        left = id_time(id) + _RESERVED_MAX - now
        return left.total_seconds() if left > timedelta(0) else None
    if state_of(payment, now) is not State.PENDING:
        return None
    return QUOTA_RETRY_S_MAX if payment.expires_at is None else (payment.expires_at - now).total_seconds()

"""The results of attempts."""

import traceback
from datetime import datetime, timedelta

from incoming_payments.domain.feed import Delivered, Delivery, Failed
from incoming_payments.domain.retry import RetryPolicy
from incoming_payments.errors import HandlerGone, IncomingPaymentsError, RetryLater


class HandlerTimeout(Exception):
    """The handler did not return in time."""


def result_of(
    error: BaseException | None, delivery: Delivery, retry: RetryPolicy, now: datetime, random: float
) -> Delivered | Failed:
    """Return the result of an attempt of `delivery` that ended with `error`, or without an error."""
    if error is None:
        return Delivered()
    after_s = error.after_s if isinstance(error, RetryLater) else 0.0
    following = retry.next(delivery.attempt, random, after_s=after_s)
    return Failed(
        error=summary(error),
        retry_at=now + timedelta(seconds=following.pause_s),
        is_last=following.is_last,
        disables=isinstance(error, HandlerGone),
    )


def summary(error: BaseException) -> str:
    """Return the type of `error` and the first line of its text. An error of this library has its code as its type."""
    text = "".join(traceback.format_exception_only(error))  # this never fails, unlike `str(error)`
    name, separator, rest = text.partition("\n")[0].partition(": ")
    if isinstance(error, IncomingPaymentsError):
        name = error.code
    return name.removeprefix(f"{type(error).__module__}.") + separator + rest


def outcome_of(error: BaseException | None, *, is_stored: bool) -> str:
    """Return the outcome of an attempt for the observer."""
    if not is_stored:
        return "lease_lost"
    if error is None:
        return "delivered"
    if isinstance(error, HandlerTimeout):
        return "timed_out"
    return error.code if isinstance(error, IncomingPaymentsError) else "internal_error"

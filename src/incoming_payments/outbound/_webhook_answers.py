"""Decide what the answer of a webhook endpoint means, as Standard Webhooks suggests."""

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from incoming_payments.errors import HandlerGone, RetryLater
from incoming_payments.limits import WEBHOOK_RETRY_AFTER_S_MAX, WEBHOOK_THROTTLE_S_MIN
from incoming_payments.outbound._http import HttpAnswer, HttpFailed

_GONE: Final = 410
_TOO_MANY: Final = 429
_THROTTLES: Final = {_TOO_MANY, 502, 504}
_SECONDS: Final = re.compile(r"[0-9]+")


def check_answer(answer: HttpAnswer, now: datetime) -> None:
    """Return if the status is 2xx. Raise the failure of the attempt for any other status.

    A status of 410 disables the endpoint. After 429, 502 and 504, the next attempt waits for at least
    `limits.WEBHOOK_THROTTLE_S_MIN` seconds. `Retry-After` counts with each other status of 400 or more, up to
    `limits.WEBHOOK_RETRY_AFTER_S_MAX` seconds. With 429, it holds for all deliveries.
    """
    if 200 <= answer.status <= 299:
        return
    text = f"the endpoint answered with status {answer.status}"
    if answer.status == _GONE:
        raise HandlerGone(text)
    if 300 <= answer.status <= 399:
        raise HttpFailed(f"{text}, and redirects are not followed: correct the URL of the endpoint")
    asked_s = _retry_after_s(answer.headers.get("Retry-After", ""), now)
    after_s = max(asked_s, WEBHOOK_THROTTLE_S_MIN if answer.status in _THROTTLES else 0.0)
    if after_s > 0:
        raise RetryLater(text, after_s=after_s, throttle_s=asked_s if answer.status == _TOO_MANY else 0.0)
    raise HttpFailed(text)


def _retry_after_s(value: str, now: datetime) -> float:
    """Return the seconds in `Retry-After` (RFC 9110 §10.2.3), a number or a date. Return 0 if it is neither."""
    if _SECONDS.fullmatch(value.strip()):
        return min(float(value), WEBHOOK_RETRY_AFTER_S_MAX)
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return 0.0
    wait_s = (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
    return min(max(0.0, math.ceil(wait_s)), WEBHOOK_RETRY_AFTER_S_MAX)

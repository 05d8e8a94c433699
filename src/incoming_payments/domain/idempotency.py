"""The record of a payment that was created under an idempotency key. See draft-ietf-httpapi-idempotency-key-header."""

import re
from datetime import datetime
from typing import Final, NewType

from attrs import field, frozen

from incoming_payments.domain.checks import check_time
from incoming_payments.domain.payment import ClientId, PaymentId, payment_id
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import IDEMPOTENCY_KEY_CHARS_MAX

IdempotencyKey = NewType("IdempotencyKey", str)

_KEY: Final = re.compile(f"[ -~]{{1,{IDEMPOTENCY_KEY_CHARS_MAX}}}")
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{64}")


def idempotency_key(text: str) -> IdempotencyKey:
    """Return `text` as an idempotency key. Raises `InvalidValue` unless it has 1 to 255 printable ASCII characters."""
    if not isinstance(text, str) or not _KEY.fullmatch(text):
        most = IDEMPOTENCY_KEY_CHARS_MAX
        raise InvalidValue(
            f"an idempotency key must have 1 to {most} printable ASCII characters", member="idempotency_key"
        )
    return IdempotencyKey(text)


def _fingerprint(text: str) -> str:
    if not _FINGERPRINT.fullmatch(text):
        raise InvalidValue("a fingerprint must be a SHA-256 in 64 lower-case hexadecimal digits", member="fingerprint")
    return text


@frozen
class KeyedCreation:
    """The creation of `payment` by a request of `client` with the idempotency key `key`.

    `client` is `HOST` for a call of the host. `fingerprint` is the SHA-256 of the request's content. A store keeps the
    record until the time `until` has passed. Raises `InvalidValue` for an invalid member.
    """

    client: ClientId
    key: IdempotencyKey = field(converter=idempotency_key)
    fingerprint: str = field(converter=_fingerprint)
    payment: PaymentId = field(converter=payment_id)
    until: datetime = field(converter=check_time)

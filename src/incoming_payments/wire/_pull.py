"""The bodies of the requests and responses with which a consumer pulls its events."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from attrs import frozen

from incoming_payments.domain.feed import ConsumerName, Delivery, Lease, LeasedDelivery
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import MalformedJson
from incoming_payments.limits import (
    DELIVERIES_CLAIMED_MAX,
    LEASE_S_MAX,
    PULL_BODY_BYTES_MAX,
    PULL_ERROR_CHARS_MAX,
    PULL_LEASE_S_DEFAULT,
    PULL_LEASE_S_MIN,
    PULLED_DELIVERIES_DEFAULT,
    RETRY_PAUSE_S_MAX,
)
from incoming_payments.wire._json import read_json, write_json
from incoming_payments.wire._values import exactly, read_document, strictly, write_date_time
from incoming_payments.wire._webhooks import webhook

T = TypeVar("T")

# the payment, the first version and the attempt of the delivery, and the name of the lease
_LEASE: Final = re.compile(r"([0-9a-f-]{36})\.([1-9][0-9]{0,17})\.([1-9][0-9]{0,8})\.((?:[0-9a-f]{2}){1,64})", re.ASCII)


@frozen
class ClaimRequest:
    """The checked body of a claim."""

    limit: int = PULLED_DELIVERIES_DEFAULT
    lease_seconds: int = PULL_LEASE_S_DEFAULT


@frozen
class AcknowledgeRequest:
    """The checked body of an acknowledgement."""

    lease: str


@frozen(kw_only=True)
class FailRequest:
    """The checked body with which a consumer reports that an attempt failed."""

    lease: str
    error: str
    retry_after_seconds: int = 0
    dead: bool = False


def read_claim(body: bytes) -> ClaimRequest:
    """Read a claim. Raises `MalformedJson`."""
    return _read(body, _claim)


def read_acknowledge(body: bytes) -> AcknowledgeRequest:
    """Read an acknowledgement. Raises `MalformedJson`."""
    return _read(body, _acknowledge)


def read_fail(body: bytes) -> FailRequest:
    """Read the report of a failed attempt. Raises `MalformedJson`."""
    return _read(body, _fail)


def write_claimed(deliveries: Sequence[Delivery]) -> bytes:
    """Return the answer to a claim. Each delivery has one event, which is the body of a webhook."""
    return write_json({"deliveries": [_delivery(delivery) for delivery in deliveries]})


def _delivery(delivery: Delivery) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "lease": write_lease(delivery),
        "leasedUntil": write_date_time(delivery.leased_until),
        "attempt": delivery.attempt,
        "event": webhook(delivery.events),
    }


def write_lease(delivery: Delivery) -> str:
    """Return the text that settles `delivery`, which is opaque to the consumer."""
    return f"{delivery.payment_id}.{delivery.first_version}.{delivery.attempt}.{delivery.lease.hex()}"


def parse_lease(text: str, consumer: ConsumerName) -> LeasedDelivery:
    """Return the delivery of `consumer` that `text` settles. Raises `MalformedJson`."""
    match = _LEASE.fullmatch(text)
    if match is None:
        raise MalformedJson("lease is not a lease: send the member of a claimed delivery unchanged", member="lease")
    payment, first_version, attempt, lease = match.groups()
    return LeasedDelivery(
        consumer=consumer,
        payment_id=PaymentId(payment),
        first_version=int(first_version),
        attempt=int(attempt),
        lease=Lease(bytes.fromhex(lease)),
    )


def _read(body: bytes, read: Callable[[object, object], T]) -> T:
    return read_document(read_json(body, bytes_max=PULL_BODY_BYTES_MAX), read)


def _integer(least: int, most: int) -> Callable[[object, object], int]:
    def read(value: object, _: object) -> int:
        number = exactly(int)(value, int)
        if not least <= number <= most:
            raise MalformedJson(f"must be an integer from {least} to {most}, not {number}")
        return number

    return read


def _error(value: object, _: object) -> str:
    text = exactly(str)(value, str)
    if not 1 <= len(text) <= PULL_ERROR_CHARS_MAX:
        raise MalformedJson(f"must have 1 to {PULL_ERROR_CHARS_MAX} characters, not {len(text)}")
    return text


_claim: Final = strictly(
    ClaimRequest,
    limit=_integer(1, DELIVERIES_CLAIMED_MAX),
    lease_seconds=_integer(PULL_LEASE_S_MIN, int(LEASE_S_MAX)),
)
_acknowledge: Final = strictly(AcknowledgeRequest, lease=exactly(str))
_fail: Final = strictly(
    FailRequest,
    lease=exactly(str),
    error=_error,
    retry_after_seconds=_integer(0, int(RETRY_PAUSE_S_MAX)),
    dead=exactly(bool),
)

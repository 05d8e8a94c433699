"""Claim deliveries for a consumer that pulls its events, and store the results of its attempts."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from incoming_payments.domain.feed import ConsumerName, Delivered, Delivery, Failed, LeasedDelivery
from incoming_payments.domain.retry import RetryPolicy
from incoming_payments.flows.machinery.effects import DrawRandomness, Flow
from incoming_payments.flows.machinery.feed_effects import ClaimDeliveries, FindNextDue, SettleDelivery

Clock = Callable[[], datetime]

_RANDOM_BYTES: Final = 4


def claim_deliveries(name: ConsumerName, *, limit: int, lease_s: int, clock: Clock) -> Flow[Sequence[Delivery]]:
    """Lease at most `limit` due deliveries for `lease_s` seconds, and return them. Raises `ConsumerNotFound`.

    First read whether a delivery is due, because a claim is a write, and consumers claim often.
    """
    due_at = yield from FindNextDue(name)
    now = clock()
    if due_at is None or due_at > now:
        return ()
    return (yield from ClaimDeliveries(name, now, now + timedelta(seconds=lease_s), limit))


def acknowledge_delivery(delivery: LeasedDelivery, *, clock: Clock) -> Flow[bool]:
    """End the delivery. Return false, and change nothing, if it has no longer this lease."""
    return (yield from SettleDelivery(delivery, Delivered(), clock()))


def fail_delivery(
    delivery: LeasedDelivery, error: str, *, after_s: int, is_last: bool, retry: RetryPolicy, clock: Clock
) -> Flow[bool]:
    """Store that the attempt failed with `error`. Return false, and change nothing, if the lease is lost.

    The next attempt follows the schedule `retry`, and begins after at least `after_s` seconds. After the last attempt,
    or if `is_last` is true, the delivery is a dead letter.
    """
    drawn = yield from DrawRandomness(_RANDOM_BYTES)
    following = retry.next(delivery.attempt, int.from_bytes(drawn) / 256**_RANDOM_BYTES, after_s=after_s)
    now = clock()
    failed = Failed(
        error=error,
        retry_at=now + timedelta(seconds=following.pause_s),
        is_last=is_last or following.is_last,
    )
    return (yield from SettleDelivery(delivery, failed, now))

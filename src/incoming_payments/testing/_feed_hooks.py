"""The hooks of `FeedContract`, and the steps of its tests."""

# ruff: noqa: S101 - a test suite asserts
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

import pytest

from incoming_payments.domain.feed import (
    Consumer,
    ConsumerName,
    Delivered,
    Delivery,
    Failed,
    FeedEvent,
    LeasedDelivery,
    Result,
    Start,
)
from incoming_payments.ports import Feed, PaymentStore
from incoming_payments.testing._hooks import StoreHooks
from incoming_payments.testing.values import NOW

LEDGER: Final = ConsumerName("ledger")
MINUTE: Final = timedelta(minutes=1)


def render(events: Sequence[FeedEvent]) -> bytes:
    """Return the payload of the tests: the versions of the events."""
    return " ".join(str(event.version) for event in events).encode()


def claim(feed: Feed, name: str = LEDGER, *, after_s: float = 0, limit: int = 10) -> Sequence[Delivery]:
    """Claim what is due `after_s` seconds after `NOW`, for a minute."""
    now = NOW + timedelta(seconds=after_s)
    return feed.claim(ConsumerName(name), render, now=now, until=now + MINUTE, limit=limit)


def failed(*, retry_s: float = 0, is_last: bool = False, disables: bool = False) -> Failed:
    """Return a failure with a retry that is due `retry_s` seconds after `NOW`."""
    return Failed(error="boom", retry_at=NOW + timedelta(seconds=retry_s), is_last=is_last, disables=disables)


def leased(delivery: Delivery) -> LeasedDelivery:
    """Return what settles `delivery`, without its events."""
    return LeasedDelivery(
        consumer=delivery.consumer,
        payment_id=delivery.payment_id,
        first_version=delivery.first_version,
        attempt=delivery.attempt,
        lease=delivery.lease,
    )


def settle_all(feed: Feed, name: str = LEDGER, result: Result | None = None) -> list[str]:
    """Settle every delivery that is due until none is left, and return their payloads."""
    payloads = []
    while deliveries := claim(feed, name):
        for delivery in deliveries:
            assert feed.settle(delivery, result or Delivered(), NOW)
            payloads.append(delivery.payload.decode())
    return payloads


def complete(step: Callable[[], bool]) -> None:
    """Call `step`, a method that works in batches, until it returns true."""
    while not step():
        pass


def register_all(feed: Feed, consumer: Consumer, start: Start) -> None:
    """Register `consumer`, with all batches."""
    complete(lambda: feed.register(consumer, start, NOW))


def remove_all(feed: Feed, name: ConsumerName) -> None:
    """Remove the consumer, with all batches."""
    complete(lambda: feed.remove(name))


class FeedHooks(StoreHooks):
    """The methods and settings that a subclass of `FeedContract` may override."""

    wake_s = 10.0  # the longest time from a change to the calls of the watchers, on a busy machine

    def await_wake(self, is_woken: Callable[[], bool]) -> None:
        """Wait until `is_woken()` is true. A feed may wake the watchers after it has answered the caller."""
        end = time.monotonic() + self.wake_s
        while not is_woken() and time.monotonic() < end:
            time.sleep(0.001)
        assert is_woken(), "a change did not wake exactly the watchers of the feed: call each `wake` after the commit"

    def feed_of(self, store: PaymentStore) -> Feed:
        """Return the feed of `store`."""
        feed: Feed = store.feed  # type: ignore[attr-defined] # most stores have this property
        return feed

    @pytest.fixture
    def feed(self, store: PaymentStore) -> Feed:
        """Return the feed of `store`, in which the consumer `ledger` gets all later events."""
        feed = self.feed_of(store)
        assert feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
        return feed

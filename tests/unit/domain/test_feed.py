"""The consumers and the deliveries of the feed, and the decisions about them."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.feed import (
    Consumer,
    Delivered,
    DeliveryRecord,
    Ending,
    Failed,
    FeedEvent,
    Health,
    Released,
    admitted,
    claimable,
    consumer_name,
    next_delivery,
    settle,
)
from incoming_payments.domain.payment import CreditId, PaymentId, WalletAddressUrl
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import DELIVERY_ERROR_CHARS_MAX, DELIVERY_EVENTS_MAX
from incoming_payments.testing import NOW

ID = PaymentId("019b76da-a800-7000-8000-000000000000")
ALICE = WalletAddressUrl("https://bank.example/alice")
BOB = WalletAddressUrl("https://bank.example/bob")
USD = Asset("USD", 2)
SOON = NOW + timedelta(seconds=10)
LONG_AGO = NOW - timedelta(seconds=10)
LATER = NOW + timedelta(seconds=100)
FAILED = Failed(error="no", retry_at=LATER)
MUCH_LATER = Failed(error="no", retry_at=NOW + timedelta(days=1))
LAST = Failed(error="no", retry_at=LATER, is_last=True)


def an_event(version: int, kind: str = "credited") -> Event:
    """Return an event."""
    credit = CreditId(f"wire-{version}") if kind == "credited" else None
    return Event(ID, version, EventKind(kind), NOW, Amount(version, USD), credit)


def feed_events(*kinds: str, first: int = 1) -> list[FeedEvent]:
    """Return consecutive events of these kinds."""
    return [FeedEvent.of(an_event(version, kind), ALICE, None) for version, kind in enumerate(kinds, first)]


def versions(consumer: Consumer, events: list[FeedEvent]) -> list[int]:
    """Return the versions of the next delivery."""
    return [event.version for event in next_delivery(consumer, events)]


@pytest.mark.parametrize(
    ("changes", "member"),
    [
        *[({"name": name}, "name") for name in ("", "Ledger", "-a", "a b", "a" * 65, 7)],
        ({"kinds": ["paid"]}, "kinds"),
        ({"kinds": []}, "kinds"),
        ({"wallet_addresses": []}, "wallet_addresses"),
        ({"wallet_addresses": ["alice"]}, "walletAddress"),
        ({"credit_delay_s": -1}, "credit_delay_s"),
        ({"down_after_s": "1"}, "down_after_s"),
        ({"disable_after_s": True}, "disable_after_s"),
    ],
)
def test_wrong_consumer_is_refused(changes: dict[str, Any], member: str) -> None:
    """The error names the member."""
    with pytest.raises(InvalidValue) as caught:
        Consumer(**{"name": "ledger", **changes})
    assert caught.value.details == {"member": member}


@pytest.mark.parametrize(
    ("settings", "admits"),
    [
        ({}, ["created", "credited", "completed"]),
        ({"kinds": "credited"}, ["credited"]),
        ({"kinds": ["created", EventKind.COMPLETED]}, ["created", "completed"]),
        ({"wallet_addresses": "HTTPS://bank.example/alice/"}, ["created", "credited", "completed"]),
        ({"wallet_addresses": [BOB]}, []),
        ({"wallet_addresses": [ALICE, BOB], "kinds": ["expired"]}, []),
    ],
)
def test_filter_admits_kinds_and_wallet_addresses(settings: dict[str, Any], admits: list[str]) -> None:
    """An event passes if both filters admit it. A single text is a filter, too."""
    consumer = Consumer(name=consumer_name("ledger"), **settings)
    events = [an_event(version, kind) for version, kind in enumerate(("created", "credited", "completed"), 1)]
    assert [event.kind for event in admitted(consumer, events, ALICE)] == admits
    assert consumer.admits_credits == ("kinds" not in settings or "credited" in settings["kinds"])


def test_only_joined_credits_wait() -> None:
    """Other events are due at once."""
    waits, joins_not = (Consumer(name="a", credit_delay_s=10, joins_credits=joins) for joins in (True, False))
    assert waits.due_at(an_event(1)) == SOON
    assert waits.due_at(an_event(1, "completed")) == NOW
    assert joins_not.due_at(an_event(1)) == NOW


def test_delivery_has_one_event_or_consecutive_credits() -> None:
    """Another event, or a version that the filter excludes, ends the run of credits."""
    consumer = Consumer(name="ledger")
    assert versions(consumer, feed_events("created", "credited")) == [1]
    assert versions(consumer, feed_events("credited", "credited", "completed")) == [1, 2]
    assert versions(consumer, feed_events("credited") + feed_events("credited", first=3)) == [1]
    assert versions(Consumer(name="ledger", joins_credits=False), feed_events("credited", "credited")) == [1]
    many = feed_events(*["credited"] * (DELIVERY_EVENTS_MAX + 2))
    assert len(next_delivery(consumer, many)) == DELIVERY_EVENTS_MAX


def test_ids_are_unique_and_stable() -> None:
    """The id of a delivery has the versions of its events."""
    assert feed_events("created")[0].id == f"{ID}_1"
    record = DeliveryRecord(
        consumer=consumer_name("a"), payment_id=ID, first_version=2, last_version=5, attempts=0, created_at=NOW
    )
    assert record.id == f"{ID}_2_5"


@pytest.mark.parametrize(
    ("result", "health", "attempts", "expected"),
    [
        (Delivered(), Health(failing_since=NOW), 3, (None, None, 3, Ending.DELIVERED, None)),
        (Released(), Health(failing_since=NOW), 3, (NOW, None, 2, None, SOON)),
        (FAILED, Health(), 3, (SOON, None, 3, None, LATER)),
        (FAILED, Health(failing_since=SOON), 3, (SOON, None, 3, None, LATER)),
        (LAST, Health(), 3, (SOON, None, 3, Ending.DEAD, None)),
        (LAST, Health(failing_since=NOW), 3, (NOW, None, 2, None, LATER)),  # down
        (MUCH_LATER, Health(failing_since=NOW), 3, (NOW, None, 2, None, SOON + timedelta(minutes=5))),  # the next probe
        (Failed(error="no", retry_at=LATER, is_last=True, disables=True), Health(), 3, (SOON, SOON, 2, None, LATER)),
        (LAST, Health(failing_since=SOON, disabled_at=NOW), 3, (SOON, NOW, 2, None, LATER)),
        (LAST, Health(failing_since=LONG_AGO), 3, (LONG_AGO, SOON, 2, None, LATER)),
    ],
)
def test_result_of_an_attempt(result: Any, health: Health, attempts: int, expected: tuple[Any, ...]) -> None:
    """The consumer is down after 10 seconds without success, and disabled after 20 seconds."""
    consumer = Consumer(name="ledger", down_after_s=10, disable_after_s=20)
    found = settle(consumer, health, attempts, result, SOON)
    assert (
        found.health.failing_since,
        found.health.disabled_at,
        found.attempts,
        found.ending,
        found.due_at,
    ) == expected
    assert found.error == (result.error if isinstance(result, Failed) else None)


@pytest.mark.parametrize(
    ("health", "seconds", "expected"),
    [
        (Health(failing_since=NOW), (10, 20), SOON),
        (Health(failing_since=NOW), (None, 10), SOON),
        (Health(failing_since=NOW), (None, None), None),
        (Health(), (10, 20), None),
        (Health(failing_since=NOW, disabled_at=NOW), (10, 20), None),
    ],
)
def test_time_before_which_failures_change_nothing(
    health: Health, seconds: tuple[float | None, float | None], expected: datetime | None
) -> None:
    """It is the earliest time at which the consumer may be down or disabled."""
    down_after_s, disable_after_s = seconds
    consumer = Consumer(name="ledger", down_after_s=down_after_s, disable_after_s=disable_after_s)
    assert health.is_up_until(consumer) == expected


@pytest.mark.parametrize(
    ("health", "has_lease", "expected"),
    [
        (Health(), True, 5),
        (Health(failing_since=SOON), True, 5),
        (Health(failing_since=NOW), True, 0),
        (Health(failing_since=NOW), False, 1),
        (Health(failing_since=NOW, disabled_at=NOW), False, 0),
    ],
)
def test_number_of_deliveries_that_may_be_claimed(health: Health, has_lease: bool, expected: int) -> None:
    """A consumer that is down gets one delivery, and a disabled consumer gets none."""
    consumer = Consumer(name="ledger", down_after_s=10)
    assert claimable(consumer, health, limit=5, has_lease=has_lease, now=SOON) == expected
    assert claimable(consumer, health, limit=0, has_lease=False, now=SOON) == 0


def test_long_error_is_cut_off() -> None:
    """A receiver cannot fill the database."""
    assert Failed(error="x" * 9999, retry_at=NOW).error == "x" * DELIVERY_ERROR_CHARS_MAX


def test_error_has_only_printable_characters() -> None:
    """A store refuses surrogates, and a terminal obeys control characters."""
    assert Failed(error="caf\udce9 \x1b[2J\n\0 é", retry_at=NOW).error == "caf   [2J   é"

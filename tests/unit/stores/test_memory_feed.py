"""The feed of the memory store."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from incoming_payments.domain import lifecycle
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import (
    Consumer,
    ConsumerName,
    Delivered,
    Delivery,
    Ending,
    Failed,
    FeedEvent,
    Released,
    Start,
)
from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.errors import ConsumerNotFound, DeliveryNotFound, InvalidValue
from incoming_payments.limits import CONSUMERS_MAX
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import NOW, a_creation, a_wallet_address, crediting

LEDGER = ConsumerName("ledger")


def render(events: Sequence[FeedEvent]) -> bytes:
    """Return the kinds and versions of the events."""
    return " ".join(f"{event.kind}{event.version}" for event in events).encode()


def at(seconds: float) -> datetime:
    """Return the time `seconds` after `NOW`."""
    return NOW + timedelta(seconds=seconds)


class Bench:
    """A memory store with a consumer, and short calls for both."""

    def __init__(self, *, start: Start | None = Start.NOW, **settings: Any) -> None:
        self.store = MemoryStore()
        self.feed = self.store.feed
        self.credits = 0
        if start is not None:
            self.register(start=start, **settings)

    def register(self, name: str = "ledger", *, start: Start = Start.NOW, **settings: Any) -> None:
        """Register a consumer."""
        assert self.feed.register(Consumer(name=name, **settings), start, NOW)

    def create(self, **values: Any) -> PaymentId:
        """Create a payment."""
        created = a_creation(**values)
        self.store.insert(created)
        return created.answer.id

    def credit(self, id: PaymentId, seconds: float = 0, value: int = 1) -> None:
        """Credit the payment."""
        self.credits += 1
        name = f"wire-{self.credits}"
        self.store.update(id, crediting(name, value, now=at(seconds)), CreditId(name))

    def complete(self, id: PaymentId, seconds: float = 0) -> None:
        """Complete the payment."""
        self.store.update(id, lambda payment, _: lifecycle.complete(payment, now=at(seconds)))

    def claim(self, seconds: float = 0, *, limit: int = 10, lease_s: float = 60) -> list[Delivery]:
        """Claim deliveries of the ledger."""
        now = at(seconds)
        until = now + timedelta(seconds=lease_s)
        return list(self.feed.claim(LEDGER, render, now=now, until=until, limit=limit))

    def take(self, seconds: float = 0) -> Delivery:
        """Claim the only due delivery of the ledger."""
        [delivery] = self.claim(seconds)
        return delivery

    def fail(self, delivery: Delivery, seconds: float, **values: Any) -> bool:
        """Report a failure of the delivery. It may be retried a second later."""
        result = Failed(error="no", retry_at=at(seconds + 1), **values)
        return self.feed.settle(delivery, result, at(seconds))

    def drain(self, seconds: float = 0) -> list[str]:
        """Handle all due deliveries, and return their payloads."""
        handled = []
        while deliveries := self.claim(seconds):
            for delivery in deliveries:
                handled.append(delivery.payload.decode())
                assert self.feed.settle(delivery, Delivered(), at(seconds))
        return handled


def test_deliveries_have_events_with_their_amounts() -> None:
    """Credits in a row are one delivery, and each event has its amount and the total after it."""
    bench = Bench()
    id = bench.create(limit=100)
    assert bench.drain() == ["created1"]
    bench.credit(id, value=40)
    bench.credit(id, value=60)
    delivery = bench.take()
    assert delivery.payload == b"credited2 credited3"
    assert delivery.id == f"{id}_2_3"
    assert [event.amount and event.amount.value for event in delivery.events] == [40, 60]
    assert [event.received.value for event in delivery.events] == [40, 100]
    assert bench.feed.settle(delivery, Delivered(), NOW)
    assert bench.drain() == ["completed4"]
    assert bench.feed.next_due(LEDGER) is None


def test_claim_is_limited() -> None:
    """A limit of zero or less claims nothing."""
    bench = Bench()
    bench.create()
    bench.create()
    assert [len(bench.claim(limit=limit)) for limit in (-1, 0, 1, 9)] == [0, 0, 1, 1]


def test_one_delivery_of_a_stream_is_open_at_a_time() -> None:
    """Later events of a payment wait for the open delivery. Other payments do not wait."""
    bench = Bench()
    first, second = bench.create(), bench.create()
    deliveries = bench.claim()
    assert [delivery.payment_id for delivery in deliveries] == [first, second]
    bench.credit(first)
    assert bench.claim() == []
    assert bench.feed.settle(deliveries[0], Delivered(), NOW)
    assert bench.take().payload == b"credited2"


def test_lease_that_ends_is_claimed_again() -> None:
    """The delivery keeps its id and its bytes. The old holder can no longer acknowledge."""
    bench = Bench()
    id = bench.create()
    old = bench.take()
    bench.credit(id)
    assert bench.claim(59) == []
    assert bench.feed.next_due(LEDGER) == at(60)
    new = bench.take(60)
    assert (new.id, new.payload, new.events, new.attempt) == (old.id, old.payload, old.events, 2)
    assert not bench.feed.settle(old, Delivered(), at(60))
    assert bench.feed.settle(new, Delivered(), at(60))
    assert not bench.feed.settle(new, Delivered(), at(60))
    assert bench.drain(60) == ["credited2"]


def test_released_delivery_is_due_at_once() -> None:
    """A release does not count as an attempt."""
    bench = Bench()
    bench.create()
    assert bench.feed.settle(bench.take(), Released(), NOW)
    assert bench.take().attempt == 1


def test_dead_letter_releases_later_events_and_can_be_sent_again() -> None:
    """A dead letter that is sent again does not disturb its stream."""
    bench = Bench()
    id = bench.create()
    delivery = bench.take()
    assert bench.fail(delivery, 0)
    assert bench.claim(0.5) == []
    assert bench.fail(bench.take(1), 1, is_last=True)
    [dead] = bench.feed.dead_letters(LEDGER, None, 10)
    assert (dead.id, dead.ending, dead.attempts, dead.error, dead.due_at) == (delivery.id, Ending.DEAD, 2, "no", None)
    bench.credit(id, 2)
    open_one = bench.take(2)
    assert open_one.payload == b"credited2"
    bench.feed.redeliver(LEDGER, id, 1, at(3))
    assert bench.feed.dead_letters(LEDGER, None, 10) == []
    again = bench.take(3)
    assert (again.id, again.payload, again.attempt) == (delivery.id, delivery.payload, 1)
    assert bench.feed.settle(again, Delivered(), at(3))
    bench.credit(id, 4)
    assert bench.claim(4) == []
    assert bench.feed.settle(open_one, Delivered(), at(4))
    assert bench.drain(4) == ["credited3"]
    assert [record.ending for record in bench.feed.deliveries(id)] == [Ending.DELIVERED] * 3


def test_only_dead_letters_are_sent_again() -> None:
    """Delivered and unknown deliveries are refused."""
    bench = Bench()
    id = bench.create()
    bench.drain()
    for version in (1, 2):
        with pytest.raises(DeliveryNotFound) as caught:
            bench.feed.redeliver(LEDGER, id, version, NOW)
        assert caught.value.description == (
            f"the consumer ledger has no dead letter of payment {id} that begins with version {version}"
        )


def test_dead_letters_are_listed_in_pages() -> None:
    """The oldest dead letter is first."""
    bench = Bench()
    ids = [bench.create() for _ in range(3)]
    for second, delivery in enumerate(bench.claim()):
        assert bench.fail(delivery, second, is_last=True)
    first = bench.feed.dead_letters(LEDGER, None, 2)
    assert [record.payment_id for record in first] == ids[:2]
    assert [record.payment_id for record in bench.feed.dead_letters(LEDGER, first[-1], 2)] == ids[2:]


def test_filter_passes_excluded_events() -> None:
    """A consumer gets only the events that its filter admits, and the others count as handled."""
    bench = Bench(kinds=["created", "completed"])
    id = bench.create()
    bench.credit(id)
    bench.complete(id)
    assert bench.drain() == ["created1", "completed3"]
    other = bench.create(wallet_address=a_wallet_address("https://bank.example/bob"))
    bench.register(wallet_addresses=["https://bank.example/alice"])
    bench.credit(other)
    assert bench.claim() == []  # `created` of the other payment waits no more, since the filter excludes it now
    assert bench.feed.next_due(LEDGER) is None


def test_credits_wait_for_others_but_not_behind_a_completion() -> None:
    """`credit_delay_s` delays credits, and a completion ends the delay."""
    bench = Bench(credit_delay_s=10)
    id = bench.create()
    assert bench.drain() == ["created1"]
    bench.credit(id)
    bench.credit(id, 5)
    assert bench.claim(9) == []
    assert bench.drain(10) == ["credited2 credited3"]
    bench.credit(id, 11)
    bench.complete(id, 12)
    assert bench.drain(12) == ["credited4", "completed5"]


def test_registration_over_history_and_now() -> None:
    """`BEGINNING` starts with all stored events, and `NOW` with later events."""
    bench = Bench(start=None)
    id = bench.create()
    bench.credit(id)
    bench.register(kinds=[EventKind.CREDITED], start=Start.BEGINNING)
    bench.register("late")
    assert bench.feed.next_due(LEDGER) == NOW
    bench.register("none", kinds=[EventKind.EXPIRED], start=Start.BEGINNING)
    assert bench.drain() == ["credited2"]
    names = [(state.consumer.name, state.is_ready, state.oldest_due_at) for state in bench.feed.consumers()]
    assert names == [("late", True, None), ("ledger", True, None), ("none", True, None)]


def test_second_registration_keeps_the_place() -> None:
    """Only the settings change."""
    bench = Bench()
    id = bench.create()
    bench.credit(id)
    bench.register(joins_credits=False, start=Start.BEGINNING)
    bench.credit(id)
    assert bench.drain() == ["created1", "credited2", "credited3"]


def test_number_of_consumers_is_limited() -> None:
    """Each change looks at each consumer."""
    bench = Bench(start=None)
    for number in range(CONSUMERS_MAX):
        bench.register(f"consumer-{number}")
    with pytest.raises(InvalidValue) as caught:
        bench.register("one-more")
    assert caught.value.description == "the feed has 64 consumers already: remove one of them"


def test_removal_forgets_the_place() -> None:
    """A consumer that is registered again starts from nothing."""
    bench = Bench()
    bench.register("other")
    bench.create()
    bench.create()
    bench.claim(limit=1)
    assert bench.feed.remove(LEDGER)
    assert [state.consumer.name for state in bench.feed.consumers()] == ["other"]
    with pytest.raises(ConsumerNotFound) as caught:
        bench.claim()
    text = "the feed has no consumer ledger: correct the name, or start its relay, which registers it"
    assert caught.value.description == text
    bench.register()
    assert bench.claim() == []


def test_down_consumer_gets_one_delivery_at_a_time() -> None:
    """Its attempts do not count, and nothing becomes a dead letter. A success ends this."""
    bench = Bench(down_after_s=10)
    bench.create()
    bench.create()
    first, second = bench.claim()
    assert bench.fail(first, 0)
    assert bench.fail(second, 10, is_last=True)
    assert bench.feed.dead_letters(LEDGER, None, 10) == []
    [probe] = bench.claim(20)
    assert bench.claim(20) == []
    assert bench.feed.settle(probe, Delivered(), at(20))
    assert len(bench.claim(20)) == 1


def test_disabled_consumer_gets_nothing_and_loses_nothing() -> None:
    """An enabled consumer continues where it was."""
    bench = Bench()
    bench.create()
    assert bench.fail(bench.take(), 0, disables=True)
    bench.feed.set_enabled(LEDGER, at(1), enabled=False)
    [state] = bench.feed.consumers()
    assert state.health.disabled_at == at(1)
    assert bench.claim(2) == []
    assert bench.feed.next_due(LEDGER) is None
    bench.feed.set_enabled(LEDGER, at(2), enabled=True)
    assert bench.take(2).attempt == 1
    bench.feed.set_enabled(LEDGER, at(3), enabled=False)
    assert bench.feed.consumers()[0].health.disabled_at == at(3)


def test_skip_drops_what_was_due() -> None:
    """Deliveries in progress and later ones stay."""
    bench = Bench()
    in_progress, retried, _, later = (bench.create() for _ in range(4))
    bench.drain()
    for id in (in_progress, retried):
        bench.credit(id)
    first, second = bench.claim()
    assert bench.fail(second, 0)
    bench.credit(retried, 1)
    bench.create()
    bench.credit(later, 5)
    assert bench.feed.skip(LEDGER, at(0.5))
    assert bench.claim(4) == []
    assert bench.drain(5) == ["credited2"]
    assert bench.feed.settle(first, Delivered(), at(5))
    bench.credit(retried, 6)
    assert bench.drain(6) == ["credited4"]


def test_skip_drops_a_dead_letter_that_is_sent_again() -> None:
    """The stream of the dead letter goes on."""
    bench = Bench()
    id = bench.create()
    assert bench.fail(bench.take(), 0, is_last=True)
    bench.credit(id)
    held = bench.take()
    bench.feed.redeliver(LEDGER, id, 1, NOW)
    assert bench.feed.skip(LEDGER, NOW)
    assert bench.feed.settle(held, Delivered(), NOW)
    assert bench.feed.next_due(LEDGER) is None


def test_acknowledged_deliveries_are_forgotten_after_a_time() -> None:
    """Dead letters and recent deliveries stay."""
    bench = Bench()
    old, dead, new = (bench.create() for _ in range(3))
    for delivery, seconds in zip(bench.claim(), (0, 0, 5), strict=True):
        if delivery.payment_id == dead:
            assert bench.fail(delivery, seconds, is_last=True)
        else:
            assert bench.feed.settle(delivery, Delivered(), at(seconds))
    assert bench.feed.forget(at(5))
    assert [len(bench.feed.deliveries(id)) for id in (old, dead, new)] == [0, 1, 1]


def test_watchers_are_woken_by_each_change_that_makes_a_stream_due() -> None:
    """A watcher that has ended is not woken."""
    bench = Bench()
    wakes: list[str] = []
    end = bench.feed.watch(lambda: wakes.append("first"))
    bench.feed.watch(lambda: wakes.append(str(1 // 0)))  # the store does not notice
    bench.feed.watch(lambda: wakes.append("second"))
    id = bench.create()
    assert wakes == ["first", "second"]
    end()
    end()
    delivery = bench.take()
    assert len(wakes) == 2  # a claim makes nothing due
    assert bench.feed.settle(delivery, Released(), NOW)
    assert len(wakes) == 3
    assert bench.drain() == ["created1"]
    assert len(wakes) == 3
    bench.feed.set_enabled(LEDGER, NOW, enabled=True)
    assert len(wakes) == 4
    bench.feed.remove(LEDGER)
    bench.credit(id)
    assert len(wakes) == 4

"""The tests of `FeedContract` about consumers and their filters."""

# ruff: noqa: S101 - a test suite asserts
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any

import pytest

from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import (
    Consumer,
    ConsumerName,
    Delivered,
    Start,
)
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import ConsumerNotFound, InvalidValue
from incoming_payments.limits import CONSUMERS_MAX
from incoming_payments.ports import Feed, PaymentStore
from incoming_payments.testing._feed_hooks import (
    LEDGER,
    FeedHooks,
    claim,
    complete,
    failed,
    register_all,
    remove_all,
    settle_all,
)
from incoming_payments.testing.steps import UNUSED_ID, create, credit, together
from incoming_payments.testing.values import NOW, a_creation, a_wallet_address


class ConsumerContract(FeedHooks):
    """See `FeedContract`."""

    # --- filters ---

    @pytest.mark.parametrize(
        ("kinds", "expected"),
        [
            (["created"], ["1"]),
            (["credited"], ["2 3"]),
            (["completed"], ["4"]),
            (["expired"], []),
            (["created", "completed"], ["1", "4"]),
            (["created", "credited", "expired"], ["1", "2 3"]),
        ],
    )
    def test_excluded_kinds_are_passed_over(self, store: PaymentStore, kinds: list[str], expected: list[str]) -> None:
        """Events before, between and after excluded events arrive, wherever the consumer begins."""
        feed = self.feed_of(store)
        consumer = Consumer(name=LEDGER, kinds=kinds)
        later = Consumer(name=ConsumerName("later"), kinds=kinds)
        feed.register(consumer, Start.NOW, NOW)
        id = create(store, a_creation(limit=20))
        credit(store, id, "wire-1", 10)
        credit(store, id, "wire-2", 10)
        register_all(feed, later, Start.BEGINNING)
        assert settle_all(feed) == expected
        assert settle_all(feed, "later") == expected

    def test_an_event_behind_excluded_events_arrives_while_the_stream_is_open(self, store: PaymentStore) -> None:
        """The filter hides no later event."""
        feed = self.feed_of(store)
        feed.register(Consumer(name=LEDGER, kinds=["created", "completed"]), Start.NOW, NOW)
        id = create(store, a_creation(limit=20))
        [created] = claim(feed)
        credit(store, id, "wire-1", 10)
        credit(store, id, "wire-2", 10)
        assert feed.settle(created, Delivered(), NOW)
        assert settle_all(feed) == ["4"]

    def test_only_the_wallet_addresses_of_the_filter_arrive(self, store: PaymentStore) -> None:
        """The filter holds for old events too."""
        feed = self.feed_of(store)
        bob = a_wallet_address("https://bank.example/bob")
        consumer = partial(Consumer, wallet_addresses=[bob.url])
        feed.register(consumer(name=LEDGER), Start.NOW, NOW)
        create(store)
        id = create(store, a_creation(wallet_address=bob))
        register_all(feed, consumer(name=ConsumerName("later")), Start.BEGINNING)
        for name in (LEDGER, "later"):
            assert [delivery.payment_id for delivery in claim(feed, name)] == [id]

    # --- consumers ---

    def test_a_consumer_begins_now_or_at_the_beginning(self, store: PaymentStore) -> None:
        """Only the consumer that begins at the beginning gets the old events. Both get the later ones."""
        feed = self.feed_of(store)
        id = create(store)
        credit(store, id, "wire-1", 1)
        register_all(feed, Consumer(name=ConsumerName("all")), Start.BEGINNING)
        register_all(feed, Consumer(name=ConsumerName("new")), Start.NOW)
        credit(store, id, "wire-2", 1)
        assert settle_all(feed, "new") == ["3"]
        assert settle_all(feed, "all") == ["1", "2 3"]

    @pytest.mark.parametrize("start", list(Start))
    def test_no_change_during_a_registration_is_missed(self, store: PaymentStore, start: Start) -> None:
        """The event of a concurrent change counts as old or as new, and is delivered once."""
        feed = self.feed_of(store)
        registered = threading.Event()

        def change() -> list[PaymentId]:
            ids = []
            while not registered.is_set():
                ids.append(create(store))
                credit(store, ids[-1], "wire-1", 1)
            return ids

        def register() -> list[PaymentId]:
            register_all(feed, Consumer(name=LEDGER, joins_credits=False), start)
            registered.set()
            return []

        ids = [create(store), *chain(*together([change] * self.threads + [register]))]
        found: dict[PaymentId, list[int]] = {id: [] for id in ids}
        while deliveries := claim(feed, limit=100):
            for delivery in deliveries:
                found[delivery.payment_id].append(delivery.last_version)
                assert feed.settle(delivery, Delivered(), NOW)
        assert found.pop(ids[0]) == ([1] if start is Start.BEGINNING else [])
        possible = [[1, 2]] if start is Start.BEGINNING else [[1, 2], [2], []]
        assert not [versions for versions in found.values() if versions not in possible]

    def test_a_registered_consumer_keeps_its_place(self, store: PaymentStore, feed: Feed) -> None:
        """Another registration changes the filter for later events only."""
        id = create(store)
        credit(store, id, "wire-0", 1)
        settle_all(feed)
        assert feed.register(Consumer(name=LEDGER, kinds=["credited"]), Start.BEGINNING, NOW)
        assert not claim(feed)
        credit(store, id, "wire-1", 1)
        create(store)
        assert settle_all(feed) == ["3"]
        [state] = feed.consumers()
        assert (state.consumer.kinds, state.is_ready, state.oldest_due_at) == (
            frozenset({EventKind.CREDITED}),
            True,
            None,
        )

    def test_a_narrower_filter_drops_what_waits(self, store: PaymentStore, feed: Feed) -> None:
        """Waiting events that the new filter excludes do not arrive, and their stream goes on."""
        id = create(store)
        feed.register(Consumer(name=LEDGER, kinds=["credited"]), Start.NOW, NOW)
        assert not claim(feed)
        credit(store, id, "wire-1", 1)
        feed.register(Consumer(name=LEDGER, wallet_addresses=["https://bank.example/bob"]), Start.NOW, NOW)
        assert not claim(feed)
        feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
        credit(store, id, "wire-2", 1)
        assert settle_all(feed) == ["3"]

    def test_a_narrower_filter_drops_what_waits_behind_a_delivery(self, store: PaymentStore, feed: Feed) -> None:
        """The new filter drops the event that waits behind the delivery, and then the stream ends."""
        id = create(store)
        credit(store, id, "wire-1", 1)
        feed.register(Consumer(name=LEDGER, kinds=["created"]), Start.NOW, NOW)
        assert settle_all(feed) == ["1"]
        assert feed.next_due(LEDGER) is None

    def test_an_unknown_consumer_is_named(self, store: PaymentStore, feed: Feed) -> None:
        """Each method that takes a name raises `ConsumerNotFound`, before and after a removal."""
        create(store)
        [held] = claim(feed)
        remove_all(feed, LEDGER)
        calls: list[Callable[[], Any]] = [
            partial(claim, feed),
            partial(feed.remove, LEDGER),
            partial(feed.next_due, LEDGER),
            partial(feed.set_enabled, LEDGER, NOW, enabled=True),
            partial(feed.skip, LEDGER, NOW),
            partial(feed.dead_letters, LEDGER, None, 10),
            partial(feed.redeliver, LEDGER, UNUSED_ID, 1, NOW),
        ]
        for call in calls:
            with pytest.raises(ConsumerNotFound, match="ledger"):
                call()
        assert not feed.settle(held, Delivered(), NOW)
        assert not feed.consumers()

    def test_a_removed_consumer_begins_anew(self, store: PaymentStore, feed: Feed) -> None:
        """Nothing of the old consumer is left: neither deliveries nor its place."""
        id = create(store)
        settle_all(feed)
        credit(store, id, "wire-1", 1)
        claim(feed)
        remove_all(feed, LEDGER)
        assert not feed.deliveries(id)
        register_all(feed, Consumer(name=LEDGER), Start.BEGINNING)
        assert settle_all(feed) == ["1", "2"]

    def test_the_number_of_consumers_is_bounded(self, store: PaymentStore) -> None:
        """Each change reads all consumers, so their number is limited. The error says what to do."""
        feed = self.feed_of(store)
        for number in range(CONSUMERS_MAX):
            feed.register(Consumer(name=ConsumerName(f"c-{number}")), Start.NOW, NOW)
        with pytest.raises(InvalidValue, match="remove one of them"):
            feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
        assert feed.register(Consumer(name=ConsumerName("c-0")), Start.NOW, NOW)
        assert [state.consumer.name for state in feed.consumers()] == sorted(f"c-{n}" for n in range(CONSUMERS_MAX))

    def test_a_disabled_consumer_loses_nothing(self, store: PaymentStore, feed: Feed) -> None:
        """It gets no deliveries. When it is enabled again, it goes on."""
        id = create(store)
        feed.set_enabled(LEDGER, NOW, enabled=False)
        credit(store, id, "wire-1", 1)
        assert not claim(feed)
        assert feed.next_due(LEDGER) is None
        assert feed.consumers()[0].health.disabled_at == NOW
        feed.set_enabled(LEDGER, NOW, enabled=True)
        assert settle_all(feed) == ["1", "2"]

    def test_a_failure_can_disable_the_consumer(self, store: PaymentStore, feed: Feed) -> None:
        """The delivery stays, and its attempt does not count."""
        create(store)
        [delivery] = claim(feed)
        assert feed.settle(delivery, failed(disables=True, is_last=True), NOW)
        assert not claim(feed)
        assert feed.consumers()[0].health.disabled_at == NOW
        feed.set_enabled(LEDGER, NOW, enabled=True)
        assert [delivery.attempt for delivery in claim(feed)] == [1]

    def test_a_consumer_that_is_down_gets_one_delivery_at_a_time(self, store: PaymentStore) -> None:
        """Its failures do not count. Its first success ends this."""
        feed = self.feed_of(store)
        feed.register(Consumer(name=LEDGER, down_after_s=10), Start.NOW, NOW)
        for _ in range(3):
            create(store)
        for delivery in claim(feed):
            assert feed.settle(delivery, failed(retry_s=1), NOW)
        assert feed.consumers()[0].health.failing_since == NOW
        [probe] = claim(feed, after_s=10)
        assert not claim(feed, after_s=10)
        assert probe.attempt == 2
        later = NOW + timedelta(seconds=10)
        assert feed.settle(probe, failed(retry_s=20, is_last=True), later)
        [second] = claim(feed, after_s=10)
        assert second.payment_id != probe.payment_id
        assert feed.settle(second, Delivered(), later)
        assert feed.consumers()[0].health.failing_since is None
        found = claim(feed, after_s=30)
        assert {delivery.attempt for delivery in found} == {2}
        assert probe.payment_id in {delivery.payment_id for delivery in found}

    def test_skipping_drops_what_waits(self, store: PaymentStore, feed: Feed) -> None:
        """Retries and waiting events are dropped. A leased delivery and later events are not."""
        ids = [create(store) for _ in range(3)]
        held, retried = claim(feed, limit=2)
        feed.settle(retried, failed(retry_s=100), NOW)
        complete(lambda: feed.skip(LEDGER, NOW))
        assert not claim(feed)
        assert feed.settle(held, Delivered(), NOW)
        for id in ids:
            credit(store, id, "wire-1", 1)
        assert sorted(settle_all(feed)) == ["2", "2", "2"]
        assert not claim(feed, after_s=1000)

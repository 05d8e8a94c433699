"""The guarantees of a `Feed` port, as a test suite for your own store. The suite needs pytest and Hypothesis.

```python
from incoming_payments.testing.feed import FeedContract

class TestMyFeed(FeedContract):
    def make_store(self, directory):
        return MyStore(directory / "payments")

    def open_again(self, store, directory):  # open the store as another process would
        return MyStore(directory / "payments")
```

The suite uses `store.feed`. If the feed of your store has another name, override `feed_of`. If the data of your store
belongs to one object, set `memory_only = True` instead of writing `open_again`. Test the feed of an async store through
a `SyncView`.
"""

# ruff: noqa: S101 - a test suite asserts
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

from attrs import evolve

try:
    import pytest
    from hypothesis import HealthCheck, settings
    from hypothesis.stateful import run_state_machine_as_test
except ImportError as error:
    raise ImportError(
        "the feed contract suite needs pytest and Hypothesis: run pip install 'incoming-payments[testing]'"
    ) from error

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.feed import (
    Consumer,
    ConsumerName,
    Delivered,
    Ending,
    FeedEvent,
    Lease,
    Released,
    Start,
)
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import DeliveryNotFound
from incoming_payments.ports import Feed, PaymentStore
from incoming_payments.testing._feed_consumers import ConsumerContract
from incoming_payments.testing._feed_hooks import (
    LEDGER,
    MINUTE,
    claim,
    failed,
    leased,
    register_all,
    settle_all,
)
from incoming_payments.testing._feed_machine import FeedMachine
from incoming_payments.testing.steps import PACKET_PEER, UNUSED_ID, create, credit, credit_packet, together
from incoming_payments.testing.values import NOW, a_creation, a_wallet_address


class FeedContract(ConsumerContract):
    """Subclass this class in a test module with a name that pytest collects, and override the hooks."""

    machine_settings = settings(
        max_examples=30,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )

    # --- the events of one stream ---

    def test_events_arrive_in_order_with_all_that_a_reader_needs(self, store: PaymentStore, feed: Feed) -> None:
        """Each delivery has the next events of the payment. A later one is not due before the first has ended."""
        wallet_address = a_wallet_address("https://bank.example/bob", asset=Asset("USD", 2))
        id = create(store, a_creation(limit=500, wallet_address=wallet_address))
        credit(store, id, "wire-1", 100)
        credit_packet(store, id, 400)

        [created] = claim(feed)
        assert not claim(feed)
        assert feed.settle(created, Delivered(), NOW)
        [credited] = claim(feed)
        assert feed.settle(credited, Delivered(), NOW)
        [completed] = claim(feed)
        assert feed.settle(completed, Delivered(), NOW)

        assert not claim(feed)
        stored = store.events(id)
        found = [*created.events, *credited.events, *completed.events]
        amounts = [None, 100, 400, None]
        assert [event.amount and event.amount.value for event in found] == amounts
        for event, amount, original in zip(found, amounts, stored, strict=True):
            value = None if amount is None else Amount(amount, wallet_address.asset)
            assert event == FeedEvent.of(original, wallet_address.url, value)
        assert found[2].peer == PACKET_PEER
        assert [created.id, credited.id, completed.id] == [f"{id}_1_1", f"{id}_2_3", f"{id}_4_4"]

    def test_streams_do_not_wait_for_each_other(self, store: PaymentStore, feed: Feed) -> None:
        """An open delivery of one payment does not hold back another payment."""
        first, second = create(store), create(store)
        [held] = claim(feed, limit=1)
        [other] = claim(feed)
        assert {held.payment_id, other.payment_id} == {first, second}
        assert feed.settle(other, Delivered(), NOW)
        credit(store, other.payment_id, "wire-1", 1)
        assert [delivery.payment_id for delivery in claim(feed)] == [other.payment_id]

    def test_claim_respects_its_limit(self, store: PaymentStore, feed: Feed) -> None:
        """A limit of zero or less claims nothing."""
        for _ in range(5):
            create(store)
        assert [len(claim(feed, limit=limit)) for limit in (-1, 0, 3, 3)] == [0, 0, 3, 2]

    def test_credits_are_joined(self, store: PaymentStore, feed: Feed) -> None:
        """Consecutive `credited` events are one delivery, unless the consumer turns this off."""
        feed.register(Consumer(name=ConsumerName("single"), joins_credits=False), Start.NOW, NOW)
        id = create(store, a_creation(limit=30))
        for number in (1, 2, 3):
            credit(store, id, f"wire-{number}", 10)
        assert settle_all(feed) == ["1", "2 3 4", "5"]
        assert settle_all(feed, "single") == ["1", "2", "3", "4", "5"]

    def test_a_range_never_changes(self, store: PaymentStore, feed: Feed) -> None:
        """A credit that arrives after the first attempt is not part of the delivery. The bytes stay the same."""
        id = create(store)
        settle_all(feed)
        credit(store, id, "wire-1", 1)
        [first] = claim(feed)
        credit(store, id, "wire-2", 1)
        assert feed.settle(first, failed(), NOW)

        [second] = feed.claim(LEDGER, lambda _: b"rendered again", now=NOW, until=NOW + MINUTE, limit=10)
        assert (second.id, second.payload, second.events) == (first.id, first.payload, first.events)
        assert (first.attempt, second.attempt) == (1, 2)
        assert feed.settle(second, Delivered(), NOW)
        assert settle_all(feed) == ["3"]

    def test_credits_wait_for_others(self, store: PaymentStore) -> None:
        """The first credit waits for `credit_delay_s`. An event of another kind ends the wait."""
        feed = self.feed_of(store)
        feed.register(Consumer(name=LEDGER, credit_delay_s=5), Start.NOW, NOW)
        id = create(store, a_creation(limit=30))
        credit(store, id, "wire-1", 10)
        assert settle_all(feed) == ["1"]
        credit(store, id, "wire-2", 10, NOW + timedelta(seconds=3))
        assert not claim(feed, after_s=4.9)
        assert feed.next_due(LEDGER) == NOW + timedelta(seconds=5)
        credit(store, id, "wire-3", 10, NOW + timedelta(seconds=4))
        [credited] = claim(feed, after_s=4.9)
        assert feed.settle(credited, Delivered(), NOW)
        assert [delivery.payload for delivery in claim(feed, after_s=4.9)] == [b"5"]
        assert credited.payload == b"2 3 4"

    # --- leases and results ---

    def test_a_lease_that_ends_is_claimed_again(self, store: PaymentStore, feed: Feed) -> None:
        """The delivery is the same, and its old holder can no longer settle it."""
        create(store)
        [first] = claim(feed)
        assert first.leased_until == NOW + MINUTE
        assert not claim(feed, after_s=59.9)
        [second] = claim(feed, after_s=60)
        assert (second.id, second.payload, second.attempt) == (first.id, first.payload, 2)
        for result in (Delivered(), Released(), failed()):
            assert not feed.settle(first, result, NOW)
        assert feed.settle(second, Delivered(), NOW)
        assert not feed.settle(second, Delivered(), NOW)
        assert not claim(feed, after_s=1000)

    def test_a_lease_settles_without_the_events(self, store: PaymentStore, feed: Feed) -> None:
        """A holder who keeps only the lease ends the delivery, and the later events of the stream become due."""
        id = create(store)
        credit(store, id, "wire-1", 1)
        for kind in ("created", "credited"):
            [held] = claim(feed)
            assert held.events[0].kind == kind
            assert not feed.settle(leased(evolve(held, lease=Lease(bytes(16)))), Delivered(), NOW)
            assert feed.settle(leased(held), Delivered(), NOW)
            assert not feed.settle(leased(held), Delivered(), NOW)
        assert not claim(feed, after_s=1000)

    def test_a_failed_attempt_is_repeated_at_its_time(self, store: PaymentStore, feed: Feed) -> None:
        """The record shows the error, the attempts and the time of the next attempt."""
        id = create(store)
        [first] = claim(feed)
        assert feed.settle(first, failed(retry_s=7), NOW)
        assert feed.next_due(LEDGER) == NOW + timedelta(seconds=7)
        [record] = feed.deliveries(id)
        assert (record.error, record.attempts, record.due_at) == ("boom", 1, NOW + timedelta(seconds=7))
        assert not claim(feed, after_s=6.9)
        assert [delivery.attempt for delivery in claim(feed, after_s=7)] == [2]

    def test_a_released_delivery_is_due_at_once(self, store: PaymentStore, feed: Feed) -> None:
        """The lease does not count as an attempt."""
        create(store)
        [first] = claim(feed)
        assert feed.settle(first, Released(), NOW)
        assert [delivery.attempt for delivery in claim(feed)] == [1]

    def test_a_delivery_keeps_its_last_error(self, store: PaymentStore, feed: Feed) -> None:
        """An operator sees why an attempt failed, also after a release and after a success."""
        id = create(store)
        for result in (failed(), Released(), Delivered()):
            [delivery] = claim(feed)
            assert feed.settle(delivery, result, NOW)
            [record] = feed.deliveries(id)
            assert record.error == "boom"

    def test_a_dead_letter_releases_the_later_events(self, store: PaymentStore, feed: Feed) -> None:
        """It is listed, and can be sent again with the same id and bytes. Its stream does not go back."""
        id = create(store)
        credit(store, id, "wire-1", 1)
        [first] = claim(feed)
        assert feed.settle(first, failed(is_last=True), NOW)
        assert settle_all(feed) == ["2"]
        [letter] = feed.dead_letters(LEDGER, None, 10)
        assert (letter.id, letter.ending, letter.error, letter.due_at) == (first.id, Ending.DEAD, "boom", None)
        assert not feed.dead_letters(LEDGER, letter, 10)

        feed.redeliver(LEDGER, id, 1, NOW)
        credit(store, id, "wire-2", 1)
        assert not feed.dead_letters(LEDGER, None, 10)
        again, later = sorted(claim(feed), key=lambda delivery: delivery.first_version)
        assert (again.id, again.payload, again.attempt) == (first.id, first.payload, 1)
        assert later.payload == b"3"
        assert feed.settle(again, Delivered(), NOW)
        credit(store, id, "wire-3", 1)
        assert not claim(feed)
        assert feed.settle(later, Delivered(), NOW)
        assert settle_all(feed) == ["4"]
        assert [record.ending for record in feed.deliveries(id)] == [Ending.DELIVERED] * 4

    def test_dead_letters_are_listed_page_by_page(self, store: PaymentStore, feed: Feed) -> None:
        """The oldest comes first."""
        ids = []
        for second in range(3):
            ids.append(create(store))
            [delivery] = claim(feed)
            feed.settle(delivery, failed(is_last=True), NOW + timedelta(seconds=second))
        found, after = [], None
        while page := feed.dead_letters(LEDGER, after, 2):
            found += [letter.payment_id for letter in page]
            after = page[-1]
        assert found == ids

    def test_only_a_dead_letter_can_be_sent_again(self, store: PaymentStore, feed: Feed) -> None:
        """Another delivery, or none, raises `DeliveryNotFound`."""
        id = create(store)
        for payment, version in ((id, 1), (id, 7), (UNUSED_ID, 1)):
            with pytest.raises(DeliveryNotFound):
                feed.redeliver(LEDGER, payment, version, NOW)
        settle_all(feed)
        with pytest.raises(DeliveryNotFound):
            feed.redeliver(LEDGER, id, 1, NOW)

    def test_a_renderer_that_raises_changes_nothing(self, store: PaymentStore, feed: Feed) -> None:
        """The caller gets the exception, and the next claim gets the deliveries."""
        create(store)

        def fail(_: Sequence[FeedEvent]) -> bytes:
            raise LookupError("no template")

        with pytest.raises(LookupError, match="no template"):
            feed.claim(LEDGER, fail, now=NOW, until=NOW + MINUTE, limit=10)
        assert [delivery.attempt for delivery in claim(feed)] == [1]

    def test_a_renderer_that_raises_holds_back_one_stream(self, store: PaymentStore, feed: Feed) -> None:
        """The streams behind it get their deliveries."""
        poison, id = create(store), create(store)

        def fail(events: Sequence[FeedEvent]) -> bytes:
            if events[0].payment_id == poison:
                raise LookupError("no template")
            return b""

        [delivery] = feed.claim(LEDGER, fail, now=NOW, until=NOW + MINUTE, limit=10)
        assert delivery.payment_id == id
        with pytest.raises(LookupError, match="no template"):
            feed.claim(LEDGER, fail, now=NOW, until=NOW + MINUTE, limit=10)
        assert [delivery.payment_id for delivery in claim(feed)] == [poison]

    def test_acknowledged_deliveries_are_forgotten(self, store: PaymentStore, feed: Feed) -> None:
        """Those that ended before the time are deleted. Dead letters and open deliveries stay."""
        kept, dead, waiting = create(store), create(store), create(store)
        for delivery in claim(feed):
            if delivery.payment_id == kept:
                feed.settle(delivery, Delivered(), NOW + MINUTE)
            elif delivery.payment_id == dead:
                feed.settle(delivery, failed(is_last=True), NOW)
            else:
                feed.settle(delivery, failed(retry_s=1), NOW)
        gone = create(store)
        settle_all(feed)
        assert feed.forget(NOW + MINUTE)
        found = {id: [record.ending for record in feed.deliveries(id)] for id in (kept, dead, waiting, gone)}
        assert found == {kept: [Ending.DELIVERED], dead: [Ending.DEAD], waiting: [None], gone: []}

    # --- wake-ups, and several callers ---

    def test_a_change_wakes_the_watchers(self, store: PaymentStore, feed: Feed) -> None:
        """Each function is called until it is removed. One that raises does no harm."""
        woken: list[str] = []

        def fail() -> None:
            raise RuntimeError("event loop is closed")

        ends = [feed.watch(fail), feed.watch(partial(woken.append, "a")), feed.watch(partial(woken.append, "b"))]
        id = create(store)
        self.await_wake(lambda: set(woken) == {"a", "b"})
        ends[1]()
        woken.clear()
        credit(store, id, "wire-1", 1)
        self.await_wake(lambda: set(woken) == {"b"})
        for end in ends:
            end()
        feed.watch(partial(woken.append, "c"))
        woken.clear()
        credit(store, id, "wire-2", 1)
        self.await_wake(lambda: set(woken) == {"c"})

    def test_a_result_and_an_operator_wake_the_watchers(self, store: PaymentStore, feed: Feed) -> None:
        """The watchers wake when a result, a later event or a call of an operator makes a delivery due."""
        woken: list[str] = []
        feed.watch(partial(woken.append, "woken"))

        def wakes(change: Callable[[], object]) -> None:
            woken.clear()
            change()
            self.await_wake(lambda: bool(woken))

        id = create(store)
        self.await_wake(lambda: bool(woken))
        [delivery] = claim(feed)
        credit(store, id, "wire-1", 1)
        self.await_wake(lambda: bool(woken))
        wakes(partial(feed.settle, delivery, Released(), NOW))
        wakes(partial(feed.settle, claim(feed)[0], failed(), NOW))
        wakes(partial(feed.settle, claim(feed)[0], failed(is_last=True), NOW))
        wakes(partial(feed.redeliver, LEDGER, id, 1, NOW))
        wakes(partial(feed.set_enabled, LEDGER, NOW, enabled=True))
        wakes(partial(register_all, feed, Consumer(name=ConsumerName("later")), Start.BEGINNING))

    def test_concurrent_claims_share_the_deliveries(self, store: PaymentStore, feed: Feed) -> None:
        """No delivery has two holders."""
        ids = {create(store) for _ in range(20)}

        def take(_: int) -> list[PaymentId]:
            return [delivery.payment_id for delivery in claim(feed, limit=3)]

        taken = [id for found in together([partial(take, number) for number in range(self.threads)]) for id in found]
        taken += [delivery.payment_id for delivery in claim(feed, limit=20)]
        assert len(taken) == len(ids)
        assert set(taken) == ids

    def test_processes_share_the_consumers(self, store: PaymentStore, feed: Feed, other: PaymentStore) -> None:
        """A change, a lease and a result of one process count in the other."""
        second = self.feed_of(other)
        id = create(other)
        [first] = claim(feed)
        assert not claim(second)
        assert second.settle(first, Delivered(), NOW)
        credit(store, id, "wire-1", 1)
        [delivery] = claim(second)
        assert delivery.payload == b"2"
        assert not feed.settle(first, Delivered(), NOW)
        assert [state.consumer.name for state in second.consumers()] == [LEDGER]

    def test_a_crash_between_claim_and_result_loses_nothing(
        self, store: PaymentStore, feed: Feed, tmp_path: Path
    ) -> None:
        """The process that claimed is gone. Another one claims the same delivery after the end of the lease."""
        create(store)
        [first] = claim(feed)
        with self.opened_again(store, tmp_path) as other:
            second = self.feed_of(other)
            assert not claim(second, after_s=59)
            [again] = claim(second, after_s=60)
            assert (again.id, again.payload) == (first.id, first.payload)
            assert second.settle(again, Delivered(), NOW)

    def test_the_feed_behaves_as_the_model(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        """Random calls have the same answers as those of the feed in memory."""

        def machine() -> FeedMachine:
            store = self.make_store(tmp_path_factory.mktemp("machine"))
            return FeedMachine(store, self.feed_of(store), partial(self.close_store, store))

        run_state_machine_as_test(machine, settings=self.machine_settings)  # type: ignore[arg-type]

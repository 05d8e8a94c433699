"""A state machine that makes the same random calls to a feed and to the feed in memory, and compares the answers."""

# ruff: noqa: S101 - a test suite asserts
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from incoming_payments.domain import lifecycle
from incoming_payments.domain.feed import (
    Consumer,
    ConsumerName,
    Delivered,
    Delivery,
    DeliveryRecord,
    Failed,
    FeedEvent,
    Released,
    Result,
    Start,
)
from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.ports import Feed, PaymentStore
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing._feed_hooks import complete
from incoming_payments.testing.values import NOW, a_creation, a_wallet_address, crediting

WALLETS: Final = [a_wallet_address(f"https://bank.example/{name}") for name in ("alice", "bob")]
CONSUMERS: Final = [
    Consumer(name=ConsumerName("all")),
    Consumer(name=ConsumerName("delayed"), credit_delay_s=30, down_after_s=60, disable_after_s=300),
    Consumer(name=ConsumerName("other"), kinds=["created", "completed", "expired"], joins_credits=False),
    Consumer(name=ConsumerName("bob"), wallet_addresses=[WALLETS[1].url], joins_credits=False),
    Consumer(name=ConsumerName("bob"), kinds=["credited"]),  # other settings of the same consumer
]
_RESULTS: Final = ["delivered", "released", "failed", "last", "disables"]
_names: Final = st.sampled_from(sorted({consumer.name for consumer in CONSUMERS}))
_places: Final = st.integers(0, 5)


def _render(events: Sequence[FeedEvent]) -> bytes:
    return repr([(event.id, event.kind.value) for event in events]).encode()


class FeedMachine(RuleBasedStateMachine):
    """Random calls to `store` and its `feed`, and to a model. `close` is called at the end."""

    def __init__(self, store: PaymentStore, feed: Feed, close: Callable[[], None]) -> None:
        super().__init__()
        self._stores: tuple[PaymentStore, PaymentStore] = (store, MemoryStore())
        self._feeds: tuple[Feed, Feed] = (feed, self._stores[1].feed)
        self._close = close
        self._now = NOW
        self._ids: list[PaymentId] = []
        self._held: list[tuple[Delivery, Delivery]] = []
        self._credits = 0

    def teardown(self) -> None:
        """Close the store."""
        self._close()

    @initialize()
    def begin(self) -> None:
        """Register the consumers, and make deliveries for them, because most random calls need both."""
        for consumer in CONSUMERS:
            self.register(consumer, Start.NOW)
        for wallet in WALLETS:
            self.create(wallet, 20, None)
            self.credit(len(self._ids) - 1, 5)

    # --- changes ---

    @rule(wallet=st.sampled_from(WALLETS), limit=st.none() | st.just(20), expires_in_s=st.none() | st.just(100))
    def create(self, wallet: Any, limit: int | None, expires_in_s: int | None) -> None:
        """Create a payment."""
        creation = a_creation(limit=limit, expires_in_s=expires_in_s, wallet_address=wallet, now=self._now)
        self._ids.append(creation.answer.id)
        for store in self._stores:
            store.insert(creation)

    @precondition(lambda self: self._ids)
    @rule(place=_places, value=st.sampled_from([5, 10]))
    def credit(self, place: int, value: int) -> None:
        """Credit a payment."""
        self._credits += 1
        name = f"wire-{self._credits}"
        decide = crediting(name, value, now=self._now)
        self._same(lambda store, found: store.update(found, decide, CreditId(name)), place)

    @precondition(lambda self: self._ids)
    @rule(place=_places, decide=st.sampled_from([lifecycle.complete, lifecycle.expire]))
    def end(self, place: int, decide: Any) -> None:
        """Complete a payment, or note its expiry."""
        self._same(lambda store, found: store.update(found, partial(decide, now=self._now)), place)

    @rule(seconds=st.sampled_from([1, 20, 70, 200]))
    def wait(self, seconds: int) -> None:
        """Let time pass."""
        self._now += timedelta(seconds=seconds)

    # --- consumers ---

    @rule(consumer=st.sampled_from(CONSUMERS), start=st.sampled_from(list(Start)))
    def register(self, consumer: Consumer, start: Start) -> None:
        """Register a consumer, with all batches."""
        for feed in self._feeds:
            complete(partial(feed.register, consumer, start, self._now))

    @rule(name=_names)
    def remove(self, name: ConsumerName) -> None:
        """Remove a consumer, with all batches."""
        self._compare(lambda feed: complete(partial(feed.remove, name)))

    @rule(name=_names, enabled=st.booleans())
    def set_enabled(self, name: ConsumerName, *, enabled: bool) -> None:
        """Disable or enable a consumer."""
        self._compare(lambda feed: feed.set_enabled(name, self._now, enabled=enabled))

    @rule(name=_names)
    def skip(self, name: ConsumerName) -> None:
        """Drop what waits."""
        self._compare(lambda feed: complete(partial(feed.skip, name, self._now)))

    # --- deliveries ---

    @rule(name=_names, limit=st.sampled_from([4, 2, 1, 0]))
    def claim(self, name: ConsumerName, limit: int) -> None:
        """Claim deliveries. Both feeds return the same ones, except for the leases."""
        until = self._now + timedelta(seconds=60)
        found = self._compare(
            lambda feed: feed.claim(name, _render, now=self._now, until=until, limit=limit), view=_without_leases
        )
        if found is not None:
            self._held += zip(*found, strict=True)

    @precondition(lambda self: self._held)
    @rule(
        place=_places,
        kind=st.sampled_from(_RESULTS),
        keeps=st.booleans(),
    )
    def settle(self, place: int, kind: str, *, keeps: bool) -> None:
        """Settle a delivery, perhaps a second time, or after its lease has ended."""
        held = self._held[place % len(self._held)]
        result: Result = Failed(
            error=kind,
            retry_at=self._now + timedelta(seconds=15),
            is_last=kind == "last",
            disables=kind == "disables",
        )
        if kind in ("delivered", "released"):
            result = Delivered() if kind == "delivered" else Released()
        answers = [feed.settle(delivery, result, self._now) for feed, delivery in zip(self._feeds, held, strict=True)]
        assert answers[0] == answers[1]
        if not keeps:
            self._held.remove(held)

    @precondition(lambda self: self._ids)
    @rule(name=_names, place=_places, version=st.integers(1, 4))
    def redeliver(self, name: ConsumerName, place: int, version: int) -> None:
        """Send a dead letter again, if it is one."""
        id = self._ids[place % len(self._ids)]
        self._compare(lambda feed: feed.redeliver(name, id, version, self._now))

    @rule(seconds=st.sampled_from([-100, 0, 1]))
    def forget(self, seconds: int) -> None:
        """Delete acknowledged deliveries."""
        for feed in self._feeds:
            complete(partial(feed.forget, self._now + timedelta(seconds=seconds)))

    # --- comparisons ---

    @invariant()
    def states_agree(self) -> None:
        """Consumers, deliveries and dead letters are the same in both feeds."""
        states = [feed.consumers() for feed in self._feeds]
        assert states[0] == states[1]
        for state in states[0]:
            self._compare(partial(_view_of, state.consumer.name))
        for id in self._ids[-6:]:
            records = [feed.deliveries(id) for feed in self._feeds]
            assert list(records[0]) == list(records[1])

    def _same(self, call: Callable[[PaymentStore, PaymentId], Any], place: int) -> None:
        id = self._ids[place % len(self._ids)]
        outcomes = [_outcome(partial(call, store, id)) for store in self._stores]
        assert outcomes[0] == outcomes[1]

    def _compare(self, call: Callable[[Feed], Any], view: Callable[[Any], Any] = lambda answer: answer) -> Any:
        """Make one call to both feeds, and return both answers, or `None` if both raised the same error."""
        outcomes = [_outcome(partial(call, feed)) for feed in self._feeds]
        if isinstance(outcomes[0], type) or isinstance(outcomes[1], type):
            assert outcomes[0] == outcomes[1]
            return None
        assert view(outcomes[0]) == view(outcomes[1])
        return outcomes


def _outcome(call: Callable[[], Any]) -> Any:
    """Return the answer of `call`, or the class of its error."""
    try:
        return call()
    except IncomingPaymentsError as error:
        return type(error)


def _view_of(name: ConsumerName, feed: Feed) -> tuple[datetime | None, list[DeliveryRecord]]:
    return feed.next_due(name), list(feed.dead_letters(name, None, 100))


def _without_leases(deliveries: Sequence[Delivery]) -> list[tuple[object, ...]]:
    return [
        (delivery.id, delivery.consumer, delivery.events, delivery.payload, delivery.attempt, delivery.leased_until)
        for delivery in deliveries
    ]

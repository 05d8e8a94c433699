"""The consumers of the feed in a simulation, which lease deliveries, crash, and report results.

They run beside the traffic, in the processes of the simulation. Each arrival is compared with the ledgers, so that no
event is invented, lost, changed, or out of order.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from attrs import define, field

from incoming_payments.domain.feed import (
    Consumer,
    ConsumerName,
    Delivered,
    Delivery,
    Failed,
    FeedEvent,
    Released,
    Result,
    Start,
)
from incoming_payments.domain.payment import PaymentId
from incoming_payments.testing.simulation.fixtures import WALLET
from incoming_payments.testing.simulation.ledger import require
from incoming_payments.testing.simulation.operation import Process
from incoming_payments.testing.simulation.state import SimulationState

LEASE: Final = timedelta(seconds=5)
STEP_SHARE: Final = 0.1  # the share of the steps after which a consumer acts
FIRST: Final = Consumer(name="first")
LATE: Final = Consumer(name="late", kinds=["created", "completed", "expired"], joins_credits=False)


class Caller(Protocol):
    """The part of the ports that calls a store, and waits for an async one."""

    def inspect(self, method: Any, *arguments: Any) -> Any:
        """Call `method`, and retry while the store is unavailable."""
        ...


@define
class _Arrivals:
    """What has arrived at one consumer."""

    payloads: dict[str, bytes] = field(factory=dict)  # by the id of the delivery
    deliveries: dict[str, str] = field(factory=dict)  # the delivery of each event
    last: defaultdict[PaymentId, int] = field(factory=lambda: defaultdict(int))  # the last version of each payment


class Consumers:
    """Two consumers: one from the beginning, and one with a filter that is registered later over the old events.

    A store without the property `feed` has no consumers. The consumers have a randomness of their own, so the traffic
    of a seed does not depend on them.
    """

    def __init__(self, state: SimulationState, caller: Caller, seed: int, process: Process) -> None:
        self._state = state
        self._caller = caller
        self._random = random.Random(seed)  # noqa: S311 - must be repeatable, not secret
        self._held: list[tuple[Process, Delivery]] = []
        self._open: set[tuple[ConsumerName, str]] = set()  # the deliveries whose last attempt has not succeeded
        self._renders = 0
        self._has_feed = hasattr(process.store, "feed")
        self._arrivals: dict[ConsumerName, _Arrivals] = {}
        self._is_ready = True
        if self._has_feed:
            self._register(process, FIRST, Start.NOW)

    def step(self, process: Process) -> None:
        """Perhaps claim a delivery, handle a held one, or do what an operator does."""
        if not self._has_feed or self._random.random() >= STEP_SHARE:
            return
        roll = self._random.random()
        if not self._is_ready or (LATE.name not in self._arrivals and roll < 0.02):
            self._register(process, LATE, Start.BEGINNING)
        elif roll < 0.45:
            self._claim(process, self._any_name(), limit=1 + int(self._random.random() * 4))
        elif roll < 0.95 and self._held:
            self._handle(*self._held.pop(int(self._random.random() * len(self._held))))
        elif roll > 0.97:
            self._redeliver(process, self._any_name())

    def crash(self, process: Process) -> None:
        """Lose the deliveries that the process holds."""
        kept = [held for held in self._held if held[0] is not process]
        if len(kept) < len(self._held):
            self._state.count("consumer crashed between claim and result")
        self._held = kept

    def finish(self, process: Process) -> None:
        """Take all that is left, and check that each event has arrived."""
        if not self._has_feed:
            return
        while LATE.name not in self._arrivals or not self._is_ready:
            self._register(process, LATE, Start.BEGINNING)
        for name in self._arrivals:
            self._held.clear()
            while self._call(process, "next_due", name) is not None:
                self._state.now += LEASE
                self._claim(process, name, limit=100)
                while self._held:
                    self._settle(*self._held.pop(0), Delivered())
        for consumer in (FIRST, LATE):
            self._check_all_arrived(consumer)
        require(not self._open, f"the deliveries {sorted(self._open)} failed, and were not attempted again")

    # --- the acts of consumers ---------------------------------------------------------------------------

    def _any_name(self) -> ConsumerName:
        names = list(self._arrivals)
        return names[int(self._random.random() * len(names))]

    def _register(self, process: Process, consumer: Consumer, start: Start) -> None:
        self._arrivals.setdefault(consumer.name, _Arrivals())
        self._is_ready = self._call(process, "register", consumer, start, self._now(process))

    def _claim(self, process: Process, name: ConsumerName, *, limit: int) -> None:
        now = self._now(process)
        feed = process.store.feed

        def claim() -> Any:
            return feed.claim(name, self._render, now=now, until=now + LEASE, limit=limit)

        claimed = self._caller.inspect(claim)
        leased = {(held.consumer, held.id) for _, held in self._held if held.leased_until > now}
        require(not [one for one in claimed if (name, one.id) in leased], f"a delivery of {name} has two holders")
        self._held += [(process, delivery) for delivery in claimed]

    def _handle(self, process: Process, delivery: Delivery) -> None:
        """Let the delivery arrive, and report a result. At times, do neither of them."""
        roll, now = self._random.random(), self._now(process)
        result: Result = Delivered()
        if roll < 0.1:
            self._state.count("consumer lost a delivery")
            return
        if roll < 0.3:
            result = Failed(error="by chance", retry_at=now + timedelta(seconds=roll), is_last=roll < 0.15)
        elif roll < 0.35:
            result = Released()
        self._settle(process, delivery, result)

    def _settle(self, process: Process, delivery: Delivery, result: Result) -> None:
        self._arrive(delivery)
        now = self._now(process)
        if not self._call(process, "settle", delivery, result, now):
            self._state.count("result refused: the lease was claimed again")
            return
        self._state.count(f"result: {type(result).__name__.lower()}")
        ends = result == Delivered() or (isinstance(result, Failed) and result.is_last)
        (self._open.discard if ends else self._open.add)((delivery.consumer, delivery.id))
        require(
            not self._call(process, "settle", delivery, Delivered(), now),
            f"the feed accepted two results for one lease of {delivery.id}",
        )

    def _redeliver(self, process: Process, name: ConsumerName) -> None:
        for letter in self._call(process, "dead_letters", name, None, 1):
            self._state.count("dead letter sent again")
            self._call(process, "redeliver", name, letter.payment_id, letter.first_version, self._now(process))

    def _render(self, events: Sequence[FeedEvent]) -> bytes:
        """Return other bytes at each call, so that a second rendering shows."""
        self._renders += 1
        return f"{self._renders}: {' '.join(event.id for event in events)}".encode()

    def _call(self, process: Process, name: str, *arguments: Any) -> Any:
        return self._caller.inspect(getattr(process.store.feed, name), *arguments)

    def _now(self, process: Process) -> datetime:
        return self._state.now + process.offset

    # --- checks ------------------------------------------------------------------------------------------

    def _arrive(self, delivery: Delivery) -> None:
        """Compare the delivery with the ledger and with earlier arrivals."""
        arrivals = self._arrivals[delivery.consumer]
        is_first = delivery.id not in arrivals.payloads
        payload = arrivals.payloads.setdefault(delivery.id, delivery.payload)
        require(payload == delivery.payload, f"the delivery {delivery.id} arrived again with other bytes")
        self._state.count("delivery arrived" if is_first else "delivery arrived again")
        for event in delivery.events:
            self._check_event(event)
            known = arrivals.deliveries.setdefault(event.id, delivery.id)
            require(known == delivery.id, f"the event {event.id} is in {known} and in {delivery.id}")
        if is_first:
            missed = self._admitted(_CONSUMERS[delivery.consumer], delivery.payment_id)
            missed = [version for version in missed if version < delivery.first_version]
            require(
                arrivals.last[delivery.payment_id] == max(missed, default=0),
                f"{delivery.id} arrived after version {arrivals.last[delivery.payment_id]}, and before {missed}",
            )
            arrivals.last[delivery.payment_id] = delivery.last_version
        if len(delivery.events) > 1:
            self._state.count("credits joined in a delivery")

    def _check_event(self, event: FeedEvent) -> None:
        ledger = self._state.ledgers.get(event.payment_id)
        stored = None if ledger is None else ledger.events[event.version - 1 : event.version]
        found = (str(event.kind), event.at, event.received.value, event.credit_id)
        require(stored == [found], f"the feed has the event {event.id} {found}, but the ledger has {stored}")
        amounts = {entry.credit_id: entry.amount for entry in ledger.credits.values()} if ledger else {}
        amount = None if event.amount is None else event.amount.value
        require(amounts.get(str(event.credit_id)) == amount, f"the event {event.id} has the amount {amount}")
        require(event.wallet_address == WALLET.url, f"the event {event.id} has the address {event.wallet_address}")

    def _admitted(self, consumer: Consumer, id: PaymentId) -> list[int]:
        """Return the versions of the payment that the filter admits."""
        kinds = [kind for kind, *_ in self._state.ledgers[id].events]
        return [version for version, kind in enumerate(kinds, 1) if consumer.kinds is None or kind in consumer.kinds]

    def _check_all_arrived(self, consumer: Consumer) -> None:
        arrivals = self._arrivals[consumer.name]
        for id in self._state.ledgers:
            versions = self._admitted(consumer, id)
            missing = [version for version in versions if f"{id}_{version}" not in arrivals.deliveries]
            require(not missing, f"the events {missing} of {id} never arrived at the consumer {consumer.name}")
        count = sum(len(self._admitted(consumer, id)) for id in self._state.ledgers)
        require(len(arrivals.deliveries) == count, f"the consumer {consumer.name} got events that its filter excludes")


_CONSUMERS: Final = {consumer.name: consumer for consumer in (FIRST, LATE)}

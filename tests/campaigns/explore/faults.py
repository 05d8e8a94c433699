"""Stores, feeds and flows that are broken on purpose, with the scenario in which the search must find each of them."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from attrs import evolve

from campaigns.explore.requests import StoreCall, Subject
from incoming_payments.flows.machinery.effects import Effect, Flow, UpdatePayment
from incoming_payments.flows.machinery.feed_effects import ClaimDeliveries
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.memory_feed import MemoryFeed
from kits.broken_feeds import (
    AcknowledgesAtClaim,
    GivesTwoLeases,
    LetsOldHoldersSettle,
    LosesEventsOfOpenStreams,
    NeverEndsLeases,
    OpensStreamsTwice,
)
from kits.broken_flows import APPROVALS, RECEIVERS, receive_without_expiry
from kits.broken_stores import ForgetsKeys, IgnoresEarlierCredits

Unwrapped = Callable[[Any], Flow[Any]]


class Fault(NamedTuple):
    """A broken `subject`, and the name of a scenario that shows the fault."""

    scenario: str
    subject: Subject


def _replacing(kind: type[Effect[Any]], steps: Unwrapped) -> Callable[[Flow[Any]], Flow[Any]]:
    """Return a change of flows that replaces each effect of `kind` by the effects of `steps`."""

    def around(flow: Flow[Any]) -> Flow[Any]:
        inner = iter(flow)
        answer: Any = None
        error: Exception | None = None
        try:
            while True:
                effect: Any = inner.send(answer) if error is None else inner.throw(error)
                answer, error = None, None
                try:
                    answer = (yield from steps(effect)) if isinstance(effect, kind) else (yield effect)
                except Exception as raised:  # noqa: BLE001 - the flow handles it
                    error = raised
        except StopIteration as stop:
            return stop.value

    return around


def _without_lock(effect: UpdatePayment[Any]) -> Flow[Any]:
    """Load and decide in one step, and save in another one."""
    before, earlier = yield StoreCall(
        lambda store: (store.load(effect.id), store._rows.get((effect.id, effect.credit_id or "")))
    )
    decision = effect.decide(before, earlier)
    after = decision.payment
    if after is not None:
        yield StoreCall(lambda store: store._write(after, decision))
    return decision.answer


def _in_two_commits(effect: UpdatePayment[Any]) -> Flow[Any]:
    """Commit the payment and its events, and then the credit."""

    def without_credit(store: MemoryStore) -> Any:
        earlier = store._rows.get((effect.id, effect.credit_id or ""))
        decision = effect.decide(store.load(effect.id), earlier)
        if decision.payment is not None:
            store._write(decision.payment, evolve(decision, credit=None))
        return decision

    decision = yield StoreCall(without_credit)
    if decision.credit is not None:
        yield StoreCall(lambda store: store._rows.update({(effect.id, decision.credit.id): decision.credit}))
    return decision.answer


def _claims_in_two_steps(effect: ClaimDeliveries) -> Flow[Any]:
    """Read the deliveries that are due in one step, and lease them in another one."""

    def read(store: MemoryStore) -> Any:
        rows = dict(store._rows)
        feed = MemoryFeed(store._lock, rows)
        feed._leases = store.feed._leases
        claimed = feed.claim(effect.consumer, lambda _: b"", now=effect.now, until=effect.until, limit=effect.limit)
        return tuple(claimed), tuple((key, row) for key, row in rows.items() if store._rows.get(key) is not row)

    claimed, changed = yield StoreCall(read)
    yield StoreCall(lambda store: store._rows.update(changed))
    return claimed


def _feed(kind: type[MemoryFeed]) -> Subject:
    def store() -> MemoryStore:
        made = MemoryStore()
        made.feed = kind(made._lock, made._rows)
        return made

    return Subject(store=store)


FAULTS: Final[dict[str, Fault]] = {
    "the store forgets credit ids": Fault("packets", Subject(store=IgnoresEarlierCredits)),
    "the store has no lock": Fault("races", Subject(around=_replacing(UpdatePayment, _without_lock))),
    "the store commits in two steps": Fault("packets", Subject(around=_replacing(UpdatePayment, _in_two_commits))),
    **{
        f"the receiver {name}": Fault(scenario, Subject(receive_packet=RECEIVERS[name]))
        for name, scenario in {
            "fulfils without a credit": "packets",
            "ignores the expiry": "expiry",
            "decides with the arrival time": "expiry",
        }.items()
    },
    "the receiver approves everything": Fault("approvals", Subject(receive_packet=APPROVALS["approves everything"])),
    "receive ignores the expiry": Fault("expiry", Subject(receive=receive_without_expiry)),
    "the store forgets idempotency keys": Fault("creations", Subject(store=ForgetsKeys)),
    "the feed acknowledges at the claim": Fault("feed", _feed(AcknowledgesAtClaim)),
    "the feed gives two leases": Fault("feed", _feed(GivesTwoLeases)),
    "the feed claims in two steps": Fault("feed", Subject(around=_replacing(ClaimDeliveries, _claims_in_two_steps))),
    "the feed lets old holders settle": Fault("feed", _feed(LetsOldHoldersSettle)),
    "the feed loses events of open streams": Fault("feed", _feed(LosesEventsOfOpenStreams)),
    "the feed never ends leases": Fault("feed", _feed(NeverEndsLeases)),
    "the feed opens streams twice": Fault("feed", _feed(OpensStreamsTwice)),
}

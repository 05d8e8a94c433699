"""Receivers that break one promise each, to show that the simulation finds it."""

import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from attrs import evolve

from changed_payments import changed
from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import PaymentNotFound, PaymentRefused, StoreError
from incoming_payments.flows.effects import DrawRandomness, Flow, LoadEvents, LoadPayment, UpdatePayment
from incoming_payments.flows.get import get_payment, get_public_payment
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.receive import receive
from incoming_payments.httpsig import Request
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Reply, encode
from incoming_payments.ilp.receive import Arrival, Receiver, open_packet
from incoming_payments.ilp.stream import NONCE_BYTES
from incoming_payments.limits import UINT64_MAX
from incoming_payments.wire import PaymentView, PublicView

Clock = Callable[[], datetime]
Settle = Callable[[Arrival, Clock], Flow[Reply]]


def receiver(settle: Settle) -> Callable[..., Flow[bytes]]:
    """`receive_packet`, but for what becomes of a packet that has to be settled with the payment."""

    def receive_packet(packet: bytes, *, peer: Peer, receiver: Receiver, clock: Clock) -> Flow[bytes]:
        nonce = yield from DrawRandomness(NONCE_BYTES)
        arrived = open_packet(packet, peer=peer, receiver=receiver, nonce=nonce, now=clock())
        return encode((yield from settle(arrived, clock)) if isinstance(arrived, Arrival) else arrived)

    return receive_packet


def _settling(book: Callable[[Arrival, Clock], Flow[IncomingPayment]]) -> Settle:
    def settle(arrival: Arrival, clock: Clock) -> Flow[Reply]:
        try:
            if arrival.may_be_fulfilled:
                return arrival.fulfilled((yield from book(arrival, clock)), clock())
            return arrival.quoted((yield from LoadPayment(arrival.payment_id)), clock())
        except (PaymentRefused, PaymentNotFound, StoreError) as refusal:
            return arrival.refused(refusal)

    return settle


def _booking(id_of: Callable[[Arrival], str], arrival: Arrival, clock: Clock) -> Flow[IncomingPayment]:
    id = CreditId(id_of(arrival))
    return (yield from UpdatePayment(arrival.payment_id, arrival.decide(id, clock), id))


def _fulfils_first(arrival: Arrival, clock: Clock) -> Flow[IncomingPayment]:
    """Looks whether the payment is open, fulfils, and leaves the credit to somebody who never comes."""
    payment = yield from LoadPayment(arrival.payment_id)
    lifecycle.require_receivable(payment, arrival.amount, clock())
    return payment


def _fulfils_anyway(arrival: Arrival, clock: Clock) -> Flow[IncomingPayment]:
    """Takes a store that has no answer for one that will have done it."""
    try:
        return (yield from _booking(lambda arrival: arrival.credit_id, arrival, clock))
    except StoreError:
        return (yield from LoadPayment(arrival.payment_id))


def _books_twice(arrival: Arrival, clock: Clock) -> Flow[IncomingPayment]:
    """Tries again under another id when the store has trouble."""
    try:
        return (yield from _booking(lambda arrival: arrival.credit_id, arrival, clock))
    except StoreError:
        return (yield from _booking(lambda arrival: f"{arrival.credit_id}:2", arrival, clock))


def _without_expiry(decide: Callable[..., Decision[Any]], answer: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def deciding(payment: IncomingPayment, earlier: Credit | None) -> Decision[Any]:
        decision = decide(changed(payment, expires_at=None, expiry_announced_at=None), earlier)
        if decision.payment is None:
            return decision
        ended = {"expires_at": payment.expires_at, "expiry_announced_at": payment.expiry_announced_at}
        after = changed(decision.payment, **ended)
        return evolve(decision, payment=after, answer=answer(decision.answer, after))

    return deciding


def _never_expires(arrival: Arrival, clock: Clock) -> Flow[IncomingPayment]:
    id = arrival.credit_id
    decide = _without_expiry(arrival.decide(id, clock), lambda _, after: after)
    after: IncomingPayment = yield from UpdatePayment(arrival.payment_id, decide, id)
    return after


def receive_without_expiry(id: PaymentId, *, credit: str, amount: Amount, now: datetime) -> Flow[Credit]:
    """Books what the host has, whenever."""
    decide = partial(lifecycle.credit, id=CreditId(credit), amount=amount, now=now)
    decide_anyway = _without_expiry(decide, lambda credit, _: credit)
    booked: Credit = yield from UpdatePayment(id, decide_anyway, CreditId(credit))
    return booked


def get_that_completes(request: Request, id: PaymentId, policy: ServicePolicy, now: datetime) -> Flow[PaymentView]:
    """Changes what it should only show."""
    yield from UpdatePayment(id, partial(lifecycle.complete, now=now))
    return (yield from get_payment(request, id, policy, now))


def get_with_a_bug(id: PaymentId, policy: ServicePolicy) -> Flow[PublicView]:
    """Ends with what is no error of ours."""
    view = yield from get_public_payment(id, policy)
    return evolve(view, received_amount=Amount(1 // len(policy.base_url[:0]), view.received_amount.asset))


def receive_that_doubles(id: PaymentId, *, credit: str, amount: Amount, now: datetime) -> Flow[Credit]:
    """Books rightly, and tells the host of twice as much."""
    booked = yield from receive(id, credit=credit, amount=amount, now=now)
    twice = Amount(min(2 * booked.amount.value, UINT64_MAX), booked.amount.asset)
    return evolve(booked, amount=twice, received=Amount(UINT64_MAX, twice.asset))


_calls = itertools.count()


def _decides_by_chance(arrival: Arrival, clock: Clock) -> Flow[IncomingPayment]:
    """Makes the time of a credit its own each time it is asked."""
    id = arrival.credit_id

    def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[IncomingPayment]:
        return arrival.decide(id, lambda: clock() + timedelta(microseconds=next(_calls) % 2))(payment, earlier)

    return (yield from UpdatePayment(arrival.payment_id, decide, id))


def _decides_by_its_arrival(arrival: Arrival, clock: Clock) -> Flow[IncomingPayment]:
    """Books what has waited until it was too late."""
    id, now = arrival.credit_id, clock()
    return (yield from UpdatePayment(arrival.payment_id, arrival.decide(id, lambda: now), id))


def _names_no_peer(arrival: Arrival, clock: Clock) -> Flow[IncomingPayment]:
    """Leaves the host to guess who owes the money."""
    id = arrival.credit_id

    def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[IncomingPayment]:
        decision = arrival.decide(id, clock)(payment, earlier)
        return evolve(decision, events=tuple(evolve(event, peer=None) for event in decision.events))

    return (yield from UpdatePayment(arrival.payment_id, decide, id))


def _asks_for_events(arrival: Arrival, _clock: Clock) -> Flow[IncomingPayment]:
    """Needs what no simulation has been told of."""
    yield from LoadEvents(arrival.payment_id)
    return (yield from LoadPayment(arrival.payment_id))


def _books_questions(arrival: Arrival, clock: Clock) -> Flow[Reply]:
    """Books what only asks what would arrive."""
    id = arrival.credit_id
    if arrival.amount.value:
        yield from UpdatePayment(arrival.payment_id, arrival.decide(id, clock), id)
    return arrival.quoted((yield from LoadPayment(arrival.payment_id)), clock())


RECEIVERS: dict[str, Callable[..., Flow[bytes]]] = {
    "fulfils before it credits": receiver(_settling(_fulfils_first)),
    "fulfils although the store failed": receiver(_settling(_fulfils_anyway)),
    "tries again under another id": receiver(_settling(_books_twice)),
    "credit id from the sequence only": receiver(
        _settling(partial(_booking, lambda arrival: f"stream:{arrival.request.sequence}"))
    ),
    "credit id from condition and amount": receiver(
        _settling(partial(_booking, lambda arrival: f"{arrival.credit_id}:{arrival.amount.value}"))
    ),
    "decides by the clock of its arrival": receiver(_settling(_decides_by_its_arrival)),
    "names no peer": receiver(_settling(_names_no_peer)),
    "decides by chance": receiver(_settling(_decides_by_chance)),
    "asks for what it need not": receiver(_settling(_asks_for_events)),
    "books questions": receiver(_books_questions),
    "no expiry check": receiver(_settling(_never_expires)),
}

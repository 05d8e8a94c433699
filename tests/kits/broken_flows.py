"""Flows that each break one promise on purpose, so that tests can prove that the simulation detects it."""

import hashlib
import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from attrs import evolve

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount
from incoming_payments.domain.approval import Approved, Approver
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.listing import PaymentPage
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import (
    ApprovalRequired,
    IncomingPaymentsError,
    PaymentExpired,
    PortUnavailable,
    Refused,
    StoreError,
)
from incoming_payments.flows.create import create_payment
from incoming_payments.flows.get import find_for_client, get_payment, get_public_payment
from incoming_payments.flows.list import list_for_host, list_payments
from incoming_payments.flows.machinery.effects import (
    DrawRandomness,
    Flow,
    InsertPayment,
    LoadEvents,
    LoadPayment,
    RequestApproval,
    UpdatePayment,
)
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import approval_of, receive_packet
from incoming_payments.flows.views import summary_of
from incoming_payments.gnap.access import Action
from incoming_payments.httpsig import RequestMessage
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Reply, encode
from incoming_payments.ilp.receive import Arrival, Receiver, open_packet
from incoming_payments.ilp.stream import NONCE_BYTES
from incoming_payments.limits import UINT64_MAX
from incoming_payments.ports.approval import Approval
from incoming_payments.wire import PageView, PaymentView, PublicView, SummaryView
from kits.changed_payments import changed

Clock = Callable[[], datetime]
Settle = Callable[[Arrival, Clock], Flow[Reply]]
Proof = Approved | IncomingPaymentsError
T = TypeVar("T")


def receiver(settle: Settle) -> Callable[..., Flow[bytes]]:
    """Return a `receive_packet` that uses `settle` for packets whose reply depends on the payment."""

    def receive_packet(packet: bytes, *, peer: Peer, receiver: Receiver, clock: Clock) -> Flow[bytes]:
        nonce = yield from DrawRandomness(NONCE_BYTES)
        arrived = open_packet(packet, peer=peer, receiver=receiver, nonce=nonce, now=clock())
        return encode((yield from settle(arrived, clock)) if isinstance(arrived, Arrival) else arrived)

    return receive_packet


def _settling(credit: Callable[[Arrival, Clock, Proof], Flow[IncomingPayment]]) -> Settle:
    def settle(arrival: Arrival, clock: Clock) -> Flow[Reply]:
        try:
            if arrival.may_be_fulfilled:
                payment = yield from _approved(arrival, partial(credit, arrival, clock))
                return arrival.fulfilled(payment, clock())
            return arrival.quoted((yield from LoadPayment(arrival.payment_id)), clock())
        except (Refused, PortUnavailable, StoreError) as refusal:
            return arrival.refused(refusal)

    return settle


def _approved(arrival: Arrival, credit: Callable[[Proof], Flow[T]]) -> Flow[T]:
    """Credit a packet. Request the approval of the host as the library does."""
    try:
        return (yield from credit(arrival.approved_by(Approver.NO_PORT)))
    except ApprovalRequired as required:
        payment = required.payment
    return (yield from credit((yield from approval_of(arrival, payment))))


def _crediting(id_of: Callable[[Arrival], str], arrival: Arrival, clock: Clock, proof: Proof) -> Flow[IncomingPayment]:
    id = CreditId(id_of(arrival))
    return (yield from UpdatePayment(arrival.payment_id, arrival.decide(id, clock, proof), id))


def _fulfils_without_credit(arrival: Arrival, clock: Clock, _proof: Proof) -> Flow[IncomingPayment]:
    """Fulfil the packet if the payment is open, and never credit it."""
    payment = yield from LoadPayment(arrival.payment_id)
    lifecycle.require_receivable(payment, arrival.amount, clock())
    return payment


def _fulfils_after_store_error(arrival: Arrival, clock: Clock, proof: Proof) -> Flow[IncomingPayment]:
    """Fulfil the packet although the store has raised an error."""
    try:
        return (yield from _crediting(lambda arrival: arrival.credit_id, arrival, clock, proof))
    except StoreError:
        return (yield from LoadPayment(arrival.payment_id))


def _retries_with_another_id(arrival: Arrival, clock: Clock, proof: Proof) -> Flow[IncomingPayment]:
    """Credit the packet again, with another credit id, after a store error."""
    try:
        return (yield from _crediting(lambda arrival: arrival.credit_id, arrival, clock, proof))
    except StoreError:
        return (yield from _crediting(lambda arrival: f"{arrival.credit_id}:2", arrival, clock, proof))


def _without_expiry(decide: Callable[..., Decision[Any]], answer: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def deciding(payment: IncomingPayment, earlier: Credit | None) -> Decision[Any]:
        decision = decide(changed(payment, expires_at=None, expiry_announced_at=None), earlier)
        if decision.payment is None:
            return decision
        ended = {"expires_at": payment.expires_at, "expiry_announced_at": payment.expiry_announced_at}
        after = changed(decision.payment, **ended)
        return evolve(decision, payment=after, answer=answer(decision.answer, after))

    return deciding


def _ignores_expiry(arrival: Arrival, clock: Clock, proof: Proof) -> Flow[IncomingPayment]:
    """Credit a packet after the payment has expired."""
    id = arrival.credit_id
    decide = _without_expiry(arrival.decide(id, clock, proof), lambda _, after: after)
    after: IncomingPayment = yield from UpdatePayment(arrival.payment_id, decide, id)
    return after


def receive_without_expiry(id: PaymentId, *, credit_id: str, amount: Amount, clock: Clock) -> Flow[Credit]:
    """Credit the host's money after the payment has expired."""
    decide = partial(lifecycle.credit, credit_id=CreditId(credit_id), amount=amount, now=clock())
    decide_anyway = _without_expiry(decide, lambda credit, _: credit)
    credited: Credit = yield from UpdatePayment(id, decide_anyway, CreditId(credit_id))
    return credited


def create_without_its_key(
    request: RequestMessage, policy: ServicePolicy, now: datetime, clock: Clock
) -> Flow[PaymentView]:
    """Create another payment for each repeat of a request."""
    return (yield from _changing(create_payment(request, policy, now, clock), keyed=None))


def create_with_another_fingerprint(
    request: RequestMessage, policy: ServicePolicy, now: datetime, clock: Clock
) -> Flow[PaymentView]:
    """Answer a retry as if it were another request."""
    fingerprint = hashlib.sha256(now.isoformat().encode()).hexdigest()
    return (yield from _changing(create_payment(request, policy, now, clock), fingerprint=fingerprint))


def _changing(flow: Flow[PaymentView], **changes: Any) -> Flow[PaymentView]:
    """Run `flow`, but insert its payment without its key, or with a changed record of the key."""
    flow = iter(flow)  # the generator of the flow
    answer: Any = None
    error: Exception | None = None
    try:
        while True:
            effect = flow.send(answer) if error is None else flow.throw(error)
            answer, error = None, None
            if isinstance(effect, InsertPayment) and effect.decision.keyed is not None:
                keyed = None if "keyed" in changes else evolve(effect.decision.keyed, **changes)
                effect = InsertPayment(evolve(effect.decision, keyed=keyed))
            try:
                answer = yield effect
            except Exception as raised:  # noqa: BLE001 - the flow handles it
                error = raised
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # a generator's return type is lost in StopIteration
    finally:
        flow.close()


def create_that_returns_the_latest_state(
    request: RequestMessage, policy: ServicePolicy, now: datetime, clock: Clock
) -> Flow[PaymentView]:
    """Answer a retry with the money that the payment has received since its creation."""
    view = yield from create_payment(request, policy, now, clock)
    payment = yield from LoadPayment(PaymentId(view.id.rpartition("/")[2]))
    return evolve(view, received_amount=payment.received)


def get_that_completes(
    request: RequestMessage, id: PaymentId, policy: ServicePolicy, now: datetime
) -> Flow[PaymentView]:
    """Complete the payment in a read request."""
    yield from UpdatePayment(id, partial(lifecycle.complete, now=now))
    return (yield from get_payment(request, id, policy, now))


def get_with_a_bug(id: PaymentId, policy: ServicePolicy) -> Flow[PublicView]:
    """Raise an error that is not one of the library's."""
    view = yield from get_public_payment(id, policy)
    return evolve(view, received_amount=Amount(1 // len(policy.base_url[:0]), view.received_amount.asset))


def receive_that_doubles(id: PaymentId, *, credit_id: str, amount: Amount, clock: Clock) -> Flow[Credit]:
    """Credit the right amount, and return twice that amount to the host."""
    credited = yield from receive(id, credit_id=credit_id, amount=amount, clock=clock)
    twice = Amount(min(2 * credited.amount.value, UINT64_MAX), credited.amount.asset)
    return evolve(credited, amount=twice, received=Amount(UINT64_MAX, twice.asset))


_calls = itertools.count()


def complete_without_expiry(
    request: RequestMessage, id: PaymentId, policy: ServicePolicy, now: datetime, clock: Clock
) -> Flow[SummaryView]:
    """Complete an expired payment as of its creation."""

    def decide(payment: IncomingPayment, _: Credit | None) -> Decision[IncomingPayment]:
        try:
            return lifecycle.complete(payment, now=clock())
        except PaymentExpired:
            return lifecycle.complete(payment, now=payment.created_at)

    yield from find_for_client(request, id, Action.COMPLETE, policy, now)
    completed = yield from UpdatePayment(id, decide)
    return summary_of(completed, policy.payment_url(id))


def list_the_last_twice(request: RequestMessage, query: str, policy: ServicePolicy, now: datetime) -> Flow[PageView]:
    """Repeat the last payment of the page."""
    view = yield from list_payments(request, query, policy, now)
    return evolve(view, result=[*view.result, *view.result[-1:]])


def list_in_reverse(**filters: Any) -> Flow[PaymentPage]:
    """Return the page upside down."""
    page = yield from list_for_host(**filters)
    return evolve(page, payments=page.payments[::-1])


def _decides_impurely(arrival: Arrival, clock: Clock, proof: Proof) -> Flow[IncomingPayment]:
    """Use another time at each call of the decision."""
    id = arrival.credit_id

    def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[IncomingPayment]:
        return arrival.decide(id, lambda: clock() + timedelta(microseconds=next(_calls) % 2), proof)(payment, earlier)

    return (yield from UpdatePayment(arrival.payment_id, decide, id))


def _decides_with_arrival_time(arrival: Arrival, clock: Clock, proof: Proof) -> Flow[IncomingPayment]:
    """Credit a packet that has expired while it waited for the store."""
    id, now = arrival.credit_id, clock()
    return (yield from UpdatePayment(arrival.payment_id, arrival.decide(id, lambda: now, proof), id))


def _omits_peer(arrival: Arrival, clock: Clock, proof: Proof) -> Flow[IncomingPayment]:
    """Write events that do not name the peer that owes the money."""
    id = arrival.credit_id

    def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[IncomingPayment]:
        decision = arrival.decide(id, clock, proof)(payment, earlier)
        return evolve(decision, events=tuple(evolve(event, peer=None) for event in decision.events))

    return (yield from UpdatePayment(arrival.payment_id, decide, id))


def _uses_unknown_effect(arrival: Arrival, _clock: Clock, _proof: Proof) -> Flow[IncomingPayment]:
    """Yield an effect that the simulation does not support."""
    yield from LoadEvents(arrival.payment_id)
    return (yield from LoadPayment(arrival.payment_id))


def _credits_probes(arrival: Arrival, clock: Clock) -> Flow[Reply]:
    """Credit a packet that its sender made as a probe."""
    if arrival.amount.value:
        yield from _approved(arrival, partial(_crediting, lambda arrival: arrival.credit_id, arrival, clock))
    return arrival.quoted((yield from LoadPayment(arrival.payment_id)), clock())


def _approving(flow: Flow[T]) -> Flow[T]:
    """Run `flow`, but approve everything, whatever the host answers."""
    steps = iter(flow)
    try:
        effect = next(steps)
        while True:
            try:
                given = yield effect
            except Exception as error:  # noqa: BLE001 - the flow handles it
                effect = steps.send(Approval.APPROVED) if isinstance(effect, RequestApproval) else steps.throw(error)
            else:
                effect = steps.send(Approval.APPROVED if isinstance(effect, RequestApproval) else given)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # a generator's return type is lost in StopIteration


def _forges_the_proof(arrival: Arrival, clock: Clock, _proof: Proof) -> Flow[IncomingPayment]:
    """Credit the packet as if the host had approved it."""
    proof = arrival.approved_by(Approver.HOST)
    return (yield from _crediting(lambda arrival: arrival.credit_id, arrival, clock, proof))


def _receive_and_approve(packet: bytes, **arguments: Any) -> Flow[bytes]:
    """Take every answer of the host as an approval."""
    return (yield from _approving(receive_packet(packet, **arguments)))


APPROVALS: dict[str, Callable[..., Flow[bytes]]] = {
    "requests no approval": receiver(_settling(_forges_the_proof)),
    "approves everything": _receive_and_approve,
}


def create_without_approval(
    request: RequestMessage, policy: ServicePolicy, now: datetime, clock: Clock
) -> Flow[PaymentView]:
    """Create the payment although the host did not approve it."""
    return (yield from _approving(create_payment(request, policy, now, clock)))


RECEIVERS: dict[str, Callable[..., Flow[bytes]]] = {
    "fulfils without a credit": receiver(_settling(_fulfils_without_credit)),
    "fulfils after a store error": receiver(_settling(_fulfils_after_store_error)),
    "retries with another credit id": receiver(_settling(_retries_with_another_id)),
    "credit id from the sequence only": receiver(
        _settling(partial(_crediting, lambda arrival: f"stream:{arrival.request.sequence}"))
    ),
    "credit id from condition and amount": receiver(
        _settling(partial(_crediting, lambda arrival: f"{arrival.credit_id}:{arrival.amount.value}"))
    ),
    "decides with the arrival time": receiver(_settling(_decides_with_arrival_time)),
    "omits the peer": receiver(_settling(_omits_peer)),
    "decides impurely": receiver(_settling(_decides_impurely)),
    "uses an unknown effect": receiver(_settling(_uses_unknown_effect)),
    "credits probes": receiver(_credits_probes),
    "ignores the expiry": receiver(_settling(_ignores_expiry)),
}

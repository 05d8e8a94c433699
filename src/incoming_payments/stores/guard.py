"""The checks that every store makes before it writes.

A host may write its own decisions. The guard raises `BrokenDecision` for a decision that contradicts itself or the
stored payment, before the store writes. So a faulty decision cannot lose or double money, or leave a gap in the events.
"""

from datetime import datetime
from typing import Any

from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import HOST, Credit, CreditId, IncomingPayment
from incoming_payments.domain.transitions import is_completed
from incoming_payments.errors import BrokenDecision, ClockBehind, InvalidValue, StoreUnavailable


def check_insert(decision: Decision[IncomingPayment]) -> IncomingPayment:
    """Return the payment that `decision` creates. Raises `BrokenDecision`."""
    payment = _read(decision)
    if payment is None or decision.credit is not None or payment.received.value != 0:
        raise BrokenDecision("a creation must store a payment that has received nothing, and no credit")
    if decision.keyed is not None and decision.keyed.payment != payment.id:
        raise BrokenDecision("the record of the idempotency key must name the payment of the same decision")
    _check_events(decision.events, payment, seen=0)
    return payment


def check_update(
    before: IncomingPayment, credit_id: CreditId | None, earlier: Credit | None, decision: Decision[Any]
) -> IncomingPayment | None:
    """Return the payment that replaces `before`, or `None` when `decision` writes nothing.

    `earlier` is the stored credit with the id `credit_id`, if there is one. Raises `BrokenDecision`.
    """
    after = _read(decision)
    if after is None:
        if decision.events or decision.credit is not None or decision.keyed is not None:
            raise BrokenDecision("a decision that stores no payment cannot store events, a credit or a key")
        return None
    if decision.keyed is not None:
        raise BrokenDecision("only a creation can have an idempotency key")
    if after.terms != before.terms:
        raise BrokenDecision("a decision cannot change the id or the terms of a payment")
    old, new = before.progress, after.progress
    if new.updated_at < old.updated_at:
        raise BrokenDecision("updatedAt must not be before the stored updatedAt")
    if old.closed_at not in (None, new.closed_at) or old.expiry_announced_at not in (None, new.expiry_announced_at):
        raise BrokenDecision(
            "a decision must not change a closed_at or expiry_announced_at that is set: keep the stored value"
        )
    _check_events(decision.events, after, seen=old.version)
    _check_credit(decision, before, after, None if earlier is not None else credit_id)
    return after


def sweep_at(payment: IncomingPayment) -> datetime | None:
    """Return the time after which the sweep must announce the expiry of `payment`, or `None` if it never expires.

    Completed payments do not expire. If the sweep included completed payments, every sweep would find the same payments
    again, and might not reach the others.
    """
    at = payment.expires_at
    if at is None or payment.expiry_announced_at is not None or is_completed(payment):
        return None
    return at


def ended_at(payment: IncomingPayment) -> datetime | None:
    """Return the time at which `payment` was completed, or at which it expired if its `expired` event is written.

    Return `None` if the payment has not ended. The setting for the age of metadata counts from this time.
    """
    if is_completed(payment):
        return payment.updated_at  # nothing changes after the completion
    return None if payment.expiry_announced_at is None else payment.expires_at


def is_unpaid(payment: IncomingPayment) -> bool:
    """Return whether `payment` counts against the quota of its client, unless it has expired meanwhile."""
    is_open = payment.expiry_announced_at is None and not is_completed(payment)
    return is_open and payment.received.value == 0 and payment.client != HOST


def checked_capacity(capacity: int) -> int:
    """Return `capacity`, the number of nonces that a store holds. Raises `InvalidValue` when it is below one."""
    if capacity < 1:
        raise InvalidValue(f"capacity must be at least 1, not {capacity}", member="capacity")
    return capacity


def check_nonce_capacity(held: int, capacity: int) -> None:
    """Raise `StoreUnavailable` when a store that holds `held` nonces cannot hold another nonce."""
    if held >= capacity:
        raise StoreUnavailable(f"the nonce store is full ({capacity}): repeat the call later")


def check_nonce_time(until: datetime, removed_until: datetime | None, now: datetime) -> None:
    """Raise `ClockBehind` when a nonce that is valid until `until` may have been used and removed.

    `removed_until` is the latest `until` of the nonces that the store has removed.
    """
    if removed_until is not None and until <= removed_until:
        raise ClockBehind(
            f"at {now} a nonce cannot be checked, because a process whose clock was ahead has removed the "
            f"nonces of this time: correct the clocks, and the store accepts nonces again after {removed_until}"
        )


def _read(decision: Decision[Any]) -> IncomingPayment | None:
    if not isinstance(decision, Decision):  # a host that uses no type checker may return a wrong type
        raise BrokenDecision(f"decide must return a Decision, not {type(decision).__name__}")
    return decision.payment


def _check_events(events: tuple[Event, ...], after: IncomingPayment, *, seen: int) -> None:
    id, progress = after.terms.id, after.progress
    if not events or progress.version != seen + len(events):
        raise BrokenDecision("every change needs an event, and version must equal the number of events so far")
    for version, event in enumerate(events, start=seen + 1):
        if event.version != version or event.payment_id != id or event.received != progress.received:
            raise BrokenDecision("events must name the payment and its total received, with versions that have no gap")


def _check_credit(
    decision: Decision[Any], before: IncomingPayment, after: IncomingPayment, free: CreditId | None
) -> None:
    """Raise `BrokenDecision` unless `after` and the events fit the credit. Its id must be the unused id `free`."""
    credit, old, new = decision.credit, before.progress, after.progress
    credited = [event.credit_id for event in decision.events if event.kind is EventKind.CREDITED]
    if credited != ([] if credit is None else [credit.id]):
        raise BrokenDecision("a credit must have exactly one credited event, and any other change must have none")
    if credit is None:
        if new.received != old.received:
            raise BrokenDecision("only a credit can change the total received")
        return
    if is_completed(before):
        raise BrokenDecision("a completed payment cannot be credited")
    if credit.completes != is_completed(after):
        raise BrokenDecision("completes must be true exactly when the credit completes the payment")
    if credit.payment_id != after.terms.id or credit.id != free:
        raise BrokenDecision("a credit must have the credit id that was looked up, and that id must be unused")
    total = old.received.value + credit.amount.value
    if new.received.value != total or credit.received != new.received:
        raise BrokenDecision("a credit must raise the total received by its amount")

"""What every store checks before it writes: that a decision agrees with itself and with what is stored.

A decision is a function, perhaps of a host's own. If it is wrong, the books must not be: whatever would
lose or double money, or leave a gap among the events, is refused with `BrokenDecision` before anything is
written.
"""

from datetime import datetime
from typing import Any

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import Decision, State, state_of
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment
from incoming_payments.errors import BrokenDecision


def check_insert(decision: Decision[IncomingPayment]) -> IncomingPayment:
    """The payment that `decision` creates. Raises `BrokenDecision`."""
    payment = _read(decision)
    if payment is None or decision.credit is not None or payment.received.value != 0:
        raise BrokenDecision("a creation stores a payment that has received nothing, and no credit")
    _check_events(decision.events, payment, seen=0)
    return payment


def check_update(
    before: IncomingPayment, credit_id: CreditId | None, earlier: Credit | None, decision: Decision[Any]
) -> IncomingPayment | None:
    """What `before` becomes by `decision`, or `None` when nothing is to be written.

    `earlier` is the credit booked under `credit_id`, if any. Raises `BrokenDecision`.
    """
    after = _read(decision)
    if after is None:
        if decision.events or decision.credit is not None:
            raise BrokenDecision("a decision that stores no payment cannot store events or a credit")
        return None
    if after.terms is not before.terms and after.terms != before.terms:
        raise BrokenDecision("a decision cannot change what a payment was created with, its id least of all")
    old, new = before.progress, after.progress
    if new.updated_at < old.updated_at:
        raise BrokenDecision("updatedAt never goes back")
    if old.closed_at not in (None, new.closed_at) or old.expiry_announced_at not in (None, new.expiry_announced_at):
        raise BrokenDecision("what was closed, or announced as expired, stays so")
    _check_events(decision.events, after, seen=old.version)
    _check_credit(decision, before, after, None if earlier is not None else credit_id)
    return after


def sweep_at(payment: IncomingPayment) -> datetime | None:
    """The moment after which the sweep has to look at `payment`; `None` when it never has to.

    A completed payment does not expire. Were it named to the sweep all the same, it would be named by every
    sweep, and enough of its kind would keep the others from ever being reached.
    """
    at = payment.expires_at
    if at is None or payment.expiry_announced_at is not None or state_of(payment, at) is State.COMPLETED:
        return None
    return at


def _read(decision: Decision[Any]) -> IncomingPayment | None:
    # The annotation is a promise of the caller's type checker, if there is one.
    if not isinstance(decision, Decision):
        raise BrokenDecision(f"a decision answers with a Decision, not with {type(decision).__name__}")
    return decision.payment


def _differ(one: Amount, other: Amount) -> bool:
    # Mostly they are one object, which attrs would compare member by member all the same.
    return one is not other and one != other


def _check_events(events: tuple[Event, ...], after: IncomingPayment, *, seen: int) -> None:
    id, progress = after.terms.id, after.progress
    if not events or progress.version != seen + len(events):
        raise BrokenDecision("whatever is stored gives rise to events, and version counts them")
    for version, event in enumerate(events, start=seen + 1):
        if event.version != version or event.payment_id != id or _differ(event.received, progress.received):
            raise BrokenDecision("events are those of the payment, counted without gaps, with its total")


def _check_credit(
    decision: Decision[Any], before: IncomingPayment, after: IncomingPayment, free: CreditId | None
) -> None:
    """`free` is the credit id that is known not to be booked: only under that one can a credit be stored."""
    credit, old, new = decision.credit, before.progress, after.progress
    told = [event.credit_id for event in decision.events if event.kind is EventKind.CREDITED]
    if told != ([] if credit is None else [credit.id]):
        raise BrokenDecision("a credit gives one event of its own, and nothing else gives one")
    if credit is None:
        if _differ(new.received, old.received):
            raise BrokenDecision("the total received changes by a credit and by nothing else")
        return
    if state_of(before, old.updated_at) is State.COMPLETED:
        raise BrokenDecision("a completed payment takes nothing more")
    if credit.completes != (state_of(after, new.updated_at) is State.COMPLETED):
        raise BrokenDecision("a credit completes when it reaches incomingAmount")
    if credit.payment_id != after.terms.id or credit.id != free:
        raise BrokenDecision("a credit is stored under the credit id that was looked up, and only once")
    total = old.received.value + credit.amount.value
    if new.received.value != total or _differ(credit.received, new.received):
        raise BrokenDecision("a credit raises the total received by its amount")

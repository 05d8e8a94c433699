"""Payments in each state, and the decisions about money for them."""

from datetime import datetime, timedelta
from typing import Final

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount, Asset, Tolerance
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment
from incoming_payments.domain.transitions import State
from incoming_payments.testing import NOW, a_creation

USD: Final = Asset("USD", 2)
EUR: Final = Asset("EUR", 2)
TICK: Final = timedelta(microseconds=1)
EXPIRES_IN_S: Final = 60.0
EXPIRY: Final = NOW + timedelta(seconds=EXPIRES_IN_S)
LATER: Final = EXPIRY + TICK
ID: Final = CreditId("wire-1")
PEER: Final = "test.bank.connector"

COMPLETED: Final = "the payment is completed and accepts no more money: create another payment"
EXPIRED: Final = "the payment has expired and accepts no more money: create another payment"
REUSED: Final = (
    "credit id wire-1 was already used for a credit of 400: pass the same amount to repeat that credit, or a new id to "
    "credit other money"
)


def credit(payment: IncomingPayment, value: int, now: datetime = NOW, *, id: str = "wire-1") -> Decision[Credit]:
    """Return the decision to credit `value` cents to `payment`."""
    return lifecycle.credit(payment, None, credit_id=CreditId(id), amount=Amount(value, USD), now=now)


def credit_packet(
    payment: IncomingPayment,
    value: int,
    now: datetime = NOW,
    *,
    earlier: Credit | None = None,
    asset: Asset = USD,
    tolerance: Tolerance | None = None,
) -> Decision[IncomingPayment]:
    """Return the decision to credit a packet of `value` minor units of `asset` to `payment`."""
    amount = Amount(value, asset)
    tolerance = tolerance or Tolerance()
    return lifecycle.credit_packet(
        payment, earlier, credit_id=ID, amount=amount, now=now, tolerance=tolerance, peer=PEER
    )


def credited(payment: IncomingPayment, value: int, now: datetime = NOW, *, id: str = "wire-1") -> IncomingPayment:
    """Return `payment` with `value` cents more."""
    after = credit(payment, value, now, id=id).payment
    assert after is not None
    return after


def a_payment(state: State, *, limit: int | None = 1000) -> IncomingPayment:
    """Return a payment that expires in a minute and is in `state`. The expired payment is expired from `LATER` on."""
    pending = a_creation(limit=limit, expires_in_s=EXPIRES_IN_S).answer
    if state is State.PROCESSING:
        return credited(pending, 1, id="wire-0")
    if state is State.COMPLETED:
        return lifecycle.complete(pending, now=NOW).answer
    return pending


def now_of(state: State) -> datetime:
    """Return a time at which `a_payment(state)` is in `state`."""
    return LATER if state is State.EXPIRED else NOW


def an_earlier_credit(payment: IncomingPayment) -> Credit:
    """Return a credit of 4.00 to `payment` under `ID`."""
    return Credit(payment.id, ID, Amount(400, USD), Amount(400, USD), completes=False, at=NOW)

"""`domain.lifecycle`: the state of a payment, and the decisions to credit, complete and expire it."""

from datetime import datetime, timedelta
from functools import partial

import pytest

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount, Asset, Tolerance
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import Decision, is_receivable, state_of
from incoming_payments.domain.payment import Credit, IncomingPayment
from incoming_payments.domain.transitions import State
from incoming_payments.errors import (
    AmountOverflow,
    AssetMismatch,
    CreditIdReused,
    IncomingPaymentsError,
    InvalidValue,
    PaymentCompleted,
    PaymentExpired,
)
from incoming_payments.testing import NOW, a_creation
from kits.changed_payments import changed
from kits.frozen_values import assert_frozen
from kits.lifecycle_kit import (
    COMPLETED,
    EUR,
    EXPIRED,
    EXPIRES_IN_S,
    EXPIRY,
    ID,
    LATER,
    REUSED,
    TICK,
    USD,
    a_payment,
    an_earlier_credit,
    credit,
    credited,
    now_of,
)

# --- the state ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("received", "limit", "closed", "announced", "now", "state"),
    [
        pytest.param(0, 10, True, False, NOW, State.COMPLETED, id="closed with nothing received"),
        pytest.param(5, None, True, False, NOW, State.COMPLETED, id="closed without a limit"),
        pytest.param(5, 10, True, False, LATER, State.COMPLETED, id="closed wins over expired"),
        pytest.param(10, 10, False, False, NOW, State.COMPLETED, id="full"),
        pytest.param(11, 10, False, False, NOW, State.COMPLETED, id="more than full"),
        pytest.param(10, 10, False, False, LATER, State.COMPLETED, id="full wins over expired"),
        pytest.param(10, 10, False, True, LATER, State.COMPLETED, id="full wins over announced"),
        pytest.param(9, 10, False, False, LATER, State.EXPIRED, id="expired with something received"),
        pytest.param(0, None, False, False, LATER, State.EXPIRED, id="expired with nothing received"),
        pytest.param(9, 10, False, True, EXPIRY, State.EXPIRED, id="announced, and the clock went backwards"),
        pytest.param(9, 10, False, False, EXPIRY, State.PROCESSING, id="expiresAt itself is still open"),
        pytest.param(1, None, False, False, NOW, State.PROCESSING, id="without a limit"),
        pytest.param(0, 10, False, False, EXPIRY, State.PENDING, id="nothing received at expiresAt"),
        pytest.param(0, None, False, False, NOW, State.PENDING, id="new"),
    ],
)
def test_state_of(received: int, limit: int | None, closed: bool, announced: bool, now: datetime, state: State) -> None:
    """The payment and the time determine the state, in this order."""
    payment = changed(
        a_creation(limit=limit, expires_in_s=EXPIRES_IN_S).answer,
        received=Amount(received, USD),
        closed_at=NOW if closed else None,
        expiry_announced_at=LATER if announced else None,
    )
    assert state_of(payment, now) is state


@pytest.mark.parametrize("received", [0, 1])
def test_payment_without_an_expiry_never_expires(received: int) -> None:
    """A payment without `expiresAt` is open at any time."""
    payment = changed(a_creation().answer, received=Amount(received, USD))
    expected = State.PROCESSING if received else State.PENDING
    assert state_of(payment, datetime.max.replace(tzinfo=NOW.tzinfo)) is expected


@pytest.mark.parametrize(
    ("state", "receivable"),
    [(State.PENDING, True), (State.PROCESSING, True), (State.COMPLETED, False), (State.EXPIRED, False)],
)
def test_is_receivable(state: State, receivable: bool) -> None:
    """A payment is receivable exactly if it takes a credit."""
    assert is_receivable(a_payment(state), now_of(state)) is receivable


# --- credit ------------------------------------------------------------------------------------


def test_credit_below_the_limit() -> None:
    """A credit below `incomingAmount` adds to the total; payment, credit and event agree."""
    payment = a_payment(State.PROCESSING)
    now = NOW + timedelta(seconds=1)
    decision = credit(payment, 400, now)
    total = Amount(401, USD)
    made = Credit(payment.id, ID, Amount(400, USD), total, completes=False, at=now)
    assert decision == Decision(
        made,
        changed(payment, received=total, updated_at=now, version=3),
        (Event(payment.id, 3, EventKind.CREDITED, now, total, ID),),
        made,
    )


@pytest.mark.parametrize("value", [1000, 1001, 2**64 - 1])
def test_spec_3_credit_that_reaches_incoming_amount_completes(value: int) -> None:
    """A total of `incomingAmount` or more completes the payment in the same step. Later credits are refused."""
    payment = a_payment(State.PENDING)
    decision = credit(payment, value)
    total = Amount(value, USD)
    assert decision.answer == Credit(payment.id, ID, total, total, completes=True, at=NOW)
    assert decision.payment == changed(payment, received=total, version=3)
    assert decision.events == (
        Event(payment.id, 2, EventKind.CREDITED, NOW, total, ID),
        Event(payment.id, 3, EventKind.COMPLETED, NOW, total, None),
    )
    assert decision.credit == decision.answer
    assert decision.payment is not None
    with pytest.raises(PaymentCompleted):
        credit(decision.payment, 1, id="wire-2")


def test_spec_3_credit_after_expires_at_is_refused() -> None:
    """A credit at `expiresAt` is taken, and a credit after it is refused, even if no sweep has run."""
    payment = a_payment(State.PENDING)
    assert credit(payment, 1, EXPIRY).answer.received == Amount(1, USD)
    with pytest.raises(PaymentExpired):
        credit(payment, 1, LATER)


def test_credit_without_a_limit_never_completes() -> None:
    """Without `incomingAmount`, no total completes the payment."""
    decision = credit(a_payment(State.PENDING, limit=None), 2**64 - 1)
    assert decision.answer.completes is False
    assert [event.kind for event in decision.events] == [EventKind.CREDITED]


@pytest.mark.parametrize("state", State)
def test_repeated_credit_gets_the_first_answer(state: State) -> None:
    """A repeat with the same amount changes nothing and gets the first answer, in every state."""
    payment = a_payment(state)
    earlier = an_earlier_credit(payment)
    again = lifecycle.credit(payment, earlier, credit_id=ID, amount=Amount(400, USD), now=now_of(state))
    assert again == Decision(earlier)
    assert again.answer is earlier


EARLIER = an_earlier_credit(a_payment(State.PENDING))


@pytest.mark.parametrize(
    ("state", "earlier", "amount", "refusal", "details", "message"),
    [
        (State.COMPLETED, EARLIER, Amount(0, USD), CreditIdReused, {}, REUSED),
        (State.PENDING, EARLIER, Amount(401, USD), CreditIdReused, {}, REUSED),
        (State.PENDING, EARLIER, Amount(400, EUR), CreditIdReused, {}, REUSED),
        (State.COMPLETED, None, Amount(0, EUR), AssetMismatch, {}, "the payment accepts only USD at scale 2"),
        (State.PENDING, None, Amount(1, Asset("USD", 3)), AssetMismatch, {}, "the payment accepts only USD at scale 2"),
        (
            State.COMPLETED,
            None,
            Amount(0, USD),
            InvalidValue,
            {"member": "amount"},
            "a credit must be greater than zero",
        ),
        (State.COMPLETED, None, Amount(2**64 - 1, USD), PaymentCompleted, {}, COMPLETED),
        (State.EXPIRED, None, Amount(2**64 - 1, USD), PaymentExpired, {}, EXPIRED),
        (
            State.PROCESSING,
            None,
            Amount(2**64 - 1, USD),
            AmountOverflow,
            {},
            "the total received would exceed 2**64 - 1: create another payment",
        ),
    ],
)
def test_credit_refused(
    state: State,
    earlier: Credit | None,
    amount: Amount,
    refusal: type[IncomingPaymentsError],
    details: dict[str, object],
    message: str,
) -> None:
    """An impossible credit is refused, in this order of reasons."""
    with pytest.raises(refusal) as caught:
        lifecycle.credit(a_payment(state), earlier, credit_id=ID, amount=amount, now=now_of(state))
    assert type(caught.value) is refusal
    assert str(caught.value) == message
    assert caught.value.details == details


def test_credit_up_to_the_largest_total() -> None:
    """A total of 2**64 - 1 is still taken."""
    payment = credited(a_payment(State.PENDING, limit=None), 1, id="wire-0")
    assert credit(payment, 2**64 - 2).answer.received == Amount(2**64 - 1, USD)


# --- final states ------------------------------------------------------------------------------


def test_require_receivable() -> None:
    """The check passes in open states, and refuses final states and other assets."""
    cent = Amount(0, Asset("USD", 2))
    for state in (State.PENDING, State.PROCESSING):
        lifecycle.require_receivable(a_payment(state), cent, NOW)
    for state, refusal in ((State.COMPLETED, PaymentCompleted), (State.EXPIRED, PaymentExpired)):
        with pytest.raises(refusal):
            lifecycle.require_receivable(a_payment(state), cent, now_of(state))
    for state in State:
        with pytest.raises(AssetMismatch):
            lifecycle.require_receivable(a_payment(state), Amount(0, EUR), now_of(state))


# --- complete ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.PENDING, State.PROCESSING])
def test_complete(state: State) -> None:
    """A client may close its payment before the payment is full."""
    payment, now = a_payment(state), NOW + timedelta(seconds=1)
    decision = lifecycle.complete(payment, now=now)
    closed = changed(payment, closed_at=now, updated_at=now, version=payment.version + 1)
    event = Event(payment.id, closed.version, EventKind.COMPLETED, now, payment.received)
    assert decision == Decision(closed, closed, (event,))
    assert state_of(closed, now) is State.COMPLETED


@pytest.mark.parametrize(
    "payment",
    [
        pytest.param(a_payment(State.COMPLETED), id="closed"),
        pytest.param(credited(a_payment(State.PENDING), 1000), id="full"),
    ],
)
@pytest.mark.parametrize("now", [NOW, LATER])
def test_repeated_complete_changes_nothing(payment: IncomingPayment, now: datetime) -> None:
    """Completing is idempotent, also after `expiresAt`."""
    assert lifecycle.complete(payment, now=now) == Decision(payment)


# --- expire ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.PENDING, State.PROCESSING])
def test_expire(state: State) -> None:
    """The `expired` event is given once. Nothing that a client can see changes, not even `updatedAt`."""
    payment = a_payment(state)
    decision = lifecycle.expire(payment, now=LATER)
    announced = changed(payment, expiry_announced_at=LATER, version=payment.version + 1)
    event = Event(payment.id, announced.version, EventKind.EXPIRED, LATER, payment.received)
    assert decision == Decision(announced, announced, (event,))
    assert announced.updated_at == payment.updated_at
    assert lifecycle.expire(announced, now=LATER + TICK) == Decision(announced)


@pytest.mark.parametrize(
    ("payment", "now"),
    [
        pytest.param(a_creation().answer, LATER, id="no expiry"),
        pytest.param(a_payment(State.PENDING), EXPIRY, id="expiresAt itself"),
        pytest.param(a_payment(State.COMPLETED), LATER, id="closed before"),
        pytest.param(credited(a_payment(State.PENDING), 1000), LATER, id="full before"),
    ],
)
def test_payment_that_has_not_expired_does_not_change(payment: IncomingPayment, now: datetime) -> None:
    """An open payment before its expiry, or a completed payment, gets no `expired` event."""
    assert lifecycle.expire(payment, now=now) == Decision(payment)


def test_expired_payment_stays_expired() -> None:
    """After the `expired` event, a clock that lags behind cannot reopen the payment."""
    expired = lifecycle.expire(a_payment(State.PENDING), now=LATER).answer
    for decide in (partial(credit, expired, 1), partial(lifecycle.complete, expired)):
        with pytest.raises(PaymentExpired):
            decide(now=NOW)
    assert not is_receivable(expired, NOW)


# --- time --------------------------------------------------------------------------------------


def test_updated_at_never_goes_backwards() -> None:
    """A clock that was set back does not move `updatedAt` back, nor the times of credits and events."""
    before = credited(a_payment(State.PENDING), 1, NOW + timedelta(seconds=30))
    past = NOW + timedelta(seconds=10)
    made = credit(before, 1, past, id="wire-2")
    closed = lifecycle.complete(before, now=past)
    for decision in (made, closed):
        assert decision.payment is not None
        assert decision.payment.updated_at == before.updated_at
        assert {event.at for event in decision.events} == {before.updated_at}
    assert made.answer.at == before.updated_at
    assert closed.answer.closed_at == before.updated_at


def test_a_decision_without_a_payment_writes_nothing() -> None:
    """By default, a decision has an answer and stores nothing."""
    assert Decision("answer") == Decision("answer", payment=None, events=(), credit=None)


def test_decisions_are_frozen() -> None:
    """No program changes a decision or a tolerance."""
    assert_frozen(Tolerance(), Decision("answer"))

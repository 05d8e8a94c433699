"""`domain.lifecycle`: the transition table, and that the decisions obey it. Contract section 3."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from itertools import product
from typing import Any

import pytest
from attrs import evolve

from frozen_values import assert_frozen
from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import (
    EXCESSES,
    REFUSALS,
    STAYS,
    TRANSITIONS,
    Decision,
    State,
    Tolerance,
    Trigger,
    is_receivable,
    state_of,
)
from incoming_payments.domain.payment import (
    ClientId,
    Credit,
    CreditId,
    IncomingPayment,
    MetadataJson,
    PaymentId,
)
from incoming_payments.errors import (
    AmountOverflow,
    AmountTooLarge,
    AssetMismatch,
    CreditIdReused,
    IncomingPaymentsError,
    InvalidValue,
    PaymentCompleted,
    PaymentExpired,
    PaymentRefused,
    TermsRefused,
)
from incoming_payments.limits import UINT64_MAX
from incoming_payments.testing import NOW, a_creation, a_wallet_address

USD = Asset("USD", 2)
EUR = Asset("EUR", 2)
TICK = timedelta(microseconds=1)
EXPIRES_IN_S = 60.0
EXPIRY = NOW + timedelta(seconds=EXPIRES_IN_S)
LATER = EXPIRY + TICK
ID = CreditId("wire-1")

COMPLETED = "the payment is completed and takes nothing more: create another one"
PEER = "test.bank.connector"
EXPIRED = "the payment has expired and takes nothing more: create another one"


def credit(payment: IncomingPayment, value: int, now: datetime = NOW, *, id: str = "wire-1") -> Decision[Credit]:
    """Book `value` cents into `payment`."""
    return lifecycle.credit(payment, None, id=CreditId(id), amount=Amount(value, USD), now=now)


def credit_packet(
    payment: IncomingPayment,
    value: int,
    now: datetime = NOW,
    *,
    earlier: Credit | None = None,
    asset: Asset = USD,
    tolerance: Tolerance | None = None,
) -> Decision[IncomingPayment]:
    """Book a packet of `value` minor units of `asset` into `payment`."""
    amount = Amount(value, asset)
    tolerance = tolerance or Tolerance()
    return lifecycle.credit_packet(payment, earlier, id=ID, amount=amount, now=now, tolerance=tolerance, peer=PEER)


def credited(payment: IncomingPayment, value: int, now: datetime = NOW, *, id: str = "wire-1") -> IncomingPayment:
    """`payment` with `value` cents more."""
    after = credit(payment, value, now, id=id).payment
    assert after is not None
    return after


def a_payment(state: State, *, limit: int | None = 1000) -> IncomingPayment:
    """A payment of 10.00 that expires in a minute, and is in `state`: the expired one from `LATER` on."""
    pending = a_creation(limit=limit, expires_in_s=EXPIRES_IN_S).answer
    if state is State.PROCESSING:
        return credited(pending, 1, id="wire-0")
    if state is State.COMPLETED:
        return lifecycle.complete(pending, now=NOW).answer
    return pending


def now_of(state: State) -> datetime:
    """A moment at which `a_payment(state)` is in `state`."""
    return LATER if state is State.EXPIRED else NOW


# --- the table ---------------------------------------------------------------------------------

BELOW = "total below incomingAmount, or no incomingAmount"
REACHED = "total reaches or passes incomingAmount"
FITS = "total reaches incomingAmount, or passes it by the tolerance at most"
TOO_MUCH = "total passes incomingAmount by more than the tolerance, or 2**64 - 1"


def test_the_table_is_the_one_of_the_docstring() -> None:
    """What people read is what runs: each row, when it holds, its next state, its events."""
    rows = [
        (row.state and row.state.name, row.trigger.name, row.next.name, row.condition, [one.name for one in row.events])
        for row in TRANSITIONS
    ]
    assert rows == [
        (None, "CREATE", "PENDING", "the request is allowed", ["CREATED"]),
        ("PENDING", "CREDIT", "PROCESSING", BELOW, ["CREDITED"]),
        ("PENDING", "CREDIT", "COMPLETED", REACHED, ["CREDITED", "COMPLETED"]),
        ("PROCESSING", "CREDIT", "PROCESSING", BELOW, ["CREDITED"]),
        ("PROCESSING", "CREDIT", "COMPLETED", REACHED, ["CREDITED", "COMPLETED"]),
        ("PENDING", "PACKET", "PROCESSING", BELOW, ["CREDITED"]),
        ("PENDING", "PACKET", "COMPLETED", FITS, ["CREDITED", "COMPLETED"]),
        ("PROCESSING", "PACKET", "PROCESSING", BELOW, ["CREDITED"]),
        ("PROCESSING", "PACKET", "COMPLETED", FITS, ["CREDITED", "COMPLETED"]),
        ("PENDING", "COMPLETE", "COMPLETED", "its client closes it", ["COMPLETED"]),
        ("PROCESSING", "COMPLETE", "COMPLETED", "its client closes it", ["COMPLETED"]),
        ("PENDING", "TIME", "EXPIRED", "now is after expiresAt", ["EXPIRED"]),
        ("PROCESSING", "TIME", "EXPIRED", "now is after expiresAt", ["EXPIRED"]),
    ]
    drawn = (lifecycle.__doc__ or "").split("```")[1].split("\n")[2:]
    for row in TRANSITIONS:
        assert any(f"-> {row.next.name}" in line and ", ".join(row.events) in line for line in drawn)


def test_states_and_triggers_are_called_so() -> None:
    """The names in the documentation, its diagram included."""
    assert [state.value for state in State] == ["pending", "processing", "completed", "expired"]
    assert [trigger.value for trigger in Trigger] == ["create", "credit", "packet", "complete", "time"]


def test_every_state_has_an_answer_to_every_trigger() -> None:
    """A trigger leads out of a state, or is refused, or changes nothing: one of the three, and nothing is forgotten."""
    leads = {(row.state, row.trigger) for row in TRANSITIONS if row.state}
    assert sorted([*leads, *REFUSALS, *STAYS], key=str) == sorted(product(State, DECISIONS), key=str)
    for state, trigger in STAYS:
        answer = DECISIONS[trigger](a_payment(state), now_of(state), 1).answer
        assert state_of(answer, now_of(state)) is state


def test_completed_and_expired_are_final() -> None:
    """No row leads out of them. Contract section 3, both rows."""
    assert {row.state for row in TRANSITIONS} == {None, State.PENDING, State.PROCESSING}


def test_each_row_says_when() -> None:
    """Rows with the same state and trigger differ by their condition."""
    assert len({(row.state, row.trigger, row.condition) for row in TRANSITIONS}) == len(TRANSITIONS)
    assert len({(row.state, row.trigger, row.next) for row in TRANSITIONS}) == len(TRANSITIONS)


def decide_credit(payment: IncomingPayment, now: datetime, value: int) -> Decision[Any]:
    return credit(payment, value, now)


def decide_packet(payment: IncomingPayment, now: datetime, value: int) -> Decision[Any]:
    return credit_packet(payment, value, now)


def decide_complete(payment: IncomingPayment, now: datetime, _: int) -> Decision[Any]:
    return lifecycle.complete(payment, now=now)


def decide_expire(payment: IncomingPayment, now: datetime, _: int) -> Decision[Any]:
    return lifecycle.expire(payment, now=now)


DECISIONS: dict[Trigger, Callable[[IncomingPayment, datetime, int], Decision[Any]]] = {
    Trigger.CREDIT: decide_credit,
    Trigger.PACKET: decide_packet,
    Trigger.COMPLETE: decide_complete,
    Trigger.TIME: decide_expire,
}


@pytest.mark.parametrize(
    ("state", "trigger", "value"),
    list(product(State, DECISIONS, [1, 1000, 2000])),
    ids=lambda part: str(getattr(part, "value", part)),
)
def test_every_state_meets_every_trigger(state: State, trigger: Trigger, value: int) -> None:
    """Each decision in each state follows a row, or is refused as the table says, or changes nothing."""
    payment, now = a_payment(state), now_of(state)
    assert state_of(payment, now) is state
    refusal = REFUSALS.get((state, trigger))
    if trigger is Trigger.PACKET and value == 2000 and refusal is None:
        refusal = AmountTooLarge  # by the table of excesses
    if refusal:
        with pytest.raises(refusal):
            DECISIONS[trigger](payment, now, value)
        return
    decision = DECISIONS[trigger](payment, now, value)
    if not decision.events:
        assert decision.payment is None
        assert state is State.COMPLETED or trigger is Trigger.TIME
        return
    assert decision.payment is not None
    before = state_of(payment, NOW) if trigger is Trigger.TIME else state  # the state that time led out of
    after = state_of(decision.payment, now)
    rows = {(row.state, row.trigger, row.next): row.events for row in TRANSITIONS}
    assert tuple(event.kind for event in decision.events) == rows[before, trigger, after]
    assert decision.payment.version == payment.version + len(decision.events)


@pytest.mark.parametrize(
    ("state", "trigger", "refusal", "message"),
    [
        (State.COMPLETED, Trigger.CREDIT, PaymentCompleted, COMPLETED),
        (State.EXPIRED, Trigger.CREDIT, PaymentExpired, EXPIRED),
        (State.COMPLETED, Trigger.PACKET, PaymentCompleted, COMPLETED),
        (State.EXPIRED, Trigger.PACKET, PaymentExpired, EXPIRED),
        (State.EXPIRED, Trigger.COMPLETE, PaymentExpired, EXPIRED),
    ],
)
def test_refusals(state: State, trigger: Trigger, refusal: type[PaymentRefused], message: str) -> None:
    """What a final state refuses, and in which words."""
    assert REFUSALS[state, trigger] is refusal
    with pytest.raises(refusal) as caught:
        DECISIONS[trigger](a_payment(state), now_of(state), 1)
    assert type(caught.value) is refusal
    assert str(caught.value) == message
    assert caught.value.details == {}


def test_there_are_no_other_refusals() -> None:
    """Completing what is completed, and looking again at what is over, is not refused."""
    assert set(REFUSALS) == {
        (State.COMPLETED, Trigger.CREDIT),
        (State.EXPIRED, Trigger.CREDIT),
        (State.COMPLETED, Trigger.PACKET),
        (State.EXPIRED, Trigger.PACKET),
        (State.EXPIRED, Trigger.COMPLETE),
    }


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
        pytest.param(9, 10, False, False, EXPIRY, State.PROCESSING, id="the moment itself still accepts"),
        pytest.param(1, None, False, False, NOW, State.PROCESSING, id="without a limit"),
        pytest.param(0, 10, False, False, EXPIRY, State.PENDING, id="nothing received at the last moment"),
        pytest.param(0, None, False, False, NOW, State.PENDING, id="new"),
    ],
)
def test_state_of(received: int, limit: int | None, closed: bool, announced: bool, now: datetime, state: State) -> None:
    """The state follows from the payment and the time, in this order."""
    payment = evolve(
        a_creation(limit=limit, expires_in_s=EXPIRES_IN_S).answer,
        received=Amount(received, USD),
        closed_at=NOW if closed else None,
        expiry_announced_at=LATER if announced else None,
    )
    assert state_of(payment, now) is state


@pytest.mark.parametrize("received", [0, 1])
def test_without_an_expiry_nothing_expires(received: int) -> None:
    """A payment without `expiresAt` stays open, however late it is."""
    payment = evolve(a_creation().answer, received=Amount(received, USD))
    expected = State.PROCESSING if received else State.PENDING
    assert state_of(payment, datetime.max.replace(tzinfo=NOW.tzinfo)) is expected


@pytest.mark.parametrize(
    ("state", "receivable"),
    [(State.PENDING, True), (State.PROCESSING, True), (State.COMPLETED, False), (State.EXPIRED, False)],
)
def test_is_receivable(state: State, receivable: bool) -> None:
    """A payment is receivable exactly when a credit would be taken."""
    assert is_receivable(a_payment(state), now_of(state)) is receivable


# --- create ------------------------------------------------------------------------------------


def create(
    *,
    limit: Amount | None = None,
    expires_at: datetime | None = None,
    metadata: MetadataJson | None = None,
    expiry_s_max: int = 3600,
) -> Decision[IncomingPayment]:
    return lifecycle.create(
        id=PaymentId("019b76da-a800-7000-8000-000000000000"),
        wallet_address=a_wallet_address(),
        client=ClientId("https://shop.example"),
        limit=limit,
        expires_at=expires_at,
        metadata=metadata,
        now=NOW,
        expiry_s_max=expiry_s_max,
    )


def test_contract_3_newly_created() -> None:
    """A newly created payment has received zero and is not completed; its members are those asked for."""
    decision = create(limit=Amount(1000, USD), expires_at=EXPIRY, metadata=MetadataJson('{"a":1}'))
    payment = decision.answer
    expected = IncomingPayment(
        id=PaymentId("019b76da-a800-7000-8000-000000000000"),
        wallet_address=a_wallet_address().url,
        client=ClientId("https://shop.example"),
        received=Amount(0, USD),
        created_at=NOW,
        updated_at=NOW,
        limit=Amount(1000, USD),
        expires_at=EXPIRY,
        metadata=MetadataJson('{"a":1}'),
        version=1,
    )
    assert payment == expected
    assert state_of(payment, NOW) is State.PENDING
    assert decision == Decision(
        payment, payment, (Event(payment.id, 1, EventKind.CREATED, NOW, Amount(0, USD)),), credit=None
    )


def test_create_without_terms() -> None:
    """All terms may be left out."""
    payment = create().answer
    assert (payment.limit, payment.expires_at, payment.metadata) == (None, None, None)


@pytest.mark.parametrize(
    ("terms", "refusal", "member", "message"),
    [
        pytest.param(
            {"limit": Amount(0, EUR), "expires_at": NOW},
            AssetMismatch,
            "incomingAmount",
            "incomingAmount must be in USD at scale 2, the asset of the wallet address",
            id="another asset code",
        ),
        pytest.param(
            {"limit": Amount(1, Asset("USD", 3))},
            AssetMismatch,
            "incomingAmount",
            "incomingAmount must be in USD at scale 2, the asset of the wallet address",
            id="another asset scale",
        ),
        pytest.param(
            {"limit": Amount(0, USD), "expires_at": NOW},
            TermsRefused,
            "incomingAmount.value",
            "incomingAmount.value must be greater than zero",
            id="nothing to receive",
        ),
        pytest.param(
            {"expires_at": NOW - TICK}, TermsRefused, "expiresAt", "expiresAt must lie in the future", id="in the past"
        ),
        pytest.param({"expires_at": NOW}, TermsRefused, "expiresAt", "expiresAt must lie in the future", id="now"),
        pytest.param(
            {"expires_at": NOW + timedelta(hours=1) + TICK},
            TermsRefused,
            "expiresAt",
            "expiresAt must lie at most 3600 seconds ahead",
            id="too far ahead",
        ),
    ],
)
def test_create_refused(terms: dict[str, Any], refusal: type[IncomingPaymentsError], member: str, message: str) -> None:
    """A payment on such terms cannot be, in this order, naming the member."""
    with pytest.raises(refusal) as caught:
        create(**terms)
    assert type(caught.value) is refusal
    assert str(caught.value) == message
    assert caught.value.details == {"member": member}


@pytest.mark.parametrize("expires_at", [NOW + TICK, NOW + timedelta(hours=1)])
def test_create_takes_expiries_up_to_both_bounds(expires_at: datetime) -> None:
    """The next microsecond is the future, and the furthest moment belongs to the window."""
    assert create(expires_at=expires_at).answer.expires_at == expires_at


def test_create_looks_a_year_ahead_by_default() -> None:
    """Without a policy `expiresAt` lies at most 366 days ahead."""
    assert a_creation(expires_in_s=366 * 86400).answer.expires_at == NOW + timedelta(days=366)
    with pytest.raises(TermsRefused) as caught:
        a_creation(expires_in_s=366 * 86400 + 1)
    assert str(caught.value) == "expiresAt must lie at most 31622400 seconds ahead"


# --- credit ------------------------------------------------------------------------------------


def test_credit_below_the_limit() -> None:
    """Money below `incomingAmount` adds up; the decision holds payment, credit and event, which agree."""
    payment = a_payment(State.PROCESSING)
    now = NOW + timedelta(seconds=1)
    decision = credit(payment, 400, now)
    total = Amount(401, USD)
    booked = Credit(payment.id, ID, Amount(400, USD), total, completes=False, at=now)
    assert decision == Decision(
        booked,
        evolve(payment, received=total, updated_at=now, version=3),
        (Event(payment.id, 3, EventKind.CREDITED, now, total, ID),),
        booked,
    )


@pytest.mark.parametrize("value", [1000, 1001, 2**64 - 1])
def test_contract_3_payment_received_reaches_incoming_amount(value: int) -> None:
    """The total equals or exceeds `incomingAmount`: completed in the same step, and further payments are refused."""
    payment = a_payment(State.PENDING)
    decision = credit(payment, value)
    total = Amount(value, USD)
    assert decision.answer == Credit(payment.id, ID, total, total, completes=True, at=NOW)
    assert decision.payment == evolve(payment, received=total, version=3)
    assert decision.events == (
        Event(payment.id, 2, EventKind.CREDITED, NOW, total, ID),
        Event(payment.id, 3, EventKind.COMPLETED, NOW, total, None),
    )
    assert decision.credit == decision.answer
    assert decision.payment is not None
    with pytest.raises(PaymentCompleted):
        credit(decision.payment, 1, id="wire-2")


def test_contract_3_time_passes_expires_at() -> None:
    """At `expiresAt` a payment is taken, past it it is refused; nobody has to look after it for that."""
    payment = a_payment(State.PENDING)
    assert credit(payment, 1, EXPIRY).answer.received == Amount(1, USD)
    with pytest.raises(PaymentExpired):
        credit(payment, 1, LATER)


def test_contract_3_time_does_not_complete() -> None:
    """Time does not change `completed`."""
    expired = lifecycle.expire(a_payment(State.PROCESSING), now=LATER).answer
    assert state_of(expired, LATER) is State.EXPIRED
    assert expired.closed_at is None


def test_credit_without_a_limit_never_completes() -> None:
    """Without `incomingAmount` there is no total that would be enough."""
    decision = credit(a_payment(State.PENDING, limit=None), 2**64 - 1)
    assert decision.answer.completes is False
    assert [event.kind for event in decision.events] == [EventKind.CREDITED]


@pytest.mark.parametrize("state", State)
def test_credit_again_is_answered_as_the_first_time(state: State) -> None:
    """The same credit id and amount change nothing and get the first answer, whatever the state is by now."""
    earlier = Credit(PaymentId("x"), ID, Amount(400, USD), Amount(400, USD), completes=False, at=NOW)
    again = lifecycle.credit(a_payment(state), earlier, id=ID, amount=Amount(400, USD), now=now_of(state))
    assert again == Decision(earlier)
    assert again.answer is earlier


EARLIER = Credit(PaymentId("x"), ID, Amount(400, USD), Amount(400, USD), completes=False, at=NOW)
REUSED = "credit id wire-1 was booked as 400 before: a new receipt needs a new id"


@pytest.mark.parametrize(
    ("state", "earlier", "amount", "refusal", "details", "message"),
    [
        (State.COMPLETED, EARLIER, Amount(0, USD), CreditIdReused, {}, REUSED),
        (State.PENDING, EARLIER, Amount(401, USD), CreditIdReused, {}, REUSED),
        (State.PENDING, EARLIER, Amount(400, EUR), CreditIdReused, {}, REUSED),
        (State.COMPLETED, None, Amount(0, EUR), AssetMismatch, {}, "the payment takes USD at scale 2 only"),
        (State.PENDING, None, Amount(1, Asset("USD", 3)), AssetMismatch, {}, "the payment takes USD at scale 2 only"),
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
            "the total received would pass 2**64 - 1: create another payment",
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
    """What cannot be booked is refused, in this order."""
    with pytest.raises(refusal) as caught:
        lifecycle.credit(a_payment(state), earlier, id=ID, amount=amount, now=now_of(state))
    assert type(caught.value) is refusal
    assert str(caught.value) == message
    assert caught.value.details == details


def test_credit_up_to_the_last_unit() -> None:
    """The largest total is 2**64 - 1."""
    payment = credited(a_payment(State.PENDING, limit=None), 1, id="wire-0")
    assert credit(payment, 2**64 - 2).answer.received == Amount(2**64 - 1, USD)


# --- packets -----------------------------------------------------------------------------------


def test_packet_is_booked_as_a_credit_is() -> None:
    """What is stored is what a credit stores, with its peer; the answer is the payment as it is then."""
    payment = a_payment(State.PROCESSING)
    as_credit, as_packet = credit(payment, 400), credit_packet(payment, 400)
    events = tuple(evolve(event, peer=PEER) for event in as_credit.events)
    assert as_packet == Decision(as_credit.payment, as_credit.payment, events, as_credit.credit)


def test_only_the_credited_event_names_the_peer() -> None:
    """A packet that completes the payment gives two events, and is brought once."""
    assert [event.peer for event in credit_packet(a_payment(State.PENDING), 1000).events] == [PEER, None]


@pytest.mark.parametrize("state", State)
def test_packet_again_changes_nothing(state: State) -> None:
    """The answer is the payment as it is by now, whatever its state is."""
    payment = a_payment(state)
    earlier = Credit(payment.id, ID, Amount(400, USD), Amount(400, USD), completes=False, at=NOW)
    assert credit_packet(payment, 400, now_of(state), earlier=earlier) == Decision(payment)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(("value", "asset"), [(399, USD), (0, USD), (2**64 - 1, USD), (400, EUR)])
def test_packet_again_with_another_amount(state: State, value: int, asset: Asset) -> None:
    """A copy that says another amount is refused, before anything else is asked."""
    payment = a_payment(state)
    earlier = Credit(payment.id, ID, Amount(400, USD), Amount(400, USD), completes=False, at=NOW)
    with pytest.raises(CreditIdReused) as caught:
        credit_packet(payment, value, now_of(state), earlier=earlier, asset=asset)
    assert str(caught.value) == REUSED


@pytest.mark.parametrize("state", State)
def test_packet_of_nothing_changes_nothing(state: State) -> None:
    """It only moves frames: the answer is the payment as it is, whatever its state is."""
    payment = a_payment(state)
    assert credit_packet(payment, 0, now_of(state)) == Decision(payment)


@pytest.mark.parametrize(
    ("state", "value", "asset", "refusal"),
    [
        (State.COMPLETED, 0, EUR, AssetMismatch),
        (State.COMPLETED, 2**64 - 1, USD, PaymentCompleted),
        (State.EXPIRED, 2**64 - 1, USD, PaymentExpired),
        (State.PENDING, 2**64 - 1, USD, AmountTooLarge),
    ],
)
def test_packet_refused(state: State, value: int, asset: Asset, refusal: type[IncomingPaymentsError]) -> None:
    """What cannot be booked is refused, in this order."""
    with pytest.raises(refusal) as caught:
        credit_packet(a_payment(state), value, now_of(state), asset=asset)
    assert type(caught.value) is refusal


@pytest.mark.parametrize(
    ("limit", "received", "tolerance", "most"),
    [
        pytest.param(1000, 0, None, 1010, id="one percent"),
        pytest.param(1000, 999, None, 11, id="of incomingAmount, not of what remains"),
        pytest.param(99, 0, None, 100, id="one unit"),
        pytest.param(1000, 0, Tolerance(0, 0), 1000, id="none"),
        pytest.param(9999, 0, None, 9999 + 99, id="rounded down"),
        pytest.param(1000, 0, Tolerance(50, 100), 1050, id="units"),
        pytest.param(1000, 0, Tolerance(50, 1000), 1100, id="basis points"),
        pytest.param(2**64 - 2, 0, Tolerance(50, 1000), 2**64 - 1, id="never past 64 bits"),
        pytest.param(2**64 - 2, 5, Tolerance(UINT64_MAX, UINT64_MAX), 2**64 - 6, id="by no tolerance"),
        pytest.param(None, 1, None, 2**64 - 2, id="no incomingAmount"),
        pytest.param(None, 0, Tolerance(50, 100), 2**64 - 1, id="nothing to pass"),
    ],
)
def test_rule_for_too_much(limit: int | None, received: int, tolerance: Tolerance | None, most: int) -> None:
    """A packet may pass `incomingAmount` by the tolerance and no more; what remains is told without it."""
    payment = a_payment(State.PENDING, limit=limit)
    payment = credited(payment, received, id="wire-0") if received else payment
    assert credit_packet(payment, most, tolerance=tolerance).answer.received == Amount(received + most, USD)
    if most < 2**64 - 1:
        with pytest.raises(AmountTooLarge) as caught:
            credit_packet(payment, most + 1, tolerance=tolerance)
        remaining = (2**64 - 1 if limit is None else limit) - received
        assert caught.value.details == {"remaining": remaining}
        assert caught.value.remaining == remaining
        assert str(caught.value) == "the packet brings more than the payment can still take: send less"


def test_without_a_limit_there_is_nothing_to_pass() -> None:
    """No tolerance makes more of 64 bits."""
    assert Tolerance(50, 100).excess_max(None) == 0


@pytest.mark.parametrize("member", ["units", "basis_points"])
@pytest.mark.parametrize("value", [-1, 2**64, True, 1.0, None])
def test_tolerance_is_a_count(member: str, value: object) -> None:
    """Units and basis points are integers of 64 bits."""
    with pytest.raises(InvalidValue) as caught:
        Tolerance(**{member: value})  # type: ignore[arg-type] # on purpose
    assert caught.value.details == {"member": member}
    assert str(caught.value) == f"{member} must be an integer from 0 to 18446744073709551615"


def test_excesses_are_what_is_refused() -> None:
    """The table of excesses says what a state that takes money does not take, and that is so."""
    expected: list[tuple[State, Trigger, str, type[PaymentRefused]]] = [
        (State.PROCESSING, Trigger.CREDIT, "total passes 2**64 - 1", AmountOverflow),
        (State.PENDING, Trigger.PACKET, TOO_MUCH, AmountTooLarge),
        (State.PROCESSING, Trigger.PACKET, TOO_MUCH, AmountTooLarge),
    ]
    assert expected == [(row.state, row.trigger, row.condition, row.refusal) for row in EXCESSES]
    for row in EXCESSES:
        with pytest.raises(row.refusal):
            DECISIONS[row.trigger](a_payment(row.state), NOW, UINT64_MAX)


def test_require_open() -> None:
    """It says of any packet what the table says, and of the asset what a credit would say."""
    for state in (State.PENDING, State.PROCESSING):
        lifecycle.require_open(a_payment(state), NOW)
    for state, refusal in ((State.COMPLETED, PaymentCompleted), (State.EXPIRED, PaymentExpired)):
        with pytest.raises(refusal):
            lifecycle.require_open(a_payment(state), now_of(state))
    lifecycle.require_asset(a_payment(State.PENDING), Amount(0, Asset("USD", 2)))
    with pytest.raises(AssetMismatch):
        lifecycle.require_asset(a_payment(State.PENDING), Amount(0, EUR))


# --- complete ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.PENDING, State.PROCESSING])
def test_complete(state: State) -> None:
    """A client may close its payment before it is full."""
    payment, now = a_payment(state), NOW + timedelta(seconds=1)
    decision = lifecycle.complete(payment, now=now)
    closed = evolve(payment, closed_at=now, updated_at=now, version=payment.version + 1)
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
def test_complete_again_returns_it(payment: IncomingPayment, now: datetime) -> None:
    """Completing is idempotent, also when the time is over by now."""
    assert lifecycle.complete(payment, now=now) == Decision(payment)


# --- expire ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.PENDING, State.PROCESSING])
def test_expire(state: State) -> None:
    """The event is given once; nothing that a client can see changes, `updatedAt` neither."""
    payment = a_payment(state)
    decision = lifecycle.expire(payment, now=LATER)
    noted = evolve(payment, expiry_announced_at=LATER, version=payment.version + 1)
    event = Event(payment.id, noted.version, EventKind.EXPIRED, LATER, payment.received)
    assert decision == Decision(noted, noted, (event,))
    assert noted.updated_at == payment.updated_at
    assert lifecycle.expire(noted, now=LATER + TICK) == Decision(noted)


@pytest.mark.parametrize(
    ("payment", "now"),
    [
        pytest.param(a_creation().answer, LATER, id="no expiry"),
        pytest.param(a_payment(State.PENDING), EXPIRY, id="the moment itself"),
        pytest.param(a_payment(State.COMPLETED), LATER, id="closed before"),
        pytest.param(credited(a_payment(State.PENDING), 1000), LATER, id="full before"),
    ],
)
def test_what_has_not_expired_is_returned_as_it_is(payment: IncomingPayment, now: datetime) -> None:
    """A payment that has time left, or that was completed, gets neither the event nor the note."""
    assert lifecycle.expire(payment, now=now) == Decision(payment)


def test_expired_is_for_good() -> None:
    """After the `expired` event nothing is taken, by no clock: one that lags behind cannot reopen the payment."""
    expired = lifecycle.expire(a_payment(State.PENDING), now=LATER).answer
    for decide in (partial(credit, expired, 1), partial(lifecycle.complete, expired)):
        with pytest.raises(PaymentExpired):
            decide(now=NOW)
    assert not is_receivable(expired, NOW)


# --- time --------------------------------------------------------------------------------------


def test_updated_at_never_goes_backwards() -> None:
    """A clock that was set back moves neither `updatedAt` nor the moments of credits and events before the last."""
    before = credited(a_payment(State.PENDING), 1, NOW + timedelta(seconds=30))
    past = NOW + timedelta(seconds=10)
    booked = credit(before, 1, past, id="wire-2")
    closed = lifecycle.complete(before, now=past)
    for decision in (booked, closed):
        assert decision.payment is not None
        assert decision.payment.updated_at == before.updated_at
        assert {event.at for event in decision.events} == {before.updated_at}
    assert booked.answer.at == before.updated_at
    assert closed.answer.closed_at == before.updated_at


def test_a_decision_without_a_payment_writes_nothing() -> None:
    """The default of a decision is to answer and store nothing."""
    assert Decision("answer") == Decision("answer", payment=None, events=(), credit=None)


def test_tables_and_decisions_are_frozen() -> None:
    """Nobody changes a row of a table, a tolerance, or what was decided."""
    assert_frozen(*TRANSITIONS, *EXCESSES, Tolerance(), Decision("answer"))

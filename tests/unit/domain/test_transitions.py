"""`domain.transitions`: the table is complete, and each decision has the outcome of the row that decides."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import product
from typing import Any

import pytest
from attrs import frozen

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount, Tolerance
from incoming_payments.domain.lifecycle import Decision, state_of
from incoming_payments.domain.payment import IncomingPayment
from incoming_payments.domain.transitions import (
    ANY,
    COMPLETE,
    CREDIT,
    OPEN,
    PACKET,
    QUOTE,
    REPEAT,
    TABLE,
    TIME,
    UNCHANGED,
    Creation,
    Move,
    Refuse,
    Row,
    State,
    Trigger,
    always,
    by_state,
    follow,
    total_is_below_limit,
    total_reaches_limit,
)
from incoming_payments.limits import UINT64_MAX
from incoming_payments.testing import NOW, a_creation, a_wallet_address
from kits.frozen_values import assert_frozen
from kits.lifecycle_kit import EUR, EXPIRY, ID, LATER, PEER, TICK, USD, a_payment, an_earlier_credit, now_of

AnyRow = Row[Any, Any, Any]
TOLERANCE = Tolerance()
AMOUNTS = [Amount(value, USD) for value in (0, 1, 400, 1000, 1010, 1011, UINT64_MAX)] + [Amount(0, EUR), Amount(1, EUR)]


@frozen
class Case:
    """A decision about a payment in `state`, and the arguments for the conditions of its `rows`."""

    state: State
    now: datetime
    payment: IncomingPayment
    rows: Mapping[State, tuple[AnyRow, ...]]
    arguments: tuple[Any, Any, Any]
    decide: Callable[[], Decision[Any] | None]

    @property
    def row(self) -> AnyRow:
        """The first row with a condition that holds."""
        return next(row for row in self.rows[self.state] if row.condition(*self.arguments))


def _money_cases(state: State, amount: Amount) -> Iterator[Case]:
    """Yield the cases of `amount` for a payment in `state`."""
    payment, now = a_payment(state), now_of(state)
    earlier = an_earlier_credit(payment)
    packet: dict[str, Any] = {"credit_id": ID, "amount": amount, "now": now, "tolerance": TOLERANCE, "peer": PEER}
    yield Case(
        state, now, payment, by_state(CREDIT), (payment, amount, None),
        lambda: lifecycle.credit(payment, None, credit_id=ID, amount=amount, now=now),
    )  # fmt: skip
    yield Case(
        state, now, payment, by_state(PACKET), (payment, amount, TOLERANCE),
        lambda: lifecycle.credit_packet(payment, None, **packet),
    )  # fmt: skip
    yield Case(
        state, now, payment, by_state(REPEAT), (earlier, amount, None),
        lambda: lifecycle.credit(payment, earlier, credit_id=ID, amount=amount, now=now),
    )  # fmt: skip
    yield Case(
        state, now, payment, by_state(REPEAT), (earlier, amount, None),
        lambda: lifecycle.credit_packet(payment, earlier, **packet),
    )  # fmt: skip
    yield Case(
        state, now, payment, by_state(QUOTE), (payment, amount, None),
        lambda: lifecycle.require_receivable(payment, amount, now),
    )  # fmt: skip


def _closing_cases(state: State) -> Iterator[Case]:
    """Yield the cases of the triggers that carry no money."""
    payment, now = a_payment(state), now_of(state)
    yield Case(
        state, now, payment, by_state(COMPLETE), (payment, None, None),
        lambda: lifecycle.complete(payment, now=now),
    )  # fmt: skip
    if state is State.EXPIRED:
        payment = lifecycle.expire(payment, now=LATER).answer
    for time in (NOW, EXPIRY, LATER):
        yield Case(
            state, time, payment, by_state(TIME), (payment, time, None),
            lambda time=time: lifecycle.expire(payment, now=time),  # type: ignore[misc] # mypy: no type for a default
        )  # fmt: skip


CASES = [
    *(case for state, amount in product(State, AMOUNTS) for case in _money_cases(state, amount)),
    *(case for state in State for case in _closing_cases(state)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row.trigger} {case.state} {case.arguments[1]}")
def test_decision_has_the_outcome_of_its_row(case: Case) -> None:
    """A decision refuses, changes nothing, or leads to the state and the events of the row that decides."""
    outcome = case.row.outcome
    if isinstance(outcome, Refuse):
        with pytest.raises(outcome.error) as caught:
            case.decide()
        assert type(caught.value) is outcome.error
        return
    decision = case.decide() or Decision(None)
    assert tuple(event.kind for event in decision.events) == outcome.events
    if outcome is UNCHANGED:
        assert decision.payment is None
        return
    assert decision.payment is not None
    assert state_of(decision.payment, case.now) is outcome.next
    assert decision.payment.version == case.payment.version + len(outcome.events)


def by_trigger(trigger: Trigger) -> list[AnyRow]:
    """Return the rows of `trigger`."""
    return [row for row in TABLE if row.trigger is trigger]


def test_creation_has_the_outcome_of_its_last_row() -> None:
    """A creation that no row refuses leads to the state and the events of the last row."""
    created = a_creation(limit=1, expires_in_s=60)
    outcome = by_trigger(Trigger.CREATE)[-1].outcome
    assert isinstance(outcome, Move)
    assert tuple(event.kind for event in created.events) == outcome.events
    assert state_of(created.answer, NOW) is outcome.next


@pytest.mark.parametrize(
    ("wanted", "condition"),
    [
        (Creation(Amount(0, EUR), NOW, NOW), "limit_has_other_asset"),
        (Creation(Amount(0, USD), NOW, NOW), "limit_is_zero"),
        (Creation(Amount(1, USD), NOW, NOW), "expiry_is_not_ahead"),
        (Creation(Amount(1, USD), LATER, NOW), "expiry_is_too_far_ahead"),
        (Creation(Amount(1, USD), LATER - TICK, NOW), "always"),
    ],
)
def test_rows_of_a_creation_decide_in_their_order(wanted: Creation, condition: str) -> None:
    """Each row of a creation decides about some terms, here with expiries up to 60 seconds ahead."""
    row = next(row for row in by_trigger(Trigger.CREATE) if row.condition(a_wallet_address(), wanted, 60))
    assert row.condition.__name__ == condition
    if isinstance(row.outcome, Refuse):
        assert type(row.outcome.make(a_wallet_address(), wanted, 60)) is row.outcome.error


@pytest.mark.parametrize("limit", [None, 1000])
@pytest.mark.parametrize("value", [1, 998, 999, 1000, 1001])
def test_a_total_is_either_below_the_limit_or_reaches_it(limit: int | None, value: int) -> None:
    """Exactly one of the two conditions holds, so their rows could stand in either order. The payment has 1 already."""
    payment, amount = a_payment(State.PROCESSING, limit=limit), Amount(value, USD)
    reaches = limit is not None and 1 + value >= limit
    assert total_reaches_limit(payment, amount, None) is reaches
    assert total_is_below_limit(payment, amount, None) is not reaches


def test_every_row_decides_in_each_of_its_states() -> None:
    """The table has no row that never decides. The rows of a creation have a test of their own."""
    listed = {(state, id(row)) for row in TABLE for state in row.states}
    assert listed == {(case.state, id(case.row)) for case in CASES}


def test_every_state_has_rows_for_every_trigger() -> None:
    """No trigger is forgotten in any state."""
    found = {(state, row.trigger) for row in TABLE for state in row.states}
    assert found == set(product(State, set(Trigger) - {Trigger.CREATE}))
    assert {row.states for row in TABLE if row.trigger is Trigger.CREATE} == {()}


def test_states_and_triggers_have_stable_names() -> None:
    """The documentation uses these names."""
    assert [state.value for state in State] == ["pending", "processing", "completed", "expired"]
    assert [trigger.value for trigger in Trigger] == [
        "create", "credit", "packet", "repeat", "quote", "complete", "time",
    ]  # fmt: skip


def test_completed_and_expired_are_final() -> None:
    """No row leads out of COMPLETED or EXPIRED. Spec section 3, both rows."""
    changing = [row for row in TABLE if isinstance(row.outcome, Move) and row.outcome is not UNCHANGED]
    assert {state for row in changing for state in row.states} == set(OPEN)
    assert {state for row in TABLE for state in row.states} == set(ANY)


def test_credits_and_packets_are_refused_in_the_same_final_states() -> None:
    """A packet is refused in each state in which a credit is refused, with the same error."""
    refusals = {
        trigger: {
            (row.states, row.outcome.error)
            for row in by_trigger(trigger)
            if row.condition is always and isinstance(row.outcome, Refuse)
        }
        for trigger in (Trigger.CREDIT, Trigger.PACKET, Trigger.QUOTE)
    }
    assert refusals[Trigger.CREDIT] == refusals[Trigger.PACKET] == refusals[Trigger.QUOTE]
    assert len(refusals[Trigger.CREDIT]) == 2


def test_conditions_have_docstrings_for_the_documentation() -> None:
    """The documentation takes the words of each condition from the docstring of its function."""
    for row in TABLE:
        first = (row.condition.__doc__ or "").partition("\n")[0]
        assert row.condition is always or re.fullmatch(r"Return whether .+\.", first)


def test_a_missing_row_is_an_error() -> None:
    """If no condition holds, the table is broken, and the decision fails instead of guessing."""
    never: AnyRow = Row(ANY, Trigger.TIME, lambda *_: False, UNCHANGED)
    with pytest.raises(AssertionError, match=r"^the table has no row for this state, trigger and facts$"):
        follow((never,), None, None, None)


def test_rows_are_frozen() -> None:
    """No program changes the table while it runs."""
    assert_frozen(*TABLE, *(row.outcome for row in TABLE))

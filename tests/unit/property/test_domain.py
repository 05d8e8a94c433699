"""Properties of the domain, for generated values and generated histories of a payment."""

from datetime import datetime, timedelta
from urllib.parse import urlsplit

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import Decision, is_receivable, state_of
from incoming_payments.domain.payment import (
    Credit,
    CreditId,
    IncomingPayment,
    new_payment_id,
    payment_id,
    wallet_address_url,
)
from incoming_payments.domain.transitions import TABLE, Move, State, Trigger
from incoming_payments.domain.urls import canonical_url
from incoming_payments.errors import (
    AmountOverflow,
    AssetMismatch,
    CreditIdReused,
    InvalidValue,
    PaymentCompleted,
    PaymentExpired,
)
from incoming_payments.testing import NOW, a_creation

USD = Asset("USD", 2)
UINT64_MAX = 2**64 - 1

# --- values --------------------------------------------------------------------------------------

url_texts = st.text(st.sampled_from("aA.:/@?#%2eE[]\\1\u00e9 -_~"), max_size=24) | st.text(max_size=24)


@given(st.sampled_from(["http://", "HTTPS://", "https://[::1]", ""]), url_texts)
def test_canonical_url_is_stable(scheme: str, rest: str) -> None:
    """A canonical URL is its own canonical spelling. Any other text is refused, and the error names the member."""
    member = "m"
    try:
        canonical = canonical_url(scheme + rest, member="m")
    except InvalidValue as error:
        canonical, member = "", str(error.details["member"])
    assert member == "m"
    if not canonical:
        return
    assert canonical_url(canonical, member="m") == canonical
    assert len(canonical) <= len(scheme + rest)
    assert "@" not in urlsplit(canonical).netloc


@given(
    st.from_regex(r"[a-z0-9]{1,9}(\.[a-z0-9]{1,9}){0,2}", fullmatch=True),
    st.from_regex(r"(/[A-Za-z0-9_~-]{1,9}){0,3}", fullmatch=True),
    st.booleans(),
    st.sampled_from(["", ":443", ":0443", ":"]),
    st.integers(0, 3),
)
def test_spellings_of_one_wallet_address_are_equal(host: str, path: str, upper: bool, port: str, slashes: int) -> None:
    """The case of scheme and host, the default port and trailing slashes make no difference."""
    spelling = f"{'HTTPS' if upper else 'https'}://{host.upper() if upper else host}{port}{path}{'/' * slashes}"
    assert wallet_address_url(spelling) == f"https://{host}{path}"


@given(
    st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9999, 12, 31)),  # noqa: DTZ001 - made UTC below
    st.binary(min_size=10, max_size=10),
    st.binary(min_size=10, max_size=10),
)
def test_payment_ids_differ_with_their_random_bits(naive: datetime, one: bytes, other: bytes) -> None:
    """Ids of the same time are equal exactly if their 74 random bits are equal."""
    now = naive.replace(tzinfo=NOW.tzinfo)
    id = new_payment_id(now, one)
    assert payment_id(id) == id
    same = int.from_bytes(one) % 2**74 == int.from_bytes(other) % 2**74
    assert (new_payment_id(now, other) == id) is same


@given(st.integers(0, UINT64_MAX), st.integers(1, UINT64_MAX), st.none() | st.integers(1, UINT64_MAX))
def test_credit_arithmetic(received: int, value: int, limit: int | None) -> None:
    """The new total is the exact sum or is refused. It completes the payment exactly if it reaches the limit."""
    assume(limit is None or received < limit)
    payment = a_creation(limit=limit).answer
    if received:
        first = lifecycle.credit(payment, None, credit_id=CreditId("first"), amount=Amount(received, USD), now=NOW)
        assert first.payment is not None
        payment = first.payment
    try:
        made = lifecycle.credit(payment, None, credit_id=CreditId("x"), amount=Amount(value, USD), now=NOW).answer
    except AmountOverflow:
        assert received + value > UINT64_MAX
        return
    assert made.received.value == received + value
    assert made.completes is (limit is not None and received + value >= limit)


# --- histories -------------------------------------------------------------------------------------

MOVES = {
    (state, row.trigger, row.outcome.next): row.outcome.events
    for row in TABLE
    for state in row.states
    if isinstance(row.outcome, Move)
}


class PaymentHistory(RuleBasedStateMachine):
    """Decisions about one payment, in any order, with a clock that jumps."""

    payment: IncomingPayment

    @initialize(limit=st.none() | st.integers(1, 30) | st.just(UINT64_MAX), expires_in_s=st.none() | st.integers(1, 20))
    def create(self, limit: int | None, expires_in_s: int | None) -> None:
        created = a_creation(limit=limit, expires_in_s=expires_in_s)
        self.now = NOW
        self.payment = created.answer
        self.events: list[Event] = list(created.events)
        self.credits: dict[CreditId, Credit] = {}

    @rule(seconds=st.integers(-5, 8) | st.sampled_from([-1e-6, 1e-6]))
    def time_passes(self, seconds: float) -> None:
        """Move the clock. It moves back too, because clocks are corrected and machines disagree."""
        self.now += timedelta(seconds=seconds)

    @rule(
        id=st.sampled_from("abcdef").map(CreditId),
        value=st.integers(0, 12) | st.just(UINT64_MAX),
        asset=st.sampled_from([USD, USD, USD, Asset("EUR", 2)]),
    )
    def credit(self, id: CreditId, value: int, asset: Asset) -> None:
        amount, earlier = Amount(value, asset), self.credits.get(id)
        receivable = is_receivable(self.payment, self.now)
        if refusal := self.expected_refusal(earlier, amount):
            with pytest.raises(refusal) as caught:
                lifecycle.credit(self.payment, earlier, credit_id=id, amount=amount, now=self.now)
            assert type(caught.value) is refusal
            return
        decision = lifecycle.credit(self.payment, earlier, credit_id=id, amount=amount, now=self.now)
        if earlier is not None:
            assert decision == Decision(earlier)
            return
        assert receivable
        assert decision.credit is decision.answer
        self.credits[id] = decision.answer
        self.step(Trigger.CREDIT, decision.payment, decision.events)

    def expected_refusal(self, earlier: Credit | None, amount: Amount) -> type[Exception] | None:
        """Return the error of the first rule that `amount` breaks now."""
        if earlier is not None:
            return None if earlier.amount == amount else CreditIdReused
        state = state_of(self.payment, self.now)
        rules: list[tuple[bool, type[Exception]]] = [
            (amount.asset != USD, AssetMismatch),
            (amount.value == 0, InvalidValue),
            (state is State.COMPLETED, PaymentCompleted),
            (state is State.EXPIRED, PaymentExpired),
            (self.payment.received.value + amount.value > UINT64_MAX, AmountOverflow),
        ]
        return next((refusal for broken, refusal in rules if broken), None)

    @rule()
    def complete(self) -> None:
        before = state_of(self.payment, self.now)
        try:
            decision = lifecycle.complete(self.payment, now=self.now)
        except PaymentExpired:
            assert before is State.EXPIRED
            return
        assert before is not State.EXPIRED
        assert state_of(decision.answer, self.now) is State.COMPLETED
        if before is not State.COMPLETED:
            self.step(Trigger.COMPLETE, decision.payment, decision.events)
        assert decision.answer == self.payment

    @rule()
    def sweep(self) -> None:
        decision = lifecycle.expire(self.payment, now=self.now)
        if decision.payment is not None:
            assert state_of(self.payment, self.now) is State.EXPIRED
            assert decision.payment.updated_at == self.payment.updated_at
            self.step(Trigger.TIME, decision.payment, decision.events)
        assert decision.answer == self.payment

    def step(self, trigger: Trigger, after: IncomingPayment | None, events: tuple[Event, ...]) -> None:
        """Check that a decision follows a row of the table and gives the events of that row."""
        assert after is not None
        before = State.PROCESSING if self.payment.received.value else State.PENDING
        if trigger is not Trigger.TIME:
            assert state_of(self.payment, self.now) is before
        assert tuple(event.kind for event in events) == MOVES[before, trigger, state_of(after, self.now)]
        assert after.updated_at >= self.payment.updated_at
        assert all(event.received == after.received for event in events)
        assert all(event.at >= self.events[-1].at for event in events)
        self.payment = after
        self.events += events

    @invariant()
    def the_total_is_the_sum_of_the_credits(self) -> None:
        assert self.payment.received == Amount(sum(credit.amount.value for credit in self.credits.values()), USD)
        assert (
            max((credit.received.value for credit in self.credits.values()), default=0) == self.payment.received.value
        )

    @invariant()
    def events_have_no_gap(self) -> None:
        assert [event.version for event in self.events] == list(range(1, self.payment.version + 1))
        assert {event.payment_id for event in self.events} == {self.payment.id}
        credited = [event.credit_id for event in self.events if event.kind is EventKind.CREDITED]
        assert credited == list(self.credits)

    @invariant()
    def no_event_follows_a_final_event(self) -> None:
        kinds = [event.kind for event in self.events]
        assert kinds[0] is EventKind.CREATED
        assert not {EventKind.COMPLETED, EventKind.EXPIRED} & set(kinds[:-1])
        assert kinds.count(EventKind.CREATED) == 1

    @invariant()
    def final_states_last_whatever_the_clock_says(self) -> None:
        last = {EventKind.COMPLETED: State.COMPLETED, EventKind.EXPIRED: State.EXPIRED}.get(self.events[-1].kind)
        if last is not None:
            for days in (-1, 0, 1):
                assert state_of(self.payment, self.now + timedelta(days=days)) is last
        assert (state_of(self.payment, NOW) is State.COMPLETED) is (last is State.COMPLETED)

    @precondition(lambda self: self.payment.limit is not None)
    @invariant()
    def a_full_payment_is_completed(self) -> None:
        limit = self.payment.limit
        assert limit is not None
        if self.payment.received.value >= limit.value:
            assert self.events[-1].kind is EventKind.COMPLETED


TestPaymentHistory = PaymentHistory.TestCase

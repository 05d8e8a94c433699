"""The model of a store, and a machine that plays random histories against a store and the model. Needs Hypothesis."""

# ruff: noqa: S101 - a test suite asserts
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, initialize, invariant, multiple, rule

from incoming_payments.domain import lifecycle
from incoming_payments.domain.events import Event
from incoming_payments.domain.lifecycle import Decision, State, state_of
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import IncomingPaymentsError, PaymentExists, PaymentNotFound
from incoming_payments.limits import UINT64_MAX
from incoming_payments.ports import Decide, PaymentStore
from incoming_payments.testing.clock import FakeClock
from incoming_payments.testing.values import a_creation, crediting

T = TypeVar("T")

# Few of each, so that histories meet the same payment and the same credit id again and again.
_IDS: Final = [PaymentId(f"019b7a0c-1000-7000-8000-00000000000{digit}") for digit in range(6)]
_ids = st.sampled_from(_IDS)
_credit_ids = st.sampled_from([CreditId(text) for text in ("a", "A", "'; --")])
_values = st.sampled_from([1, 2, 3, 500, 2**63, UINT64_MAX])


class Model:
    """A store as plain as can be: dictionaries, the domain's decisions, and no thread, file or cleverness."""

    def __init__(self) -> None:
        self.payments: dict[PaymentId, IncomingPayment] = {}
        self.credits: dict[PaymentId, dict[CreditId, Credit]] = {}
        self.history: dict[PaymentId, list[Event]] = {}

    def insert(self, decision: Decision[IncomingPayment]) -> None:
        """As the port's."""
        payment = decision.answer
        if payment.id in self.payments:
            raise PaymentExists(payment.id)
        self.payments[payment.id] = payment
        self.credits[payment.id] = {}
        self.history[payment.id] = list(decision.events)

    def load(self, id: PaymentId) -> IncomingPayment:
        """As the port's."""
        if id not in self.payments:
            raise PaymentNotFound(id)
        return self.payments[id]

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """As the port's."""
        payment = self.load(id)
        decision = decide(payment, None if credit_id is None else self.credits[id].get(credit_id))
        if decision.payment is not None:
            self.payments[id] = decision.payment
            self.history[id] += decision.events
        if decision.credit is not None:
            self.credits[id][decision.credit.id] = decision.credit
        return decision.answer

    def events(self, id: PaymentId) -> list[Event]:
        """As the port's."""
        self.load(id)
        return list(self.history[id])

    def find_expired(self, now: datetime, limit: int) -> list[PaymentId]:
        """As the port's; payments that expire in the same moment come in the order of their ids."""
        due = [
            (payment.expires_at, id)
            for id, payment in self.payments.items()
            if payment.expires_at is not None
            and state_of(payment, now) is State.EXPIRED
            and payment.expiry_announced_at is None
        ]
        return [id for _, id in sorted(due)][:limit]


class StoreMachine(RuleBasedStateMachine):
    """Plays histories against a store and the model, and wants the same answers and refusals from both.

    `open` gives a store with nothing in it, `close` ends it.
    """

    known = Bundle("known")
    booked = Bundle("booked")

    def __init__(self, open: Callable[[], PaymentStore], close: Callable[[PaymentStore], None]) -> None:
        super().__init__()
        self._close = close
        self._store = open()
        self._model = Model()
        self._clock = FakeClock()

    def teardown(self) -> None:
        """End the store, which Hypothesis asks for after each history."""
        self._close(self._store)

    @initialize(target=known)
    def begin(self) -> MultipleResults[PaymentId]:
        """There are payments to begin with: one that takes anything, one that fills, two that expire."""
        begun = list(zip(_IDS, (None, 500, 3, None), (None, None, 1, 60), strict=False))
        for id, limit, expires_in_s in begun:
            self._create(id, limit, expires_in_s)
        return multiple(*(id for id, _, _ in begun))

    @rule(
        target=known,
        id=_ids,
        limit=st.sampled_from([None, 3, 500, UINT64_MAX]),
        expires_in_s=st.sampled_from([None, 0.000001, 1, 60]),
    )
    def create(self, id: PaymentId, limit: int | None, expires_in_s: float | None) -> PaymentId:
        """Create a payment, perhaps one that exists."""
        self._create(id, limit, expires_in_s)
        return id

    @rule(target=booked, id=known, credit_id=_credit_ids, value=_values)
    def credit(self, id: PaymentId, credit_id: CreditId, value: int) -> tuple[PaymentId, CreditId, int]:
        """Book money, perhaps under an id that was used for another amount."""
        self._credit(id, credit_id, value)
        return id, credit_id, value

    @rule(credit=booked)
    def repeat_credit(self, credit: tuple[PaymentId, CreditId, int]) -> None:
        """Book a credit again as it was asked for before."""
        self._credit(*credit)

    @rule(id=known)
    def complete(self, id: PaymentId) -> None:
        """Complete a payment by hand."""
        self._same(lambda store: store.update(id, partial(lifecycle.complete, now=self._clock())))

    @rule(seconds=st.sampled_from([0, 2, 61]), limit=st.sampled_from([1, 2, 100]))
    def sweep(self, seconds: float, limit: int) -> None:
        """After some time, announce the expiry of what has expired."""
        self._clock.advance(seconds)
        now = self._clock()
        for id in self._same(lambda store: list(store.find_expired(now, limit))):
            self._same(partial(_expire, id=id, now=now))

    @rule(seconds=st.sampled_from([60, 1, 0.000001, -1]))
    def advance(self, seconds: float) -> None:
        """Let time pass, or set the clock right, which may turn it back."""
        self._clock.advance(seconds)

    @rule(id=_ids)
    def look(self, id: PaymentId) -> None:
        """Load a payment and its events, perhaps of one that never was."""
        self._same(lambda store: store.load(id))
        self._same(lambda store: list(store.events(id)))

    @invariant()
    def books_agree(self) -> None:
        """What a payment has received is what was credited to it, in the store as in the model."""
        for id, payment in self._model.payments.items():
            assert self._store.load(id) == payment
            credited = sum(credit.amount.value for credit in self._model.credits[id].values())
            assert credited == payment.received.value

    def _credit(self, id: PaymentId, credit_id: CreditId, value: int) -> None:
        self._same(lambda store: store.update(id, crediting(credit_id, value, now=self._clock()), credit_id))

    def _create(self, id: PaymentId, limit: int | None, expires_in_s: float | None) -> None:
        decision = a_creation(id=id, limit=limit, expires_in_s=expires_in_s, now=self._clock())
        self._same(lambda store: store.insert(decision))

    def _same(self, ask: Callable[[Any], Any]) -> Any:
        expected, actual = _outcome(ask, self._model), _outcome(ask, self._store)
        assert expected == actual
        return actual[1]


def _expire(store: Any, *, id: PaymentId, now: datetime) -> IncomingPayment:
    expired: IncomingPayment = store.update(id, partial(lifecycle.expire, now=now))
    return expired


def _outcome(ask: Callable[[Any], Any], store: object) -> tuple[type[Exception] | None, Any]:
    try:
        return None, ask(store)
    except IncomingPaymentsError as error:
        return type(error), None

"""A model of a store, and a state machine that compares a store with the model. Both need Hypothesis."""

# ruff: noqa: S101 - a test suite asserts
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, initialize, invariant, multiple, rule

from incoming_payments.domain import lifecycle
from incoming_payments.domain.events import Event
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision, state_of
from incoming_payments.domain.listing import PaymentQuery, Place
from incoming_payments.domain.payment import (
    ClientId,
    Credit,
    CreditId,
    IncomingPayment,
    PaymentId,
    WalletAddress,
    client_id,
)
from incoming_payments.domain.transitions import State
from incoming_payments.errors import IncomingPaymentsError, PaymentExists, PaymentNotFound
from incoming_payments.limits import UINT64_MAX
from incoming_payments.ports import Decide, PaymentStore
from incoming_payments.stores.guard import check_insert, check_update
from incoming_payments.testing.clock import FakeClock
from incoming_payments.testing.steps import created_under
from incoming_payments.testing.values import NOW, a_creation, a_wallet_address, crediting

T = TypeVar("T")

# Use few values, so that random histories often use the same payment and the same credit id.
_IDS: Final = [PaymentId(f"019b7a0c-1000-7000-8000-00000000000{digit}") for digit in range(6)]
_ids = st.sampled_from(_IDS)
_credit_ids = st.sampled_from([CreditId(text) for text in ("a", "A", "'; --")])
_values = st.sampled_from([1, 2, 3, 500, 2**63, UINT64_MAX])
_WALLETS: Final = [a_wallet_address(f"https://bank.example/{name}") for name in ("alice", "Alice")]
_CLIENTS: Final = [client_id(f"https://shop.example/{name}") for name in ("", "b")]
_FILTERS: Final[Any] = {
    "wallet_address": st.sampled_from([wallet.url for wallet in _WALLETS]),
    "client": st.sampled_from(_CLIENTS),
    "state": st.sampled_from(State),
    "created_from": st.sampled_from([NOW, NOW + timedelta(seconds=1)]),
    "created_before": st.sampled_from([NOW + timedelta(seconds=1), NOW + timedelta(seconds=62)]),
}


class Model:
    """A store made of dictionaries, without threads, files or optimisations."""

    def __init__(self) -> None:
        self.payments: dict[PaymentId, IncomingPayment] = {}
        self.credits: dict[PaymentId, dict[CreditId, Credit]] = {}
        self.history: dict[PaymentId, list[Event]] = {}
        self.keys: dict[tuple[ClientId, IdempotencyKey], KeyedCreation] = {}

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """See `PaymentStore.insert`."""
        payment, keyed = check_insert(decision), decision.keyed
        if keyed is not None and (earlier := self.find_creation(keyed.client, keyed.key, payment.created_at)):
            return earlier
        if payment.id in self.payments:
            raise PaymentExists(payment.id)
        if keyed is not None:
            self.keys[keyed.client, keyed.key] = keyed
        self.payments[payment.id] = payment
        self.credits[payment.id] = {}
        self.history[payment.id] = list(decision.events)
        return None

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        """See `PaymentStore.find_creation`."""
        keyed = self.keys.get((client, key))
        return None if keyed is None or keyed.until < now else keyed

    def load(self, id: PaymentId) -> IncomingPayment:
        """See `PaymentStore.load`."""
        if id not in self.payments:
            raise PaymentNotFound(id)
        return self.payments[id]

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """See `PaymentStore.update`."""
        payment = self.load(id)
        earlier = None if credit_id is None else self.credits[id].get(credit_id)
        decision = decide(payment, earlier)
        after = check_update(payment, credit_id, earlier, decision)
        if after is not None:
            self.payments[id] = after
            self.history[id] += decision.events
        if decision.credit is not None:
            self.credits[id][decision.credit.id] = decision.credit
        return decision.answer

    def events(self, id: PaymentId) -> list[Event]:
        """See `PaymentStore.events`."""
        self.load(id)
        return list(self.history[id])

    def find_expired(self, now: datetime, limit: int) -> list[PaymentId]:
        """See `PaymentStore.find_expired`. Payments with the same `expires_at` are in the order of their ids."""
        due = [
            (payment.expires_at, id)
            for id, payment in self.payments.items()
            if payment.expires_at is not None
            and state_of(payment, now) is State.EXPIRED
            and payment.expiry_announced_at is None
        ]
        return [id for _, id in sorted(due)][:limit]

    def find_payments(self, query: PaymentQuery) -> list[IncomingPayment]:
        """See `PaymentStore.find_payments`."""
        return query.page_of(self.payments.values())


class StoreMachine(RuleBasedStateMachine):
    """A state machine that makes the same random calls to a store and to the model, and requires the same results.

    `open` returns an empty store, and `close` closes it.
    """

    known = Bundle("known")
    credited = Bundle("credited")

    def __init__(self, open: Callable[[], PaymentStore], close: Callable[[PaymentStore], None]) -> None:
        super().__init__()
        self._close = close
        self._store = open()
        self._model = Model()
        self._clock = FakeClock()

    def teardown(self) -> None:
        """Close the store. Hypothesis calls this method after each history."""
        self._close(self._store)

    @initialize(target=known)
    def begin(self) -> MultipleResults[PaymentId]:
        """Create the first four payments. One has a limit, and two expire."""
        begun = list(zip(_IDS, (None, 500, 3, None), (None, None, 1, 60), strict=False))
        for id, limit, expires_in_s in begun:
            self._create(id, limit, expires_in_s)
        return multiple(*(id for id, _, _ in begun))

    @rule(
        target=known,
        id=_ids,
        limit=st.sampled_from([None, 3, 500, UINT64_MAX]),
        expires_in_s=st.sampled_from([None, 0.000001, 1, 60]),
        wallet_address=st.sampled_from(_WALLETS),
        client=st.sampled_from(_CLIENTS),
    )
    def create(
        self,
        id: PaymentId,
        limit: int | None,
        expires_in_s: float | None,
        wallet_address: WalletAddress,
        client: ClientId,
    ) -> PaymentId:
        """Create a payment, whose id may already exist."""
        self._create(id, limit, expires_in_s, wallet_address=wallet_address, client=client)
        return id

    @rule(id=_ids, key=st.sampled_from("kK"), kept_s=st.sampled_from([1, 60, 3600]), digit=st.sampled_from("ab"))
    def create_under_key(self, id: PaymentId, key: str, kept_s: float, digit: str) -> None:
        """Create a payment under an idempotency key. The key and the id may already exist."""
        decision = a_creation(id=id, now=self._clock(), key=key, kept_s=kept_s, fingerprint=digit * 64)
        self._same(lambda store: store.insert(decision))

    @rule(key=st.sampled_from("kK"), ahead_s=st.sampled_from([0, 0.000001, 1]))
    def find_creation(self, key: str, ahead_s: float) -> None:
        """Look up an idempotency key, which may be unknown or expired."""
        now = self._clock() + timedelta(seconds=ahead_s)
        self._same(partial(created_under, key=key, now=now))

    @rule(target=credited, id=known, credit_id=_credit_ids, value=_values)
    def credit(self, id: PaymentId, credit_id: CreditId, value: int) -> tuple[PaymentId, CreditId, int]:
        """Credit a payment, perhaps under a credit id that was used for another amount."""
        self._credit(id, credit_id, value)
        return id, credit_id, value

    @rule(credit=credited)
    def repeat_credit(self, credit: tuple[PaymentId, CreditId, int]) -> None:
        """Repeat a credit, which may have been refused before."""
        self._credit(*credit)

    @rule(id=known)
    def complete(self, id: PaymentId) -> None:
        """Complete a payment on behalf of its client."""
        self._same(lambda store: store.update(id, partial(lifecycle.complete, now=self._clock())))

    @rule(seconds=st.sampled_from([0, 2, 61]), limit=st.sampled_from([1, 2, 100]))
    def sweep(self, seconds: float, limit: int) -> None:
        """Advance the clock, and announce the payments that have expired."""
        self._clock.advance(seconds)
        now = self._clock()
        for id in self._same(lambda store: list(store.find_expired(now, limit))):
            self._same(partial(_expire, id=id, now=now))

    @rule(seconds=st.sampled_from([60, 1, 0.000001, -1]))
    def advance(self, seconds: float) -> None:
        """Advance the clock, or set it back by a second."""
        self._clock.advance(seconds)

    @rule(id=_ids)
    def load(self, id: PaymentId) -> None:
        """Load a payment, which may not exist, and its events."""
        self._same(lambda store: store.load(id))
        self._same(lambda store: list(store.events(id)))

    @rule(
        filters=st.fixed_dictionaries({"limit": st.sampled_from([1, 2, 100])}, optional=_FILTERS),
        cursor=st.none() | known,
        backwards=st.booleans(),
    )
    def list_payments(self, filters: dict[str, Any], cursor: PaymentId | None, backwards: bool) -> None:
        """Read a page of a list from its front, or from the place of a payment in either direction."""
        place = None if cursor is None else Place.of(self._model.load(cursor))
        below, above = (None, place) if backwards else (place, None)
        query = PaymentQuery(now=self._clock(), older_than=below, newer_than=above, **filters)
        self._same(lambda store: list(store.find_payments(query)))

    @invariant()
    def totals_agree(self) -> None:
        """The store has the same payments as the model, and each total is the sum of the credits."""
        for id, payment in self._model.payments.items():
            assert self._store.load(id) == payment
            credited = sum(credit.amount.value for credit in self._model.credits[id].values())
            assert credited == payment.received.value

    def _credit(self, id: PaymentId, credit_id: CreditId, value: int) -> None:
        self._same(lambda store: store.update(id, crediting(credit_id, value, now=self._clock()), credit_id))

    def _create(self, id: PaymentId, limit: int | None, expires_in_s: float | None, **terms: Any) -> None:
        decision = a_creation(id=id, limit=limit, expires_in_s=expires_in_s, now=self._clock(), **terms)
        self._same(lambda store: store.insert(decision))

    def _same(self, call: Callable[[Any], Any]) -> Any:
        expected, actual = _outcome(call, self._model), _outcome(call, self._store)
        assert expected == actual
        return actual[1]


def _expire(store: Any, *, id: PaymentId, now: datetime) -> IncomingPayment:
    expired: IncomingPayment = store.update(id, partial(lifecycle.expire, now=now))
    return expired


def _outcome(call: Callable[[Any], Any], store: object) -> tuple[type[Exception] | None, Any]:
    try:
        return None, call(store)
    except IncomingPaymentsError as error:
        return type(error), None

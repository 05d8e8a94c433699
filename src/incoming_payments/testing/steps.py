"""Common steps of store tests: create a payment, credit it, run calls concurrently, and check the totals."""

# ruff: noqa: S101 - a test suite asserts
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount, Tolerance
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import STREAM_CREDITS, Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import PaymentExists, PaymentNotFound, StoreUnavailable
from incoming_payments.ports import PaymentStore
from incoming_payments.testing.values import NOW, a_creation, crediting

T = TypeVar("T")
PACKET_PEER: Final = "test.bank.connector"
UNUSED_ID: Final = PaymentId("019b7a0c-ffff-7000-8000-000000000000")  # `a_creation` never chooses this id

_PATIENCE_S: Final = 60.0  # seconds of patience, because a store may hold a lock for a long time on a busy machine
_BEGIN_S: Final = 30.0  # seconds that are enough to start a thread and open a connection on a slow machine
_PAUSE_S: Final = 0.01
_LOCKED_S: Final = 0.2  # seconds that are enough for an update that does not wait for a lock
_DECISION_S: Final = 0.001  # seconds that are enough for other threads to run in the meantime


def together(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run each of `tasks` in its own thread, start them at the same time, and return their results in order."""
    barrier = threading.Barrier(len(tasks))

    def run(task: Callable[[], T]) -> T:
        barrier.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as executor:
        return list(executor.map(run, tasks))


def create(store: PaymentStore, decision: Decision[IncomingPayment] | None = None) -> PaymentId:
    """Insert a payment and return its id."""
    decision = decision or a_creation()
    store.insert(decision)
    return decision.answer.id


def credit(store: PaymentStore, id: PaymentId, credit_id: str, value: int, now: datetime = NOW) -> Credit:
    """Credit `value` minor units to the payment `id`."""
    return store.update(id, crediting(credit_id, value, now=now), CreditId(credit_id))


def credit_packet(store: PaymentStore, id: PaymentId, value: int) -> IncomingPayment:
    """Credit a packet of `value` minor units from `PACKET_PEER` to the payment `id`."""
    credit_id = CreditId(f"{STREAM_CREDITS}1")
    amount = Amount(value, store.load(id).asset)
    decide = partial(
        lifecycle.credit_packet, credit_id=credit_id, amount=amount, now=NOW, tolerance=Tolerance(), peer=PACKET_PEER
    )
    return store.update(id, decide, credit_id)


def check_credits(store: PaymentStore, id: PaymentId, credits: Collection[Credit]) -> None:
    """Assert that the payment and its events contain exactly `credits`, the answers that callers have received."""
    payment = store.load(id)
    events = store.events(id)
    credited = {event.credit_id: event for event in events if event.kind is EventKind.CREDITED}
    assert payment.received.value == sum(answer.amount.value for answer in credits)
    assert list(range(1, payment.version + 1)) == [event.version for event in events]
    assert {answer.id: answer.received for answer in credits} == {
        credit_id: event.received for credit_id, event in credited.items()
    }
    for answer in credits:
        assert answer == credit(store, id, answer.id, answer.amount.value)


def persistently(call: Callable[[], T]) -> T:
    """Return the result of `call`. While the store is unavailable, repeat `call` for up to a minute, like a client."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return call()
        except StoreUnavailable:
            if time.monotonic() > end:
                raise
        time.sleep(_PAUSE_S)


def credit_at_once(stores: Sequence[PaymentStore]) -> None:
    """Send the same 20 credits through all `stores` concurrently, in different orders.

    Assert that each credit is stored once, and that all callers get the same answers. All `stores` have the same data.
    A store may be listed several times, and each item has its own thread.
    """
    id = create(stores[0])
    values = {f"wire-{number}": number for number in range(1, 21)}

    def caller(store: PaymentStore, seed: int) -> dict[str, Credit]:
        order = list(values)
        random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
        return {credit_id: _credit_slowly(store, id, credit_id, values[credit_id]) for credit_id in order}

    answers = together([partial(caller, store, seed) for seed, store in enumerate(stores)])

    assert all(answers[0] == answer for answer in answers)
    for store in stores[:2]:
        assert store.load(id).received.value == sum(values.values())
        check_credits(store, id, answers[0].values())


def insert_at_once(stores: Sequence[PaymentStore]) -> None:
    """Insert payments with one id through all `stores` concurrently. Assert that exactly one insert succeeds."""
    decisions = [a_creation(id=UNUSED_ID, limit=number + 1) for number in range(len(stores))]

    def caller(store: PaymentStore, decision: Decision[IncomingPayment]) -> IncomingPayment | None:
        try:
            store.insert(decision)
        except PaymentExists:
            return None
        return decision.answer

    inserted = together([partial(caller, *pair) for pair in zip(stores, decisions, strict=True)])

    for store in stores[:2]:
        assert [store.load(UNUSED_ID)] == [payment for payment in inserted if payment is not None]


def created_under(store: PaymentStore, key: str, now: datetime = NOW) -> KeyedCreation | None:
    """Return the record that the client in `a_creation` has for `key`, or `None`."""
    return store.find_creation(a_creation().answer.client, IdempotencyKey(key), now)


def create_at_once(stores: Sequence[PaymentStore]) -> None:
    """Insert payments under the same 5 idempotency keys through all `stores` concurrently.

    Assert that each key creates one payment, and that all callers get this payment.
    """
    keys = [f"order-{number}" for number in range(5)]

    def caller(store: PaymentStore, seed: int) -> dict[str, PaymentId]:
        order = list(keys)
        random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
        got = {}
        for key in order:
            created = a_creation(key=key)
            sent.add(created.answer.id)
            earlier = persistently(partial(store.insert, created))
            got[key] = created.answer.id if earlier is None else earlier.payment
            assert store.load(got[key]).id == got[key]
        return got

    sent: set[PaymentId] = set()
    answers = together([partial(caller, store, seed) for seed, store in enumerate(stores)])

    assert all(answers[0] == answer for answer in answers), "two callers with one idempotency key got two payments"
    for store in stores[:2]:
        assert sorted(id for id in sent if _exists(store, id)) == sorted(answers[0].values())
        assert answers[0] == {key: getattr(created_under(store, key), "payment", None) for key in keys}


def _exists(store: PaymentStore, id: PaymentId) -> bool:
    try:
        store.load(id)
    except PaymentNotFound:
        return False
    return True


def check_lock(holder: PaymentStore, rival: PaymentStore) -> None:
    """Assert that `rival` cannot update a payment while `holder` runs a decision about it.

    Both stores have the same data, and may be the same object. A store that calls `decide` before it holds the lock on
    the payment has two faults. Such a store may write a decision about an old payment. It also reads the clock too
    early, so it may credit money after `expiresAt`.
    """
    id = create(holder)
    deciding, updated = threading.Event(), threading.Event()
    steps: list[str] = []
    decided = "the first has decided"

    def hold(_payment: IncomingPayment, _earlier: Credit | None) -> Decision[None]:
        steps.append("the first decides")
        deciding.set()
        updated.wait(_LOCKED_S)
        steps.append(decided)
        return Decision(None)

    def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[Credit]:
        steps.append("the second decides")
        return crediting("wire-1", 1)(payment, earlier)

    def update() -> None:
        deciding.wait(_BEGIN_S)
        persistently(lambda: rival.update(id, decide, CreditId("wire-1")))
        steps.append("the second ends")
        updated.set()

    together([lambda: holder.update(id, hold), update])
    later = steps[len(steps) - steps[::-1].index(decided) :]
    assert later[-2:] == ["the second decides", "the second ends"], (
        f"two updates of one payment ran at the same time ({', '.join(steps)}): lock the payment in the "
        "database, then load the payment, and then call `decide`"
    )


def _credit_slowly(store: PaymentStore, id: PaymentId, credit_id: str, value: int) -> Credit:
    """Credit `value` minor units by a decision that takes some time."""

    def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[Credit]:
        time.sleep(_DECISION_S)
        return crediting(credit_id, value)(payment, earlier)

    return store.update(id, decide, CreditId(credit_id))

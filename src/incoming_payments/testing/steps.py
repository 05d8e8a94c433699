"""Common steps of store tests: create a payment, credit it, run calls concurrently, and check the totals."""

# ruff: noqa: S101 - a test suite asserts
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount, Tolerance
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import STREAM_CREDITS, Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.ports import PaymentStore
from incoming_payments.testing.values import NOW, a_creation, crediting

T = TypeVar("T")
PACKET_PEER: Final = "test.bank.connector"
UNUSED_ID: Final = PaymentId("019b7a0c-ffff-7000-8000-000000000000")  # `a_creation` never chooses it


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
        lifecycle.credit_packet, id=credit_id, amount=amount, now=NOW, tolerance=Tolerance(), peer=PACKET_PEER
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

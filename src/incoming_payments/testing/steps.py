"""Steps that tests of stores are made of: create a payment, book money, do many things at once, check the books."""

# ruff: noqa: S101 - a test suite asserts
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.lifecycle import Decision, Tolerance, credit_packet
from incoming_payments.domain.payment import STREAM_CREDITS, Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.ports import PaymentStore
from incoming_payments.testing.values import NOW, a_creation, crediting

T = TypeVar("T")
PACKET_PEER: Final = "test.bank.connector"


def together(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """The answers of `tasks`, each run in a thread, all of them let go at once."""
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


def book(store: PaymentStore, id: PaymentId, credit_id: str, value: int, now: datetime = NOW) -> Credit:
    """Credit `value` minor units to the payment `id`."""
    return store.update(id, crediting(credit_id, value, now=now), CreditId(credit_id))


def book_packet(store: PaymentStore, id: PaymentId, value: int) -> IncomingPayment:
    """Credit a packet of `value` minor units, brought by `PACKET_PEER`, to the payment `id`."""
    name = CreditId(f"{STREAM_CREDITS}1")
    asset, tolerance = store.load(id).asset, Tolerance()
    decide = partial(
        credit_packet, id=name, amount=Amount(value, asset), now=NOW, tolerance=tolerance, peer=PACKET_PEER
    )
    return store.update(id, decide, name)


def check_books(store: PaymentStore, id: PaymentId, credits: Collection[Credit]) -> None:
    """Payment, events and the `credits` that callers were told of agree to the unit."""
    payment = store.load(id)
    events = store.events(id)
    credited = {event.credit_id: event for event in events if event.kind is EventKind.CREDITED}
    assert payment.received.value == sum(credit.amount.value for credit in credits)
    assert list(range(1, payment.version + 1)) == [event.version for event in events]
    assert {credit.id: credit.received for credit in credits} == {
        credit_id: event.received for credit_id, event in credited.items()
    }
    for credit in credits:
        assert credit == book(store, id, credit.id, credit.amount.value)

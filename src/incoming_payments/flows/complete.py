"""Complete a payment before it has received its `incomingAmount`. Spec section 3."""

from collections.abc import Callable
from datetime import datetime

from incoming_payments.domain import lifecycle
from incoming_payments.domain.checks import check_time
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, IncomingPayment, PaymentId, payment_id
from incoming_payments.flows.effects import Flow, UpdatePayment, flow


@flow
def complete(id: PaymentId | str, *, clock: Callable[[], datetime]) -> Flow[IncomingPayment]:
    """Close the payment `id`, so that it takes no more money, and return it. A completed payment does not change.

    The decision reads `clock`, in UTC, inside the store's transaction. Raises `PaymentNotFound`, `PaymentExpired`, and
    `InvalidValue` for an invalid id.
    """

    def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[IncomingPayment]:
        return lifecycle.complete(payment, earlier, now=check_time(clock()))

    return (yield from UpdatePayment(payment_id(id), decide))

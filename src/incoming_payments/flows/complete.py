"""Complete a payment before it has received its `incomingAmount` (spec section 3)."""

from collections.abc import Callable
from datetime import datetime

from incoming_payments.domain import lifecycle
from incoming_payments.domain.checks import check_time
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, IncomingPayment, PaymentId, payment_id
from incoming_payments.flows.get import find_for_client
from incoming_payments.flows.machinery.effects import Flow, UpdatePayment, flow
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.views import summary_of
from incoming_payments.gnap.access import Action
from incoming_payments.httpsig import RequestMessage
from incoming_payments.wire import SummaryView


@flow
def complete_payment(
    request: RequestMessage, id: PaymentId, policy: ServicePolicy, now: datetime, clock: Callable[[], datetime]
) -> Flow[SummaryView]:
    """Close the payment `id` for its client, and return the payment. A completed payment does not change.

    `now` is the time for the token and the signature of `request`. `clock` is as in `complete`. Raises the exceptions
    of `find_for_client` and `complete`.
    """
    yield from find_for_client(request, id, Action.COMPLETE, policy, now)
    completed = yield from complete(id, clock=clock)
    return summary_of(completed, policy.payment_url(id))


@flow
def complete(id: PaymentId | str, *, clock: Callable[[], datetime]) -> Flow[IncomingPayment]:
    """Close the payment `id`, which then accepts no more money, and return it. A completed payment does not change.

    The decision reads `clock`, in UTC, inside the store's transaction. Raises `PaymentNotFound`, `PaymentExpired`, and
    `InvalidValue` for an invalid id.
    """

    def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[IncomingPayment]:
        return lifecycle.complete(payment, earlier, now=check_time(clock()))

    return (yield from UpdatePayment(payment_id(id), decide))

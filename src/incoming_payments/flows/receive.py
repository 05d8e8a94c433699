"""Credit money from any payment rail to a payment (spec section 3)."""

from collections.abc import Callable
from datetime import datetime
from functools import partial

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount
from incoming_payments.domain.checks import check_time
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import (
    STREAM_CREDITS,
    Credit,
    CreditId,
    IncomingPayment,
    PaymentId,
    check_amount,
    payment_id,
)
from incoming_payments.domain.payment import credit_id as check_credit_id
from incoming_payments.errors import InvalidValue
from incoming_payments.flows.machinery.effects import Flow, UpdatePayment, flow


@flow
def receive(id: PaymentId | str, *, credit_id: str, amount: Amount, clock: Callable[[], datetime]) -> Flow[Credit]:
    """Credit `amount` to the payment `id` under `credit_id`. Return the credit when it is durable.

    `credit_id` is the host's own reference for this receipt of money, such as a ledger reference. A repeated call with
    the same reference is safe and returns the first result, so repeat a call that was interrupted. A credit that
    reaches or exceeds `incomingAmount` completes the payment.

    `clock` returns the time in UTC. The decision calls `clock` inside the store's transaction, perhaps in another
    thread. So money is not credited if the payment expired while the credit waited for the store.

    Raises `PaymentNotFound`, `PaymentCompleted`, `PaymentExpired`, `AssetMismatch`, `AmountOverflow`, `CreditIdReused`.
    Raises `InvalidValue` for an invalid id, an amount of zero, a `clock` that is not a function or returns a time that
    is not in UTC, or a credit id that begins with `stream:`, which is reserved for `receive_packet`.

    ```python
    credit = run(receive(id, credit_id="wire-0007", amount=Amount(2500, usd), clock=lambda: datetime.now(UTC)), ports)
    ```
    """
    name = check_credit_id(credit_id)
    if name.startswith(STREAM_CREDITS):
        raise InvalidValue(
            f"a credit id must not begin with {STREAM_CREDITS}, which is reserved for ILP packets", member="creditId"
        )
    if not callable(clock):
        raise InvalidValue(
            "clock must be a function that returns the time, such as lambda: datetime.now(UTC)", member="clock"
        )
    check_time(clock())  # find a wrong clock before the call of the store
    decide = partial(_decide, name, check_amount(amount), clock)
    return (yield from UpdatePayment(payment_id(id), decide, name))


def _decide(
    id: CreditId, amount: Amount, clock: Callable[[], datetime], payment: IncomingPayment, earlier: Credit | None
) -> Decision[Credit]:
    return lifecycle.credit(payment, earlier, credit_id=id, amount=amount, now=check_time(clock()))

"""Credit money to a payment, from any payment rail. Spec section 3."""

from datetime import datetime
from functools import partial

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount
from incoming_payments.domain.checks import check_time
from incoming_payments.domain.payment import STREAM_CREDITS, Credit, PaymentId, check_amount, credit_id, payment_id
from incoming_payments.errors import InvalidValue
from incoming_payments.flows.effects import Flow, UpdatePayment, flow


@flow
def receive(id: PaymentId | str, *, credit: str, amount: Amount, now: datetime) -> Flow[Credit]:
    """Credit `amount` to the payment `id` under the credit id `credit`. Return the credit when it is durable.

    `credit` is the host's own reference for this receipt of money, such as a ledger reference. A repeated call with the
    same reference is safe and returns the first result, so repeat a call that was interrupted. A credit that reaches
    or passes `incomingAmount` completes the payment.

    Raises `PaymentNotFound`, `PaymentCompleted`, `PaymentExpired`, `AssetMismatch`, `AmountOverflow`, `CreditIdReused`.
    Raises `InvalidValue` for an invalid id, an amount of zero, or a credit id that begins with `stream:`, which is
    reserved for `receive_packet`.

    ```python
    credit = run(receive(id, credit="wire-0007", amount=Amount(2500, usd), now=datetime.now(UTC)), ports)
    ```
    """
    name = credit_id(credit)
    if name.startswith(STREAM_CREDITS):
        raise InvalidValue(
            f"a credit id must not begin with {STREAM_CREDITS}, which is reserved for ILP packets", member="creditId"
        )
    check_time(now)
    check_amount(amount)
    decide = partial(lifecycle.credit, id=name, amount=amount, now=now)
    return (yield from UpdatePayment(payment_id(id), decide, name))

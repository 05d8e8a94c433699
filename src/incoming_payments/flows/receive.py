"""Book money into a payment, by whatever rail it came. Contract section 3."""

from datetime import datetime
from functools import partial

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount
from incoming_payments.domain.payment import (
    STREAM_CREDITS,
    Credit,
    PaymentId,
    check_amount,
    check_moment,
    credit_id,
    payment_id,
)
from incoming_payments.errors import InvalidValue
from incoming_payments.flows.effects import Flow, UpdatePayment


def receive(id: PaymentId | str, *, credit: str, amount: Amount, now: datetime) -> Flow[Credit]:
    """Book `amount` into the payment `id` under the credit id `credit`; answered when it is durable.

    `credit` is the host's own name for this receipt of money, such as a ledger reference. Booking the same one again
    is safe and returns the first answer, so a host whose call was cut short just repeats it. Passing
    `incomingAmount` completes the payment. Raises `PaymentNotFound`, `PaymentCompleted`, `PaymentExpired`,
    `AssetMismatch`, `AmountOverflow`, `CreditIdReused`, and `InvalidValue` for an id that cannot be one (what begins
    with `stream:` is kept for `receive_packet`) or an amount of zero.

    ```python
    booked = run(receive(id, credit="wire-0007", amount=Amount(2500, usd), now=datetime.now(UTC)), ports)
    ```
    """
    name = credit_id(credit)
    if name.startswith(STREAM_CREDITS):
        raise InvalidValue(f"credit ids that begin with {STREAM_CREDITS} are those of packets", member="creditId")
    check_moment(None, None, now)
    check_amount(None, None, amount)
    decide = partial(lifecycle.credit, id=name, amount=amount, now=now)
    return (yield from UpdatePayment(payment_id(id), decide, name))

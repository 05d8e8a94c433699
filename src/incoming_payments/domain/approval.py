"""The proof that the money of a packet may be credited. The decision about the packet requires this proof."""

import enum

from attrs import frozen

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.payment import Credit, CreditId, PaymentId


class Approver(enum.Enum):
    """The origin of an approval."""

    HOST = "host"  # the approval port of the host
    NO_PORT = "no port"  # no approval was requested, so the driver refuses this proof if there is an approval port


@frozen
class Approved:
    """The proof that `amount` may be credited once to the payment `payment_id`, under the credit id `credit_id`.

    `by` is the origin of the approval.
    """

    by: Approver
    payment_id: PaymentId
    credit_id: CreditId
    amount: Amount

    def covers(self, credit: Credit) -> bool:
        """Return whether `credit` is the approved credit."""
        approved = self.payment_id, self.credit_id, self.amount
        return approved == (credit.payment_id, credit.id, credit.amount)

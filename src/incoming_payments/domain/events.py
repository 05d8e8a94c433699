"""What happened to a payment, as facts that a host can act on: send a webhook, notify, book."""

import enum
from datetime import datetime

from attrs import frozen

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.payment import CreditId, PaymentId


class EventKind(enum.StrEnum):
    """The four things that can happen to a payment."""

    CREATED = "created"
    CREDITED = "credited"  # money was booked into it
    COMPLETED = "completed"  # it takes nothing more: it is full, or its client closed it
    EXPIRED = "expired"  # its time is over; given once, by the sweep that found it so


@frozen
class Event:
    """One thing that happened to one payment.

    `version` is its place among the events of that payment, counted from 1 without gaps, so that
    (`payment_id`, `version`) is unique and orders them. `received` is the total after it; `credit_id` is there on
    `credited` only.
    """

    payment_id: PaymentId
    version: int
    kind: EventKind
    at: datetime
    received: Amount
    credit_id: CreditId | None = None

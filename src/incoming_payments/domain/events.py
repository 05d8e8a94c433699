"""What happened to a payment, as facts that a host can act on: send a webhook, notify, book."""

import enum
from datetime import datetime

from attrs import field, frozen

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.methods import is_ilp_address
from incoming_payments.domain.payment import CreditId, PaymentId, check_moment
from incoming_payments.errors import InvalidValue


class EventKind(enum.StrEnum):
    """The four things that can happen to a payment."""

    CREATED = "created"
    CREDITED = "credited"  # money was booked into it
    COMPLETED = "completed"  # it takes nothing more: it is full, or its client closed it
    EXPIRED = "expired"  # its time is over; given once, by the sweep that found it so


def _kind(kind: str) -> EventKind:
    if type(kind) is EventKind:
        return kind
    try:
        return EventKind(kind)
    except ValueError:
        raise InvalidValue(f"kind must be among {', '.join(EventKind)}", member="kind") from None


@frozen
class Event:
    """One thing that happened to one payment.

    `version` is its place among the events of that payment, counted from 1 without gaps, so that
    (`payment_id`, `version`) is unique and orders them. `received` is the total after it; `credit_id` is there on
    `credited` only, and so is `peer`, if the money came in a packet: the ILP address of the peer that brought it, and
    owes it. Raises `InvalidValue` for a version below 1, an unknown kind, a moment that is not in UTC, or a peer
    that is no ILP address.
    """

    payment_id: PaymentId
    version: int = field()
    kind: EventKind = field(converter=_kind)
    at: datetime = field(validator=check_moment)
    received: Amount
    credit_id: CreditId | None = None
    peer: str | None = field(default=None)

    @peer.validator
    def _is_address(self, _: object, peer: object) -> None:
        if peer is not None and not is_ilp_address(peer):
            raise InvalidValue("peer must be an ILP address", member="peer")

    @version.validator
    def _counts(self, _: object, version: object) -> None:
        if type(version) is not int or version < 1:
            raise InvalidValue("version counts events from 1", member="version")

"""The events of a payment, to which a host reacts, for example by sending a webhook."""

import enum
from datetime import datetime

from attrs import field, frozen

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.checks import check_time, integer
from incoming_payments.domain.methods import is_ilp_address
from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.errors import InvalidValue


class EventKind(enum.StrEnum):
    """The kinds of events."""

    CREATED = "created"
    CREDITED = "credited"  # the payment received money
    COMPLETED = "completed"  # the payment has received its `incomingAmount`, or its client closed it
    EXPIRED = "expired"  # `expiresAt` has passed, for which the sweep writes one event


def _kind(kind: str) -> EventKind:
    try:
        return EventKind(kind)
    except ValueError:
        raise InvalidValue(f"kind must be one of {', '.join(EventKind)}", member="kind") from None


@frozen
class Event:
    """An event of one payment.

    `version` numbers the events of the payment from 1 without gaps, so (`payment_id`, `version`) is unique and gives
    their order. `received` is the total after the event. Only a `credited` event has a `credit_id`. If the money came
    in a packet, the event also has a `peer`, the ILP address of the peer that sent the packet and owes the money.

    Raises `InvalidValue` for a version below 1, an unknown kind, a time that is not in UTC, or a peer that is not an
    ILP address.
    """

    payment_id: PaymentId
    version: int = field(validator=integer(1))
    kind: EventKind = field(converter=_kind)
    at: datetime = field(converter=check_time)
    received: Amount
    credit_id: CreditId | None = None
    peer: str | None = field(default=None)

    @peer.validator
    def _is_address(self, _: object, peer: object) -> None:
        if peer is not None and not is_ilp_address(peer):
            raise InvalidValue("peer must be an ILP address", member="peer")

"""The list of payments: its order, its filters and its pages.

The newest payment comes first. Payments are in descending order of their time of creation, and of their id where the
times are equal. Both never change, so a payment never moves in the list. A new payment enters at the front, or a little
behind it if the clock of its process lags behind. So a reader that goes from page to page sees no payment twice. The
reader also misses no payment that was in the list when the reader read the first page.

The state of a payment depends on the time. The service checks the state of each payment when it reads the page. A
payment that leaves or enters the state in the meantime may be on one later page or on none, but never on two.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from attrs import Attribute, converters, field, frozen

from incoming_payments.domain.checks import check_time, integer
from incoming_payments.domain.lifecycle import state_of
from incoming_payments.domain.payment import ClientId, IncomingPayment, PaymentId, WalletAddressUrl
from incoming_payments.domain.transitions import State
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import PAGE_PAYMENTS_MAX


class Place(NamedTuple):
    """The place of a payment in every list. Later payments have greater places, and lists descend."""

    created_at: datetime
    id: PaymentId

    @classmethod
    def of(cls, payment: IncomingPayment) -> "Place":
        """Return the place of `payment`."""
        return cls(payment.created_at, payment.id)


def _state(state: str) -> State:
    try:
        return State(state)
    except ValueError:
        raise InvalidValue(f"state must be {', '.join(State)} or None", member="state") from None


def _check_time(_: object, attribute: "Attribute[Any]", time: datetime | None) -> None:
    if time is not None:
        check_time(time, member=attribute.name)


@frozen(kw_only=True)
class PaymentQuery:
    """The payments of one page, for a store.

    The page has at most `limit` payments that meet every filter that is not `None`: the wallet address, the client,
    the state at `now`, and the time of creation from `created_from` on and before `created_before`. They are the
    newest of the list, or the newest that are `older_than` a place, or the oldest that are `newer_than` a place. The
    newest comes first in each case.

    Raises `InvalidValue` for a `limit` below one or far above the largest page, for an invalid state or time, and for
    two places.
    """

    now: datetime = field(converter=check_time)
    limit: int = field(validator=integer(1, PAGE_PAYMENTS_MAX + 1))  # one payment more shows whether others follow
    wallet_address: WalletAddressUrl | None = None
    client: ClientId | None = None
    state: State | None = field(default=None, converter=converters.optional(_state))
    created_from: datetime | None = field(default=None, validator=_check_time)
    created_before: datetime | None = field(default=None, validator=_check_time)
    older_than: Place | None = None
    newer_than: Place | None = field(default=None)

    @newer_than.validator
    def _one_direction(self, _: object, newer_than: Place | None) -> None:
        if newer_than is not None and self.older_than is not None:
            raise InvalidValue("older_than and newer_than exclude each other: pass one", member="newer_than")

    def is_of(self, payment: IncomingPayment) -> bool:
        """Return whether `payment` belongs to the wallet address and the client of this list. Neither ever changes."""
        terms = payment.terms
        return self.wallet_address in (None, terms.wallet_address) and self.client in (None, terms.client)

    def admits(self, payment: IncomingPayment) -> bool:
        """Return whether `payment` meets the filters. The place of the payment does not matter."""
        return (
            self.is_of(payment)
            and (self.created_from is None or payment.created_at >= self.created_from)
            and (self.created_before is None or payment.created_at < self.created_before)
            and self.state in (None, state_of(payment, self.now))
        )

    def page_of(self, payments: Iterable[IncomingPayment]) -> list[IncomingPayment]:
        """Return the page of the list of `payments`, which come in any order.

        The time is linear in the number of payments.
        """
        found = sorted(filter(self.admits, payments), key=Place.of, reverse=True)
        if self.newer_than is not None:
            return [payment for payment in found if Place.of(payment) > self.newer_than][-self.limit :]
        return [payment for payment in found if self.older_than is None or Place.of(payment) < self.older_than][
            : self.limit
        ]


@frozen
class PaymentPage:
    """One page of a list of payments, newest first.

    `has_next` says whether older payments follow, and `has_previous` whether newer payments precede. The id of a
    payment is the cursor of its place.
    """

    payments: tuple[IncomingPayment, ...]
    has_next: bool
    has_previous: bool

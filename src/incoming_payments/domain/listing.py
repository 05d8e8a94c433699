"""The list of payments, with its order, its filters and its pages.

The newest payment comes first. Payments are in descending order of their time of creation. Payments with the same time
are in descending order of their ids. Time and id never change, so a payment never moves in the list. A new payment
enters the list at the front. If the clock of its process lags behind, it may enter a little after the front. So a
reader that goes from page to page sees no payment twice. The reader also misses no payment that was in the list when
the reader read the first page.

The state of a payment depends on the time. The service checks the state of each payment when it reads the page. A
payment whose state changes between two pages may be on one of the later pages or on none, but never on two.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from attrs import Attribute, converters, field, frozen

from incoming_payments.domain.checks import check_time, integer
from incoming_payments.domain.lifecycle import state_of
from incoming_payments.domain.payment import ClientId, IncomingPayment, PaymentId, WalletAddressUrl
from incoming_payments.domain.reference import Reference
from incoming_payments.domain.transitions import State
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import PAGE_PAYMENTS_MAX


class Place(NamedTuple):
    """The place of a payment in every list. Later payments have greater places, and come first in a list."""

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

    The page has at most `limit` payments that meet every filter that is not `None`: the wallet address, the client, the
    state at `now`, the reference, and the time of creation from `created_from` on and before `created_before`. If no
    place is given, the page has the newest of these payments. If `older_than` is set, the page has the newest payments
    that are older than this place. If `newer_than` is set, the page has the oldest payments that are newer than this
    place. The newest payment always comes first.

    Raises `InvalidValue` for a `limit` below one or far above the largest page, for an invalid state or time, and when
    both places are set.
    """

    now: datetime = field(converter=check_time)
    # the page size plus one, because one more payment shows whether other payments follow
    limit: int = field(validator=integer(1, PAGE_PAYMENTS_MAX + 1))
    wallet_address: WalletAddressUrl | None = None
    client: ClientId | None = None
    state: State | None = field(default=None, converter=converters.optional(_state))
    reference: Reference | None = None
    created_from: datetime | None = field(default=None, validator=_check_time)
    created_before: datetime | None = field(default=None, validator=_check_time)
    older_than: Place | None = None
    newer_than: Place | None = field(default=None)

    @newer_than.validator
    def _one_direction(self, _: object, newer_than: Place | None) -> None:
        if newer_than is not None and self.older_than is not None:
            raise InvalidValue(
                "older_than and newer_than exclude each other: pass only one of them", member="newer_than"
            )

    def is_of(self, payment: IncomingPayment) -> bool:
        """Return whether `payment` has the wallet address and the client of this list. Neither of them ever changes."""
        terms = payment.terms
        return self.wallet_address in (None, terms.wallet_address) and self.client in (None, terms.client)

    def has_reference(self, payment: IncomingPayment) -> bool:
        """Return whether `payment` has the reference of this list. A payment loses its reference by an erasure."""
        return self.reference is None or self.reference.is_in(payment.terms.metadata)

    def admits(self, payment: IncomingPayment) -> bool:
        """Return whether `payment` meets the filters. The place of the payment does not matter."""
        return (
            self.is_of(payment)
            and self.has_reference(payment)
            and (self.created_from is None or payment.created_at >= self.created_from)
            and (self.created_before is None or payment.created_at < self.created_before)
            and self.state in (None, state_of(payment, self.now))
        )

    def page_of(self, payments: Iterable[IncomingPayment]) -> list[IncomingPayment]:
        """Return this page of the list of `payments`. The argument may have any order.

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

    `has_next` is true if older payments follow the page, and `has_previous` is true if newer payments precede it. The
    id of a payment is the cursor of its place.
    """

    payments: tuple[IncomingPayment, ...]
    has_next: bool
    has_previous: bool

"""Convert a stored payment into the resource that a client reads. All functions are pure."""

from collections.abc import Sequence

from incoming_payments.domain.checks import name_of
from incoming_payments.domain.listing import PaymentPage
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import IncomingPayment
from incoming_payments.domain.transitions import is_completed
from incoming_payments.errors import ConfigurationError
from incoming_payments.flows.machinery.effects import AllocateMethods
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.limits import METHODS_MAX
from incoming_payments.wire import PageView, PaymentView, SummaryView


def check_methods(methods: object) -> Sequence[IlpPaymentMethod]:
    """Return `methods`. Raise `ConfigurationError` unless `methods` are 1 to `limits.METHODS_MAX` payment methods."""
    found = name_of(methods)
    if isinstance(methods, Sequence) and not isinstance(methods, str):
        others = [name_of(each) for each in methods if not isinstance(each, IlpPaymentMethod)]
        if not others and 1 <= len(methods) <= METHODS_MAX:
            return methods
        found += f" of {others[0]}" if others else f" of length {len(methods)}"
    text = f"{AllocateMethods.method} returned {found}: return a list of 1 to {METHODS_MAX} IlpPaymentMethod"
    raise ConfigurationError(text, setting="methods")


def view_of(payment: IncomingPayment, url: str, methods: Sequence[IlpPaymentMethod]) -> PaymentView:
    """Return the resource of spec section 2.2.

    `completed` is true only in the completed state. For an expired payment, it is false.
    """
    terms, progress = payment.terms, payment.progress
    return PaymentView(
        id=url,
        wallet_address=terms.wallet_address,
        completed=is_completed(payment),
        incoming_amount=terms.limit,
        received_amount=progress.received,
        expires_at=terms.expires_at,
        metadata=terms.metadata,
        created_at=terms.created_at,
        updated_at=progress.updated_at,
        methods=tuple(dict.fromkeys(methods)),  # the items must be unique (spec section 2.2)
    )


def summary_of(payment: IncomingPayment, url: str) -> SummaryView:
    """Return the resource for a list or a complete request, which has no methods and no `updatedAt`."""
    return SummaryView(
        id=url,
        wallet_address=payment.wallet_address,
        completed=is_completed(payment),
        incoming_amount=payment.limit,
        received_amount=payment.received,
        expires_at=payment.expires_at,
        metadata=payment.terms.metadata,
        created_at=payment.created_at,
    )


def page_view(page: PaymentPage, policy: ServicePolicy) -> PageView:
    """Return the page of a list. The cursor of a payment is its id."""
    payments = page.payments
    return PageView(
        result=[summary_of(payment, policy.payment_url(payment.id)) for payment in payments],
        has_next_page=page.has_next,
        has_previous_page=page.has_previous,
        start_cursor=payments[0].id if payments else None,
        end_cursor=payments[-1].id if payments else None,
    )

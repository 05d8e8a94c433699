"""Get the latest state of an incoming payment, with a token or without one. Spec section 4.2."""

from collections.abc import Sequence
from datetime import datetime

from incoming_payments.domain.lifecycle import is_receivable
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.errors import PaymentNotFound
from incoming_payments.flows.authenticate import authenticate
from incoming_payments.flows.effects import AllocateMethods, FindWalletAddress, Flow, LoadPayment, flow
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.views import check_methods, view_of
from incoming_payments.gnap.access import Action, authorize, payment_not_found, require_payment
from incoming_payments.httpsig import RequestMessage
from incoming_payments.wire import PaymentView, PublicView


@flow
def get_payment(request: RequestMessage, id: PaymentId, policy: ServicePolicy, now: datetime) -> Flow[PaymentView]:
    """Return the full resource for a signed `request` with a token that may read it.

    Raises `TokenRefused`, `SignatureRefused`, `PaymentNotFound`, `AccessForbidden`.
    """
    caller = yield from authenticate(request, policy, now)
    allowance = authorize(caller.rights, Action.READ)
    payment = require_payment(allowance, (yield from _load(id)), caller.client)
    methods = yield from methods_of(payment, now)
    return view_of(payment, policy.payment_url(id), methods, now)


@flow
def get_public_payment(id: PaymentId, policy: ServicePolicy) -> Flow[PublicView]:
    """Return the public view of the payment, which needs no token. Raise `PaymentNotFound`."""
    payment = yield from _load(id)
    wallet_address = yield from FindWalletAddress(payment.wallet_address)
    # A wallet address can be closed before its payments end. Then name the authorization server of the service.
    auth_server = policy.auth_server if wallet_address is None else wallet_address.auth_server
    return PublicView(payment.received, auth_server)


def methods_of(payment: IncomingPayment, now: datetime) -> Flow[Sequence[IlpPaymentMethod]]:
    """Return the payment methods while the payment can receive, and an empty sequence afterwards."""
    if not is_receivable(payment, now):
        return ()
    return check_methods((yield from AllocateMethods(payment)))


def _load(id: PaymentId) -> Flow[IncomingPayment]:
    """Load the payment. Replace the store's `PaymentNotFound`, so that a refusal does not reveal why it happened."""
    try:
        return (yield from LoadPayment(id))
    except PaymentNotFound:
        raise payment_not_found() from None

"""Fetch the latest state of an incoming payment, as its client or as anybody. Contract section 4.2."""

from collections.abc import Sequence
from datetime import datetime

from incoming_payments.domain.lifecycle import is_receivable
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.errors import PaymentNotFound
from incoming_payments.flows.authenticate import authenticate
from incoming_payments.flows.effects import AllocateMethods, FindWalletAddress, Flow, LoadPayment
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.views import check_methods, view_of
from incoming_payments.gnap.access import Action, authorize, payment_not_found, require_payment
from incoming_payments.httpsig import Request
from incoming_payments.wire import PaymentView, PublicView


def get_payment(request: Request, id: PaymentId, policy: ServicePolicy, now: datetime) -> Flow[PaymentView]:
    """The whole resource, for a signed `request` whose token may read it.

    Raises `TokenRefused`, `SignatureRefused`, `PaymentNotFound`, `AccessForbidden`.
    """
    caller = yield from authenticate(request, policy, now)
    allowance = authorize(caller.rights, Action.READ)
    payment = require_payment(allowance, (yield from _load(id)), caller.client)
    methods = yield from methods_of(payment, now)
    return view_of(payment, policy.payment_url(id), methods, now)


def get_public_payment(id: PaymentId, policy: ServicePolicy) -> Flow[PublicView]:
    """What anybody may see of the payment. Raises `PaymentNotFound`."""
    payment = yield from _load(id)
    wallet_address = yield from FindWalletAddress(payment.wallet_address)
    # A wallet address may be closed while its payments live on; then the service's own authorization server it is.
    auth_server = policy.auth_server if wallet_address is None else wallet_address.auth_server
    return PublicView(payment.received, auth_server)


def methods_of(payment: IncomingPayment, now: datetime) -> Flow[Sequence[IlpPaymentMethod]]:
    """The payment details while the payment can receive, and none afterwards."""
    if not is_receivable(payment, now):
        return ()
    return check_methods((yield from AllocateMethods(payment)))


def _load(id: PaymentId) -> Flow[IncomingPayment]:
    """The payment; `PaymentNotFound` in our own words, whatever the store's are: they must tell no cases apart."""
    try:
        return (yield from LoadPayment(id))
    except PaymentNotFound:
        raise payment_not_found() from None

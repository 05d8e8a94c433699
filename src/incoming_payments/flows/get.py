"""Get the latest state of an incoming payment, with or without a token (spec section 4.2)."""

from collections.abc import Sequence
from datetime import datetime

from incoming_payments.domain.lifecycle import is_receivable
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import IncomingPayment, PaymentId, WalletAddress
from incoming_payments.errors import PaymentNotFound
from incoming_payments.flows.authenticate import authorized
from incoming_payments.flows.machinery.effects import AllocateMethods, Flow, LoadPayment, find_wallet_address, flow
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.views import check_methods, view_of
from incoming_payments.gnap.access import Action, payment_not_found, require_payment
from incoming_payments.gnap.introspection import TokenQuery
from incoming_payments.gnap.token import parse_authorization
from incoming_payments.httpsig import RequestMessage
from incoming_payments.wire import PaymentView, PublicView


@flow
def get_payment(request: RequestMessage, id: PaymentId, policy: ServicePolicy, now: datetime) -> Flow[PaymentView]:
    """Return the full resource for a signed `request` whose token allows reading the payment.

    Raises the exceptions of `find_for_client`.
    """
    payment = yield from find_for_client(request, id, Action.READ, policy, now)
    methods = yield from methods_of(payment, now)
    return view_of(payment, policy.payment_url(id), methods)


def find_for_client(
    request: RequestMessage, id: PaymentId, action: Action, policy: ServicePolicy, now: datetime
) -> Flow[IncomingPayment]:
    """Return the payment `id` if `request` is signed, and its token allows `action` on that payment.

    The authorization server may decide by the wallet address, so the flow loads the payment before it introspects the
    token. A refusal reveals only to an authenticated caller whether the payment exists. Raises `TokenRefused`,
    `SignatureRefused`, `QuotaExceeded`, `PaymentNotFound`, `AccessForbidden`.
    """
    token = parse_authorization(request.values("authorization"))
    found = yield from _find(id)
    query = TokenQuery(token, action, None if found is None else found.wallet_address)
    client, allowance = yield from authorized(request, query, policy, now)
    return require_payment(allowance, _existing(found), client)


@flow
def get_public_payment(id: PaymentId, policy: ServicePolicy) -> Flow[PublicView]:
    """Return the public view of the payment, which needs no token. Raise `PaymentNotFound`."""
    payment = _existing((yield from _find(id)))
    wallet_address = yield from find_wallet_address(payment.wallet_address)
    # If the wallet address was closed before its payments ended, name the authorization server of the service.
    auth_server = wallet_address.auth_server if isinstance(wallet_address, WalletAddress) else policy.auth_server
    return PublicView(payment.received, auth_server)


def methods_of(payment: IncomingPayment, now: datetime) -> Flow[Sequence[IlpPaymentMethod]]:
    """Return the payment methods while the payment can receive money, and an empty sequence after that."""
    if not is_receivable(payment, now):
        return ()
    return check_methods((yield from AllocateMethods(payment)))


def _find(id: PaymentId) -> Flow[IncomingPayment | None]:
    """Load the payment, or return `None` if it does not exist."""
    try:
        return (yield from LoadPayment(id))
    except PaymentNotFound:
        return None


def _existing(payment: IncomingPayment | None) -> IncomingPayment:
    """Return the payment. Replace the store's `PaymentNotFound` by an error that does not reveal the reason."""
    if payment is None:
        raise payment_not_found()
    return payment

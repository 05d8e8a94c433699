"""Tests of `get_payment` and `get_public_payment`: spec section 4.2, and their effects step by step."""

import pytest

from incoming_payments.domain.payment import ClientId, PaymentId
from incoming_payments.endpoints.open_payments import Request
from incoming_payments.errors import PaymentNotFound, TokenRefused
from incoming_payments.flows.get import get_payment
from incoming_payments.flows.machinery.effects import Flow, IntrospectToken
from incoming_payments.httpsig import RequestMessage
from incoming_payments.testing import a_creation
from incoming_payments.wire import PaymentView
from kits.service_kit import ALICE, BASE_URL, PATH, SHOP, Service

PAYMENT = a_creation(wallet_address=ALICE, limit=2500, expires_in_s=60, client=ClientId(SHOP)).answer


def get_flow(service: Service, id: PaymentId = PAYMENT.id) -> Flow[PaymentView]:
    """Return the flow that answers a signed GET of the payment `id`."""
    request = service.client().sign(Request("GET", f"{PATH}/{id}"))
    signed = RequestMessage("GET", f"{BASE_URL}{request.path}", request.headers)
    return get_payment(signed, id, service.policy, service.now)


def test_token_of_an_unknown_payment_is_introspected_for_no_wallet_address() -> None:
    """The caller is authenticated before the service says that the payment does not exist."""
    flow = get_flow(Service())
    next(flow)
    introspect = flow.throw(PaymentNotFound("no row", id=PAYMENT.id))
    assert isinstance(introspect, IntrospectToken)
    assert introspect.query.wallet_address is None
    with pytest.raises(TokenRefused):
        flow.send(None)

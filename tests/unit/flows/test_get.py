"""Tests of `get_payment` and `get_public_payment`: spec section 4.2, and their effects step by step."""

from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve

from incoming_payments.api import Request
from incoming_payments.domain.payment import ClientId, IncomingPayment, PaymentId
from incoming_payments.errors import AccessForbidden, PaymentNotFound, TokenRefused, WalletAddressesUnavailable
from incoming_payments.flows.effects import (
    AllocateMethods,
    Effect,
    FindWalletAddress,
    Flow,
    IntrospectToken,
    LoadPayment,
)
from incoming_payments.flows.get import get_payment, get_public_payment, methods_of
from incoming_payments.gnap import AccessRight, AccessTokenInfo
from incoming_payments.httpsig import RequestMessage
from incoming_payments.testing import NOW, a_creation
from incoming_payments.wire import PaymentView, PublicView
from kits.changed_payments import changed
from kits.service_kit import (
    ALICE,
    AUTH_SERVER,
    BASE_URL,
    BOB,
    NOBODYS_ID,
    OTHER_SHOP,
    PATH,
    SHOP,
    Service,
    a_right,
    admitted,
    ed25519_key,
    finish,
)

PAYMENT = a_creation(wallet_address=ALICE, limit=2500, expires_in_s=60, client=ClientId(SHOP)).answer
METHODS = Service().methods.allocate(PAYMENT)


def get_flow(service: Service, id: PaymentId = PAYMENT.id) -> Flow[PaymentView]:
    """Return the flow that answers a signed GET of the payment `id`."""
    request = service.client().sign(Request("GET", f"{PATH}/{id}"))
    signed = RequestMessage("GET", f"{BASE_URL}{request.path}", request.headers)
    return get_payment(signed, id, service.policy, service.now)


def token_info(*rights: AccessRight, client: str = SHOP) -> AccessTokenInfo:
    """Return the answer of the authorization server about the token."""
    return AccessTokenInfo(client, ed25519_key().public_jwk(), rights)


def test_effects_in_order() -> None:
    """The token is introspected for the wallet address of the payment."""
    flow = get_flow(Service())
    assert LoadPayment(PAYMENT.id) == next(flow)
    introspect = flow.send(PAYMENT)
    assert isinstance(introspect, IntrospectToken)
    assert (introspect.query.action, introspect.query.wallet_address) == ("read", ALICE.url)
    assert AllocateMethods(PAYMENT) == admitted(flow, token_info(a_right("read")))
    view = finish(flow, METHODS)
    assert (f"{BASE_URL}{PATH}/{PAYMENT.id}", METHODS, False) == (view.id, view.methods, view.completed)


@pytest.mark.parametrize("found", [PAYMENT, PaymentNotFound("no row", id=PAYMENT.id)], ids=["found", "not found"])
@pytest.mark.parametrize(
    ("info", "code"),
    [
        (None, "invalid_token"),
        (token_info(a_right("create", "list", "list-all", "complete")), "insufficient_rights"),
    ],
)
def test_refused_token_reveals_nothing(
    found: IncomingPayment | PaymentNotFound, info: AccessTokenInfo | None, code: str
) -> None:
    """The refusal is the same for a payment that exists and for one that does not, which has no wallet address."""
    flow = get_flow(Service())
    next(flow)
    introspect = flow.throw(found) if isinstance(found, Exception) else flow.send(found)
    assert isinstance(introspect, IntrospectToken)
    assert introspect.query.wallet_address == (None if isinstance(found, Exception) else ALICE.url)
    with pytest.raises(TokenRefused) as refused:
        flow.send(info)
    assert refused.value.code == code


OTHERS = changed(PAYMENT, client=ClientId(OTHER_SHOP))
# The rights of the shop's token, the requested payment on Alice's wallet address, and the expected refusal.
VISIBILITY: list[tuple[str, list[AccessRight], IncomingPayment, type[Exception] | None]] = [
    ("read, own", [a_right("read")], PAYMENT, None),
    ("read, own, any wallet address", [a_right("read", on=None)], PAYMENT, None),
    ("read, another client's", [a_right("read")], OTHERS, AccessForbidden),
    ("read everywhere, another client's", [a_right("read", on=None)], OTHERS, AccessForbidden),
    ("read-all, another client's", [a_right("read-all")], OTHERS, None),
    ("read-all everywhere, another client's", [a_right("read-all", on=None)], OTHERS, None),
    ("read here and read-all there", [a_right("read"), a_right("read-all", on=BOB)], OTHERS, AccessForbidden),
    ("read there, own", [a_right("read", on=BOB)], PAYMENT, PaymentNotFound),
    ("read there, another client's", [a_right("read", on=BOB)], OTHERS, PaymentNotFound),
    ("read-all there, own", [a_right("read-all", on=BOB)], PAYMENT, PaymentNotFound),
]


@pytest.mark.parametrize(
    ("rights", "payment", "error"), [row[1:] for row in VISIBILITY], ids=[row[0] for row in VISIBILITY]
)
def test_visibility_by_right(
    rights: list[AccessRight], payment: IncomingPayment, error: type[Exception] | None
) -> None:
    """`read` covers the payments of the client, `read-all` all payments, each only on its wallet address."""
    flow = get_flow(Service())
    next(flow)
    flow.send(payment)
    if error is None:
        assert AllocateMethods(payment) == admitted(flow, token_info(*rights))
    else:
        with pytest.raises(error):
            admitted(flow, token_info(*rights))


def test_unknown_and_invisible_payments_get_the_same_refusal() -> None:
    """Description and details are the same in both cases, whatever exception the store raised."""
    refusals = []
    for answer in (PaymentNotFound("no row", id=PAYMENT.id), PAYMENT):
        flow = get_flow(Service())
        next(flow)
        flow.throw(answer) if isinstance(answer, Exception) else flow.send(answer)
        with pytest.raises(PaymentNotFound) as refused:
            admitted(flow, token_info(a_right("read", on=BOB)))
        refusals.append((refused.value.description, dict(refused.value.details)))
    assert refusals[0] == refusals[1]
    assert refusals[0][1] == {}


def test_payment_that_cannot_receive_has_no_methods() -> None:
    """No methods are allocated after completion or expiry. At `expiresAt` itself the payment can still receive."""
    completed = changed(PAYMENT, received=evolve(PAYMENT.received, value=2500))
    at_expiry, after_expiry = (NOW + timedelta(seconds=60, microseconds=us) for us in (0, 1))
    assert AllocateMethods(PAYMENT) == next(methods_of(PAYMENT, at_expiry))
    for payment, now in ((PAYMENT, after_expiry), (completed, NOW)):
        with pytest.raises(StopIteration) as stop:
            next(methods_of(payment, now))
        assert stop.value.value == ()


def test_public_effects_in_order() -> None:
    """The public view names the authorization server of the wallet address."""
    flow = get_public_payment(PAYMENT.id, Service().policy)
    assert LoadPayment(PAYMENT.id) == next(flow)
    assert FindWalletAddress(ALICE.url) == flow.send(PAYMENT)
    assert PublicView(PAYMENT.received, ALICE.auth_server) == finish(flow, ALICE)


def test_public_view_after_the_wallet_address_is_closed() -> None:
    """When the wallet address is not hosted any more, the view names the authorization server of the service."""
    flow = get_public_payment(PAYMENT.id, Service().policy)
    next(flow)
    flow.send(PAYMENT)
    assert PublicView(PAYMENT.received, AUTH_SERVER) == finish(flow, None)


@pytest.mark.parametrize("error", [TimeoutError("10.0.0.7"), ConnectionResetError("10.0.0.7")])
def test_lost_connection_to_the_wallet_addresses_is_an_outage(error: Exception) -> None:
    """A port that raises a plain error of its connection is not a defect of the service."""
    flow = get_public_payment(PAYMENT.id, Service().policy)
    next(flow)
    flow.send(PAYMENT)
    with pytest.raises(WalletAddressesUnavailable, match=r"10\.0\.0\.7"):
        flow.throw(error)


def test_public_view_of_an_unknown_payment() -> None:
    """An unknown payment gets the same refusal as in a signed request."""
    flow = get_public_payment(PaymentId(NOBODYS_ID), Service().policy)
    next(flow)
    with pytest.raises(PaymentNotFound, match="no such incoming payment"):
        flow.throw(PaymentNotFound("no row"))


def test_failure_of_the_store_is_not_payment_not_found() -> None:
    """Only `PaymentNotFound` is replaced. Other exceptions of the store reach the caller."""
    effect: Effect[Any]
    flow = get_public_payment(PAYMENT.id, Service().policy)
    effect = next(flow)
    assert LoadPayment(PAYMENT.id) == effect
    with pytest.raises(OSError, match="disk"):
        flow.throw(OSError("disk"))

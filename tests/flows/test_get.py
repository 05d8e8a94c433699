"""Fetch, stepped by hand: contract section 4.2."""

from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve

from changed_payments import changed
from incoming_payments.api import Request
from incoming_payments.domain.payment import ClientId, IncomingPayment, PaymentId
from incoming_payments.errors import AccessForbidden, PaymentNotFound, TokenRefused
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
from incoming_payments.httpsig import Request as SignedRequest
from incoming_payments.testing import NOW, a_creation
from incoming_payments.wire import PaymentView, PublicView
from service_kit import (
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
    ed25519_key,
    finish,
)

PAYMENT = a_creation(wallet_address=ALICE, limit=2500, expires_in_s=60, client=ClientId(SHOP)).answer
METHODS = Service().methods.allocate(PAYMENT)


def getting(service: Service, id: PaymentId = PAYMENT.id) -> Flow[PaymentView]:
    """The flow that answers a signed GET of the payment `id`."""
    request = service.client().sign(Request("GET", f"{PATH}/{id}"))
    signed = SignedRequest("GET", f"{BASE_URL}{request.path}", request.headers)
    return get_payment(signed, id, service.policy, service.now)


def known(*rights: AccessRight, client: str = SHOP) -> AccessTokenInfo:
    """What the authorization server says of the token."""
    return AccessTokenInfo(client, ed25519_key().public_jwk(), rights)


def test_effects_in_order_by_hand() -> None:
    """Token, payment, details; the payment is asked for only once the caller has proven who it is."""
    flow = getting(Service())
    assert IntrospectToken is type(next(flow))
    assert LoadPayment(PAYMENT.id) == flow.send(known(a_right("read")))
    assert AllocateMethods(PAYMENT) == flow.send(PAYMENT)
    view = finish(flow, METHODS)
    assert (f"{BASE_URL}{PATH}/{PAYMENT.id}", METHODS, False) == (view.id, view.methods, view.completed)


def test_right_is_missing_before_the_payment_is_looked_for() -> None:
    """Without a right to read there is no look-up that could tell whether the payment exists."""
    flow = getting(Service())
    next(flow)
    with pytest.raises(TokenRefused) as refused:
        flow.send(known(a_right("create", "list", "list-all", "complete")))
    assert refused.value.code == "insufficient_rights"


OTHERS = changed(PAYMENT, client=ClientId(OTHER_SHOP))
# The rights of the shop's token, whose payment on Alice's wallet address is asked for, and what comes of it.
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
def test_who_sees_what(rights: list[AccessRight], payment: IncomingPayment, error: type[Exception] | None) -> None:
    """`read` sees the calling client's own, `read-all` everybody's, each on its wallet address and nowhere else."""
    flow = getting(Service())
    next(flow)
    flow.send(known(*rights))
    if error is None:
        assert AllocateMethods(payment) == flow.send(payment)
    else:
        with pytest.raises(error):
            flow.send(payment)


def test_not_there_and_not_visible_are_one_refusal() -> None:
    """The words are ours, whatever the store's are: description and details tell the two cases not apart."""
    refusals = []
    for answer in (PaymentNotFound("no row", id=PAYMENT.id), PAYMENT):
        flow = getting(Service())
        next(flow)
        flow.send(known(a_right("read", on=BOB)))
        with pytest.raises(PaymentNotFound) as refused:
            flow.throw(answer) if isinstance(answer, Exception) else flow.send(answer)
        refusals.append((refused.value.description, dict(refused.value.details)))
    assert refusals[0] == refusals[1]
    assert refusals[0][1] == {}


def test_payment_that_cannot_receive_has_no_details() -> None:
    """Nobody is asked to allocate them; the moment `expiresAt` itself still receives."""
    completed = changed(PAYMENT, received=evolve(PAYMENT.received, value=2500))
    at_expiry, after_expiry = (NOW + timedelta(seconds=60, microseconds=us) for us in (0, 1))
    assert AllocateMethods(PAYMENT) == next(methods_of(PAYMENT, at_expiry))
    for payment, now in ((PAYMENT, after_expiry), (completed, NOW)):
        with pytest.raises(StopIteration) as stop:
            next(methods_of(payment, now))
        assert stop.value.value == ()


def test_public_effects_in_order_by_hand() -> None:
    """The payment, then its wallet address, whose authorization server is the one to ask for a grant."""
    flow = get_public_payment(PAYMENT.id, Service().policy)
    assert LoadPayment(PAYMENT.id) == next(flow)
    assert FindWalletAddress(ALICE.url) == flow.send(PAYMENT)
    assert PublicView(PAYMENT.received, ALICE.auth_server) == finish(flow, ALICE)


def test_public_view_outlives_the_wallet_address() -> None:
    """A wallet address may be closed while its payments live on; then the service's own server is named."""
    flow = get_public_payment(PAYMENT.id, Service().policy)
    next(flow)
    flow.send(PAYMENT)
    assert PublicView(PAYMENT.received, AUTH_SERVER) == finish(flow, None)


def test_public_view_of_what_is_not_there() -> None:
    """It is refused in the words that a signed request gets."""
    flow = get_public_payment(PaymentId(NOBODYS_ID), Service().policy)
    next(flow)
    with pytest.raises(PaymentNotFound, match="no such incoming payment"):
        flow.throw(PaymentNotFound("no row"))


def test_store_in_trouble_is_not_a_payment_that_is_not_there() -> None:
    """Only the store's own "not found" is one; anything else stays what it is."""
    effect: Effect[Any]
    flow = get_public_payment(PAYMENT.id, Service().policy)
    effect = next(flow)
    assert LoadPayment(PAYMENT.id) == effect
    with pytest.raises(OSError, match="disk"):
        flow.throw(OSError("disk"))

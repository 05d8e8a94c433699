"""Tests of `create_payment`: spec section 4.1, its effects step by step, and crashes between two effects."""

from datetime import timedelta
from typing import Any

import pytest

from incoming_payments.domain.payment import PAYMENT_ID_RANDOM_BYTES, new_payment_id
from incoming_payments.endpoints.open_payments import Request
from incoming_payments.errors import (
    AccessForbidden,
    AssetMismatch,
    ConfigurationError,
    IncomingPaymentsError,
    MalformedJson,
    PaymentExists,
    PaymentExpired,
    SignatureRefused,
    TermsRefused,
    TokenRefused,
    WalletAddressNotFound,
)
from incoming_payments.flows.create import create_for_host, create_payment
from incoming_payments.flows.machinery.effects import (
    AllocateMethods,
    CountRequest,
    DrawRandomness,
    Effect,
    FindWalletAddress,
    Flow,
    InsertPayment,
    IntrospectToken,
    RequestApproval,
    ReserveUnpaid,
)
from incoming_payments.gnap import AccessTokenInfo
from incoming_payments.httpsig import RequestMessage
from incoming_payments.testing import NOW
from incoming_payments.wire import PaymentView
from kits.service_kit import ALICE, BASE_URL, BOB, SHOP, Service, a_right, admitted, document, ed25519_key, watched

STEPS = [
    IntrospectToken,
    CountRequest,
    FindWalletAddress,
    DrawRandomness,
    ReserveUnpaid,
    RequestApproval,
    AllocateMethods,
    InsertPayment,
]
RANDOMNESS = bytes(range(PAYMENT_ID_RANDOM_BYTES))
ID = new_payment_id(NOW, RANDOMNESS)
USD_25 = {"value": "2500", "assetCode": "USD", "assetScale": 2}


def signed(request: Request) -> RequestMessage:
    """Return `request` as the flows expect it."""
    return RequestMessage(request.method, f"{BASE_URL}{request.path}", request.headers, request.body)


def creation_flow(service: Service, request: Request) -> Flow[PaymentView]:
    """Return the flow that answers `request`."""
    return create_payment(signed(request), service.policy, service.now, service.clock)


def test_duplicate_id_is_refused() -> None:
    """A randomness port that repeats itself leads to `PaymentExists`, and the first payment does not change."""
    service = Service()
    service.replace(randomness=lambda _: RANDOMNESS)
    client = service.client()
    client.create()
    before = service.store.load(ID)
    with pytest.raises(PaymentExists):
        service.run(creation_flow(service, client.creation({"walletAddress": ALICE.url, "metadata": {"n": 2}})))
    assert before == service.store.load(ID)


# Each row breaks one rule, and as many later rules as possible. The refusal must be that of the first broken rule.
# The last column is the number of effects before the refusal. Only an authenticated client causes a look-up.
EXPIRED_TOKEN = {"expires_at": NOW - timedelta(seconds=1)}
REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], type[IncomingPaymentsError], int]] = [
    ("expired token", {"rights": ["read"], **EXPIRED_TOKEN}, {"body": b"{", "created": 0}, TokenRefused, 1),
    ("stale signature", {"rights": ["read"]}, {"body": b"{", "created": 0}, SignatureRefused, 1),
    ("missing right", {"rights": ["read"]}, {"body": b"{"}, TokenRefused, 1),
    ("no JSON", {}, {"body": b'{"walletAddress": "https://bank.example/eve", "x": 1'}, MalformedJson, 2),
    ("invalid body", {}, {"body": {"walletAddress": "https://bank.example/eve", "x": 1}}, MalformedJson, 2),
    ("another wallet address", {}, {"body": {"walletAddress": "https://bank.example/eve"}}, AccessForbidden, 2),
    (
        "wallet address not hosted",
        {"on": None},
        {"body": {"walletAddress": "https://bank.example/eve", "incomingAmount": {**USD_25, "value": "0"}}},
        WalletAddressNotFound,
        3,
    ),
    (
        "asset differs from the wallet address",
        {"on": None},
        {"body": {"walletAddress": BOB.url, "incomingAmount": {**USD_25, "value": "0"}}},
        AssetMismatch,
        4,
    ),
    (
        "amount of zero",
        {},
        {
            "body": {
                "walletAddress": ALICE.url,
                "incomingAmount": {**USD_25, "value": "0"},
                "expiresAt": "2000-01-01T00:00:00Z",
            }
        },
        TermsRefused,
        4,
    ),
    (
        "expiry in the past",
        {},
        {"body": {"walletAddress": ALICE.url, "expiresAt": "2000-01-01T00:00:00Z"}},
        TermsRefused,
        4,
    ),
]


@pytest.mark.parametrize(
    ("right", "request_", "error", "steps"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_refusals_by_precedence(
    right: dict[str, Any], request_: dict[str, Any], error: type[IncomingPaymentsError], steps: int
) -> None:
    """The caller is checked before the body, and no refusal comes after the insertion."""
    service = Service()
    rights = a_right(*right.get("rights", ["create"]), on=right.get("on", ALICE))
    client = service.client(rights, expires_at=right.get("expires_at"))
    seen: list[Effect[Any]] = []
    with pytest.raises(error):
        service.run(watched(creation_flow(service, client.creation(**request_)), seen))
    assert STEPS[:steps] == [type(effect) for effect in seen]


@pytest.mark.parametrize("more", ['"x": 1', '"expiresAt": NaN', '"metadata": {"a": 1, "a": 2}'])
def test_authorization_server_learns_the_wallet_address_of_an_invalid_body(more: str) -> None:
    """It may know the token for that wallet address only. An honest client then learns which member is wrong."""
    service = Service()
    body = f'{{"walletAddress": "{ALICE.url}", {more}}}'.encode()
    flow = creation_flow(service, service.client().creation(body))
    assert isinstance(introspect := next(flow), IntrospectToken)
    assert introspect.query.wallet_address == ALICE.url
    with pytest.raises(MalformedJson):
        admitted(flow, AccessTokenInfo(SHOP, ed25519_key().public_jwk(), [a_right("create")]))


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[" * 5000, b"[]", b"{}", b'{"walletAddress": 1}', b'{"walletAddress": "/"}']
)
def test_body_without_a_wallet_address_needs_no_look_up(body: bytes) -> None:
    """The authorization server is asked about the token alone, and then the fault is described."""
    service = Service()
    flow = creation_flow(service, service.client().creation(body))
    assert isinstance(introspect := next(flow), IntrospectToken)
    assert introspect.query.wallet_address is None
    with pytest.raises(MalformedJson):
        admitted(flow, AccessTokenInfo(SHOP, ed25519_key().public_jwk(), [a_right("create")]))


def test_different_wallet_address_from_the_port_is_refused() -> None:
    """An answer with another wallet address is a fault of the port, so the money cannot go there."""
    service = Service()
    flow = creation_flow(service, service.client().creation())
    next(flow)
    admitted(flow, AccessTokenInfo(SHOP, ed25519_key().public_jwk(), [a_right("create")]))
    with pytest.raises(
        ConfigurationError, match=f"^wallet_addresses.find returned the wallet address {BOB.url} for {ALICE.url}: "
    ):
        flow.send(BOB)


def test_policy_limits_apply() -> None:
    """The limits of the policy apply to metadata and expiry."""
    service = Service(expiry_s_max=60, metadata_bytes_max=9, metadata_depth_max=1)
    client = service.client()
    soon, late = ((NOW + timedelta(seconds=seconds)).isoformat() for seconds in (60, 61))
    assert client.create(expiresAt=soon, metadata={"a": "b"}).status == 201
    refused: list[dict[str, object]] = [{"expiresAt": late}, {"metadata": {"a": "bc"}}, {"metadata": {"": {}}}]
    for members in refused:
        with pytest.raises((TermsRefused, MalformedJson)):
            service.run(creation_flow(service, client.creation({"walletAddress": ALICE.url, **members})))


def test_default_expiry_of_the_policy() -> None:
    """A payment without amount and expiry expires at the default, and the client reads when. So does one of the host.

    After that time the payment accepts only no money.
    """
    service = Service(default_expiry_s=600)
    expected = (NOW + timedelta(seconds=600)).isoformat().replace("+00:00", "Z")
    created = document(service.client().create(), 201)
    assert created["expiresAt"] == expected
    amount = {"value": "5", "assetCode": "USD", "assetScale": 2}
    assert "expiresAt" not in document(service.client().create(incomingAmount=amount), 201)
    of_host = service.run(create_for_host(wallet_address=ALICE.url, policy=service.policy, clock=lambda: NOW))
    assert of_host.expires_at == NOW + timedelta(seconds=600)
    service.clock.advance(seconds=601)
    with pytest.raises(PaymentExpired):
        service.receive(of_host.id, 1)

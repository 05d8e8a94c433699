"""Create, stepped by hand: contract section 4.1, and what a crash between two effects leaves."""

from datetime import timedelta
from typing import Any

import pytest

from incoming_payments.api import Request
from incoming_payments.domain.amount import Amount
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import PAYMENT_ID_RANDOM_BYTES, WalletAddress, new_payment_id, payment_id
from incoming_payments.errors import (
    AccessForbidden,
    AssetMismatch,
    IncomingPaymentsError,
    MalformedJson,
    PaymentExists,
    PaymentNotFound,
    PolicyRefused,
    SignatureRefused,
    StoreUnavailable,
    TermsRefused,
    TokenRefused,
    WalletAddressNotFound,
)
from incoming_payments.flows.create import create_payment
from incoming_payments.flows.effects import (
    AllocateMethods,
    DrawRandomness,
    Effect,
    FindWalletAddress,
    Flow,
    InsertPayment,
    IntrospectToken,
)
from incoming_payments.gnap import AccessToken, AccessTokenInfo
from incoming_payments.httpsig import Request as SignedRequest
from incoming_payments.testing import NOW
from incoming_payments.wire import PaymentView
from service_kit import ALICE, BASE_URL, BOB, SHOP, Crash, Service, a_right, ed25519_key, finish, watched

STEPS = [IntrospectToken, FindWalletAddress, DrawRandomness, AllocateMethods, InsertPayment]
RANDOMNESS = bytes(range(PAYMENT_ID_RANDOM_BYTES))
ID = new_payment_id(NOW, RANDOMNESS)
USD_25 = {"value": "2500", "assetCode": "USD", "assetScale": 2}


def signed(request: Request) -> SignedRequest:
    """`request` as the flows take it."""
    return SignedRequest(request.method, f"{BASE_URL}{request.path}", request.headers, request.body)


def creating(service: Service, request: Request) -> Flow[PaymentView]:
    """The flow that answers `request`."""
    return create_payment(signed(request), service.policy, service.now)


def insert_of(effect: Effect[Any]) -> InsertPayment:
    """`effect`, which has to be the insertion."""
    assert isinstance(effect, InsertPayment)
    return effect


def test_effects_in_order_by_hand() -> None:
    """Token, wallet address, randomness, details, and only then the store: what is stored can be paid."""
    service = Service()
    client = service.client()
    flow = creating(service, client.creation())
    assert IntrospectToken(AccessToken(client.token)) == next(flow)
    assert FindWalletAddress(ALICE.url) == flow.send(
        AccessTokenInfo(SHOP, ed25519_key().public_jwk(), [a_right("create")])
    )
    assert DrawRandomness(PAYMENT_ID_RANDOM_BYTES) == flow.send(ALICE)
    allocate = flow.send(RANDOMNESS)
    assert isinstance(allocate, AllocateMethods)
    payment = allocate.payment
    methods = service.methods.allocate(payment)
    decision = insert_of(flow.send(methods)).decision
    assert (payment, payment) == (decision.answer, decision.payment)
    assert [event.kind for event in decision.events] == [EventKind.CREATED]
    assert (ID, ALICE.url, SHOP, 0, NOW, NOW) == (
        payment.id,
        payment.wallet_address,
        payment.client,
        payment.received.value,
        payment.created_at,
        payment.updated_at,
    )
    view = finish(flow)
    assert (f"{BASE_URL}/incoming-payments/{ID}", methods, False) == (view.id, view.methods, view.completed)


@pytest.mark.parametrize("crash_after", range(1, len(STEPS)))
def test_crash_before_the_insertion_leaves_nothing(crash_after: int) -> None:
    """Whatever was asked before, no payment is there, so nobody can be told of it or pay into it."""
    service = Service()
    service.replace(randomness=lambda _: RANDOMNESS)
    seen: list[Effect[Any]] = []
    with pytest.raises(Crash):
        service.run(watched(creating(service, service.client().creation()), seen, crash_after=crash_after))
    assert STEPS[:crash_after] == [type(effect) for effect in seen]
    with pytest.raises(PaymentNotFound):
        service.store.load(ID)


def test_crash_after_the_insertion_leaves_a_whole_payment() -> None:
    """The client has no answer, but what is stored is as good as any: it can be read, paid and completed."""
    service = Service()
    service.replace(randomness=lambda _: RANDOMNESS)
    client = service.client()
    seen: list[Effect[Any]] = []
    request = client.creation({"walletAddress": ALICE.url, "incomingAmount": USD_25})
    with pytest.raises(Crash):
        service.run(watched(creating(service, request), seen, crash_after=len(STEPS)))
    assert [type(effect) for effect in seen] == STEPS
    assert service.store.load(ID) == insert_of(seen[-1]).decision.answer
    assert [event.kind for event in service.store.events(ID)] == [EventKind.CREATED]
    assert client.get(ID).status == 200
    assert service.receive(ID, 2500).completes


def test_repeated_after_a_crash_makes_a_payment_of_its_own() -> None:
    """A client that got no answer asks again: the second payment does not touch the first."""
    service = Service()
    client = service.client()
    request = client.creation()
    seen: list[Effect[Any]] = []
    with pytest.raises(Crash):
        service.run(watched(creating(service, request), seen, crash_after=len(STEPS)))
    lost = insert_of(seen[-1]).decision.answer
    view = service.run(creating(service, request))
    assert lost == service.store.load(lost.id)
    assert not view.id.endswith(lost.id)


def test_id_is_there_already() -> None:
    """Randomness that repeats itself is a broken port, and never a payment that takes another's place."""
    service = Service()
    service.replace(randomness=lambda _: RANDOMNESS)
    client = service.client()
    client.create()
    before = service.store.load(ID)
    with pytest.raises(PaymentExists):
        service.run(creating(service, client.creation({"walletAddress": ALICE.url, "metadata": {"n": 2}})))
    assert before == service.store.load(ID)


# Each row breaks one rule and all rules below it that it can: the first in this order is the one reported. With it,
# how many effects had been asked by then.
EXPIRED_TOKEN = {"expires_at": NOW - timedelta(seconds=1)}
REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], type[IncomingPaymentsError], int]] = [
    ("token over", {"rights": ["read"], **EXPIRED_TOKEN}, {"body": b"{", "created": 0}, TokenRefused, 1),
    ("signature stale", {"rights": ["read"]}, {"body": b"{", "created": 0}, SignatureRefused, 1),
    ("right missing", {"rights": ["read"]}, {"body": b"{"}, TokenRefused, 1),
    ("body unreadable", {}, {"body": b'{"walletAddress": "https://bank.example/eve", "x": 1}'}, MalformedJson, 1),
    ("another wallet address", {}, {"body": {"walletAddress": "https://bank.example/eve"}}, AccessForbidden, 1),
    (
        "wallet address not hosted",
        {"on": None},
        {"body": {"walletAddress": "https://bank.example/eve", "incomingAmount": {**USD_25, "value": "0"}}},
        WalletAddressNotFound,
        2,
    ),
    (
        "asset of another wallet address",
        {"on": None},
        {"body": {"walletAddress": BOB.url, "incomingAmount": {**USD_25, "value": "0"}}},
        AssetMismatch,
        3,
    ),
    (
        "nothing to receive",
        {},
        {
            "body": {
                "walletAddress": ALICE.url,
                "incomingAmount": {**USD_25, "value": "0"},
                "expiresAt": "2000-01-01T00:00:00Z",
            }
        },
        TermsRefused,
        3,
    ),
    (
        "over before it begins",
        {},
        {"body": {"walletAddress": ALICE.url, "expiresAt": "2000-01-01T00:00:00Z"}},
        TermsRefused,
        3,
    ),
]


@pytest.mark.parametrize(
    ("right", "request_", "error", "steps"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_refusals_by_precedence(
    right: dict[str, Any], request_: dict[str, Any], error: type[IncomingPaymentsError], steps: int
) -> None:
    """Who asks is settled before what is asked for, and no refusal comes after the store was touched."""
    service = Service()
    rights = a_right(*right.get("rights", ["create"]), on=right.get("on", ALICE))
    client = service.client(rights, expires_at=right.get("expires_at"))
    seen: list[Effect[Any]] = []
    with pytest.raises(error):
        service.run(watched(creating(service, client.creation(**request_)), seen))
    assert STEPS[:steps] == [type(effect) for effect in seen]


def test_wallet_address_found_under_another_url_is_not_the_one_asked_for() -> None:
    """A port that answers with some other wallet address does not move the money there."""
    service = Service()
    flow = creating(service, service.client().creation())
    next(flow)
    flow.send(AccessTokenInfo(SHOP, ed25519_key().public_jwk(), [a_right("create")]))
    with pytest.raises(WalletAddressNotFound):
        flow.send(BOB)


def test_wallet_address_is_found_in_any_spelling() -> None:
    """Scheme and host in any case, the default port and a trailing slash make no other wallet address."""
    service = Service()
    seen: list[Effect[Any]] = []
    request = service.client().creation({"walletAddress": "HTTPS://Bank.Example:443/alice/"})
    view = service.run(watched(creating(service, request), seen))
    assert FindWalletAddress(ALICE.url) == seen[1]
    assert ALICE.url == view.wallet_address


def test_policy_bounds_reach_the_decision() -> None:
    """The host's own limits on metadata and expiry are the ones that hold."""
    service = Service(expiry_s_max=60, metadata_bytes_max=9, metadata_depth_max=1)
    client = service.client()
    soon, late = ((NOW + timedelta(seconds=seconds)).isoformat() for seconds in (60, 61))
    assert client.create(expiresAt=soon, metadata={"a": "b"}).status == 201
    refused: list[dict[str, object]] = [{"expiresAt": late}, {"metadata": {"a": "bc"}}, {"metadata": {"": {}}}]
    for members in refused:
        with pytest.raises((TermsRefused, MalformedJson)):
            service.run(creating(service, client.creation({"walletAddress": ALICE.url, **members})))


@pytest.mark.parametrize("step", range(len(STEPS)))
@pytest.mark.parametrize(
    "error", [PolicyRefused("not today"), StoreUnavailable("locked"), RuntimeError("broken")], ids=type
)
def test_what_a_port_raises_ends_the_flow_as_it_is(step: int, error: Exception) -> None:
    """At whichever effect a port fails, the flow asks for nothing more and the reason arrives unchanged."""
    service = Service()
    answers: list[object] = [
        AccessTokenInfo(SHOP, ed25519_key().public_jwk(), [a_right("create")]),
        ALICE,
        RANDOMNESS,
        [IlpPaymentMethod("test.bank.x", "c2VjcmV0")],
    ]
    flow = creating(service, service.client().creation())
    effect = next(flow)
    for answer in answers[:step]:
        effect = flow.send(answer)
    assert STEPS[step] is type(effect)
    with pytest.raises(type(error)) as raised:
        flow.throw(error)
    assert error is raised.value


def test_hosted_elsewhere_is_said_only_to_who_may_know() -> None:
    """A token for one wallet address learns nothing about which others are hosted."""
    service = Service()
    client = service.client()
    messages = set()
    for url in (BOB.url, "https://bank.example/eve", "https://elsewhere.example/alice"):
        with pytest.raises(AccessForbidden) as refused:
            service.run(creating(service, client.creation({"walletAddress": url})))
        messages.add((refused.value.description, tuple(refused.value.details)))
    assert len(messages) == 1


def test_wallet_address_port_may_return_an_equal_value() -> None:
    """The port may build its answer anew each time: it is compared by its URL, in the one spelling."""
    service = Service()
    service.hosted.addresses[ALICE.url] = WalletAddress(ALICE.url, ALICE.asset, "https://new.example")
    assert ALICE.url == service.run(creating(service, service.client().creation())).wallet_address


def test_terms_of_the_request_become_those_of_the_payment() -> None:
    """The amount, the expiry and the metadata are stored, and the client gets them back."""
    service = Service()
    expires_at = NOW + timedelta(seconds=60)
    body = {
        "walletAddress": ALICE.url,
        "incomingAmount": USD_25,
        "expiresAt": expires_at.isoformat(),
        "metadata": {"invoice": 7},
    }
    view = service.run(creating(service, service.client().creation(body)))
    stored = service.store.load(payment_id(view.id.rpartition("/")[2]))
    for terms in (
        (stored.limit, stored.expires_at, stored.metadata),
        (view.incoming_amount, view.expires_at, view.metadata),
    ):
        assert terms == (Amount(2500, ALICE.asset), expires_at, '{"invoice":7}')


def test_wallet_address_that_is_not_hosted_is_named() -> None:
    """The refusal names the member at fault, in the spelling of the wire."""
    service = Service()
    service.hosted.addresses.clear()
    with pytest.raises(WalletAddressNotFound) as caught:
        service.run(creating(service, service.client().creation()))
    assert caught.value.details == {"member": "walletAddress"}
    assert "walletAddress" in str(caught.value)

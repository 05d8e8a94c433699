"""Request to response, without any host between: each row of the contract's tables, and every rule of the design."""

import itertools
import json
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.api import STATUS, Request, Response, handle, http_refusal, internal_error
from incoming_payments.domain.payment import IncomingPayment
from incoming_payments.errors import (
    HttpRefused,
    PaymentExists,
    PaymentNotFound,
    PolicyRefused,
    PortMissing,
    StoreUnavailable,
    StoreUnusable,
)
from incoming_payments.flows.run import run
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.ilp import DerivedMethods
from incoming_payments.limits import (
    BODY_BYTES_MAX,
    HEADER_BYTES_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    TARGET_CHARS_MAX,
    UINT64_MAX,
)
from incoming_payments.ports import Ports
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import NOW
from kits.service_kit import (
    ALICE,
    AUTH_SERVER,
    BASE_URL,
    BOB,
    JSON,
    NOBODYS_ID,
    OTHER_SHOP,
    PATH,
    SERVER_SECRET,
    SHOP,
    Service,
    a_right,
    document,
    ed25519_key,
    es256_key,
    header,
    id_of,
    ps512_key,
    refusal,
)

USD_25 = {"value": "2500", "assetCode": "USD", "assetScale": 2}
RECEIVED_0 = {"value": "0", "assetCode": "USD", "assetScale": 2}


def ids(rows: list[Any]) -> list[str]:
    """The names of the rows of a table."""
    return [row[0] for row in rows]


def error_of(response: Response) -> dict[str, Any]:
    """The error in the body of a refusal."""
    error: dict[str, Any] = json.loads(response.body)["error"]
    return error


def without(request: Request, *names: str) -> Request:
    """`request` without some of its header fields."""
    return evolve(request, headers=[line for line in request.headers if line[0].lower() not in names])


# --- section 2: the resource -----------------------------------------------------------------------


def test_2_1_value() -> None:
    """An unsigned 64-bit integer, written as a string, both ways."""
    client = Service().client()
    for value in ("1", str(UINT64_MAX)):
        amount = {**USD_25, "value": value}
        assert amount == document(client.create(incomingAmount=amount), 201)["incomingAmount"]
    for bad in (1, "", "-1", "+1", "01", "1.0", " 1", "1e3", str(UINT64_MAX + 1), "\u0661", None):
        response = client.create(incomingAmount={**USD_25, "value": bad})
        assert refusal(response) == (400, "invalid_body"), bad
        assert error_of(response)["details"]["member"] == "incomingAmount.value"


def test_2_1_asset_code() -> None:
    """A string: the code of the wallet address's asset, and no other."""
    client = Service().client()
    assert refusal(client.create(incomingAmount={**USD_25, "assetCode": "EUR"})) == (400, "asset_mismatch")
    for bad in (1, "", "US D", None):
        response = client.create(incomingAmount={**USD_25, "assetCode": bad})
        assert refusal(response) == (400, "invalid_body"), bad
        assert error_of(response)["details"]["member"] == "incomingAmount.assetCode"


def test_2_1_asset_scale() -> None:
    """An integer of at most 255: no string, no fraction, no boolean."""
    client = Service().client()
    for other in (0, 255):
        response = client.create(incomingAmount={**USD_25, "assetScale": other})
        assert refusal(response) == (400, "asset_mismatch")
    for bad in (256, -1, "2", 2.0, True, None):
        response = client.create(incomingAmount={**USD_25, "assetScale": bad})
        assert refusal(response) == (400, "invalid_body"), bad
        assert error_of(response)["details"]["member"] == "incomingAmount.assetScale"


def test_2_2_id() -> None:
    """The URL identifying the incoming payment: below the base URL, and what GET answers to."""
    client = Service().client()
    created = document(client.create(), 201)
    match = re.fullmatch(rf"{BASE_URL}{PATH}/([0-9a-f-]{{36}})", created["id"])
    assert match is not None
    assert created == document(client.get(match[1]))


def test_2_2_wallet_address() -> None:
    """The URL of the wallet address, in its one spelling."""
    created = document(Service().client().create(walletAddress="https://BANK.example/alice/"), 201)
    assert created["walletAddress"] == "https://bank.example/alice"


def test_2_2_completed() -> None:
    """Whether it has finished receiving: true once `incomingAmount` was reached, and in no other case."""
    service = Service()
    client = service.client()
    id = client.creates(incomingAmount=USD_25, expiresAt=(NOW + timedelta(hours=1)).isoformat())
    seen = [document(client.get(id))["completed"]]
    for value, credit in ((2499, "a"), (1, "b")):
        service.receive(id, value, credit=credit)
        seen.append(document(client.get(id))["completed"])
    assert seen == [False, False, True]


def test_2_2_incoming_amount() -> None:
    """There as it was asked for, and left out, not null, when there is no maximum."""
    client = Service().client()
    assert document(client.create(incomingAmount=USD_25), 201)["incomingAmount"] == USD_25
    assert "incomingAmount" not in document(client.create(), 201)


def test_2_2_received_amount() -> None:
    """The total, in the asset of the wallet address, whether or not there is a maximum."""
    service = Service()
    client = service.client()
    id = client.creates()
    assert document(client.get(id))["receivedAmount"] == RECEIVED_0
    service.receive(id, 40, credit="a")
    service.receive(id, 2, credit="b")
    assert document(client.get(id))["receivedAmount"] == {**RECEIVED_0, "value": "42"}


def test_2_2_expires_at() -> None:
    """The same moment as asked for, in UTC; left out when there is none."""
    client = Service().client()
    created = document(client.create(expiresAt="2026-01-02T03:04:05.678901+01:00"), 201)
    assert created["expiresAt"] == "2026-01-02T02:04:05.678901Z"
    assert "expiresAt" not in document(client.create(), 201)


def test_2_2_metadata() -> None:
    """A free-form object, given back as it came; left out when there is none."""
    client = Service().client()
    metadata = {"invoice": "2026/7", "n": [1, 2.5, None, {"\u00e9": "\U0001f4b6"}]}
    id = client.creates(metadata=metadata)
    assert metadata == document(client.get(id))["metadata"]
    assert document(client.create(metadata={}), 201)["metadata"] == {}
    assert "metadata" not in document(client.create(), 201)


def test_2_2_created_at_and_updated_at() -> None:
    """`createdAt` stays; `updatedAt` begins there and moves with what is received, and with nothing else."""
    service = Service()
    client = service.client()
    created = client.create(incomingAmount=USD_25)
    id = id_of(created)
    at = "2026-01-01T12:00:00.000001Z"
    assert (at, at) == tuple(document(created, 201)[name] for name in ("createdAt", "updatedAt"))
    service.clock.advance(10)
    service.receive(id, 1, credit="a")
    service.clock.advance(10)
    service.receive(id, 1, credit="a")  # a repeat: nothing changes
    resource = document(client.get(id))
    assert (at, "2026-01-01T12:00:10.000001Z") == (resource["createdAt"], resource["updatedAt"])


def test_2_2_methods() -> None:
    """The payment methods: one, and the same one whenever the payment is read."""
    client = Service().client()
    created = document(client.create(), 201)
    assert len(created["methods"]) == 1
    assert created["methods"] == document(client.get(created["id"].rpartition("/")[2]))["methods"]


def test_2_3_type_ilp_address_shared_secret() -> None:
    """Each of the three members fits the contract's pattern, and there is no fourth."""
    [method] = document(Service().client().create(), 201)["methods"]
    assert list(method) == ["type", "ilpAddress", "sharedSecret"]
    assert method["type"] == "ilp"
    pattern = r"^(g|private|example|peer|self|test[1-3]?|local)([.][a-zA-Z0-9_~-]+)+$"
    assert re.fullmatch(pattern, method["ilpAddress"])
    assert len(method["ilpAddress"]) <= 1023
    assert re.fullmatch(r"^[a-zA-Z0-9-_]+$", method["sharedSecret"])


def test_2_3_unique_details() -> None:
    """Section 1: the details are unique to the payment."""
    client = Service().client()
    methods = [document(client.create(), 201)["methods"][0] for _ in range(3)]
    for member in ("ilpAddress", "sharedSecret"):
        assert len({method[member] for method in methods}) == 3


# --- section 3: states -----------------------------------------------------------------------------


def test_3_new_payment() -> None:
    """Nothing received is the string of zero, and not completed."""
    created = document(Service().client().create(incomingAmount=USD_25), 201)
    assert (created["receivedAmount"]["value"], created["completed"]) == ("0", False)


@pytest.mark.parametrize("value", [2500, 2501])
def test_3_total_equals_or_exceeds_incoming_amount(value: int) -> None:
    """Row 1: completed, showing what was received, and nobody is told any details to pay to."""
    service = Service()
    client = service.client()
    id = client.creates(incomingAmount=USD_25)
    service.clock.advance(5)
    service.receive(id, value)
    resource = document(client.get(id))
    assert (True, str(value), [], "2026-01-01T12:00:05.000001Z") == (
        resource["completed"],
        resource["receivedAmount"]["value"],
        resource["methods"],
        resource["updatedAt"],
    )


def test_3_current_time_exceeds_expires_at() -> None:
    """Row 2: `completed` and `updatedAt` do not change, but nobody is told any details to pay to."""
    service = Service()
    client = service.client()
    created = document(client.create(expiresAt=(NOW + timedelta(seconds=60)).isoformat()), 201)
    id = created["id"].rpartition("/")[2]
    service.clock.advance(60)
    assert created == document(client.get(id))
    service.clock.advance(0.000001)
    assert {**created, "methods": []} == document(client.get(id))


# --- section 4.1: create ---------------------------------------------------------------------------


def test_4_1_response_201_incoming_payment_created() -> None:
    """Exactly 201 with the resource; `Location` is its URL."""
    response = Service().client().create(incomingAmount=USD_25, metadata={"a": 1}, expiresAt="2026-01-02T00:00:00Z")
    created = document(response, 201)
    assert {
        "id",
        "walletAddress",
        "completed",
        "incomingAmount",
        "receivedAmount",
        "expiresAt",
        "metadata",
        "createdAt",
        "updatedAt",
        "methods",
    } == set(created)
    assert created["id"] == header(response, "Location")
    assert {"Content-Type", "Cache-Control", "Location"} == {name for name, _ in response.headers}


def test_4_1_response_401_authorization_required() -> None:
    """With `WWW-Authenticate`."""
    response = Service().handle(Request("POST", PATH, headers=[JSON], body=b"{}"))
    assert refusal(response) == (401, "token_missing")
    assert f"GNAP as_uri={AUTH_SERVER}" == header(response, "WWW-Authenticate")


def test_4_1_response_403_forbidden() -> None:
    """The right to create is there, but for another wallet address."""
    assert refusal(Service().client().create(walletAddress=BOB.url)) == (403, "forbidden")


@pytest.mark.parametrize("name", ["signature-input", "signature"])
def test_4_1_header_is_required(name: str) -> None:
    """`Signature-Input` and `Signature` are both required."""
    service = Service()
    response = service.handle(without(service.client().creation(), name))
    assert refusal(response) == (401, "signature_missing")


def test_4_1_wallet_address_is_required() -> None:
    """The body has to name it."""
    client = Service().client()
    response = client.send(client.creation({}))
    assert refusal(response) == (400, "invalid_body")
    assert error_of(response)["details"] == {"member": "walletAddress"}


def test_4_1_wallet_address_hosted_by_the_receiving_entity() -> None:
    """One that is not hosted here is refused, to a token that covers it."""
    client = Service().client(a_right("create", on=None))
    response = client.create(walletAddress="https://bank.example/nobody")
    assert refusal(response) == (400, "unknown_wallet_address")
    assert error_of(response)["details"] == {"member": "walletAddress"}


@pytest.mark.parametrize("change", [{"assetCode": "EUR"}, {"assetScale": 3}])
def test_4_1_incoming_amount_uses_the_asset_of_the_wallet_address(change: dict[str, object]) -> None:
    """Code and scale both have to be those of the wallet address."""
    response = Service().client().create(incomingAmount={**USD_25, **change})
    assert refusal(response) == (400, "asset_mismatch")
    assert error_of(response)["details"] == {"member": "incomingAmount"}


def test_4_1_incoming_amount_in_another_wallet_addresses_asset() -> None:
    """What is right for one wallet address is wrong for the next."""
    client = Service().client(a_right("create", on=None))
    yen = {"value": "3000", "assetCode": "JPY", "assetScale": 0}
    assert yen == document(client.create(walletAddress=BOB.url, incomingAmount=yen), 201)["incomingAmount"]
    assert refusal(client.create(walletAddress=ALICE.url, incomingAmount=yen)) == (400, "asset_mismatch")


# Members that are refused, by the code and the member that the answer names.
BAD_MEMBERS: list[tuple[str, dict[str, object], str, str]] = [
    ("amount of zero", {"incomingAmount": {**USD_25, "value": "0"}}, "invalid_terms", "incomingAmount.value"),
    ("amount that is null", {"incomingAmount": None}, "invalid_body", "incomingAmount"),
    ("amount with more to it", {"incomingAmount": {**USD_25, "x": 1}}, "invalid_body", "incomingAmount.x"),
    ("expiry without offset", {"expiresAt": "2026-01-02T00:00:00"}, "invalid_body", "expiresAt"),
    ("expiry that is no date", {"expiresAt": "2026-02-30T00:00:00Z"}, "invalid_body", "expiresAt"),
    ("expiry that is a number", {"expiresAt": 1767355200}, "invalid_body", "expiresAt"),
    ("expiry now", {"expiresAt": "2026-01-01T12:00:00.000001Z"}, "invalid_terms", "expiresAt"),
    ("expiry in the past", {"expiresAt": "2025-12-31T00:00:00Z"}, "invalid_terms", "expiresAt"),
    ("expiry too far ahead", {"expiresAt": "2027-01-03T00:00:00Z"}, "invalid_terms", "expiresAt"),
    ("metadata that is no object", {"metadata": ["a"]}, "invalid_body", "metadata"),
    ("metadata too large", {"metadata": {"a": "x" * 9000}}, "invalid_body", "metadata"),
    ("metadata too deep", {"metadata": {"a": [[[[[[[[]]]]]]]]}}, "invalid_body", "metadata"),
    ("metadata with NUL", {"metadata": {"a": "\0"}}, "invalid_body", "a"),
    ("wallet address that is no URL", {"walletAddress": "alice"}, "invalid_body", "walletAddress"),
    ("wallet address with user", {"walletAddress": "https://a@bank.example/alice"}, "invalid_body", "walletAddress"),
    ("misspelt member", {"expiresat": "2026-01-02T00:00:00Z"}, "invalid_body", "expiresat"),
]


@pytest.mark.parametrize(("members", "code", "member"), [row[1:] for row in BAD_MEMBERS], ids=ids(BAD_MEMBERS))
def test_4_1_member_refused(members: dict[str, object], code: str, member: str) -> None:
    """400, naming the member at fault; and nothing is stored."""
    service = Service()
    response = service.client().create(**members)
    assert (400, code) == refusal(response)
    assert {"member": member} == error_of(response)["details"]
    assert payments_in(service.store) == []


@pytest.mark.parametrize("member", ["id", "createdAt", "updatedAt", "completed", "receivedAmount", "methods"])
def test_4_1_request_cannot_set(member: str) -> None:
    """What the service produces cannot be asked for."""
    response = Service().client().create(**{member: "x"})
    assert refusal(response) == (400, "invalid_body")
    assert {"member": member} == error_of(response)["details"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"walletAddress":"https://bank.example/alice","walletAddress":"https://bank.example/bob"}',
        b'{"walletAddress":"https://bank.example/alice","metadata":{"a":NaN}}',
        b'{"walletAddress":"https://bank.example/alice","metadata":{"a":1e400}}',
        b'{"walletAddress":"https://bank.example/alice","metadata":{"a":"\\ud800"}}',
        b"[" * 60_000,
    ],
    ids=range(11),
)
def test_4_1_body_that_cannot_be_read(body: bytes) -> None:
    """400, whatever was wrong with it: signed well, it is still not a create request."""
    client = Service().client()
    assert refusal(client.send(client.creation(body))) == (400, "invalid_body")


# --- section 4.2: get ------------------------------------------------------------------------------


def test_4_2_response_200_incoming_payment_found() -> None:
    """Exactly 200, with the whole resource as it was created."""
    client = Service().client()
    created = client.create(incomingAmount=USD_25, metadata={"a": 1}, expiresAt="2026-01-02T00:00:00Z")
    response = client.get(id_of(created))
    assert document(created, 201) == document(response)
    assert {"Content-Type", "Cache-Control"} == {name for name, _ in response.headers}


def test_4_2_response_401_authorization_required() -> None:
    """A signed request without a token that stands for anything."""
    service = Service()
    id = service.client().creates()
    stranger = service.client()
    stranger.token = "UNKNOWN"
    assert refusal(stranger.get(id)) == (401, "invalid_token")


def test_4_2_response_403_forbidden() -> None:
    """Another client's payment, to a token for the client's own; `read-all` sees it."""
    service = Service()
    id = service.client().creates()
    other: dict[str, Any] = {"name": OTHER_SHOP, "key": ed25519_key("other-key")}
    assert refusal(service.client(a_right("read"), **other).get(id)) == (403, "forbidden")
    assert service.client(a_right("read-all"), **other).get(id).status == 200


def test_4_2_response_404_incoming_payment_not_found() -> None:
    """An id that no payment has."""
    assert refusal(Service().client().get(NOBODYS_ID)) == (404, "payment_not_found")


@pytest.mark.parametrize("id", ["x", "%20", NOBODYS_ID.upper(), NOBODYS_ID + "%0A", NOBODYS_ID.replace("0", "%30", 1)])
def test_4_2_path_parameter_id(id: str) -> None:
    """It is compared as it was sent: in any other spelling it is nobody's, which no one has to be asked about."""
    service = Service()
    service.replace(store=None, introspector=None)
    assert refusal(service.client().get(id)) == (404, "payment_not_found")


def test_4_2_signature_headers_are_optional() -> None:
    """Without them, and without a token, there is the public view."""
    service = Service()
    id = service.client().creates()
    assert service.handle(Request("GET", f"{PATH}/{id}")).status == 200


def test_4_2_request_body_none() -> None:
    """A GET with a body is refused before anybody is asked, signed or not."""
    service = Service()
    client = service.client()
    request = Request("GET", f"{PATH}/{client.creates()}", body=b"{}")
    service.replace(store=None, introspector=None)
    for sent in (request, client.sign(request)):
        assert refusal(service.handle(sent)) == (400, "unexpected_body")


# --- section 5: authentication ---------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["@method", "@target-uri", "authorization"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_5_covered_components_must_be_included(method: str, missing: str) -> None:
    """`@method`, `@target-uri` and `authorization`: without one of them the signature is no use."""
    service = Service()
    client = service.client()
    components = ["@method", "@target-uri", "authorization", *(["content-digest"] if method == "POST" else [])]
    components.remove(missing)
    if method == "POST":
        request = client.creation(components=components)
    else:
        request = client.sign(Request("GET", f"{PATH}/{client.creates()}"), components=components)
    response = service.handle(request)
    assert refusal(response) == (401, "component_not_covered")
    assert {"component": missing} == error_of(response)["details"]


def test_5_body_needs_content_digest_covered() -> None:
    """When there is a body, `content-digest` has to be covered too."""
    client = Service().client()
    request = client.creation(components=["@method", "@target-uri", "authorization"])
    assert refusal(client.send(request)) == (401, "body_not_covered")


def test_5_content_digest_is_that_of_the_body_received() -> None:
    """The digest is over the bytes received: not one of them can be changed, and none of JSON's freedoms used."""
    client = Service().client()
    request = client.creation()
    for body in (request.body.replace(b"alice", b"bobby"), request.body.replace(b": ", b":  ")[:-1] + b"}"):
        changed = evolve(request, body=body)
        assert client.send(changed).status == 401
    assert refusal(client.send(evolve(request, body=b" " * len(request.body)))) == (401, "digest_mismatch")
    assert client.send(request).status == 201


def test_5_keyid_equals_the_kid_of_the_clients_jwk() -> None:
    """A token is bound to one key; another client's key opens nothing with it."""
    service = Service()
    owner, thief = service.client(), service.client(name=OTHER_SHOP, key=ed25519_key("thief"))
    thief.token = owner.token
    assert refusal(thief.create()) == (401, "key_unknown")


@pytest.mark.parametrize("key", [ed25519_key, es256_key, ps512_key])
def test_5_signing_algorithm_is_that_of_the_jwk(key: Callable[[], Any]) -> None:
    """Whatever the `alg` of the JWK is, among those that are served, create and get work with it."""
    client = Service().client(key=key())
    assert client.get(client.creates()).status == 200


def test_5_signature_input_may_hold_several_labels() -> None:
    """Each member is one signature; one good one is enough, and labels carry no meaning."""
    service = Service()
    client = service.client()
    request = client.creation(label="proxy", components=["@method"])
    twice = Request(request.method, request.path, headers=request.headers[1:], body=request.body)
    assert client.send(client.sign(twice, label="any-name")).status == 201


def test_5_created_is_required_and_fresh() -> None:
    """The policy's window decides, to the second."""
    service = Service(signature=SignaturePolicy(max_age_s=30, clock_skew_s=5))
    client = service.client()
    codes = {
        offset: client.send(client.creation(created=NOW + timedelta(seconds=offset))).status
        for offset in (-29, -31, 4, 6)
    }
    assert codes == {-29: 201, -31: 401, 4: 201, 6: 401}


def test_5_target_uri_is_made_from_the_base_url() -> None:
    """`Host` and `X-Forwarded-*` are neither asked nor believed; path and query are taken as sent."""
    service = Service()
    client = service.client()
    request = Request("GET", f"{PATH}/{client.creates()}", query="a=%62&&c")
    lies = (("Host", "evil.example"), ("X-Forwarded-Host", "evil.example"), ("X-Forwarded-Proto", "gopher"))
    assert service.handle(client.sign(evolve(request, headers=lies))).status == 200
    assert refusal(
        service.handle(evolve(client.sign(request), query="a=b&&c")),
    ) == (401, "signature_invalid")
    client.base_url = "https://evil.example/op"
    assert refusal(service.handle(client.sign(request))) == (401, "signature_invalid")


def test_5_signature_is_for_one_method() -> None:
    """A signed GET is no signed HEAD."""
    service = Service()
    client = service.client()
    request = client.sign(Request("GET", f"{PATH}/{client.creates()}"))
    assert service.handle(evolve(request, method="HEAD")).status == 401


# --- section 7: errors -----------------------------------------------------------------------------


def asked(service: Service, created: Any = NOW, **client: Any) -> list[Request]:
    """A create request that cannot be read and a GET of nothing, by a token that has no right to either."""
    sender = service.client(a_right("complete"), **client)
    return [
        sender.creation(b"{", created=created),
        sender.sign(Request("GET", f"{PATH}/{NOBODYS_ID}"), created=created),
    ]


def retokened(service: Service, authorization: str) -> list[Request]:
    """The same with another `Authorization`."""
    return [
        evolve(without(request, "authorization"), headers=[("Authorization", authorization), *request.headers[1:]])
        for request in asked(service)
    ]


def forged(service: Service) -> list[Request]:
    """The same with the signature of another request."""
    return [
        evolve(without(request, "signature"), headers=[*request.headers[:-1], other.headers[-1]])
        for request, other in zip(asked(service), reversed(asked(service)), strict=True)
    ]


# What is wrong with the caller, by precedence: each row is reported whatever of the rows below holds as well.
UNAUTHORISED: list[tuple[str, Callable[[Service], Any], str]] = [
    ("no token", lambda service: [without(request, "authorization") for request in asked(service)], "token_missing"),
    ("another scheme", lambda service: retokened(service, "Bearer abc"), "invalid_token"),
    ("unknown token", lambda service: retokened(service, "GNAP unknown"), "invalid_token"),
    ("expired token", lambda service: asked(service, expires_at=NOW), "token_expired"),
    ("key refused", lambda service: asked(service, jwk={"kty": "oct", "k": "AAAA"}), "key_unusable"),
    ("not signed", lambda service: [without(request, "signature") for request in asked(service)], "signature_missing"),
    ("signed too long ago", lambda service: asked(service, created=0), "signature_stale"),
    ("forged", forged, "signature_invalid"),
    ("right missing", asked, "insufficient_rights"),
]


@pytest.mark.parametrize(("make", "code"), [row[1:] for row in UNAUTHORISED], ids=ids(UNAUTHORISED))
def test_7_401_create_authorization_required(make: Callable[[Service], list[Request]], code: str) -> None:
    """401 with the address of the authorization server, before the body is looked at."""
    service = Service()
    assert (401, code) == refusal(service.handle(make(service)[0]))


@pytest.mark.parametrize(("make", "code"), [row[1:] for row in UNAUTHORISED], ids=ids(UNAUTHORISED))
def test_7_401_get_authorization_required(make: Callable[[Service], list[Request]], code: str) -> None:
    """Likewise, before anybody looks whether there is such a payment."""
    service = Service()
    request = make(service)[1]
    service.replace(store=None)
    assert (401, code) == refusal(service.handle(request))


def test_7_403_create_forbidden() -> None:
    """403 comes before what could be said about the wallet address: hosted, not hosted, in another asset."""
    service = Service()
    client = service.client()
    service.replace(wallet_addresses=None, store=None)
    wrong = {"incomingAmount": {**USD_25, "value": "0"}, "expiresAt": "2000-01-01T00:00:00Z"}
    responses = [client.create(walletAddress=url, **wrong) for url in (BOB.url, "https://bank.example/nobody")]
    assert [refusal(response) for response in responses] == [(403, "forbidden")] * 2
    assert len({response.body for response in responses}) == 1


def test_7_403_get_forbidden() -> None:
    """403 says that the right is too narrow; of the payment it says nothing."""
    service = Service()
    owner = service.client()
    stranger = service.client(a_right("read"), name=OTHER_SHOP, key=ed25519_key("other-key"))
    bodies = set()
    for id in (owner.creates(), owner.creates(incomingAmount=USD_25)):
        response = stranger.get(id)
        assert refusal(response) == (403, "forbidden")
        bodies.add(response.body)
    assert len(bodies) == 1


def test_7_404_get_incoming_payment_not_found() -> None:
    """Never there, not an id, and of a wallet address that the caller cannot see: one answer, to the byte."""
    service = Service()
    id = service.client().creates()
    stranger = service.client(a_right("read", "read-all", on=BOB))
    answers = [stranger.get(asked_for) for asked_for in (id, NOBODYS_ID, "not-an-id")]
    assert [refusal(answer) for answer in answers] == [(404, "payment_not_found")] * 3
    assert len(set(answers)) == 1
    public = service.handle(Request("GET", f"{PATH}/{NOBODYS_ID}"))
    assert answers[0] == public


def test_7_404_says_nothing_of_the_stores_words() -> None:
    """A host's store may word its refusal as it likes: the client does not get to see it."""

    class Wordy(MemoryStore):
        def load(self, id: Any) -> IncomingPayment:
            raise PaymentNotFound(f"SELECT found no {id}", table="payments")

    service = Service()
    expected = service.client().get(NOBODYS_ID)
    service.replace(store=Wordy())
    assert expected == service.client().get(NOBODYS_ID)
    assert expected == service.handle(Request("GET", f"{PATH}/{NOBODYS_ID}"))


def test_7_payments_after_completion_or_expiry_have_nowhere_to_go() -> None:
    """The HTTP side of the rejection: details are not handed out any more, to whoever asks."""
    service = Service()
    client = service.client(a_right("create", "read-all"))
    full = client.creates(incomingAmount=USD_25)
    late = client.creates(expiresAt=(NOW + timedelta(seconds=1)).isoformat())
    service.receive(full, 2500)
    service.clock.advance(2)
    service.replace(methods=None)
    assert [document(client.get(id))["methods"] for id in (full, late)] == [[], []]


# --- section 8: limits -----------------------------------------------------------------------------


def test_8_incoming_amount_total_may_not_continue_past_it() -> None:
    """Once it is reached, the total that a client sees stays."""
    service = Service()
    client = service.client()
    id = client.creates(incomingAmount=USD_25)
    service.receive(id, 2500)
    with pytest.raises(Exception, match="completed"):
        service.receive(id, 1, credit="wire-2")
    assert document(client.get(id))["receivedAmount"] == USD_25


def test_8_ilp_address_of_the_longest_prefix() -> None:
    """An address of 1023 characters is still handed out."""
    service = Service()
    service.replace(methods=DerivedMethods("g." + "x" * (1023 - 44 - 2), [SERVER_SECRET]))
    [method] = document(service.client().create(), 201)["methods"]
    assert len(method["ilpAddress"]) == 1023


# --- the public view -------------------------------------------------------------------------------


def test_public_view_has_exactly_two_members() -> None:
    """What has arrived, and where to ask for a grant: nothing else, and nothing secret."""
    service = Service()
    id = service.client().creates(incomingAmount=USD_25, metadata={"private": "yes"})
    response = service.handle(Request("GET", f"{PATH}/{id}"))
    assert {"receivedAmount": RECEIVED_0, "authServer": ALICE.auth_server} == document(response)


def test_public_view_follows_what_is_received() -> None:
    """It is polled until the payment is complete; it stays there when it is complete or expired."""
    service = Service()
    id = service.client().creates(incomingAmount=USD_25, expiresAt=(NOW + timedelta(seconds=60)).isoformat())
    seen = []
    for value, seconds in ((5, 0), (2495, 0), (0, 3600)):
        if value:
            service.receive(id, value, credit=f"wire-{value}")
        service.clock.advance(seconds)
        seen.append(document(service.handle(Request("GET", f"{PATH}/{id}")))["receivedAmount"]["value"])
    assert seen == ["5", "2500", "2500"]


def test_public_view_when_the_wallet_address_is_gone() -> None:
    """Then the service's own authorization server is named."""
    service = Service()
    id = service.client().creates()
    service.hosted.addresses.clear()
    assert document(service.handle(Request("GET", f"{PATH}/{id}")))["authServer"] == AUTH_SERVER


@pytest.mark.parametrize("name", ["Authorization", "Signature", "Signature-Input", "sIGNATURE"])
@pytest.mark.parametrize("value", ["", "undefined", "GNAP unknown", "sig1=:AAAA:"])
def test_public_view_is_not_for_who_claims_to_be_somebody(name: str, value: str) -> None:
    """One of the three fields, whatever is in it, and the request has to hold: the public view is no fallback."""
    service = Service()
    id = service.client().creates()
    response = service.handle(Request("GET", f"{PATH}/{id}", headers=[(name, value)]))
    expected = "invalid_token" if name == "Authorization" else "token_missing"
    assert (401, expected) == refusal(response)


def test_public_view_can_be_switched_off() -> None:
    """Then an unsigned GET is 401, whether there is such a payment or not; a signed one works as ever."""
    service = Service(public_get=False)
    client = service.client()
    id = client.creates()
    answers = [service.handle(Request("GET", f"{PATH}/{asked_for}")) for asked_for in (id, NOBODYS_ID)]
    assert [refusal(answer) for answer in answers] == [(401, "token_missing")] * 2
    assert len(set(answers)) == 1
    assert client.get(id).status == 200


def test_head_is_answered_as_get() -> None:
    """The response is that of GET, signed, public or refused; the edge leaves the content out."""
    service = Service()
    client = service.client()
    id = client.creates()
    pairs = [(client.get(id), client.get(id, "HEAD"))]
    pairs += [
        (service.handle(Request("GET", path)), service.handle(Request("HEAD", path)))
        for path in (f"{PATH}/{id}", f"{PATH}/{NOBODYS_ID}", "/nowhere")
    ]
    assert [get.status for get, _ in pairs] == [200, 200, 404, 404]
    for get, head in pairs:
        assert get.body
        assert get == head


# --- what HTTP itself asks for ---------------------------------------------------------------------

LONG = "x" * TARGET_CHARS_MAX
ID_PATH = f"{PATH}/{NOBODYS_ID}"
HTML = ("Accept", "text/html")

# By precedence: each request also breaks what the rows below it are about, where it can. None of them asks anybody.
HTTP: list[tuple[str, Request, int, str]] = [
    ("path too long", Request("PUT", f"/{LONG}", headers=[HTML] * 101), 414, "target_too_long"),
    ("path and query too long", Request("GET", ID_PATH, LONG), 414, "target_too_long"),
    ("too many fields", Request("PUT", "/", headers=[HTML] * (HEADERS_MAX + 1)), 431, "headers_too_large"),
    ("field too large", Request("PUT", "/", headers=[("Accept", "x" * HEADER_BYTES_MAX)]), 431, "headers_too_large"),
    (
        "fields too large",
        Request("PUT", "/", headers=[(f"A{n}", "x" * 16_000) for n in range(5)], body=b"x" * (BODY_BYTES_MAX + 1)),
        431,
        "headers_too_large",
    ),
    ("body too large", Request("PUT", "/", "", [HTML], b"x" * (BODY_BYTES_MAX + 1)), 413, "body_too_large"),
    ("accepts no JSON", Request("PUT", "/nowhere", headers=[HTML]), 406, "not_acceptable"),
    ("another path", Request("PUT", "/nowhere"), 404, "not_found"),
    ("no path", Request("GET", ""), 404, "not_found"),
    ("path without its slash", Request("GET", ID_PATH[1:]), 404, "not_found"),
    ("empty id", Request("GET", f"{PATH}/"), 404, "not_found"),
    ("path below a payment", Request("GET", f"{ID_PATH}/complete"), 404, "not_found"),
    ("path in another case", Request("GET", f"{PATH.upper()}/{NOBODYS_ID}"), 404, "not_found"),
    (
        "method not served",
        Request("PUT", f"{PATH}/x", headers=[("Content-Type", "text/plain")]),
        405,
        "method_not_allowed",
    ),
    ("method in lower case", Request("post", PATH), 405, "method_not_allowed"),
    ("id that cannot be", Request("GET", f"{PATH}/x", body=b"x"), 404, "payment_not_found"),
    ("body of a GET", Request("GET", ID_PATH, headers=[("Authorization", "x")], body=b"x"), 400, "unexpected_body"),
    ("no media type", Request("POST", PATH), 415, "unsupported_media_type"),
    (
        "another media type",
        Request("POST", PATH, headers=[("Content-Type", "text/json")]),
        415,
        "unsupported_media_type",
    ),
    ("two media types", Request("POST", PATH, headers=[JSON, JSON]), 415, "unsupported_media_type"),
    ("encoded", Request("POST", PATH, headers=[JSON, ("Content-Encoding", "gzip")]), 415, "unsupported_encoding"),
    ("token", Request("POST", PATH, headers=[JSON]), 401, "token_missing"),
]


@pytest.mark.parametrize(("request_", "status", "code"), [row[1:] for row in HTTP], ids=ids(HTTP))
def test_http_by_precedence(request_: Request, status: int, code: str) -> None:
    """Size, media types, path and method are settled before anybody is asked about anything: there are no ports."""
    service = Service()
    service.replace(store=None, introspector=None, wallet_addresses=None, methods=None)
    assert (status, code) == refusal(service.handle(request_))


JSON_FIELDS: Final = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
# Each refusal of HTTP itself: words of its description, and its header fields with the names that RFC 9110 gives them.
DESCRIBED: Final[dict[str, tuple[str, tuple[tuple[str, str], ...]]]] = {
    "path too long": (f"{TARGET_CHARS_MAX} characters", ()),
    "too many fields": (f"at most {HEADERS_MAX} header fields", ()),
    "field too large": (f"{HEADERS_BYTES_MAX} bytes of header fields, and", ()),
    "body too large": (f"at most {BODY_BYTES_MAX} bytes", ()),
    "accepts no JSON": ("accept application/json", ()),
    "another path": (PATH, ()),
    "method not served": ("use GET, HEAD", (("Allow", "GET, HEAD"),)),
    "method in lower case": ("use POST", (("Allow", "POST"),)),
    "body of a GET": ("GET request", ()),
    "no media type": ("send Content-Type: application/json", (("Accept", "application/json"),)),
    "encoded": ("without Content-Encoding", (("Accept-Encoding", "identity"),)),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_refusal_says_what_to_change(name: str) -> None:
    """The description names the limit or the fault. The header fields are those of JSON, and those of the status."""
    [request] = [row[1] for row in HTTP if row[0] == name]
    response = Service().handle(request)
    words, fields = DESCRIBED[name]
    description = error_of(response)["description"]
    assert words in description
    assert description[0].islower()
    assert response.headers == (*JSON_FIELDS, *fields)


def test_limits_themselves_are_allowed() -> None:
    """The largest request that fits every bound is answered on its merits."""
    service = Service()
    padding = [("X-Padding", "x" * (HEADER_BYTES_MAX - len("X-Padding")))]
    query = "x" * (TARGET_CHARS_MAX - len(ID_PATH))
    fields = padding * 3 + [(f"X-{n}", "") for n in range(HEADERS_MAX - 3)]
    assert sum(len(name) + len(value) for name, value in fields) <= HEADERS_BYTES_MAX
    assert refusal(service.handle(Request("GET", ID_PATH, query, fields))) == (404, "payment_not_found")
    whole = [(f"X-{n}", "x" * (HEADERS_BYTES_MAX // 8 - len("X-0"))) for n in range(8)]
    assert sum(len(name) + len(value) for name, value in whole) == HEADERS_BYTES_MAX
    assert refusal(service.handle(Request("GET", ID_PATH, headers=whole))) == (404, "payment_not_found")
    client = service.client()
    assert refusal(client.send(client.creation(b" " * BODY_BYTES_MAX))) == (400, "invalid_body")


def test_405_says_what_is_allowed() -> None:
    """`Allow` names the methods of that path, for every other method that there is."""
    service = Service()
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")
    for path, allow in ((PATH, "POST"), (ID_PATH, "GET, HEAD")):
        for method in set(methods) - set(allow.split(", ")) - {"HEAD"}:
            response = service.handle(Request(method, path))
            assert refusal(response) == (405, "method_not_allowed")
            assert allow == header(response, "Allow")
    assert service.handle(Request("HEAD", PATH)).status == 405


@pytest.mark.parametrize(
    ("accept", "acceptable"),
    [
        ([], True),
        ([""], True),
        ([" , "], True),
        (["*/*"], True),
        (["application/json"], True),
        (["APPLICATION/JSON"], True),
        (["application/*"], True),
        (["application/json;charset=utf-8"], True),
        (["text/html, application/json;q=0.001"], True),
        (["text/html", "application/json"], True),
        (["application/json, text/plain, */*"], True),
        (["text/html"], False),
        (["text/*"], False),
        (["application/xml"], False),
        (["application/json;q=0"], False),
        (["application/json ; q=0.000"], False),
        (["*/*;q=0.0"], False),
        (["undefined"], False),
        (["application/json;q=0, */*"], False),
        (["application/json;q=0", "application/*"], False),
        (["application/*;q=0, */*"], False),
        (["application/json;Q=0"], False),
        (["*/*;q=0, application/json"], True),
        (["text/html;q=0"], False),
    ],
)
def test_406_unless_json_is_accepted(accept: list[str], acceptable: bool) -> None:
    """Only who says that no JSON will do is refused; an empty field says nothing (RFC 9110 §5.6.1.2, §12.5.1)."""
    response = Service().handle(Request("GET", ID_PATH, headers=[("Accept", value) for value in accept]))
    assert (404 if acceptable else 406) == response.status


@pytest.mark.parametrize(
    "media_type", ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"]
)
def test_415_not_for_json_in_any_spelling(media_type: str) -> None:
    """Case and parameters of the media type do not matter, nor does an encoding that changes nothing."""
    service = Service()
    fields = [("content-type", media_type), ("content-encoding", "identity")]
    assert refusal(service.handle(Request("POST", PATH, headers=fields))) == (401, "token_missing")
    assert refusal(service.handle(Request("POST", PATH, headers=[JSON, ("Content-Encoding", " ")]))) == (
        401,
        "token_missing",
    )


@pytest.mark.parametrize(
    ("field", "accepted"),
    [(("Content-Type", "text/plain"), ("Accept", "application/json")), (None, ("Accept-Encoding", "identity"))],
)
def test_415_says_what_is_taken(field: tuple[str, str] | None, accepted: tuple[str, str]) -> None:
    """RFC 9110 §15.5.16: the answer names what would do."""
    fields = [field] if field else [JSON, ("Content-Encoding", "br")]
    response = Service().handle(Request("POST", PATH, headers=fields))
    assert response.status == 415
    assert accepted[1] == header(response, accepted[0])


def test_media_type_is_looked_at_before_the_caller_and_the_caller_before_the_body() -> None:
    """415, then 401, then 400: each once the one before it is mended."""
    service = Service()
    client = service.client()
    request = client.creation(b"{")
    assert service.handle(without(request, "content-type")).status == 415
    assert service.handle(without(request, "authorization")).status == 401
    assert service.handle(request).status == 400


# --- access rights ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "creates", "reads_own", "reads_others"),
    [
        (["create"], 201, 401, 401),
        (["read"], 401, 200, 403),
        (["read-all"], 401, 200, 200),
        (["complete"], 401, 401, 401),
        (["list"], 401, 401, 401),
        (["list-all"], 401, 401, 401),
        (["create", "read", "list"], 201, 200, 403),
        (["create", "read", "read-all", "complete", "list", "list-all"], 201, 200, 200),
    ],
)
def test_actions(actions: list[str], creates: int, reads_own: int, reads_others: int) -> None:
    """Each action allows what it says, and nothing that only sounds like it."""
    service = Service()
    own = service.client().creates()
    others = service.client(name=OTHER_SHOP).creates()
    client = service.client(a_right(*actions), name=SHOP)
    assert (creates, reads_own, reads_others) == (
        client.create().status,
        client.get(own).status,
        client.get(others).status,
    )


def test_token_codes_tell_the_cases_apart() -> None:
    """Missing, unknown, expired and insufficient each have a code of their own: clients act on it."""
    service = Service()
    id = service.client().creates()
    unknown = service.client()
    unknown.token = "UNKNOWN"
    codes = [
        refusal(service.handle(without(service.client().sign(Request("GET", f"{PATH}/{id}")), "authorization")))[1],
        refusal(unknown.get(id))[1],
        refusal(service.client(expires_at=NOW).get(id))[1],
        refusal(service.client(a_right("create")).get(id))[1],
    ]
    assert codes == ["token_missing", "invalid_token", "token_expired", "insufficient_rights"]


def test_challenge_has_the_name_of_rfc_9110() -> None:
    """The field is `WWW-Authenticate`, and stands after the fields that every JSON response has."""
    response = Service().handle(Request("POST", PATH, headers=[JSON]))
    assert response.headers == (*JSON_FIELDS, ("WWW-Authenticate", f"GNAP as_uri={AUTH_SERVER}"))


def test_token_expires_by_the_clock() -> None:
    """Until its moment it works, at its moment it does not."""
    service = Service()
    client = service.client(expires_at=NOW + timedelta(seconds=10))
    service.clock.advance(9.999999)
    assert client.create().status == 201
    service.clock.advance(0.000001)
    assert refusal(client.create()) == (401, "token_expired")


# --- ports that refuse, or fail --------------------------------------------------------------------

PORTS = ["introspector", "wallet_addresses", "methods", "store"]


class Raises:
    """Any port: whatever it is asked, it raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, _: str) -> Any:
        def port(*_: object) -> None:
            raise self._error

        return port


def payments_in(store: MemoryStore) -> list[IncomingPayment]:
    """Every payment in a memory store."""
    return [row for row in store._rows.values() if isinstance(row, IncomingPayment)]


class OwnRules(PolicyRefused):
    """A host's own refusal, with an attribute that happens to be called `reason`."""

    code = "sanctions"

    def __init__(self, reason: object) -> None:
        super().__init__("ask compliance")
        self.reason = reason


@pytest.mark.parametrize("port", PORTS)
def test_port_refuses_by_the_hosts_own_rules(port: str) -> None:
    """403 with the host's words, and nothing is stored."""
    service = Service()
    client = service.client()
    store = service.store
    service.replace(**{port: Raises(PolicyRefused("at most five payments a day", per_day=5))})
    response = client.create()
    assert refusal(response) == (403, "refused_by_policy")
    assert (
        error_of(response)["description"],
        error_of(response)["details"],
    ) == ("at most five payments a day", {"per_day": 5})
    assert payments_in(store) == []


def test_port_refuses_with_an_error_of_its_own() -> None:
    """A subclass brings its own code; whatever else it carries stays with the host."""
    service = Service()
    client = service.client()
    service.replace(wallet_addresses=Raises(OwnRules(object())))
    response = client.create()
    assert refusal(response) == (403, "sanctions")
    assert error_of(response) == {"code": "sanctions", "description": "ask compliance"}


@pytest.mark.parametrize("port", PORTS)
def test_port_cannot_do_it_now(port: str) -> None:
    """503 with `Retry-After`, and nothing is stored; the reason is for the host's log, as it may name a file."""
    service = Service()
    client = service.client()
    store = service.store
    service.replace(**{port: Raises(StoreUnavailable("/var/lib/payments.db is locked"))})
    response = client.create()
    assert refusal(response) == (503, "store_unavailable")
    assert response.headers[2:] == (("Retry-After", "1"),)
    assert list(error_of(response)) == ["code", "description"]
    assert error_of(response)["description"].startswith("the service cannot")
    assert b"/var/lib" not in response.body
    assert str(response.cause) == "/var/lib/payments.db is locked"
    assert payments_in(store) == []


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_store_cannot_do_it_now_for_the_public(method: str) -> None:
    """The same answer to who is not signed."""
    service = Service()
    service.replace(store=Raises(StoreUnavailable("locked")))
    assert service.handle(Request(method, ID_PATH)).status == 503


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    "error",
    [RuntimeError("a bug"), OSError("gone"), StoreUnusable("closed"), PaymentExists("twice"), KeyError("x")],
    ids=type,
)
def test_port_fails(port: str, error: Exception) -> None:
    """What no client can cause is no answer: it goes on to the host as it is."""
    service = Service()
    client = service.client()
    service.replace(**{port: Raises(error)})
    with pytest.raises(type(error)) as raised:
        client.create()
    assert error is raised.value


def test_port_is_missing() -> None:
    """A service that was put together wrongly says so to its host."""
    service = Service()
    request = service.client().creation()
    with pytest.raises(PortMissing, match="introspector"):
        run(handle(request, policy=service.policy, now=NOW), Ports())


# --- what is never said ----------------------------------------------------------------------------


def test_nothing_secret_is_ever_said(caplog: pytest.LogCaptureFixture) -> None:
    """No refusal and no log record holds a token, a signature, a shared secret, the server secret, or a trace."""
    caplog.set_level(logging.DEBUG)
    service = Service()
    client, stranger = service.client(), service.client(a_right("read"), name=OTHER_SHOP, key=ed25519_key("other"))
    created = client.create(incomingAmount=USD_25)
    id = id_of(created)
    request = client.creation()
    signed_get = client.sign(Request("GET", f"{PATH}/{id}"))
    refused = [
        stranger.get(id),
        stranger.create(),
        client.create(walletAddress=BOB.url),
        client.create(metadata=client.token),
        service.client(expires_at=NOW).create(),
        service.client(jwk={"kty": "oct", "k": "c2hhcmVkLWtleQ", "kid": "a", "alg": "HS256"}).create(),
        service.handle(evolve(request, body=b"{}")),
        service.handle(evolve(request, headers=[*request.headers, ("Authorization", f"GNAP {client.token}")])),
        *(service.handle(without(request, name.lower())) for name, _ in request.headers),
        *(
            service.handle(evolve(signed_get, headers=[(name, value + "\x00" + value), *signed_get.headers[1:]]))
            for name, value in signed_get.headers
        ),
        service.handle(Request("GET", f"{PATH}/{id}")),
    ]
    for port in PORTS:
        broken = Service()
        asks = broken.client()
        broken.replace(**{port: Raises(StoreUnavailable("locked"))})
        refused.append(asks.create())
    said = caplog.text + "".join(f"{response.headers}{response.body!r}" for response in refused)
    [method] = document(created, 201)["methods"]
    signature = header(Response(0, request.headers, b""), "Signature")
    assert signature is not None
    secrets = [
        client.token,
        stranger.token,
        method["sharedSecret"],
        method["ilpAddress"],
        SERVER_SECRET.decode(),
        SERVER_SECRET.hex(),
        "c2hhcmVkLWtleQ",
        signature.split(":")[1],
        "Traceback",
    ]
    assert [secret for secret in secrets if secret in said] == []
    assert {200, 400, 401, 403, 415, 503} == {response.status for response in refused}


def test_representations_hide_what_was_sent() -> None:
    """A request or response in a log line or a trace shows neither header fields nor content."""
    client = Service().client()
    request = client.creation()
    for text in (repr(request), repr(client.send(request))):
        assert client.token not in text
        assert "sharedSecret" not in text
        assert "walletAddress" not in text


# --- the values themselves -------------------------------------------------------------------------


def test_request_reads_field_lines_by_name_in_order() -> None:
    """Whatever the case of the name; each line is a value of its own."""
    request = Request("GET", "/", headers=[("A", "1"), ("b", "2"), ("a", "3")], body=b"x")
    assert request.values("a") == ["1", "3"]
    assert request.values("c") == []
    assert request.headers == (("A", "1"), ("b", "2"), ("a", "3"))
    assert request.body == b"x"


def test_status_of_every_refusal_is_one_that_is_documented() -> None:
    """The table holds client errors and the one that passes; a 500 is in no table."""
    assert {400, 401, 403, 404, 503} == set(STATUS.values())


def test_host_refuses_before_there_is_a_request() -> None:
    """Its refusals have the same shape as all others, header fields included."""
    error = HttpRefused(405, "method_not_allowed", "use GET here", headers=(("Allow", "GET"),))
    assert refusal(http_refusal(error)) == (405, "method_not_allowed")


def test_internal_error_says_nothing() -> None:
    """500 with a code, and no word about what went wrong."""
    assert refusal(internal_error()) == (500, "internal_error")
    assert error_of(internal_error())["description"].startswith("the service failed")
    assert internal_error().headers == JSON_FIELDS


def test_flow_is_closed_when_nobody_goes_on() -> None:
    """A host that gives up in the middle leaves nothing behind: the flow ends where it stands."""
    service = Service()
    flow = handle(service.client().creation(), policy=service.policy, now=NOW)
    next(flow)
    flow.close()
    assert payments_in(service.store) == []
    assert list(itertools.chain(flow)) == []

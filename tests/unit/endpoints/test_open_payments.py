"""`api`: requests and responses without a host, for each rule of the specification and of the design."""

import json
import logging
import re
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.domain.payment import IncomingPayment
from incoming_payments.endpoints.open_payments import Request, Response, handle, http_refusal, internal_error
from incoming_payments.errors import (
    AuthorizationServerUnavailable,
    HttpRefused,
    PaymentExists,
    PolicyRefused,
    PortMissing,
    PortUnavailable,
    StoreUnavailable,
    StoreUnusable,
)
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
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import NOW
from kits.fake_ports import Raising
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
    Client,
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
    """Return the names of the rows of a table."""
    return [row[0] for row in rows]


def error_of(response: Response) -> dict[str, Any]:
    """Return the error in the body of a refusal."""
    error: dict[str, Any] = json.loads(response.body)["error"]
    return error


def without(request: Request, *names: str) -> Request:
    """Return `request` without the header fields with these names."""
    return evolve(request, headers=[line for line in request.headers if line[0].lower() not in names])


# --- section 2: the resource -----------------------------------------------------------------------


def test_2_1_value() -> None:
    """`value` is an unsigned 64-bit integer, written as a string, in requests and responses."""
    client = Service().client()
    for value in ("1", str(UINT64_MAX)):
        amount = {**USD_25, "value": value}
        assert amount == document(client.create(incomingAmount=amount), 201)["incomingAmount"]


@pytest.mark.parametrize(
    ("member", "values"),
    [
        ("value", [1, "", "-1", "+1", "01", "1.0", " 1", "1e3", str(UINT64_MAX + 1), "\u0661", None]),
        ("assetCode", [1, "", "US D", None]),
        ("assetScale", [256, -1, "2", 2.0, True, None]),
    ],
)
def test_2_1_wrong_member_of_an_amount(member: str, values: list[object]) -> None:
    """Each member has its type and its range. The refusal names the member."""
    client = Service().client()
    for value in values:
        response = client.create(incomingAmount={**USD_25, member: value})
        assert refusal(response) == (400, "invalid_body"), value
        assert error_of(response)["details"]["member"] == f"incomingAmount.{member}"


def test_2_2_id() -> None:
    """`id` is a URL below the base URL, and GET answers at this URL."""
    client = Service().client()
    created = document(client.create(), 201)
    match = re.fullmatch(rf"{BASE_URL}{PATH}/([0-9a-f-]{{36}})", created["id"])
    assert match is not None
    assert created == document(client.get(match[1]))


def test_2_2_wallet_address() -> None:
    """`walletAddress` has its canonical spelling."""
    created = document(Service().client().create(walletAddress="https://BANK.example/alice/"), 201)
    assert created["walletAddress"] == "https://bank.example/alice"


def test_2_2_completed() -> None:
    """`completed` is true after `incomingAmount` was reached, and not before."""
    service = Service()
    client = service.client()
    id = client.creates(incomingAmount=USD_25, expiresAt=(NOW + timedelta(hours=1)).isoformat())
    seen = [document(client.get(id))["completed"]]
    for value, credit in ((2499, "a"), (1, "b")):
        service.receive(id, value, credit_id=credit)
        seen.append(document(client.get(id))["completed"])
    assert seen == [False, False, True]


def test_2_2_incoming_amount() -> None:
    """`incomingAmount` is returned as requested, and left out if the request has none."""
    client = Service().client()
    assert document(client.create(incomingAmount=USD_25), 201)["incomingAmount"] == USD_25
    assert "incomingAmount" not in document(client.create(), 201)


def test_2_2_received_amount() -> None:
    """`receivedAmount` is the total, in the asset of the wallet address."""
    service = Service()
    client = service.client()
    id = client.creates()
    assert document(client.get(id))["receivedAmount"] == RECEIVED_0
    service.receive(id, 40, credit_id="a")
    service.receive(id, 2, credit_id="b")
    assert document(client.get(id))["receivedAmount"] == {**RECEIVED_0, "value": "42"}


def test_2_2_expires_at() -> None:
    """`expiresAt` is the requested time in UTC, and left out if the request has none."""
    client = Service().client()
    created = document(client.create(expiresAt="2026-01-02T03:04:05.678901+01:00"), 201)
    assert created["expiresAt"] == "2026-01-02T02:04:05.678901Z"
    assert "expiresAt" not in document(client.create(), 201)


def test_2_2_metadata() -> None:
    """`metadata` is returned unchanged, and left out if the request has none."""
    client = Service().client()
    metadata = {"invoice": "2026/7", "n": [1, 2.5, None, {"\u00e9": "\U0001f4b6"}]}
    id = client.creates(metadata=metadata)
    assert metadata == document(client.get(id))["metadata"]
    assert document(client.create(metadata={}), 201)["metadata"] == {}
    assert "metadata" not in document(client.create(), 201)


def test_2_2_created_at_and_updated_at() -> None:
    """`createdAt` never changes. `updatedAt` starts equal to it and changes with each credit."""
    service = Service()
    client = service.client()
    created = client.create(incomingAmount=USD_25)
    id = id_of(created)
    at = "2026-01-01T12:00:00.000001Z"
    assert (at, at) == tuple(document(created, 201)[name] for name in ("createdAt", "updatedAt"))
    service.clock.advance(10)
    service.receive(id, 1, credit_id="a")
    service.clock.advance(10)
    service.receive(id, 1, credit_id="a")  # a repeat: nothing changes
    resource = document(client.get(id))
    assert (at, "2026-01-01T12:00:10.000001Z") == (resource["createdAt"], resource["updatedAt"])


def test_2_2_methods() -> None:
    """A payment has one payment method, which is the same in each response."""
    client = Service().client()
    created = document(client.create(), 201)
    assert len(created["methods"]) == 1
    assert created["methods"] == document(client.get(created["id"].rpartition("/")[2]))["methods"]


def test_2_3_type_ilp_address_shared_secret() -> None:
    """The three members match the patterns of the specification, and there is no fourth."""
    [method] = document(Service().client().create(), 201)["methods"]
    assert list(method) == ["type", "ilpAddress", "sharedSecret"]
    assert method["type"] == "ilp"
    pattern = r"^(g|private|example|peer|self|test[1-3]?|local)([.][a-zA-Z0-9_~-]+)+$"
    assert re.fullmatch(pattern, method["ilpAddress"])
    assert len(method["ilpAddress"]) <= 1023
    assert re.fullmatch(r"^[a-zA-Z0-9-_]+$", method["sharedSecret"])


def test_2_3_unique_details() -> None:
    """The ILP address and the shared secret are unique to the payment. Spec section 1."""
    client = Service().client()
    methods = [document(client.create(), 201)["methods"][0] for _ in range(3)]
    for member in ("ilpAddress", "sharedSecret"):
        assert len({method[member] for method in methods}) == 3


# --- section 3: states -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2500, 2501])
def test_3_total_equals_or_exceeds_incoming_amount(value: int) -> None:
    """Row 1: the payment is completed, shows its total, and has no payment methods."""
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
    """Row 2: `completed` and `updatedAt` do not change, but the payment has no payment methods."""
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
    """The response has status 201, the resource, and its URL in `Location`."""
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


def test_4_1_wallet_address_is_required() -> None:
    """A body without `walletAddress` is refused."""
    client = Service().client()
    response = client.send(client.creation({}))
    assert refusal(response) == (400, "invalid_body")
    assert error_of(response)["details"] == {"member": "walletAddress"}


def test_4_1_wallet_address_hosted_by_the_receiving_entity() -> None:
    """A wallet address that this ASE does not host is refused, even if the token covers it."""
    client = Service().client(a_right("create", on=None))
    response = client.create(walletAddress="https://bank.example/nobody")
    assert refusal(response) == (400, "unknown_wallet_address")
    assert error_of(response)["details"] == {"member": "walletAddress"}


@pytest.mark.parametrize("change", [{"assetCode": "EUR"}, {"assetScale": 0}, {"assetScale": 3}, {"assetScale": 255}])
def test_4_1_incoming_amount_uses_the_asset_of_the_wallet_address(change: dict[str, object]) -> None:
    """Code and scale must both be those of the wallet address."""
    response = Service().client().create(incomingAmount={**USD_25, **change})
    assert refusal(response) == (400, "asset_mismatch")
    assert error_of(response)["details"] == {"member": "incomingAmount"}


# Members that are refused, with the code and the member that the response names.
BAD_MEMBERS: list[tuple[str, Mapping[str, object], str, str]] = [
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
    ("metadata with NUL", {"metadata": {"a": "\0"}}, "invalid_body", "metadata.a"),
    ("wallet address that is no URL", {"walletAddress": "alice"}, "invalid_body", "walletAddress"),
    ("wallet address with user", {"walletAddress": "https://a@bank.example/alice"}, "invalid_body", "walletAddress"),
    ("misspelt member", {"expiresat": "2026-01-02T00:00:00Z"}, "invalid_body", "expiresat"),
    *(
        (f"{name}, which the service sets", {name: "x"}, "invalid_body", name)
        for name in ("id", "createdAt", "updatedAt", "completed", "receivedAmount", "methods")
    ),
]


@pytest.mark.parametrize(("members", "code", "member"), [row[1:] for row in BAD_MEMBERS], ids=ids(BAD_MEMBERS))
def test_4_1_member_refused(members: dict[str, object], code: str, member: str) -> None:
    """The response is 400 and names the wrong member; nothing is stored."""
    service = Service()
    response = service.client().create(**members)
    assert (400, code) == refusal(response)
    assert {"member": member} == error_of(response)["details"]
    assert payments_in(service.store) == []


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
    """A signed body that is not a create request is refused with 400."""
    client = Service().client()
    assert refusal(client.send(client.creation(body))) == (400, "invalid_body")


# --- section 4.2: get ------------------------------------------------------------------------------


def test_4_2_response_200_incoming_payment_found() -> None:
    """The response has status 200 and the whole resource as created."""
    client = Service().client()
    created = client.create(incomingAmount=USD_25, metadata={"a": 1}, expiresAt="2026-01-02T00:00:00Z")
    response = client.get(id_of(created))
    assert document(created, 201) == document(response)
    assert {"Content-Type", "Cache-Control"} == {name for name, _ in response.headers}


@pytest.mark.parametrize("id", ["x", "%20", NOBODYS_ID.upper(), NOBODYS_ID + "%0A", NOBODYS_ID.replace("0", "%30", 1)])
def test_4_2_path_parameter_id(id: str) -> None:
    """An id in another spelling is answered with 404 without calling a port."""
    service = Service()
    service.replace(store=None, introspector=None)
    assert refusal(service.client().get(id)) == (404, "payment_not_found")


def test_4_2_request_body_none() -> None:
    """A GET with a body is refused without calling a port, signed or not."""
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
    """A signature must cover `@method`, `@target-uri` and `authorization`."""
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


@pytest.mark.parametrize("missing", ["signature-input", "signature"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_5_both_signature_headers_are_required(method: str, missing: str) -> None:
    """With a token, both header fields are required, whatever the method is."""
    service = Service()
    client = service.client()
    get = client.sign(Request("GET", f"{PATH}/{client.creates()}"))
    request = get if method == "GET" else client.creation()
    assert refusal(service.handle(without(request, missing)))[0] == 401


def test_5_all_uncovered_components_are_named() -> None:
    """The refusal names each component that must be added, so that one more attempt is enough."""
    client = Service().client()
    response = client.send(client.creation(components=["@method"]))
    assert refusal(response) == (401, "component_not_covered")
    assert error_of(response)["details"] == {"component": "@target-uri, authorization, content-digest"}
    assert (
        "does not cover @target-uri, authorization, content-digest: add these components,"
        in error_of(response)["description"]
    )


def test_5_invalid_signature_shows_the_target_uri() -> None:
    """The refusal shows the target URI of the signature base, because a wrong `base_url` is the likeliest cause."""
    client = Service().client()
    client.base_url = "https://bank.example"
    response = client.send(client.sign(Request("GET", ID_PATH, "a=b")))
    assert refusal(response) == (401, "signature_invalid")
    assert error_of(response)["details"] == {"target_uri": f"{BASE_URL}{ID_PATH}?a=b"}


def test_5_body_needs_content_digest_covered() -> None:
    """The signature of a request with a body must cover `content-digest`."""
    client = Service().client()
    request = client.creation(components=["@method", "@target-uri", "authorization"])
    assert refusal(client.send(request)) == (401, "body_not_covered")


def test_5_content_digest_is_that_of_the_body_received() -> None:
    """A changed body is refused, even if its JSON has the same meaning."""
    client = Service().client()
    request = client.creation()
    for body in (request.body.replace(b"alice", b"bobby"), request.body.replace(b": ", b":  ")[:-1] + b"}"):
        changed = evolve(request, body=body)
        assert client.send(changed).status == 401
    assert refusal(client.send(evolve(request, body=b" " * len(request.body)))) == (401, "digest_mismatch")
    assert client.send(request).status == 201


def test_5_keyid_equals_the_kid_of_the_clients_jwk() -> None:
    """A token is bound to one key. It is refused with another client's key."""
    service = Service()
    owner, thief = service.client(), service.client(name=OTHER_SHOP, key=ed25519_key("thief"))
    thief.token = owner.token
    assert refusal(thief.create()) == (401, "key_unknown")


@pytest.mark.parametrize("key", [ed25519_key, es256_key, ps512_key])
def test_5_signing_algorithm_is_that_of_the_jwk(key: Callable[[], Any]) -> None:
    """Create and get work with each supported `alg` of a JWK."""
    client = Service().client(key=key())
    assert client.get(client.creates()).status == 200


def test_5_signature_input_may_hold_several_labels() -> None:
    """One valid signature is enough, whatever its label is."""
    service = Service()
    client = service.client()
    request = client.creation(label="proxy", components=["@method"])
    twice = Request(request.method, request.path, headers=request.headers[1:], body=request.body)
    assert client.send(client.sign(twice, label="any-name")).status == 201


def test_5_created_is_required_and_fresh() -> None:
    """The policy decides how old or how far ahead `created` may be."""
    service = Service(signature=SignaturePolicy(max_age_s=30, clock_skew_s=5))
    client = service.client()
    codes = {
        offset: client.send(client.creation(created=NOW + timedelta(seconds=offset))).status
        for offset in (-29, -31, 4, 6)
    }
    assert codes == {-29: 201, -31: 401, 4: 201, 6: 401}


def test_5_target_uri_is_made_from_the_base_url() -> None:
    """`@target-uri` uses the raw path and query, and ignores `Host` and `X-Forwarded-*`."""
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
    """The signature of a GET is not valid for a HEAD."""
    service = Service()
    client = service.client()
    request = client.sign(Request("GET", f"{PATH}/{client.creates()}"))
    assert service.handle(evolve(request, method="HEAD")).status == 401


# --- section 7: errors -----------------------------------------------------------------------------


def denied(service: Service, created: Any = NOW, **client: Any) -> list[Request]:
    """Return a create request with wrong terms and a GET of a payment, with a token that has neither right."""
    sender = service.client(a_right("complete"), **client)
    return [
        sender.creation({"walletAddress": ALICE.url, "expiresAt": "2000-01-01T00:00:00Z"}, created=created),
        sender.sign(Request("GET", f"{PATH}/{service.client().creates()}"), created=created),
    ]


def with_token(service: Service, authorization: str) -> list[Request]:
    """Return the requests of `denied` with another `Authorization`."""
    return [
        evolve(without(request, "authorization"), headers=[("Authorization", authorization), *request.headers[1:]])
        for request in denied(service)
    ]


def forged(service: Service) -> list[Request]:
    """Return the requests of `denied`, each with the signature of the other."""
    return [
        evolve(without(request, "signature"), headers=[*request.headers[:-1], other.headers[-1]])
        for request, other in zip(denied(service), reversed(denied(service)), strict=True)
    ]


# Errors of the caller, in order of precedence: each row is reported even if the rows below apply as well.
UNAUTHORISED: list[tuple[str, Callable[[Service], Any], str]] = [
    (
        "no token",
        lambda service: [without(request, "authorization") for request in denied(service)],
        "token_missing",
    ),
    ("another scheme", lambda service: with_token(service, "Bearer abc"), "invalid_token"),
    ("unknown token", lambda service: with_token(service, "GNAP unknown"), "invalid_token"),
    ("expired token", lambda service: denied(service, expires_at=NOW), "token_expired"),
    ("key refused", lambda service: denied(service, jwk={"kty": "oct", "k": "AAAA"}), "key_unusable"),
    (
        "not signed",
        lambda service: [without(request, "signature") for request in denied(service)],
        "signature_missing",
    ),
    ("signed too long ago", lambda service: denied(service, created=0), "signature_stale"),
    ("forged", forged, "signature_invalid"),
    ("right missing", denied, "insufficient_rights"),
]


@pytest.mark.parametrize("space", [" ", "\t", " \t "])
def test_white_space_around_a_value_is_no_part_of_it(space: str) -> None:
    """Some servers leave the white space around a header field's value. RFC 9110 §5.5, and RFC 9421 §2.1."""
    service = Service()
    client = service.client()
    key = ("Idempotency-Key", '"an-invoice"')
    body = json.dumps({"walletAddress": ALICE.url}).encode()
    signed = client.sign(Request("POST", PATH, headers=[JSON, key], body=body))
    padded = [(name, f"{space}{value}{space}") for name, value in signed.headers]
    assert service.handle(evolve(signed, headers=padded)).status == 201


@pytest.mark.parametrize(("make", "code"), [row[1:] for row in UNAUTHORISED], ids=ids(UNAUTHORISED))
def test_7_401_authorization_required(make: Callable[[Service], list[Request]], code: str) -> None:
    """Requests without authorization get the same 401 whether the wallet address and the payment exist or not."""
    service = Service()
    requests = make(service)
    responses = [service.handle(request) for request in requests]
    assert [refusal(response) for response in responses] == [(401, code)] * 2
    service.hosted.addresses.clear()
    service.replace(store=MemoryStore())
    assert responses == [service.handle(request) for request in requests]


def test_7_403_create_forbidden() -> None:
    """403 reveals nothing about the wallet address, such as whether it is hosted."""
    service = Service()
    client = service.client()
    service.replace(store=None)
    wrong = {"incomingAmount": {**USD_25, "value": "0"}, "expiresAt": "2000-01-01T00:00:00Z"}
    responses = [client.create(walletAddress=url, **wrong) for url in (BOB.url, "https://bank.example/nobody")]
    assert [refusal(response) for response in responses] == [(403, "forbidden")] * 2
    assert len({response.body for response in responses}) == 1


def test_7_403_get_forbidden() -> None:
    """403 reveals nothing about the payment."""
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
    """An unknown id, an invalid id and a payment that the caller cannot see get equal responses."""
    service = Service()
    id = service.client().creates()
    stranger = service.client(a_right("read", "read-all", on=BOB))
    answers = [stranger.get(asked_for) for asked_for in (id, NOBODYS_ID, "not-an-id")]
    assert [refusal(answer) for answer in answers] == [(404, "payment_not_found")] * 3
    assert len(set(answers)) == 1
    public = service.handle(Request("GET", f"{PATH}/{NOBODYS_ID}"))
    assert answers[0] == public


def test_7_404_does_not_show_the_file_of_the_store(tmp_path: Path) -> None:
    """The text of the SQLite store names its file. The answer does not, even if a stored payment has vanished."""
    service = Service()
    client = service.client(a_right("create", "read"))
    path = tmp_path / "payments.sqlite3"
    headers = (JSON, ("Idempotency-Key", '"key"'))
    creation = Request("POST", PATH, headers=headers, body=json.dumps({"walletAddress": ALICE.url}).encode())
    with SqliteStore(path) as store:
        service.replace(store=store)
        id = id_of(client.send(client.sign(creation)))
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DELETE FROM payments")
        # A damaged database is no reason to document a 404 for this request.
        retry = service.run(handle(client.sign(creation), policy=service.policy, now=service.now))
        assert retry.body == client.get(id).body
    assert str(tmp_path).encode() not in retry.body


# --- section 8: limits -----------------------------------------------------------------------------


def test_8_incoming_amount_total_may_not_continue_past_it() -> None:
    """The total does not change after `incomingAmount` is reached."""
    service = Service()
    client = service.client()
    id = client.creates(incomingAmount=USD_25)
    service.receive(id, 2500)
    with pytest.raises(Exception, match="completed"):
        service.receive(id, 1, credit_id="wire-2")
    assert document(client.get(id))["receivedAmount"] == USD_25


def test_8_ilp_address_of_the_longest_prefix() -> None:
    """An ILP address of 1023 characters is returned."""
    service = Service()
    service.replace(methods=DerivedMethods("g." + "x" * (1023 - 44 - 2), [SERVER_SECRET]))
    [method] = document(service.client().create(), 201)["methods"]
    assert len(method["ilpAddress"]) == 1023


# --- the public view -------------------------------------------------------------------------------


def test_public_view_has_exactly_two_members() -> None:
    """The public view holds the received amount and the authorization server only."""
    service = Service()
    id = service.client().creates(incomingAmount=USD_25, metadata={"private": "yes"})
    response = service.handle(Request("GET", f"{PATH}/{id}"))
    assert {"receivedAmount": RECEIVED_0, "authServer": ALICE.auth_server} == document(response)


def test_public_view_shows_the_received_amount() -> None:
    """The public view shows the current total, also of a completed or expired payment."""
    service = Service()
    id = service.client().creates(incomingAmount=USD_25, expiresAt=(NOW + timedelta(seconds=60)).isoformat())
    seen = []
    for value, seconds in ((5, 0), (2495, 0), (0, 3600)):
        if value:
            service.receive(id, value, credit_id=f"wire-{value}")
        service.clock.advance(seconds)
        seen.append(document(service.handle(Request("GET", f"{PATH}/{id}")))["receivedAmount"]["value"])
    assert seen == ["5", "2500", "2500"]


def test_public_view_when_the_wallet_address_is_gone() -> None:
    """The public view names the authorization server of the service if the wallet address is gone."""
    service = Service()
    id = service.client().creates()
    service.hosted.addresses.clear()
    assert document(service.handle(Request("GET", f"{PATH}/{id}")))["authServer"] == AUTH_SERVER


@pytest.mark.parametrize("name", ["Authorization", "Signature", "Signature-Input", "sIGNATURE"])
@pytest.mark.parametrize("value", ["", "undefined", "GNAP unknown", "sig1=:AAAA:"])
def test_public_view_is_no_fallback_for_invalid_authentication(name: str, value: str) -> None:
    """A request with one of these fields must be authenticated, whatever the field holds."""
    service = Service()
    id = service.client().creates()
    response = service.handle(Request("GET", f"{PATH}/{id}", headers=[(name, value)]))
    expected = "invalid_token" if name == "Authorization" else "token_missing"
    assert (401, expected) == refusal(response)


def test_public_view_can_be_switched_off() -> None:
    """Without the public view, an unsigned GET gets 401, whether the payment exists or not."""
    service = Service(public_get=False)
    client = service.client()
    id = client.creates()
    answers = [service.handle(Request("GET", f"{PATH}/{asked_for}")) for asked_for in (id, NOBODYS_ID)]
    assert [refusal(answer) for answer in answers] == [(401, "token_missing")] * 2
    assert len(set(answers)) == 1
    assert client.get(id).status == 200


def test_head_is_answered_as_get() -> None:
    """The response to HEAD equals that to GET; the host leaves out the body."""
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


# --- the public view across origins ----------------------------------------------------------------

ANY_ORIGIN: Final = "Access-Control-Allow-Origin"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_public_view_may_be_read_across_origins(method: str) -> None:
    """Scripts of any website may read the public view, and nothing else."""
    service = Service()
    client = service.client()
    id = client.creates()
    assert header(service.handle(Request(method, f"{PATH}/{id}")), ANY_ORIGIN) == "*"
    signed = client.sign(Request(method, f"{PATH}/{id}"))
    others = [client.get(id), client.create(), service.handle(without(signed, "authorization"))]
    others += [service.handle(Request(method, path)) for path in (ID_PATH, "/nowhere", PATH)]
    assert [response.status for response in others] == [200, 201, 401, 404, 404, 401]
    assert [header(response, ANY_ORIGIN) for response in others] == [None] * 6


def test_preflight_of_the_public_view() -> None:
    """OPTIONS of any payment allows GET and HEAD from any origin. It allows no `Authorization`, and needs no port."""
    service = Service()
    service.replace(store=None, introspector=None)
    asked = [("Origin", "https://shop.example"), ("Access-Control-Request-Method", "GET"), ("Accept", "*/*")]
    response = service.handle(Request("OPTIONS", ID_PATH, headers=asked))
    assert (response.status, response.body) == (200, b"{}")
    assert response.headers == (
        *JSON_FIELDS,
        (ANY_ORIGIN, "*"),
        ("Access-Control-Allow-Methods", "GET, HEAD"),
        ("Access-Control-Allow-Headers", "Content-Type"),
        ("Access-Control-Max-Age", "7200"),
    )
    assert refusal(service.handle(Request("OPTIONS", PATH, headers=asked))) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    "settings", [{"public_cors": False}, {"public_get": False}, {"public_get": False, "public_cors": False}]
)
def test_sharing_across_origins_can_be_switched_off(settings: dict[str, bool]) -> None:
    """Without either setting, no response has the header field, and OPTIONS is refused."""
    service = Service(**settings)
    id = service.client().creates()
    responses = [service.handle(Request(method, f"{PATH}/{id}")) for method in ("GET", "OPTIONS")]
    assert responses[0].status == (200 if settings.get("public_get", True) else 401)
    assert refusal(responses[1]) == (405, "method_not_allowed")
    assert header(responses[1], "Allow") == "GET, HEAD"
    assert [header(response, ANY_ORIGIN) for response in responses] == [None, None]


# --- checks of HTTP itself -------------------------------------------------------------------------

LONG = "x" * TARGET_CHARS_MAX
ID_PATH = f"{PATH}/{NOBODYS_ID}"
HTML = ("Accept", "text/html")
AUTHORIZED = ("Authorization", "x")

# In order of precedence: each request also breaks the rules of the rows below, where it can. None calls a port.
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
    ("another path", Request("PUT", "/nowhere", headers=[HTML]), 404, "not_found"),
    ("no path", Request("GET", ""), 404, "not_found"),
    ("path without its slash", Request("GET", ID_PATH[1:]), 404, "not_found"),
    ("empty id", Request("GET", f"{PATH}/"), 404, "not_found"),
    ("path below a payment", Request("GET", f"{ID_PATH}/completed"), 404, "not_found"),
    ("GET of complete", Request("GET", f"{ID_PATH}/complete"), 405, "method_not_allowed"),
    ("path in another case", Request("GET", f"{PATH.upper()}/{NOBODYS_ID}"), 404, "not_found"),
    (
        "method not served",
        Request("PUT", f"{PATH}/x", headers=[HTML, ("Content-Type", "text/plain")]),
        405,
        "method_not_allowed",
    ),
    ("method in lower case", Request("post", PATH), 405, "method_not_allowed"),
    ("no token", Request("POST", PATH, headers=[HTML, ("Content-Encoding", "gzip")]), 401, "token_missing"),
    (
        "no token but a signature",
        Request("GET", f"{PATH}/x", "", [HTML, ("Signature", "")], b"x"),
        401,
        "token_missing",
    ),
    ("accepts no JSON", Request("POST", PATH, headers=[HTML, AUTHORIZED]), 406, "not_acceptable"),
    ("public view as HTML", Request("GET", f"{PATH}/x", "", [HTML], b"x"), 406, "not_acceptable"),
    ("id that cannot be", Request("GET", f"{PATH}/x", body=b"x"), 404, "payment_not_found"),
    ("body of a GET", Request("GET", ID_PATH, headers=[("Authorization", "x")], body=b"x"), 400, "unexpected_body"),
    ("no media type", Request("POST", PATH, headers=[AUTHORIZED]), 415, "unsupported_media_type"),
    (
        "another media type",
        Request("POST", PATH, headers=[AUTHORIZED, ("Content-Type", "text/json")]),
        415,
        "unsupported_media_type",
    ),
    ("two media types", Request("POST", PATH, headers=[AUTHORIZED, JSON, JSON]), 415, "unsupported_media_type"),
    (
        "encoded",
        Request("POST", PATH, headers=[AUTHORIZED, JSON, ("Content-Encoding", "gzip")]),
        415,
        "unsupported_encoding",
    ),
    ("token", Request("POST", PATH, headers=[AUTHORIZED, JSON]), 401, "invalid_token"),
]


@pytest.mark.parametrize(("request_", "status", "code"), [row[1:] for row in HTTP], ids=ids(HTTP))
def test_http_by_precedence(request_: Request, status: int, code: str) -> None:
    """Sizes, media types, path and method are checked before any port is called."""
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
    "another path": (f"no path '/nowhere': use {BASE_URL}{PATH}", ()),
    "method not served": ("use GET, HEAD, OPTIONS", (("Allow", "GET, HEAD, OPTIONS"),)),
    "method in lower case": ("use POST, GET, HEAD", (("Allow", "POST, GET, HEAD"),)),
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


def test_request_at_every_limit_is_accepted() -> None:
    """The largest request within all limits is processed."""
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


def test_405_has_allow() -> None:
    """`Allow` names the methods of the path, for each other method."""
    service = Service()
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")
    rows = ((PATH, "POST, GET, HEAD"), (ID_PATH, "GET, HEAD, OPTIONS"), (f"{ID_PATH}/complete", "POST"))
    for path, allow in rows:
        for method in set(methods) - set(allow.split(", ")) - {"HEAD"}:
            response = service.handle(Request(method, path, headers=[AUTHORIZED]))
            assert refusal(response) == (405, "method_not_allowed")
            assert allow == header(response, "Allow")
    # OPTIONS of a payment is answered for the public view only, so a request with a token gets 405.
    response = service.handle(Request("OPTIONS", ID_PATH, headers=[AUTHORIZED]))
    assert refusal(response) == (405, "method_not_allowed")
    assert header(response, "Allow") == "GET, HEAD"
    assert service.handle(Request("HEAD", f"{ID_PATH}/complete")).status == 405


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
        ([f"{'text/html,' * 101}*/*"], True),  # 1,013 characters
        ([f"{'text/html,' * 102}*/*"] * 2, False),
        (["*/*," * 300], False),
    ],
)
def test_406_unless_json_is_accepted(accept: list[str], acceptable: bool) -> None:
    """`Accept` is refused only if it excludes JSON (RFC 9110 §12.5.1). Empty fields count as absent (§5.6.1.2)."""
    response = Service().handle(Request("GET", ID_PATH, headers=[("Accept", value) for value in accept]))
    assert (404 if acceptable else 406) == response.status


@pytest.mark.parametrize(
    "media_type", ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"]
)
def test_json_media_type_is_accepted_in_any_spelling(media_type: str) -> None:
    """Case and parameters of the media type do not matter, nor does the coding `identity`."""
    service = Service()
    fields = [("content-type", media_type), ("content-encoding", "identity")]
    assert refusal(service.handle(Request("POST", PATH, headers=fields))) == (401, "token_missing")
    assert refusal(service.handle(Request("POST", PATH, headers=[JSON, ("Content-Encoding", " ")]))) == (
        401,
        "token_missing",
    )


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
    """Each action allows exactly its own requests."""
    service = Service()
    own = service.client().creates()
    others = service.client(name=OTHER_SHOP).creates()
    client = service.client(a_right(*actions), name=SHOP)
    assert (creates, reads_own, reads_others) == (
        client.create().status,
        client.get(own).status,
        client.get(others).status,
    )


def test_token_expires_by_the_clock() -> None:
    """A token is refused from its expiry time on."""
    service = Service()
    client = service.client(expires_at=NOW + timedelta(seconds=10))
    service.clock.advance(9.999999)
    assert client.create().status == 201
    service.clock.advance(0.000001)
    assert refusal(client.create()) == (401, "token_expired")


# --- ports that refuse or fail ---------------------------------------------------------------------

PORTS = ["introspector", "wallet_addresses", "methods", "store"]


def payments_in(store: MemoryStore) -> list[IncomingPayment]:
    """Return every payment in a memory store."""
    return [row for row in store._rows.values() if isinstance(row, IncomingPayment)]


class OwnRules(PolicyRefused):
    """A refusal that a host defines, with its own code and attribute."""

    code = "sanctions"

    def __init__(self, reason: object) -> None:
        super().__init__("ask compliance")
        self.reason = reason


@pytest.mark.parametrize("port", PORTS)
def test_port_refuses_by_the_hosts_own_rules(port: str) -> None:
    """`PolicyRefused` of a port gives 403 with its description; nothing is stored."""
    service = Service()
    client = service.client()
    store = service.store
    service.replace(**{port: Raising(PolicyRefused("at most five payments a day", per_day=5))})
    response = client.create()
    assert refusal(response) == (403, "refused_by_policy")
    assert (
        error_of(response)["description"],
        error_of(response)["details"],
    ) == ("at most five payments a day", {"per_day": 5})
    assert payments_in(store) == []


def test_port_refuses_with_an_error_of_its_own() -> None:
    """A subclass of `PolicyRefused` has its own code. Its other attributes are not sent to the client."""
    service = Service()
    client = service.client()
    service.replace(wallet_addresses=Raising(OwnRules(object())))
    response = client.create()
    assert refusal(response) == (403, "sanctions")
    assert error_of(response) == {"code": "sanctions", "description": "ask compliance"}


@pytest.mark.parametrize("port", PORTS)
def test_unavailable_port_gives_503(port: str) -> None:
    """The client gets 503 with `Retry-After`, and not the reason, because it may name a file. Nothing is stored."""
    service = Service()
    client = service.client()
    store = service.store
    service.replace(**{port: Raising(StoreUnavailable("/var/lib/payments.db is locked"))})
    response = client.create()
    assert refusal(response) == (503, "store_unavailable")
    assert response.headers[2:] == (("Retry-After", "1"),)
    assert list(error_of(response)) == ["code", "description"]
    assert error_of(response)["description"].startswith("the service cannot")
    assert b"/var/lib" not in response.body
    assert str(response.cause) == "/var/lib/payments.db is locked"
    assert payments_in(store) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AuthorizationServerUnavailable("10.0.0.7 timed out"), "authorization_server_unavailable"),
        (PortUnavailable("10.0.0.7 timed out"), "port_unavailable"),
        (TimeoutError("10.0.0.7 timed out"), "authorization_server_unavailable"),
        (ConnectionRefusedError("10.0.0.7 refused"), "authorization_server_unavailable"),
    ],
)
def test_unavailable_authorization_server_gives_503(error: Exception, code: str) -> None:
    """An outage is 503 with `Retry-After` and a code that names the port, and neither 401 nor 500."""
    service = Service()
    client = service.client()
    service.replace(introspector=Raising(error))
    response = client.create()
    assert refusal(response) == (503, code)
    assert response.headers[2:] == (("Retry-After", "1"),)
    assert b"10.0.0.7" not in response.body
    assert "10.0.0.7" in str(response.cause)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_unavailable_store_gives_503_for_the_public_view(method: str) -> None:
    """An unsigned request gets the same 503."""
    service = Service()
    service.replace(store=Raising(StoreUnavailable("locked")))
    assert service.handle(Request(method, ID_PATH)).status == 503


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    "error",
    [RuntimeError("a bug"), OSError("gone"), StoreUnusable("closed"), PaymentExists("twice"), KeyError("x")],
    ids=type,
)
def test_other_exception_of_a_port_is_raised_unchanged(port: str, error: Exception) -> None:
    """An exception that no client can cause reaches the host unchanged."""
    service = Service()
    client = service.client()
    service.replace(**{port: Raising(error)})
    with pytest.raises(type(error)) as raised:
        client.create()
    assert error is raised.value


@pytest.mark.parametrize("port", ["introspector", "wallet_addresses"])
def test_missing_port_raises_port_missing(port: str) -> None:
    """A missing port is a mistake of the host, which gets `PortMissing`."""
    service = Service()
    request = service.client().creation()
    service.replace(**{port: None})
    with pytest.raises(PortMissing, match=port):
        service.handle(request)


# --- secrets ---------------------------------------------------------------------------------------


def test_responses_and_logs_hold_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """No refusal and no log record holds a token, signature, shared secret, server secret or traceback."""
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
        broken.replace(**{port: Raising(StoreUnavailable("locked"))})
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


def test_repr_hides_headers_and_body() -> None:
    """The `repr` of a request or response shows neither header fields nor body."""
    client = Service().client()
    request = client.creation()
    for text in (repr(request), repr(client.send(request))):
        assert client.token not in text
        assert "sharedSecret" not in text
        assert "walletAddress" not in text


# --- the values themselves -------------------------------------------------------------------------


def test_request_reads_field_lines_by_name_in_order() -> None:
    """`values` ignores the case of the name in the field lines, and returns one value for each line."""
    request = Request("GET", "/", headers=[("A", "1"), ("b", "2"), ("a", "3")], body=b"x")
    assert request.values("a") == ["1", "3"]
    assert request.values("c") == []
    assert request.headers == (("A", "1"), ("b", "2"), ("a", "3"))
    assert request.body == b"x"


def test_refusal_by_the_host_has_an_error_body() -> None:
    """A refusal by the host has the same body as all other refusals."""
    error = HttpRefused(405, "method_not_allowed", "use GET here", headers=(("Allow", "GET"),))
    assert refusal(http_refusal(error)) == (405, "method_not_allowed")


def test_internal_error_has_no_details() -> None:
    """500 has a code, and does not reveal the reason."""
    assert refusal(internal_error()) == (500, "internal_error")
    assert error_of(internal_error())["description"].startswith("the service failed")
    assert internal_error().headers == JSON_FIELDS


def test_wording_of_web_monetization_over_http() -> None:
    """The extension recognizes the refusals by status and description. The codes stay, and so do all other texts."""
    service = Service(wording="web-monetization")
    client = service.client(a_right("read"))
    expired = service.client(expires_at=NOW)
    unknown = Client(service, "UNKNOWN", client.key)
    bob = service.client(a_right("create", on=BOB))
    rows = [
        (unknown.create(), "invalid_token", 401, "Invalid Token"),
        (expired.create(), "token_expired", 401, "Invalid Token"),
        (client.create(), "insufficient_rights", 401, "Insufficient Grant"),
        (bob.create(), "forbidden", 403, "Insufficient Grant"),
    ]
    for response, code, status, description in rows:
        assert refusal(response) == (status, code)
        assert error_of(response)["description"] == description
    stale = client.send(client.creation(created=0))
    assert refusal(stale) == (401, "signature_stale")
    assert error_of(stale)["description"].startswith("Signature validation error: created is")
    plain = Service().client()
    assert (
        f"Signature validation error: {error_of(plain.send(plain.creation(created=0)))['description']}"
        == (error_of(stale)["description"])
    )
    missing = client.get(NOBODYS_ID)
    assert error_of(missing)["description"] == "there is no such incoming payment: check the id"

"""The OpenAPI document: it is valid, it is up to date, and each of its lines is true."""

import ast
import asyncio
import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from attrs import evolve, frozen
from openapi_spec_validator import OpenAPIV31SpecValidator

import incoming_payments
from incoming_payments import errors
from incoming_payments.endpoints import open_payments as api
from incoming_payments.endpoints.open_payments import Request, Response
from incoming_payments.endpoints.openapi import openapi_document
from incoming_payments.errors import MalformedJson, SignatureRefused
from incoming_payments.gnap import AccessTokenInfo, Action
from incoming_payments.hosts import asgi
from incoming_payments.hosts.asgi import AsgiApplication
from incoming_payments.hosts.wsgi import WsgiApplication
from incoming_payments.httpsig import Code
from incoming_payments.limits import BODY_BYTES_MAX, HEADERS_MAX, TARGET_CHARS_MAX
from incoming_payments.ports.approval import Approval
from incoming_payments.service import AsyncIncomingPayments, IncomingPayments
from incoming_payments.stores.memory import MemoryNonces
from incoming_payments.testing import NOW
from incoming_payments.wire import read_create_request
from kits.fake_ports import Raising, Rules
from kits.openapi_kit import DOCUMENT, OPERATIONS, Documented, check_response, validator
from kits.processes import ROOT
from kits.service_kit import (
    ALICE,
    BOB,
    JSON,
    NOBODYS_ID,
    OTHER_SHOP,
    Client,
    Service,
    a_right,
    document,
    id_of,
    settings,
)

SOURCE: Final = Path(incoming_payments.__file__).parent
ALL: Final = tuple(action for action in Action if not action.endswith("-all"))
USD_25: Final = {"value": "2500", "assetCode": "USD", "assetScale": 2}


# --- the document as a whole -------------------------------------------------------------------------


def generator() -> ModuleType:
    """Return the program that writes the document."""
    spec = importlib.util.spec_from_file_location("docs_openapi", ROOT / "docs" / "openapi.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_openapi"] = module  # attrs looks up the module of a class
    spec.loader.exec_module(module)
    return module


def test_document_is_up_to_date() -> None:
    """`nox -s docs` writes the document again."""
    assert (SOURCE / "endpoints" / "openapi.json").read_text("utf-8") == generator().text()


def test_document_is_valid_openapi() -> None:
    """An independent validator accepts the document, also for a service that forbids the public view."""
    private = evolve(Service().policy, public_get=False)
    for made in (DOCUMENT, openapi_document(private)):
        OpenAPIV31SpecValidator(made).validate()


def test_document_follows_the_policy() -> None:
    """Without the public view, each request is signed. Without sharing across origins, there is no preflight."""
    path, signed = "/incoming-payments/{id}", DOCUMENT["paths"]["/incoming-payments"]["post"]["security"]
    policy = Service().policy
    private = openapi_document(evolve(policy, public_get=False))["paths"][path]
    unshared = openapi_document(evolve(policy, public_cors=False))["paths"][path]
    shared = openapi_document(policy)["paths"][path]
    assert [view["get"]["security"] for view in (shared, unshared, private)] == [[*signed, {}], [*signed, {}], signed]
    assert ["options" in view for view in (shared, unshared, private)] == [True, False, False]
    assert openapi_document(policy)["servers"] == [{"url": policy.base_url}]


def test_routes_are_documented() -> None:
    """The paths and methods of the document are those of `api`."""
    documented: dict[str, set[str]] = {}
    for operation in OPERATIONS.values():
        documented.setdefault(operation.path, set()).add(operation.method)
    assert documented == {path: set(answers) for path, answers in api.ROUTES.items()}


# --- codes -------------------------------------------------------------------------------------------


def codes_in_the_source() -> set[tuple[int, str]]:
    """Return the status and the code of each refusal that the source of the Open Payments endpoints can raise."""
    varying = {errors.TokenRefused, errors.SignatureRefused}
    found = {(status, cls.code) for cls, status in api.STATUS.items() if cls not in varying}
    found |= {(401, code.value) for code in Code}
    for path in SOURCE.rglob("*.py"):
        if path.name in {"packets.py", "pull.py", "errors.py"} or "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            values: list[Any] = [one.value for one in node.args if isinstance(one, ast.Constant)]
            called = {one.id for one in ast.walk(node.func) if isinstance(one, ast.Name)}
            if called & {"HttpRefused", "NothingRead"} and len(values) > 1:
                found.add((values[0], values[1]))
            elif called & {"TokenRefused", "SignatureRefused"} and values and re.fullmatch("[a-z_]+", values[0]):
                found.add((401, values[0]))
            elif "QuotaExceeded" in called and values:
                found.add((429, values[0]))
            elif "_response" in called and values and values[0] >= 400:
                found.add((values[0], "internal_error"))
    return found


def test_every_code_is_documented() -> None:
    """The document has exactly the statuses and codes that the source can raise."""
    documented = set().union(*(operation.codes for operation in OPERATIONS.values()))
    assert documented == codes_in_the_source()


@frozen
class Call:
    """A call of one operation, with a payment to call it for."""

    operation: Documented
    service: Service
    client: Client
    id: str

    @classmethod
    def of(cls, operation: Documented, **policy: Any) -> "Call":
        """Return a call at a new service."""
        service = Service(**policy)
        client = service.client(a_right(*ALL))
        return cls(operation, service, client, client.creates())

    def request(self, *headers: tuple[str, str], body: Mapping[str, object] | None = None, **changes: Any) -> Request:
        """Return the request, unsigned."""
        path, query, content = self.operation.path.replace("{id}", self.id), "", b""
        if self.operation.id == "create-incoming-payment":
            content = json.dumps({"walletAddress": ALICE.url, **(body or {})}).encode()
            headers = (JSON, ("Content-Length", str(len(content))), *headers)
        elif self.is_list:
            query = f"wallet-address={ALICE.url}"
        return evolve(Request(self.operation.method, path, query, headers, content), **changes)

    @property
    def is_signed(self) -> bool:
        """Return whether the operation takes a signed request."""
        return self.operation.method != "OPTIONS"

    @property
    def is_list(self) -> bool:
        """Return whether the operation lists payments."""
        return self.operation.id.endswith("payments")

    def send(self, request: Request, client: Client | None = None, **options: Any) -> Response:
        """Send `request`, signed unless it is a preflight request."""
        client = client or self.client
        return self.service.handle(client.sign(request, **options) if self.is_signed else request)

    def to(self, port: str, error: Exception | None) -> Response:
        """Send the request while `port` raises `error`, or is missing."""
        self.service.replace(**{port: None if error is None else Raising(error)})
        return self.send(self.request(), nonce="a-nonce" if port == "nonces" else None)

    def by(self, **client: Any) -> Response:
        """Send the request by another client."""
        rights = client.pop("rights", [a_right(*ALL)])
        return self.send(self.request(), self.service.client(*rights, **client))

    def twice(self, **options: Any) -> Response:
        """Send the same signed request twice, and return the second response."""
        request = self.client.sign(self.request(), **options)
        self.service.handle(request)
        return self.service.handle(request)


def by_asgi(call: Call, request: Request, *messages: Mapping[str, object]) -> Response:
    """Send `request` to the service as an ASGI application, then `messages`, and then nothing more."""
    service = call.service
    application = AsgiApplication(AsyncIncomingPayments(**settings(service, {})))
    headers = [(name.lower().encode(), value.encode()) for name, value in request.headers]
    scope = {"type": "http", "http_version": "1.1", "method": request.method, "path": request.path, "headers": headers}
    waiting = list(messages)

    async def receive() -> Any:
        return waiting.pop(0) if waiting else await asyncio.sleep(60)

    async def answer() -> Response:
        return await application.answer(scope, receive)

    return asyncio.run(answer())


def by_wsgi(call: Call, **environ: object) -> Response:
    """Send a request with `environ` to the service as a WSGI application."""
    application = WsgiApplication(IncomingPayments(**settings(call.service, {})))
    path = call.request().path
    return application.answer({"REQUEST_METHOD": call.operation.method, "PATH_INFO": path, **environ})


def slow_body(call: Call) -> Response:
    """Send a head, and no body."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asgi, "BODY_START_S_MAX", 0.001)
        return by_asgi(call, call.request(headers=[("Content-Length", "9")]))


def internal(call: Call) -> Response:
    """Let a port fail with an unexpected exception."""
    call.service.replace(introspector=Raising(RuntimeError("broken")))
    sent = call.client.sign(call.request())
    return by_asgi(call, evolve(sent, path=f"/op{sent.path}"), {"type": "http.request", "body": sent.body})


def unread_keys(call: Call) -> Response:
    """Send a request with a token that does not carry its key, while the keys of the client cannot be read."""
    error = errors.ClientKeysUnavailable("no answer")
    call.service.replace(client_keys=Raising(error), introspector=Keyless())
    return call.send(call.request())


class Keyless:
    """An introspector that does not give the key."""

    def introspect(self, _: object) -> AccessTokenInfo:
        """Return an active token without its key."""
        return AccessTokenInfo(OTHER_SHOP, None, [a_right(*ALL)])


def forbidden(call: Call) -> Response:
    """Use a token for another wallet address, or that of another client."""
    is_read = "{id}" in call.operation.path
    return call.by(rights=[a_right(*ALL, on=ALICE if is_read else BOB)], name=OTHER_SHOP)


def inactive(call: Call) -> Response:
    """Use a wallet address that takes no new payments."""
    call.service.hosted.addresses[ALICE.url] = incoming_payments.InactiveWalletAddress(ALICE.url)
    return call.send(call.request())


def unknown_wallet_address(call: Call) -> Response:
    """Name a wallet address that is not hosted, with a token for all of them."""
    url = "https://bank.example/eve"
    request = call.request(body={"walletAddress": url})
    if call.is_list:
        request = evolve(request, query=f"wallet-address={url}")
    return call.send(request, call.service.client(a_right("create", "list", on=None)))


def repeated(call: Call) -> Response:
    """Repeat a request to a service that refuses identical requests."""
    return Call.of(call.operation, allow_identical=False).twice()


def clock_behind(call: Call) -> Response:
    """Send a nonce that another clock may have removed already."""
    nonces, later = MemoryNonces(), call.service.now + timedelta(days=1)
    for seconds in (0, 1):
        nonces.use(str(seconds), later + timedelta(seconds=seconds), later + timedelta(seconds=seconds))
    call.service.replace(nonces=nonces)
    return call.send(call.request(), nonce="a-nonce")


def unknown_path(call: Call) -> Response:
    """Use a path below the path of the operation."""
    request = call.request()
    return call.send(evolve(request, path=f"{request.path}/x"))


def unlisted(call: Call) -> Response:
    """Look up the wallet address, which a signed read does not need, without an answer."""
    error = errors.WalletAddressesUnavailable("no answer")
    call.service.replace(wallet_addresses=Raising(error))
    is_public = "{id}" in call.operation.path
    return call.service.handle(call.request()) if is_public else call.send(call.request())


def refused_by_policy(call: Call) -> Response:
    """Let a port of the host refuse: one that the operation calls."""
    port = "store" if call.operation.method == "POST" else "wallet_addresses"
    call.service.replace(**{port: Raising(errors.PolicyRefused("not today"))})
    is_public = call.operation.id in {"get-incoming-payment", "head-incoming-payment"}
    return call.service.handle(call.request()) if is_public else call.send(call.request())


def expired(call: Call) -> Response:
    """Complete a payment that has expired."""
    id = call.client.creates(expiresAt=(call.service.now + timedelta(seconds=1)).isoformat())
    call.service.clock.advance(2)
    expired = evolve(call, id=id)
    return expired.send(expired.request())


def refusing(code: str) -> Callable[[Call], Response]:
    """Return a way to get this code of a refused signature."""
    return lambda call: call.to("introspector", SignatureRefused(code, "refused"))


def reused_key(call: Call) -> Response:
    """Use an idempotency key for two requests that differ."""
    key = ("Idempotency-Key", '"a-key"')
    call.send(call.request(key))
    return call.send(call.request(key, body={"metadata": {}}))


class UsedUp:
    """The quotas of a client that has used up one of them."""

    def __init__(self, *, requests: bool) -> None:
        self._requests = requests

    def admit(self, *_: object) -> float | None:
        """Return the seconds until the next request."""
        return 5.0 if self._requests else None

    def reserve(self, *_: object) -> list[str]:
        """Return the unpaid payments, which are too many."""
        return [NOBODYS_ID]

    def release(self, *_: object) -> None:
        """Ignore the payment."""


def at(call: Call, **ports: Any) -> Response:
    """Send the request to a service with these ports."""
    call.service.replace(**ports)
    return call.send(call.request())


# How to get each code. A request of the wrong form, or a port that refuses.
PROVOKED: Final[Mapping[str, Callable[[Call], Response]]] = {
    "invalid_http": lambda call: by_asgi(call, call.request(("Transfer-Encoding", "chunked"), ("Content-Length", "1"))),
    "invalid_content_length": lambda call: by_wsgi(call, CONTENT_LENGTH="x"),
    "length_required": lambda call: by_wsgi(call, HTTP_TRANSFER_ENCODING="chunked"),
    "incomplete_body": lambda call: by_wsgi(call, CONTENT_LENGTH="9", **{"wsgi.input": BytesIO(b"{")}),
    "body_timeout": slow_body,
    "unexpected_body": lambda call: call.send(evolve(call.request(), body=b"x")),
    "not_found": unknown_path,
    "method_not_allowed": lambda call: call.send(evolve(call.request(), method="PATCH")),
    "not_acceptable": lambda call: call.send(call.request(("Accept", "text/html"))),
    "body_too_large": lambda call: call.send(evolve(call.request(), body=bytes(BODY_BYTES_MAX + 1))),
    "target_too_long": lambda call: call.send(evolve(call.request(), query="x" * TARGET_CHARS_MAX)),
    "headers_too_large": lambda call: call.send(call.request(*[("X", "")] * (HEADERS_MAX + 1))),
    "unsupported_media_type": lambda call: call.send(evolve(call.request(), headers=())),
    "unsupported_encoding": lambda call: call.send(call.request(("Content-Encoding", "gzip"))),
    "token_missing": lambda call: call.service.handle(call.request(("Signature", ""))),
    "invalid_token": lambda call: call.service.handle(call.request(("Authorization", "GNAP UNKNOWN"))),
    "token_expired": lambda call: call.by(expires_at=NOW - timedelta(seconds=1)),
    "insufficient_rights": lambda call: call.by(rights=[a_right("read" if call.is_list else "list")]),
    "key_unusable": lambda call: call.by(jwk={"kty": "x"}),
    "nonce_used": lambda call: call.twice(nonce="a-nonce"),
    "clock_behind": clock_behind,
    "nonce_unsupported": lambda call: call.to("nonces", None),
    "request_repeated": repeated,
    **{code.value: refusing(code) for code in Code},
    "idempotency_key_not_covered": refusing("idempotency_key_not_covered"),
    "invalid_body": lambda call: call.send(call.request(body={"id": 1})),
    "unknown_wallet_address": unknown_wallet_address,
    "asset_mismatch": lambda call: call.send(call.request(body={"incomingAmount": {**USD_25, "assetCode": "EUR"}})),
    "invalid_terms": lambda call: call.send(call.request(body={"incomingAmount": {**USD_25, "value": "0"}})),
    "forbidden": forbidden,
    "inactive_wallet_address": inactive,
    "refused_by_policy": refused_by_policy,
    "invalid_query": lambda call: call.send(call.request(query="first=0")),
    "unknown_cursor": lambda call: call.send(evolve(call.request(), query=f"{call.request().query}&cursor=x")),
    "payment_expired": expired,
    "payment_not_found": lambda call: evolve(call, id=NOBODYS_ID).send(evolve(call, id=NOBODYS_ID).request()),
    "invalid_idempotency_key": lambda call: call.send(call.request(("Idempotency-Key", "unquoted"))),
    "idempotency_key_reused": reused_key,
    "too_many_requests": lambda call: at(call, quotas=UsedUp(requests=True)),
    "too_many_unpaid_payments": lambda call: at(call, quotas=UsedUp(requests=False)),
    "approval_pending": lambda call: at(call, approval=Rules(lambda _: Approval.PENDING)),
    "acceptance_unavailable": lambda call: at(call, approval=Raising(RuntimeError("broken"))),
    "internal_error": internal,
    "port_unavailable": lambda call: call.to("store", errors.PortUnavailable("down")),
    "authorization_server_unavailable": lambda call: call.to("introspector", TimeoutError("no answer")),
    "client_keys_unavailable": unread_keys,
    "wallet_addresses_unavailable": unlisted,
    "store_unavailable": lambda call: call.to("store", errors.StoreUnavailable("locked")),
    "store_stopped": lambda call: call.to("store", errors.StoreStopped("the disk failed")),
}  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "status", "code"),
    [(operation, *row) for operation in OPERATIONS for row in sorted(OPERATIONS[operation].codes)],
)
def test_every_documented_code_is_answered(operation: str, status: int, code: str) -> None:
    """For each operation and each of its codes there is a request with this answer, and its schema accepts the body."""
    call = Call.of(OPERATIONS[operation])
    assert check_response(call.operation, PROVOKED[code](call)) == (status, code)


def test_defaults_of_the_document_may_be_sent() -> None:
    """A generated client may send the default of each parameter, beside each parameter that its user gives."""
    service = Service()
    client = service.client(a_right(*ALL))
    parameters = DOCUMENT["paths"]["/incoming-payments"]["get"]["parameters"]
    defaults = {one["name"]: one["schema"]["default"] for one in parameters if "default" in one["schema"]}
    wallet_address, cursor = {"wallet-address": ALICE.url}, {"cursor": client.creates()}
    for given in (wallet_address, wallet_address | {"first": 5}, wallet_address | cursor | {"last": 5}):
        query = urlencode(defaults | given)
        assert client.send(client.sign(Request("GET", "/incoming-payments", query))).status == 200


# --- members -----------------------------------------------------------------------------------------


def test_resources_have_the_documented_members() -> None:
    """A payment with every member has exactly those of the schema, and so has the public view. `check` validates them.

    The methods and the amounts have all their members, too.
    """
    service = Service()
    client = service.client(a_right(*ALL))
    later = (NOW + timedelta(hours=1)).isoformat()
    created = client.create(incomingAmount=USD_25, expiresAt=later, metadata={"ref": [1, None]})
    shown = document(created, 201)
    public = document(service.handle(Request("GET", f"/incoming-payments/{id_of(created)}")))
    page = document(client.send(client.sign(Request("GET", "/incoming-payments", f"wallet-address={ALICE.url}"))))
    completed = document(client.send(client.sign(Request("POST", f"/incoming-payments/{id_of(created)}/complete"))))
    schemas = DOCUMENT["components"]["schemas"]
    assert list(schemas["page"]["properties"]["pagination"]["properties"]) == list(page["pagination"])
    for name, members in {
        "incoming-payment": shown,
        "page": page,
        "incoming-payment-summary": completed,
        "public-incoming-payment": public,
        "amount": shown["incomingAmount"],
        "ilp-payment-method": shown["methods"][0],
    }.items():
        assert schemas[name]["properties"].keys() == members.keys(), name
        assert schemas[name]["additionalProperties"] is False


REQUESTS: Final[list[tuple[dict[str, Any], bool]]] = [
    ({}, True),
    ({"walletAddress": "HTTP://bank.example:8080/alice?a=b"}, True),
    ({"walletAddress": "ftp://bank.example/alice"}, False),
    ({"walletAddress": "bank.example/alice"}, False),
    ({"walletAddress": "https://bank.example/" + "a" * 2027}, True),
    ({"walletAddress": "https://bank.example/" + "a" * 2028}, False),
    ({"walletAddress": None}, False),
    ({"incomingAmount": USD_25}, True),
    *(
        ({"incomingAmount": {**USD_25, **members}}, accepted)
        for members, accepted in (
            ({"value": "0"}, True),
            ({"value": "18446744073709551615"}, True),
            ({"value": "01"}, False),
            ({"value": ""}, False),
            ({"value": "1" * 21}, False),
            ({"value": 1}, False),
            ({"assetCode": "X" * 32}, True),
            ({"assetCode": "X" * 33}, False),
            ({"assetCode": ""}, False),
            ({"assetCode": "€"}, False),
            ({"assetScale": 255}, True),
            ({"assetScale": 256}, False),
            ({"assetScale": -1}, False),
            ({"assetScale": "2"}, False),
            ({"extra": 1}, False),
        )
    ),
    ({"incomingAmount": {"value": "1"}}, False),
    ({"incomingAmount": None}, False),
    ({"expiresAt": "2030-02-03T04:05:06.7+01:00"}, True),
    ({"expiresAt": "2030-02-03T04:05:06"}, False),
    ({"expiresAt": "2030-02-30T04:05:06Z"}, False),
    ({"expiresAt": 1}, False),
    ({"metadata": {"a": [1, {"b": None}]}}, True),
    ({"metadata": []}, False),
    ({"metadata": None}, False),
    *(({name: "x"}, False) for name in ("id", "completed", "receivedAmount", "methods", "createdAt", "unknown")),
]


@pytest.mark.parametrize(("members", "accepted"), REQUESTS)
def test_reader_and_schema_of_a_request_agree(members: dict[str, object], accepted: bool) -> None:
    """The service reads a body exactly if the schema accepts it, at every limit of the schema."""
    body = {"walletAddress": ALICE.url, **members}
    try:
        read_create_request(json.dumps(body).encode())
        is_read = True
    except MalformedJson:
        is_read = False
    assert (is_read, validator("#/components/schemas/create-incoming-payment").is_valid(body)) == (accepted, accepted)


def test_check_of_responses_can_fail() -> None:
    """The check refuses another status, another code, another member, and a missing header field."""
    operation, headers = OPERATIONS["get-incoming-payment"], (("Cache-Control", "no-store"),)
    error = {"error": {"code": "not_found", "description": "no"}}
    for status, body, fields in [
        (418, error, headers),
        (404, {"error": {**error["error"], "code": "gone"}}, headers),
        (404, {"error": {**error["error"], "why": "x"}}, headers),
        (200, {"receivedAmount": USD_25}, headers),
        (404, error, ()),
    ]:
        with pytest.raises(AssertionError):
            check_response(operation, Response(status, fields, json.dumps(body).encode()))
    assert check_response(operation, Response(404, headers, json.dumps(error).encode())) == (404, "not_found")

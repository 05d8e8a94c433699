"""The fuzz targets: one for each parser, for the whole verification, for its diagnosis and for the service.

Each target is a function of bytes. It returns one word for the outcome, and raises only for a bug. The first line of
its docstring names the allowed outcomes; everything else is checked in its body.
"""

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, TypeVar

import http_sf
from attrs import frozen

from campaigns.fuzz.messages import (
    Draft,
    Given,
    Requirements,
    Setting,
    build,
    byte_sequence,
    faults,
    received,
    signature_base,
    signers,
    wrong_digests,
)
from incoming_payments.domain.payment import PaymentId
from incoming_payments.endpoints import open_payments as api
from incoming_payments.errors import (
    IncomingPaymentsError,
    MalformedField,
    MalformedJson,
    MalformedKey,
    SignatureRefused,
    TokenRefused,
)
from incoming_payments.flows.idempotency import IDEMPOTENCY_KEY
from incoming_payments.gnap import AccessTokenInfo
from incoming_payments.gnap.token import parse_authorization
from incoming_payments.httpsig import (
    Algorithm,
    Code,
    Evidence,
    Policy,
    PrivateKey,
    Proof,
    PublicKey,
    RequestMessage,
    Shape,
    SignatureInput,
    ed25519,
    load_jwk,
    load_private_jwk,
    parse_signature,
    parse_signature_input,
    verify,
    verify_digest,
)
from incoming_payments.httpsig.explain import explain
from incoming_payments.limits import EXPLAIN_CHARS_MAX, HEADER_BYTES_MAX, METADATA_DEPTH_DEFAULT, TOKEN_CHARS_MAX
from incoming_payments.stores.memory import MemoryNonces
from incoming_payments.testing import a_creation
from incoming_payments.wire import CreateRequest, read_create_request, write_date_time, write_error, write_json
from kits.both_paths import both
from kits.service_kit import ALICE, AUTH_SERVER, BASE_URL, BOB, PATH, SHOP, Service, a_right, header
from kits.signed_requests import BODY, KEY, OTHER, URL

T = TypeVar("T")
LINES: Final = b"\x1e"  # between field lines, because a line may contain a newline
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
GOOD: Final = frozenset({200, 201})
REFUSED: Final = frozenset({400, 401, 403, 404, 405, 406, 413, 414, 415, 431})


@frozen
class Target:
    """A function to fuzz, and the maximal length of its inputs. Longer ones take more time and reach little more."""

    run: Callable[[bytes], str]
    bytes_max: int


def text(data: bytes) -> str:
    """Return any text: UTF-8, with a lone surrogate for each byte that is not."""
    return data.decode("utf-8", "surrogateescape")


def lines(data: bytes) -> list[str]:
    """Return the lines of a field."""
    return [text(line) for line in data.split(LINES)]


def check_refusal(error: IncomingPaymentsError) -> None:
    """Check that a refusal can be logged as it is and sent to a client."""
    assert error.description
    assert error.description.isprintable()
    assert json.loads(write_error(error.code, error.description, error.details))["error"]["code"] == error.code


# --- parsers -----------------------------------------------------------------------------------


def _read(parse: Callable[[Sequence[str]], dict[str, T]], given: Sequence[str]) -> dict[str, T] | None:
    """Return the members of a field, or None when `parse` raises `MalformedField`."""
    try:
        return parse(given)
    except MalformedField as error:
        check_refusal(error)
        return None


def signature_input(data: bytes) -> str:
    """Return a dictionary of `SignatureInput` or raise `MalformedField`, on both paths, and survive a round trip."""
    given = lines(data)
    fast_path, specification = both(given)
    assert fast_path == specification
    parsed = _read(parse_signature_input, given)
    if parsed is None:
        return "refused"
    for member in parsed.values():
        _check_member(member)
    written = _written(parsed)
    if not parsed or len(written) > HEADER_BYTES_MAX:  # the strict form may be longer than the sent one
        return "parsed" if parsed else "empty"
    again = parse_signature_input([written])
    assert list(again.items()) == list(parsed.items())
    assert written == _written(again)  # this compares the types too: in Python, 1 equals True
    assert written == http_sf.ser(http_sf.parse(", ".join(given).encode("ascii"), tltype="dictionary"))
    return "parsed"


def _check_member(member: SignatureInput) -> None:
    """Check that the attributes equal the parameters, with the types of RFC 9421 §2.3."""
    items: list[Any] = [(component.name, dict(component.parameters)) for component in member.components]
    parameters = dict(member.parameters)
    assert member.signature_params == http_sf.ser([(items, parameters)])
    named = {"created": member.created, "expires": member.expires, "keyid": member.key_id}
    for name, value in {**named, "alg": member.alg, "nonce": member.nonce, "tag": member.tag}.items():
        assert value == parameters.get(name)
        assert value is None or type(value) is (int if name in {"created", "expires"} else str)


def _written(parsed: Mapping[str, SignatureInput]) -> str:
    return ", ".join([f"{label}={given.signature_params}" for label, given in parsed.items()])


def signature(data: bytes) -> str:
    """Return signatures by label or raise `MalformedField`; written and read, they are equal."""
    given = lines(data)
    parsed = _read(parse_signature, given)
    if parsed is None:
        return "refused"
    if not parsed:
        return "empty"
    written = http_sf.ser({label: (value, {}) for label, value in parsed.items()})
    assert parse_signature([written]) == parsed
    assert written == ", ".join(part.strip(" \t") for part in ",".join(given).split(",")), "base64 has one form"
    return "parsed"


def content_digest(data: bytes) -> str:
    """Return nothing for a body with the right digests, or raise `SignatureRefused`.

    The last line is the body. `{sha-256}` and `{sha-512}` stand for its right digests.
    """
    *fields, body = data.split(LINES)
    given = [_filled(line, body) for line in fields]
    try:
        verify_digest(given, body)
    except SignatureRefused as error:
        check_refusal(error)
        return Code(error.code)
    assert list(wrong_digests(given, body)) == []
    return "verified"


def _filled(line: bytes, body: bytes) -> str:
    for name in ("sha-256", "sha-512"):
        mark = b"{%s}" % name.encode()
        if mark in line:
            line = line.replace(mark, byte_sequence(hashlib.new(name.replace("-", ""), body).digest()).encode())
    return text(line)


def jwk(data: bytes) -> str:
    """Return a key or raise `MalformedKey`, equally for text, bytes and mapping; the key answers for any signature."""
    outcome = _loaded(load_jwk, data)
    if data.isascii() and b"\0" not in data:  # JSON in UTF-16 is JSON as bytes, and not as text
        assert _loaded(load_jwk, data.decode()) == outcome
    private = _loaded(load_private_jwk, data)
    if isinstance(private, PrivateKey):
        assert private.public_key().verify(private.sign(b"data"), b"data")
        assert _loaded(load_jwk, private.public_jwk()) == private.public_key()
        assert isinstance(outcome, str), "a private key is not taken for a public one"
    if isinstance(outcome, str):
        return "private" if isinstance(private, PrivateKey) else "refused"
    members = json.loads(data)
    assert _loaded(load_jwk, members) == outcome
    assert (outcome.kid, outcome.algorithm) == (members["kid"], Algorithm(_JOSE.get(members["alg"], members["alg"])))
    assert not any(outcome.verify(bytes(size), data) for size in (0, 64, 96, 256))
    if outcome.algorithm is Algorithm.ED25519:
        _check_point(members["x"])
    return outcome.algorithm.value


_JOSE: Final = {"Ed25519": "EdDSA"}  # RFC 9864 and RFC 8037
_P: Final = 2**255 - 19
Key = TypeVar("Key", PublicKey, PrivateKey)


def _loaded(load: Callable[[Any], Key], jwk: object) -> Key | str:
    try:
        return load(jwk)
    except MalformedKey as error:
        check_refusal(error)
        return error.description


def _check_point(x: str) -> None:
    """Check that the point is canonical, and that eight times the point is not the neutral element."""
    y = int.from_bytes(urlsafe_b64decode(x + "=="), "little") % 2**255
    assert y < _P
    d = -121665 * pow(121666, -1, _P) % _P
    for _ in range(3):  # y(2P) = (x² + y²) / (2 - x² - y²) and x² = (y² - 1) / (dy² + 1)
        square = (y * y - 1) * pow(d * y * y + 1, -1, _P) % _P
        y = (square + y * y) * pow(2 + square - y * y, -1, _P) % _P
    assert y != 1


def authorization(data: bytes) -> str:
    """Return an `AccessToken` for one line of scheme and token68, and raise `TokenRefused` for anything else."""
    given = lines(data) if data else []
    scheme, _, token = given[0].partition(" ") if given else ("", "", "")
    token = token.lstrip(" ")
    signs = token.rstrip("=")
    good = len(given) == 1 and scheme.lower() == "gnap" and signs != "" and len(token) <= TOKEN_CHARS_MAX
    good = good and all(char.isascii() and (char.isalnum() or char in "-._~+/") for char in signs)
    try:
        parsed = parse_authorization(given)
    except TokenRefused as error:
        check_refusal(error)
        code = error.code
    else:
        assert good
        assert hmac.compare_digest(parsed.value, token)
        assert parsed.digest == hashlib.sha256(token.encode()).digest()
        assert repr(parsed) == "AccessToken(<hidden>)"
        return "parsed"
    assert not good
    assert (code == "token_missing") == (given == [])
    return code


def create_request(data: bytes) -> str:
    """Return a `CreateRequest` equal to that of Python's JSON reader, or raise `MalformedJson`."""
    try:
        parsed = read_create_request(data)
    except MalformedJson as error:
        check_refusal(error)
        return "refused"
    document = json.loads(data)
    assert document.keys() <= {"walletAddress", "incomingAmount", "expiresAt", "metadata"}
    written: dict[str, object] = {"walletAddress": parsed.wallet_address}
    if (amount := parsed.incoming_amount) is not None:
        written["incomingAmount"] = {
            "value": str(amount.value),
            "assetCode": amount.asset.code,
            "assetScale": amount.asset.scale,
        }
    if parsed.expires_at is not None:
        written["expiresAt"] = write_date_time(parsed.expires_at)
    if parsed.metadata is not None:
        written["metadata"] = json.loads(parsed.metadata)
    assert written.get("incomingAmount") == document.get("incomingAmount")
    assert written.get("metadata") == document.get("metadata")
    assert type(parsed) is CreateRequest
    _check_storable(written.get("metadata"), METADATA_DEPTH_DEFAULT)
    assert read_create_request(write_json(written)) == parsed
    return "parsed"


def _check_storable(value: object, depth: int) -> None:
    """Check that any store accepts the text, and that the depth is within the limit."""
    assert "\0" not in value if isinstance(value, str) else depth >= isinstance(value, dict | list)
    if isinstance(value, dict | list):
        for below in [*value, *(value.values() if isinstance(value, dict) else ())]:
            _check_storable(below, depth - 1)


# --- the whole verification --------------------------------------------------------------------

VERIFIER: Final = Setting(text, "", URL, "token", BODY)
POLICIES: Final = (
    Policy(),
    Policy(nonce_required=True),
    Policy(tag="t"),
    Policy(required=("@method", "@path")),
    Policy(required=("x-a", "@authority", "@query")),
    Policy(max_age_s=1, clock_skew_s=0),
    Policy(shapes=Shape),
    Policy(required=(*Policy().required, IDEMPOTENCY_KEY)),
)


def _requirements_of(policy: Policy, *covered: str) -> Requirements:
    shapes = bool(policy.shapes)
    return Requirements(
        (*policy.required, *covered), policy.max_age_s, policy.clock_skew_s, policy.nonce_required, policy.tag, shapes
    )


@cache
def _keys(backend: str) -> Mapping[str, PublicKey]:
    """Return the keys of the verifier, on one of the two libraries for Ed25519."""
    names = {"ed25519": "EdDSA", "ecdsa-p256-sha256": "ES256", "ecdsa-p384-sha384": "ES384", "rsa-pss-sha512": "PS512"}
    chosen, ed25519.BACKEND = ed25519.BACKEND, backend
    try:
        keys = {
            kid: load_jwk(PrivateKey(kid, Algorithm(names[signer.alg]), signer.private).public_jwk())
            for kid, signer in signers().items()
        }
    finally:
        ed25519.BACKEND = chosen
    return {**keys, "alias": keys["key-1"]}  # its name differs from its kid, so it must never be used


def whole_verify(data: bytes) -> str:
    """Return a `Proof` only where a second, simple verification agrees, or raise `SignatureRefused`."""
    draft, choice = build(data, VERIFIER)
    policy = POLICIES[choice % len(POLICIES)]
    outcome = _verified(draft, policy, ed25519.BACKEND)
    if isinstance(outcome, Code):
        if outcome is Code.SIGNATURE_INVALID and ed25519.BACKEND != "OpenSSL":
            assert _verified(draft, policy, "OpenSSL") is outcome, "both libraries give the same answer"
        return outcome
    requirements = _requirements_of(policy)
    given = received(draft, requirements)[outcome.signature_input.label]
    assert list(faults(draft, given, requirements, signers())) == []
    _check_proof(outcome, draft, given)
    return "proven"


def _verified(draft: Draft, policy: Policy, backend: str) -> Proof | Code:
    request = RequestMessage(draft.method, draft.uri, tuple(draft.headers), draft.body)
    try:
        return verify(request, _keys(backend), policy=policy, now=draft.now)
    except SignatureRefused as error:
        check_refusal(error)
        return Code(error.code)


def _check_proof(proof: Proof, draft: Draft, given: Given) -> None:
    """Check that the facts are those of the header fields."""
    assert proof.base == signature_base(draft, given)
    assert [
        (component.name, dict(component.parameters)) for component in proof.signature_input.components
    ] == given.items
    assert _keys("OpenSSL")[proof.key_id].algorithm is proof.algorithm
    expires = None if proof.expires is None else proof.expires.timestamp()
    facts = {"created": proof.created.timestamp(), "expires": expires, "keyid": proof.key_id}
    for name, fact in {**facts, "nonce": proof.signature_input.nonce, "tag": proof.signature_input.tag}.items():
        assert given.parameters.get(name) == fact


# --- the diagnosis of a refusal ----------------------------------------------------------------

EXPLAINED: Final = Setting(text, "", URL, "Q1X2Z3Q4X5Z6Q7X8", BODY)  # no piece of this token occurs in our messages
PIECE_CHARS: Final = 8


def explanation(data: bytes) -> str:
    """Return a `Diagnosis` for every refused request: bounded, in printable ASCII, and without the token."""
    draft, choice = build(data, EXPLAINED)
    policy = POLICIES[choice % len(POLICIES)]
    request = RequestMessage(draft.method, draft.uri, tuple(draft.headers), draft.body)
    keys = _keys(ed25519.BACKEND)
    try:
        verify(request, keys, policy=policy, now=draft.now)
    except SignatureRefused as error:
        refusal = error
    else:
        return "proven"
    found = explain(refusal, Evidence(request, keys, policy, draft.now))
    assert found.code == refusal.code
    assert found.causes
    assert all(line.isascii() and line.isprintable() for line in str(found).split("\n"))
    assert len(str(found)) < EXPLAIN_CHARS_MAX + 100
    token, printed = EXPLAINED.token, f"{found}{found!r}"
    for piece in [token[at : at + PIECE_CHARS] for at in range(len(token) - PIECE_CHARS + 1)]:
        assert piece not in printed or not any(piece in value for value in draft.values("authorization"))
    return found.code


# --- the whole service -------------------------------------------------------------------------


def latin1(data: bytes) -> str:
    """Return the text as web servers pass it on."""
    return data.decode("latin-1")


SERVED: Final = Setting(latin1, BASE_URL, PATH, "TOKEN-HONEST", b'{"walletAddress":"%s"}' % ALICE.url.encode())
TOKENS: Final = {
    "TOKEN-HONEST": AccessTokenInfo(SHOP, KEY.public_jwk(), (a_right("create", "read-all"),)),
    "TOKEN-OTHER": AccessTokenInfo(SHOP, OTHER.public_jwk(), (a_right("create", "read", on=None),)),
    "TOKEN-OF-BOB": AccessTokenInfo(SHOP, KEY.public_jwk(), (a_right("create", "read", on=BOB),)),
    "TOKEN-READS": AccessTokenInfo(SHOP, KEY.public_jwk(), (a_right("read"),)),
    "TOKEN-NOTHING": AccessTokenInfo(SHOP, KEY.public_jwk(), ()),
    "TOKEN-KEYLESS": AccessTokenInfo(SHOP, {"kty": "oct"}, (a_right("create"),)),
}
PAYMENT: Final = PaymentId("019b76da-a800-7000-8000-000000000001")  # the id of a stored payment
SERVICE_POLICIES: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"public_get": False},
    {"allow_identical": False},
    {"signature": Policy(nonce_required=True)},
    {"signature": Policy(shapes=Shape)},
)


@cache
def _service(choice: int) -> Service:
    service = Service(**SERVICE_POLICIES[choice])
    for token, info in TOKENS.items():
        service.tokens.add(token, info)
    service.store.insert(a_creation(id=PAYMENT))
    return service


def whole_service(data: bytes) -> str:
    """Return a documented `Response` without an exception, and act only where a second verification agrees."""
    draft, choice = build(data, SERVED)
    service = _service(choice % len(SERVICE_POLICIES))
    before = dict(service.store._rows)
    service.replace(nonces=MemoryNonces())
    try:
        response = _answer(service, draft)
        _check_response(response, draft)
        if response.status != 201:
            assert service.store._rows == before
        if response.status == 201 or (response.status == 200 and not _is_public(response)):
            _check_allowed(service, draft, response)
    finally:
        service.store._rows.clear()
        service.store._rows.update(before)
    return str(response.status)


def _answer(service: Service, draft: Draft) -> api.Response:
    path, _, query = draft.target.partition("?")
    draft.target = f"{path}?{query}" if query else path  # as web servers pass it on: without an empty query
    request = api.Request(draft.method, path, query, draft.headers, draft.body)
    now = max(draft.now, EPOCH)  # no clock shows an earlier time
    draft.now = now
    return service.run(api.handle(request, policy=service.policy, now=now))


def _check_response(response: api.Response, draft: Draft) -> None:
    """Check the promises about every response."""
    assert response.status in GOOD | REFUSED
    assert header(response, "Content-Type") == "application/json"
    assert header(response, "Cache-Control") == "no-store"
    assert header(response, "WWW-Authenticate") == (f"GNAP as_uri={AUTH_SERVER}" if response.status == 401 else None)
    assert (response.status == 405) == (header(response, "Allow") is not None)
    assert all(value.isascii() and value.isprintable() for _, value in response.headers)
    document = json.loads(response.body)
    if response.status in REFUSED:
        assert list(document) == ["error"]
        assert {"code", "description"} <= document["error"].keys() <= {"code", "description", "details"}
        # A refusal may repeat a part of the body, or a path that does not exist.
        repeated = draft.body + draft.target.encode("latin-1", "replace")
        assert b"TOKEN-" not in response.body or b"TOKEN-" in repeated, "a refusal shows no token"


def _is_public(response: api.Response) -> bool:
    return set(json.loads(response.body)) == {"receivedAmount", "authServer"}


def _check_allowed(service: Service, draft: Draft, response: api.Response) -> None:
    """Check that a client with a key and a right sent exactly this request; with a nonce, only once."""
    [authorization] = draft.values("authorization")
    info = TOKENS[authorization.rpartition(" ")[2]]
    covered = [IDEMPOTENCY_KEY] if response.status == 201 and draft.values(IDEMPOTENCY_KEY) else []
    requirements, kids = _requirements_of(service.policy.signature, *covered), {str((info.jwk or {})["kid"])}
    good = [
        given for given in received(draft, requirements).values() if not list(faults(draft, given, requirements, kids))
    ]
    assert good, "no signature is good"
    view = json.loads(response.body)
    if response.status == 201:
        request = json.loads(draft.body)
        assert (draft.method, draft.target.partition("?")[0]) == ("POST", PATH)
        assert {key: view[key] for key in ("incomingAmount", "metadata") if key in request} == {
            key: request[key] for key in ("incomingAmount", "metadata") if key in request
        }
        [media_type] = draft.values("content-type")
        assert media_type.partition(";")[0].strip().lower() == "application/json"
        actions, url = {"create"}, view["walletAddress"]
        assert header(response, "Location") == view["id"]
        assert view["id"].rpartition("/")[2] in service.store._rows
    else:
        assert draft.method in {"GET", "HEAD"}
        actions, url = {"read", "read-all"}, ALICE.url
        assert draft.target.partition("?")[0] == f"{PATH}/{PAYMENT}"
    assert any(right.covers(url) and actions & right.actions for right in info.rights)
    if all("nonce" in given.parameters for given in good):
        assert _answer(service, draft).status == 401, "a nonce is good once"


# --- all of them -------------------------------------------------------------------------------

TARGETS: Final[Mapping[str, Target]] = {
    "signature-input": Target(signature_input, bytes_max=1024),
    "signature": Target(signature, bytes_max=512),
    "content-digest": Target(content_digest, bytes_max=512),
    "jwk": Target(jwk, bytes_max=1024),
    "authorization": Target(authorization, bytes_max=TOKEN_CHARS_MAX + 16),
    "create-request": Target(create_request, bytes_max=1024),
    "verify": Target(whole_verify, bytes_max=2048),
    "explanation": Target(explanation, bytes_max=2048),
    "service": Target(whole_service, bytes_max=2048),
}

"""`flows.authenticate`: the authentication of a request. Spec section 5."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs import evolve

from incoming_payments import Request
from incoming_payments.errors import (
    AuthorizationServerUnavailable,
    PolicyRefused,
    PortMissing,
    SignatureRefused,
    StoreUnavailable,
    TokenRefused,
)
from incoming_payments.flows.authenticate import authenticate
from incoming_payments.flows.effects import Effect, IntrospectToken, UseNonce
from incoming_payments.gnap import AccessToken, AccessTokenInfo
from incoming_payments.httpsig import Algorithm, Evidence, PrivateKey, RequestMessage, verify
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.stores.memory import MemoryNonces
from incoming_payments.testing import NOW
from kits.service_kit import (
    ALICE,
    BASE_URL,
    PATH,
    SHOP,
    Client,
    Service,
    a_right,
    ed25519_key,
    es256_key,
    finish,
    ps512_key,
    refusal,
    watched,
)


def signed(request: Request) -> RequestMessage:
    """Return `request` as the flows take it."""
    return RequestMessage(request.method, f"{BASE_URL}{request.path}", request.headers, request.body)


def a_get(client: Client, **options: Any) -> RequestMessage:
    """Return a GET that `client` signed."""
    return signed(client.sign(Request("GET", f"{PATH}/x"), **options))


def an_info(key: PrivateKey | None = None, **changes: Any) -> AccessTokenInfo:
    """Return the information about a token of the shop."""
    given = {"client": SHOP, "jwk": (key or ed25519_key()).public_jwk(), "rights": [a_right("read")], **changes}
    return AccessTokenInfo(**given)


def test_caller_has_the_client_and_rights_of_its_token() -> None:
    """The flow introspects the token once. The caller has its client and rights, and the proven facts."""
    service = Service()
    client = service.client()
    flow = authenticate(a_get(client), service.policy, NOW)
    assert IntrospectToken(AccessToken(client.token)) == next(flow)
    caller = finish(flow, an_info())
    assert (SHOP, (a_right("read"),)) == (caller.client, caller.rights)
    assert (caller.proof.key_id, caller.proof.algorithm) == ("ed25519-key", Algorithm.ED25519)
    components = caller.proof.signature_input.components
    assert [component.name for component in components] == [
        "@method",
        "@target-uri",
        "authorization",
    ]


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(ed25519_key, Algorithm.ED25519), (es256_key, Algorithm.ES256), (ps512_key, Algorithm.PS512)],
)
def test_spec_5_algorithm_is_that_of_the_jwk(key: Any, algorithm: Algorithm) -> None:
    """The `alg` of the JWK that is bound to the token decides how the signature is verified."""
    service = Service()
    client = service.client(key=key())
    flow = authenticate(a_get(client), service.policy, NOW)
    next(flow)
    assert algorithm is finish(flow, an_info(key())).proof.algorithm


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([], "token_missing"),
        (["GNAP a", "GNAP a"], "invalid_token"),
        (["GNAP a,GNAP a"], "invalid_token"),
        (["Bearer a"], "invalid_token"),
        (["GNAP"], "invalid_token"),
        (["GNAP "], "invalid_token"),
        ([""], "invalid_token"),
        (["GNAP a b"], "invalid_token"),
        (["undefined"], "invalid_token"),
        (["GNAP " + "a" * 4097], "invalid_token"),
    ],
)
def test_unreadable_token_is_refused_without_introspection(values: list[str], code: str) -> None:
    """A request without exactly one readable token is refused before the token is introspected."""
    headers = tuple(("Authorization", value) for value in values)
    flow = authenticate(RequestMessage("GET", f"{BASE_URL}{PATH}/x", headers), Service().policy, NOW)
    with pytest.raises(TokenRefused) as refused:
        next(flow)
    assert code == refused.value.code


# In order of precedence: the answer of the authorization server, and the expected error. The request has no signature,
# so each error before the last one comes from an earlier check.
ANSWERS = [
    (None, TokenRefused, "invalid_token"),
    (an_info(expires_at=NOW), TokenRefused, "token_expired"),
    (an_info(expires_at=NOW - timedelta(days=1), jwk={"kty": "oct"}), TokenRefused, "token_expired"),
    (an_info(jwk={"kty": "oct", "k": "c2VjcmV0", "kid": "a", "alg": "HS256"}), SignatureRefused, "key_unusable"),
    (an_info(jwk={}), SignatureRefused, "key_unusable"),
    (an_info(expires_at=NOW + timedelta(microseconds=1)), SignatureRefused, "signature_missing"),
]


@pytest.mark.parametrize(("info", "error", "code"), ANSWERS)
def test_token_then_key_then_signature(info: AccessTokenInfo | None, error: Any, code: str) -> None:
    """An inactive token is refused before its key is loaded, and an unusable key before the signature is verified."""
    request = RequestMessage("GET", f"{BASE_URL}{PATH}/x", (("Authorization", "GNAP abc"),))
    flow = authenticate(request, Service().policy, NOW)
    next(flow)
    with pytest.raises(error) as refused:
        flow.send(info)
    assert code == refused.value.code


@pytest.mark.parametrize("error", [TimeoutError("no answer in 3 s"), ConnectionRefusedError(111, "refused")])
def test_lost_connection_of_the_introspector_is_an_outage(error: Exception) -> None:
    """The refusal names the authorization server, and has the error for the host's log."""
    flow = authenticate(a_get(Service().client()), Service().policy, NOW)
    next(flow)
    with pytest.raises(AuthorizationServerUnavailable) as refused:
        flow.throw(error)
    assert refused.value.__cause__ is error
    assert f"{type(error).__name__}: {error}" in str(refused.value)


def test_refusal_of_a_key_does_not_show_the_key() -> None:
    """The refusal of a private or shared key, registered by mistake, does not contain the key."""
    flow = authenticate(a_get(Service().client()), Service().policy, NOW)
    next(flow)
    with pytest.raises(SignatureRefused) as refused:
        flow.send(an_info(jwk={"kty": "oct", "k": "c2VjcmV0LXNlY3JldA", "kid": "a", "alg": "HS256"}))
    assert "c2VjcmV0LXNlY3JldA" not in str(refused.value)


def test_spec_5_keyid_equals_the_kid_of_the_tokens_key() -> None:
    """A valid signature by a key to which the token is not bound is refused."""
    service = Service()
    service.client(key=ed25519_key("mine"))
    thief = service.client(key=ed25519_key("thief"))
    flow = authenticate(a_get(thief), service.policy, NOW)
    next(flow)
    with pytest.raises(SignatureRefused) as refused:
        flow.send(an_info(ed25519_key("mine")))
    assert refused.value.code == "key_unknown"


def test_another_key_with_the_same_kid_is_refused() -> None:
    """Two clients may use the same `kid`. Only the key to which the token is bound verifies."""
    service = Service()
    thief = service.client(key=PrivateKey.generate_ed25519("ed25519-key"))
    flow = authenticate(a_get(thief), service.policy, NOW)
    next(flow)
    with pytest.raises(SignatureRefused) as refused:
        flow.send(an_info(ed25519_key()))
    assert refused.value.code == "signature_invalid"


def test_exception_of_the_introspector_is_raised_unchanged() -> None:
    """An exception of the introspector leaves the flow as it is."""
    service = Service()
    flow = authenticate(a_get(service.client()), service.policy, NOW)
    next(flow)
    with pytest.raises(PolicyRefused, match="not today"):
        flow.throw(PolicyRefused("not today"))


def test_authentication_is_one_effect() -> None:
    """A request without a nonce needs no effect besides the introspection."""
    service = Service()
    seen: list[Effect[Any]] = []
    service.run(watched(authenticate(a_get(service.client(a_right("list", on=ALICE))), service.policy, NOW), seen))
    assert [IntrospectToken] == [type(effect) for effect in seen]


# --- replay ---

SECOND = NOW.replace(microsecond=0)  # as `created` has it


def nonce_effect(service: Service, client: Client, name: str = SHOP, **options: Any) -> UseNonce:
    """Return the effect of the flow after the signature of the client `name` is verified."""
    flow = authenticate(a_get(client, **options), service.policy, NOW)
    next(flow)
    info = an_info(client.key, client=name)
    asked = flow.send(info)
    assert isinstance(asked, UseNonce)
    assert finish(flow, answer=True).client == name
    return asked


def test_nonce_key_identifies_client_key_and_nonce() -> None:
    """The key of a nonce depends on client, key and nonce, and has a fixed length."""
    service = Service()
    one, other = service.client(), service.client(key=es256_key())
    asked = [
        nonce_effect(service, one, nonce="n"),
        nonce_effect(service, one, nonce="n", created=NOW - timedelta(seconds=1)),
        nonce_effect(service, other, nonce="n"),
        nonce_effect(service, one, nonce="m"),
        nonce_effect(service, one, nonce=""),
        nonce_effect(service, one, name=f"{SHOP}/other", nonce="n"),
    ]
    names = [each.key for each in asked]
    assert names[0] == names[1]
    assert len(set(names)) == 5
    assert {64} == {len(name) for name in names}


@pytest.mark.parametrize("change", [{"nonce": "m"}, {"created": NOW - timedelta(seconds=301)}])
def test_invalid_signature_uses_no_nonce(change: dict[str, Any]) -> None:
    """A client without the key cannot use up a nonce, and an old request takes no space."""
    service = Service()
    client = service.client()
    request = a_get(client, **{"nonce": "n", **change})
    headers = tuple((name, value.replace('nonce="m"', 'nonce="n"')) for name, value in request.headers)
    flow = authenticate(evolve(request, headers=headers), service.policy, NOW)
    next(flow)
    with pytest.raises(SignatureRefused):
        flow.send(an_info())


@pytest.mark.parametrize(
    ("policy", "options", "expected"),
    [
        ({}, {}, SECOND + timedelta(seconds=360)),
        ({}, {"created": SECOND - timedelta(seconds=9)}, SECOND + timedelta(seconds=351)),
        ({}, {"expires": SECOND + timedelta(seconds=5)}, SECOND + timedelta(seconds=65)),
        ({}, {"expires": SECOND + timedelta(days=99)}, SECOND + timedelta(seconds=360)),
        ({"max_age_s": 10, "clock_skew_s": 0}, {}, SECOND + timedelta(seconds=10)),
        ({"max_age_s": 10**15}, {}, datetime.max.replace(tzinfo=UTC)),
    ],
)
def test_nonce_is_stored_while_its_signature_is_fresh(
    policy: dict[str, Any], options: dict[str, Any], expected: datetime
) -> None:
    """A nonce is stored while its signature is fresh, plus the allowed clock skew."""
    service = Service(signature=SignaturePolicy(**policy))
    asked = nonce_effect(service, service.client(), nonce="n", **options)
    assert (expected, NOW) == (asked.until, asked.now)


def test_replayed_create_request_is_refused() -> None:
    """A replay is refused as `nonce_used` while the nonce is stored, and as `signature_stale` afterwards."""
    service = Service(signature=SignaturePolicy(nonce_required=True))
    request = service.client().creation(nonce="n")
    answers = []
    for _ in range(320):
        answers.append(service.handle(request))
        service.clock.advance(1)
    assert answers[0].status == 201
    assert {(401, "nonce_used")} == {refusal(answer) for answer in answers[1:300]}
    assert {(401, "signature_stale")} == {refusal(answer) for answer in answers[300:]}
    created = [row for row in service.store._rows if isinstance(row, str)]
    assert len(created) == 1


@pytest.mark.parametrize("allowed", [True, False])
def test_policy_decides_about_identical_requests(allowed: bool) -> None:
    """A request without a nonce may be repeated if the policy allows it. A nonce or another second makes it new."""
    service = Service(allow_identical=allowed)
    client = service.client()
    request = client.creation()
    assert service.handle(request).status == 201
    again = service.handle(request)
    assert again.status == 201 if allowed else refusal(again) == (401, "request_repeated")
    assert service.handle(client.creation(nonce="n")).status == 201
    service.clock.advance(1)
    assert service.handle(client.creation()).status == 201


def test_second_signature_of_an_identical_request_is_a_replay() -> None:
    """ECDSA signatures of the same request differ, but the second request is still a replay."""
    service = Service(allow_identical=False)
    client = service.client(key=es256_key())
    assert [service.handle(client.creation()).status for _ in range(2)] == [201, 401]


def test_full_nonce_store_answers_503() -> None:
    """A full nonce store answers 503, and keeps the stored nonces."""
    service = Service()
    service.replace(nonces=MemoryNonces(1))
    client = service.client()
    first, second = client.creation(nonce="a"), client.creation(nonce="b")
    assert [service.handle(request).status for request in (first, second, first)] == [201, 503, 401]
    with pytest.raises(StoreUnavailable):
        service.run(authenticate(a_get(client, nonce="c"), service.policy, NOW))


def test_nonce_without_the_port_is_refused() -> None:
    """Without the `nonces` port, a request with a nonce is refused and other requests are answered."""
    service = Service()
    service.replace(nonces=None)
    client = service.client()
    assert refusal(service.handle(client.creation(nonce="n"))) == (401, "nonce_unsupported")
    assert service.handle(client.creation()).status == 201


@pytest.mark.parametrize(
    "policy", [{"allow_identical": False}, {"signature": SignaturePolicy(nonce_required=True), "allow_identical": True}]
)
def test_policy_that_needs_the_port_raises_port_missing(policy: dict[str, Any]) -> None:
    """A policy that needs the missing port is a mistake of the host, not of the client."""
    service = Service(**policy)
    service.replace(nonces=None)
    client = service.client()
    nonce = None if "signature" not in policy else "n"
    with pytest.raises(PortMissing, match="nonces="):
        service.handle(client.creation(nonce=nonce))


# --- the evidence of a refused signature -----------------------------------------------------------


def refused(flow: Any, *answers: Any) -> SignatureRefused:
    """Return the refusal of `flow`."""

    def answer_all() -> None:
        for answer in (None, *answers):
            flow.send(answer)

    with pytest.raises(SignatureRefused) as caught:
        answer_all()
    return caught.value


def test_refused_signature_has_its_evidence() -> None:
    """The evidence holds the arguments of `verify`, so the same call is refused again."""
    service = Service()
    request = evolve(a_get(service.client()), target_uri="http://bank.example/op/incoming-payments/x")
    refusal = refused(authenticate(request, service.policy, NOW), an_info())
    evidence = refusal.evidence
    assert isinstance(evidence, Evidence)
    assert (evidence.request, list(evidence.keys), evidence.now) == (request, ["ed25519-key"], NOW)
    with pytest.raises(SignatureRefused) as again:
        verify(evidence.request, evidence.keys, policy=evidence.policy, now=evidence.now)
    assert again.value.code == refusal.code == "signature_invalid"


def test_evidence_of_a_refused_key_has_no_keys() -> None:
    """A key that cannot be used is not in the evidence."""
    service = Service()
    refusal = refused(authenticate(a_get(service.client()), service.policy, NOW), an_info(jwk={}))
    assert isinstance(refusal.evidence, Evidence)
    assert (refusal.code, dict(refusal.evidence.keys)) == ("key_unusable", {})


@pytest.mark.parametrize(
    ("options", "nonce", "code"), [({}, "n", "nonce_used"), ({"allow_identical": False}, None, "request_repeated")]
)
def test_repeated_request_has_its_evidence(options: dict[str, Any], nonce: str | None, code: str) -> None:
    """A repeated request with a valid signature is refused with its evidence."""
    service = Service(**options)
    flow = authenticate(a_get(service.client(), nonce=nonce), service.policy, NOW)
    refusal = refused(flow, an_info(), False)
    assert isinstance(refusal.evidence, Evidence)
    assert (refusal.code, list(refusal.evidence.keys)) == (code, ["ed25519-key"])


def test_response_has_its_refusal_as_cause() -> None:
    """The `cause` of a response is the refusal, for the log of the host. A success has none."""
    service = Service()
    unsigned = Request("POST", PATH, headers=[("Content-Type", "application/json")], body=b"{}")
    assert isinstance(service.handle(unsigned).cause, TokenRefused)
    assert service.handle(service.client().creation()).cause is None

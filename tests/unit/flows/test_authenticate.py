"""Who is calling: contract section 5, on the flow itself."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs import evolve

from incoming_payments import Request
from incoming_payments.errors import PolicyRefused, PortMissing, SignatureRefused, StoreUnavailable, TokenRefused
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
    """`request` as the flows take it."""
    return RequestMessage(request.method, f"{BASE_URL}{request.path}", request.headers, request.body)


def a_get(client: Client, **options: Any) -> RequestMessage:
    """A signed GET of `client`'s."""
    return signed(client.sign(Request("GET", f"{PATH}/x"), **options))


def an_info(key: PrivateKey | None = None, **changes: Any) -> AccessTokenInfo:
    """What a token of the shop's stands for."""
    given = {"client": SHOP, "jwk": (key or ed25519_key()).public_jwk(), "rights": [a_right("read")], **changes}
    return AccessTokenInfo(**given)


def test_asks_about_the_token_and_says_who_it_is() -> None:
    """One question to the introspector; then client, rights and what was proven come from its answer."""
    service = Service()
    client = service.client()
    flow = authenticate(a_get(client), service.policy, NOW)
    assert IntrospectToken(AccessToken(client.token)) == next(flow)
    caller = finish(flow, an_info())
    assert (SHOP, (a_right("read"),)) == (caller.client, caller.rights)
    assert (caller.proof.key_id, caller.proof.algorithm) == ("ed25519-key", Algorithm.ED25519)
    assert [piece.name for piece in caller.proof.components] == ["@method", "@target-uri", "authorization"]


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(ed25519_key, Algorithm.ED25519), (es256_key, Algorithm.ES256), (ps512_key, Algorithm.PS512)],
)
def test_5_algorithm_is_that_of_the_jwk(key: Any, algorithm: Algorithm) -> None:
    """The `alg` of the JWK that the token is bound to decides how the signature is checked."""
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
def test_token_that_is_none_asks_nobody(values: list[str], code: str) -> None:
    """Without one readable token there is nothing to ask the authorization server."""
    headers = tuple(("Authorization", value) for value in values)
    flow = authenticate(RequestMessage("GET", f"{BASE_URL}{PATH}/x", headers), Service().policy, NOW)
    with pytest.raises(TokenRefused) as refused:
        next(flow)
    assert code == refused.value.code


# By precedence: what the authorization server says of the token, whether its key is any good, and what is
# reported. The request is not signed at all, so whatever is looked at before the signature is reported first.
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
    """No key is looked at before the token is known to be active, and no signature before the key is sound."""
    request = RequestMessage("GET", f"{BASE_URL}{PATH}/x", (("Authorization", "GNAP abc"),))
    flow = authenticate(request, Service().policy, NOW)
    next(flow)
    with pytest.raises(error) as refused:
        flow.send(info)
    assert code == refused.value.code


def test_key_unusable_does_not_show_the_key() -> None:
    """A private or shared key that was registered by mistake is refused without a word of its own."""
    flow = authenticate(a_get(Service().client()), Service().policy, NOW)
    next(flow)
    with pytest.raises(SignatureRefused) as refused:
        flow.send(an_info(jwk={"kty": "oct", "k": "c2VjcmV0LXNlY3JldA", "kid": "a", "alg": "HS256"}))
    assert "c2VjcmV0LXNlY3JldA" not in str(refused.value)


def test_5_keyid_equals_the_kid_of_the_tokens_key() -> None:
    """A signature by another key is no signature, however good it is: a token is bound to its own."""
    service = Service()
    service.client(key=ed25519_key("mine"))
    thief = service.client(key=ed25519_key("thief"))
    flow = authenticate(a_get(thief), service.policy, NOW)
    next(flow)
    with pytest.raises(SignatureRefused) as refused:
        flow.send(an_info(ed25519_key("mine")))
    assert refused.value.code == "key_unknown"


def test_same_kid_of_another_key_proves_nothing() -> None:
    """Two clients may name their keys alike; only the one that the token is bound to verifies."""
    service = Service()
    thief = service.client(key=PrivateKey.generate_ed25519("ed25519-key"))
    flow = authenticate(a_get(thief), service.policy, NOW)
    next(flow)
    with pytest.raises(SignatureRefused) as refused:
        flow.send(an_info(ed25519_key()))
    assert refused.value.code == "signature_invalid"


def test_host_may_refuse_or_be_unable() -> None:
    """What the introspector raises reaches the flow and leaves it as it is."""
    service = Service()
    flow = authenticate(a_get(service.client()), service.policy, NOW)
    next(flow)
    with pytest.raises(PolicyRefused, match="not today"):
        flow.throw(PolicyRefused("not today"))


def test_nothing_else_is_asked() -> None:
    """Authentication is one effect, whatever the token may do."""
    service = Service()
    seen: list[Effect[Any]] = []
    service.run(watched(authenticate(a_get(service.client(a_right("list", on=ALICE))), service.policy, NOW), seen))
    assert [IntrospectToken] == [type(effect) for effect in seen]


# --- replay ---

SECOND = NOW.replace(microsecond=0)  # as `created` has it


def question(service: Service, client: Client, name: str = SHOP, **options: Any) -> UseNonce:
    """What the flow asks once the signature of the client `name` has held."""
    flow = authenticate(a_get(client, **options), service.policy, NOW)
    next(flow)
    info = an_info(client.key, client=name)
    asked = flow.send(info)
    assert isinstance(asked, UseNonce)
    assert finish(flow, answer=True).client == name
    return asked


def test_a_nonce_is_asked_about_once_the_signature_has_held() -> None:
    """Under a name of client, key and nonce, which is as long for all of them."""
    service = Service()
    one, other = service.client(), service.client(key=es256_key())
    asked = [
        question(service, one, nonce="n"),
        question(service, one, nonce="n", created=NOW - timedelta(seconds=1)),
        question(service, other, nonce="n"),
        question(service, one, nonce="m"),
        question(service, one, nonce=""),
        question(service, one, name=f"{SHOP}/other", nonce="n"),
    ]
    names = [each.key for each in asked]
    assert names[0] == names[1]
    assert len(set(names)) == 5
    assert {64} == {len(name) for name in names}


@pytest.mark.parametrize("change", [{"nonce": "m"}, {"created": NOW - timedelta(seconds=301)}])
def test_a_signature_that_does_not_hold_uses_no_nonce(change: dict[str, Any]) -> None:
    """Nobody without the key can use up a nonce, and no stale request takes room."""
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
def test_a_nonce_is_remembered_until_no_clock_can_take_it(
    policy: dict[str, Any], options: dict[str, Any], expected: datetime
) -> None:
    """For as long as the signature is fresh, and the skew allowed to clocks after that."""
    service = Service(signature=SignaturePolicy(**policy))
    asked = question(service, service.client(), nonce="n", **options)
    assert (expected, NOW) == (asked.until, asked.now)


def test_a_replayed_create_makes_no_second_payment() -> None:
    """201, then 401 while the nonce is remembered, and 401 as stale from then on."""
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
def test_identical_requests_are_allowed_unless_the_policy_says_no(allowed: bool) -> None:
    """A request without nonce may come again, or not; one with a nonce, or of the next second, is another."""
    service = Service(allow_identical=allowed)
    client = service.client()
    request = client.creation()
    assert service.handle(request).status == 201
    again = service.handle(request)
    assert again.status == 201 if allowed else refusal(again) == (401, "request_repeated")
    assert service.handle(client.creation(nonce="n")).status == 201
    service.clock.advance(1)
    assert service.handle(client.creation()).status == 201


def test_no_second_signature_makes_an_identical_request_new() -> None:
    """ECDSA signs differently each time; what is signed is the same."""
    service = Service(allow_identical=False)
    client = service.client(key=es256_key())
    assert [service.handle(client.creation()).status for _ in range(2)] == [201, 401]


def test_full_is_temporary() -> None:
    """503, and those remembered stay so."""
    service = Service()
    service.replace(nonces=MemoryNonces(1))
    client = service.client()
    first, second = client.creation(nonce="a"), client.creation(nonce="b")
    assert [service.handle(request).status for request in (first, second, first)] == [201, 503, 401]
    with pytest.raises(StoreUnavailable):
        service.run(authenticate(a_get(client, nonce="c"), service.policy, NOW))


def test_without_the_port_a_nonce_is_refused() -> None:
    """Rather than taken without being remembered; requests without one are answered."""
    service = Service()
    service.replace(nonces=None)
    client = service.client()
    assert refusal(service.handle(client.creation(nonce="n"))) == (401, "nonce_unsupported")
    assert service.handle(client.creation()).status == 201


@pytest.mark.parametrize(
    "policy", [{"allow_identical": False}, {"signature": SignaturePolicy(nonce_required=True), "allow_identical": True}]
)
def test_a_policy_that_needs_the_port_says_so(policy: dict[str, Any]) -> None:
    """It is the host's mistake and no client's."""
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


def test_a_refused_signature_carries_its_evidence() -> None:
    """The evidence is what `verify` was called with, so that the same call is refused again."""
    service = Service()
    request = evolve(a_get(service.client()), target_uri="http://bank.example/op/incoming-payments/x")
    refusal = refused(authenticate(request, service.policy, NOW), an_info())
    evidence = refusal.evidence
    assert isinstance(evidence, Evidence)
    assert (evidence.request, list(evidence.keys), evidence.now) == (request, ["ed25519-key"], NOW)
    with pytest.raises(SignatureRefused) as again:
        verify(evidence.request, evidence.keys, policy=evidence.policy, now=evidence.now)
    assert again.value.code == refusal.code == "signature_invalid"


def test_a_refused_key_leaves_the_evidence_without_keys() -> None:
    """A key that cannot be used is not in the evidence."""
    service = Service()
    refusal = refused(authenticate(a_get(service.client()), service.policy, NOW), an_info(jwk={}))
    assert isinstance(refusal.evidence, Evidence)
    assert (refusal.code, dict(refusal.evidence.keys)) == ("key_unusable", {})


@pytest.mark.parametrize(
    ("options", "nonce", "code"), [({}, "n", "nonce_used"), ({"allow_identical": False}, None, "request_repeated")]
)
def test_a_repeated_request_carries_its_evidence(options: dict[str, Any], nonce: str | None, code: str) -> None:
    """A request whose signature holds, and which was used before, is refused with its evidence."""
    service = Service(**options)
    flow = authenticate(a_get(service.client(), nonce=nonce), service.policy, NOW)
    refusal = refused(flow, an_info(), False)
    assert isinstance(refusal.evidence, Evidence)
    assert (refusal.code, list(refusal.evidence.keys)) == (code, ["ed25519-key"])


def test_a_response_carries_its_refusal() -> None:
    """The host's log finds the refusal behind a response, and no cause behind a success."""
    service = Service()
    unsigned = Request("POST", PATH, headers=[("Content-Type", "application/json")], body=b"{}")
    assert isinstance(service.handle(unsigned).cause, TokenRefused)
    assert service.handle(service.client().creation()).cause is None

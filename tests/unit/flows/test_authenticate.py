"""`flows.authenticate`: the authentication of a request. Spec section 5."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs import evolve

from incoming_payments import Request, Response
from incoming_payments.errors import (
    AuthorizationServerUnavailable,
    ClientKeysUnavailable,
    PolicyRefused,
    PortMissing,
    Refused,
    SignatureRefused,
    StoreUnavailable,
    TokenRefused,
)
from incoming_payments.flows import authenticate as module
from incoming_payments.flows.authenticate import Caller
from incoming_payments.flows.effects import Effect, Flow, IntrospectToken, UseNonce
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.gnap import AccessToken, AccessTokenInfo, Action, TokenQuery
from incoming_payments.gnap.token import parse_authorization
from incoming_payments.httpsig import Algorithm, Evidence, PrivateKey, RequestMessage, verify
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.limits import SIGNATURES_MAX
from incoming_payments.stores.memory import MemoryNonces
from incoming_payments.testing import NOW
from kits.service_kit import (
    ALICE,
    BASE_URL,
    OTHER_SHOP,
    PATH,
    SHOP,
    Client,
    Service,
    Tokens,
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


def authenticate(request: RequestMessage, policy: ServicePolicy, now: datetime) -> Flow[Caller]:
    """Return the flow for the token of `request`, to read on Alice's wallet address."""
    token = parse_authorization(request.values("authorization"))
    return (yield from module.authenticate(request, TokenQuery(token, Action.READ, ALICE.url), policy, now))


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
    assert IntrospectToken(TokenQuery(AccessToken(client.token), "read", ALICE.url)) == next(flow)
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


@pytest.mark.parametrize("more", [{}, {"x5t": 1}, {"key_ops": ["verify"]}, {"vendor": {"a": 1}}])
def test_key_of_a_token_may_have_other_members(more: dict[str, Any]) -> None:
    """The service keeps keys that it has loaded, but not those with lists or objects as members."""
    service = Service()
    client = service.client()
    for _ in range(2):
        flow = authenticate(a_get(client), service.policy, NOW)
        next(flow)
        caller = finish(flow, an_info(jwk={**ed25519_key().public_jwk(), **more}))
        assert caller.proof.key_id == "ed25519-key"


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


def test_nonces_after_a_clock_that_was_ahead() -> None:
    """New nonces get a code of their own until the clock passes the removed ones. No replay is ever accepted."""
    service = Service()
    client = service.client()
    normal = client.creation(nonce="normal")
    assert service.handle(normal).status == 201

    service.clock.advance(86_400)
    ahead = client.creation(nonce="ahead")
    assert service.handle(ahead).status == 201
    service.clock.advance(361)
    assert service.handle(client.creation(nonce="removes the first two")).status == 201

    service.clock.advance(-86_400 - 350)
    assert refusal(service.handle(client.creation(nonce="new"))) == (503, "clock_behind")
    assert refusal(service.handle(normal)) == (503, "clock_behind")
    assert service.handle(client.creation()).status == 201  # the policy accepts requests without a nonce
    service.clock.advance(86_400)
    assert refusal(service.handle(ahead)) == (503, "clock_behind")
    service.clock.advance(11)
    assert service.handle(client.creation(nonce="new")).status == 201


def test_full_nonce_store_answers_503() -> None:
    """A full nonce store answers 503, and keeps the stored nonces."""
    service = Service()
    service.replace(nonces=MemoryNonces(1))
    client = service.client()
    first, second = client.creation(nonce="a"), client.creation(nonce="b")
    assert [service.handle(request).status for request in (first, second, first)] == [201, 503, 401]
    with pytest.raises(StoreUnavailable):
        service.run(authenticate(a_get(client, nonce="c"), service.policy, NOW))


def hint(response: Response) -> str:
    """Return the hint of a refusal for the log of the host. The client does not get it."""
    assert isinstance(response.cause, Refused)
    assert response.cause.hint.encode() not in response.body
    return response.cause.hint


def test_nonce_without_the_port_is_refused() -> None:
    """Without the `nonces` port, a request with a nonce is refused and other requests are answered."""
    service = Service()
    service.replace(nonces=None)
    client = service.client()
    response = service.handle(client.creation(nonce="n"))
    assert refusal(response) == (401, "nonce_unsupported")
    assert (
        hint(response) == "a signature has a nonce, and there is no port nonces: pass nonces=..., such as store.nonces"
    )
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


# --- keys of the client, for a token without a key -------------------------------------------------


class Keys:
    """A `ClientKeys` port. It records the look-ups."""

    def __init__(self, keys: Mapping[str, Sequence[PrivateKey]]) -> None:
        self._keys = {name: {key.kid: key.public_jwk() for key in own} for name, own in keys.items()}
        self.calls: list[tuple[str, str]] = []

    def find(self, client: str, key_id: str) -> Mapping[str, object] | None:
        """Return the key of the client with this `kid`."""
        self.calls.append((client, key_id))
        return self._keys.get(client, {}).get(key_id)


def a_client_without_a_key_in_its_token(service: Service, key: PrivateKey, name: str = SHOP) -> Client:
    """Return a client with a token that does not carry its key."""
    client = service.client(key=key)
    service.tokens = Tokens()
    service.tokens.add(client.token, an_info(client=name, jwk=None, rights=[a_right("create", "read")]))
    service.replace(introspector=service.tokens)
    return client


def test_key_of_the_client_with_the_keyid_verifies() -> None:
    """A client with two keys may sign with either, and only the one that the signature names is looked up."""
    service, keys = Service(), Keys({SHOP: [ed25519_key(), es256_key()]})
    service.replace(client_keys=keys)
    for key in (ed25519_key(), es256_key()):
        client = a_client_without_a_key_in_its_token(service, key)
        assert client.create().status == 201
    assert keys.calls == [(SHOP, "ed25519-key"), (SHOP, "es256-key")]


def test_key_in_the_token_is_the_only_one() -> None:
    """The keys of the client are not looked up when the token carries its key, also if the signature names another."""
    service, keys = Service(), Keys({SHOP: [es256_key()]})
    service.replace(client_keys=keys)
    client = service.client(key=es256_key(), jwk=ed25519_key().public_jwk())
    assert refusal(client.create()) == (401, "key_unknown")
    assert keys.calls == []


def test_key_is_not_looked_up_before_the_token_is_accepted() -> None:
    """A request cannot cause a look-up with a token that is unknown or has expired."""
    service, keys = Service(), Keys({SHOP: [ed25519_key()]})
    client = service.client(expires_at=NOW)
    service.replace(client_keys=keys)
    assert refusal(client.create()) == (401, "token_expired")
    service.replace(introspector=Tokens())
    assert refusal(client.create()) == (401, "invalid_token")
    assert keys.calls == []


@pytest.mark.parametrize(
    "keys",
    [
        {OTHER_SHOP: [ed25519_key()]},
        {SHOP: [es256_key()], OTHER_SHOP: [ed25519_key()]},
        {SHOP: [PrivateKey.generate_ed25519("ed25519-key")], OTHER_SHOP: [ed25519_key()]},
        {},
    ],
)
def test_key_of_another_client_never_verifies(keys: Mapping[str, Sequence[PrivateKey]]) -> None:
    """The client comes from the token, and the request chooses among the keys of that client only."""
    service = Service()
    service.replace(client_keys=Keys(keys))
    client = a_client_without_a_key_in_its_token(service, ed25519_key())
    status, code = refusal(client.create())
    has_that_kid = any(key.kid == "ed25519-key" for key in keys.get(SHOP, []))
    assert (status, code) == (401, "signature_invalid" if has_that_kid else "key_unknown")


def test_key_under_another_kid_does_not_verify() -> None:
    """A port that returns a key with another `kid` is wrong, and the signature is refused."""
    service = Service()
    keys = Keys({})
    keys.find = lambda *_: {**ed25519_key().public_jwk(), "kid": "another"}  # type: ignore[method-assign] # on purpose
    service.replace(client_keys=keys)
    client = a_client_without_a_key_in_its_token(service, ed25519_key())
    assert refusal(client.create()) == (401, "key_unknown")


def test_unusable_key_of_the_client_is_refused() -> None:
    """The port returns a key that is no public key for signatures."""
    service = Service()
    keys = Keys({})
    keys.find = lambda *_: {"kty": "oct"}  # type: ignore[method-assign] # on purpose
    service.replace(client_keys=keys)
    client = a_client_without_a_key_in_its_token(service, ed25519_key())
    response = client.create()
    assert refusal(response) == (401, "key_unusable")
    assert hint(response).startswith("the JWK from the introspector or from client_keys cannot be used: the JWK's ")


def test_token_without_a_key_needs_the_port() -> None:
    """Without the port, the token is refused, because nothing says which key may sign."""
    client = a_client_without_a_key_in_its_token(Service(), ed25519_key())
    response = client.create()
    assert refusal(response) == (401, "key_unusable")
    assert (
        hint(response) == "the introspector answered without a key, and there is no port client_keys: set client_keys"
    )


def test_each_signature_may_have_its_own_key() -> None:
    """All keys that the signatures name are looked up, each once, and one valid signature is enough."""
    service, keys = Service(), Keys({SHOP: [ed25519_key()]})
    service.replace(client_keys=keys)
    client = a_client_without_a_key_in_its_token(service, ed25519_key())
    request = client.creation()
    by_others = [sign_as(request, f"other-{n}", label=f"other{n}") for n in (1, 2)]
    assert client.send(with_signatures(request, by_others)).status == 201
    assert keys.calls == [(SHOP, "ed25519-key"), (SHOP, "other-1"), (SHOP, "other-2")]


def test_signatures_by_too_many_keys_cause_no_look_up() -> None:
    """A request cannot cause any number of look-ups."""
    service, keys = Service(), Keys({SHOP: [ed25519_key()]})
    service.replace(client_keys=keys)
    client = a_client_without_a_key_in_its_token(service, ed25519_key())
    request = client.creation()
    by_others = [sign_as(request, f"other-{n}", label=f"other{n}") for n in range(SIGNATURES_MAX)]
    assert refusal(client.send(with_signatures(request, by_others))) == (401, "too_many_signatures")
    assert keys.calls == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ClientKeysUnavailable("10.0.0.7 timed out"), "client_keys_unavailable"),
        (TimeoutError("10.0.0.7 timed out"), "client_keys_unavailable"),
        (ConnectionResetError("10.0.0.7 is gone"), "client_keys_unavailable"),
        (StoreUnavailable("10.0.0.7 is locked"), "store_unavailable"),
    ],
)
def test_outage_of_the_keys_is_503(error: Exception, code: str) -> None:
    """An outage is neither 401 nor 500, and the client does not learn the reason."""

    def find(*_: object) -> None:
        raise error

    service = Service()
    keys = Keys({})
    keys.find = find  # type: ignore[method-assign, assignment] # on purpose
    service.replace(client_keys=keys)
    response = a_client_without_a_key_in_its_token(service, ed25519_key()).create()
    assert refusal(response) == (503, code)
    assert b"10.0.0.7" not in response.body
    assert "10.0.0.7" in str(response.cause)


def sign_as(request: Request, kid: str, *, label: str) -> Request:
    """Return `request` with its signature under another `keyid` and label."""

    def renamed(name: str, value: str) -> tuple[str, str]:
        if name.lower() in {"signature", "signature-input"}:
            value = f"{label}={value.partition('=')[2]}"
        return name, value.replace("ed25519-key", kid)

    return evolve(request, headers=tuple(renamed(*header) for header in request.headers))


def with_signatures(request: Request, others: Iterable[Request]) -> Request:
    """Return `request` with the signatures of `others` after its own, each label once."""
    fields = dict.fromkeys(
        header for other in others for header in other.headers if header[0].lower() in {"signature", "signature-input"}
    )
    return evolve(request, headers=(*request.headers, *fields))

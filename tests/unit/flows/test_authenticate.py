"""`flows.authenticate`: the authentication of a request. Spec section 5."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs import evolve

from incoming_payments import Request, Response
from incoming_payments.errors import (
    ClientKeysUnavailable,
    PortMissing,
    Refused,
    SignatureRefused,
    StoreUnavailable,
    TokenRefused,
)
from incoming_payments.gnap import AccessTokenInfo
from incoming_payments.httpsig import Evidence, PrivateKey, verify
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.limits import SIGNATURES_MAX
from incoming_payments.stores.memory import MemoryNonces
from incoming_payments.testing import NOW
from kits.fake_ports import Raising
from kits.service_kit import (
    NOBODYS_ID,
    OTHER_SHOP,
    PATH,
    SHOP,
    Client,
    Service,
    Tokens,
    a_right,
    ed25519_key,
    es256_key,
    refusal,
)


def an_info(**changes: Any) -> AccessTokenInfo:
    """Return the information about a token of the shop."""
    return AccessTokenInfo(
        **{"client": SHOP, "jwk": ed25519_key().public_jwk(), "rights": [a_right("create", "read")], **changes}
    )


# In order of precedence. The requests have no signature, so each code before the last one comes from an earlier check.
TOKENS: list[tuple[dict[str, Any], str]] = [
    ({"expires_at": NOW - timedelta(days=1), "jwk": {"kty": "oct"}}, "token_expired"),
    ({"jwk": {"kty": "oct", "k": "c2VjcmV0", "kid": "a", "alg": "HS256"}}, "key_unusable"),
    ({"expires_at": NOW + timedelta(microseconds=1)}, "signature_missing"),
]


@pytest.mark.parametrize(("token", "code"), TOKENS)
def test_token_then_key_then_signature(token: dict[str, Any], code: str) -> None:
    """An inactive token is refused before its key is loaded, and an unusable key before the signature is verified."""
    service = Service()
    headers = [("Authorization", f"GNAP {service.client(**token).token}")]
    response = service.handle(Request("GET", f"{PATH}/{NOBODYS_ID}", headers=headers))
    assert refusal(response) == (401, code)
    assert "c2VjcmV0" not in f"{response.cause}{getattr(response.cause, 'hint', '')}"  # nor does the log of the host


@pytest.mark.parametrize("more", [{}, {"x5t": 1}, {"key_ops": ["verify"]}, {"vendor": {"a": 1}}])
def test_key_of_a_token_may_have_other_members(more: dict[str, Any]) -> None:
    """The service keeps keys that it has loaded, but not those with lists or objects as members."""
    client = Service().client(jwk={**ed25519_key().public_jwk(), **more})
    assert [client.create().status for _ in range(2)] == [201, 201]


def test_another_key_with_the_same_kid_is_refused() -> None:
    """Two clients may use the same `kid`. Only the key to which the token is bound verifies."""
    thief = Service().client(key=PrivateKey.generate_ed25519("ed25519-key"), jwk=ed25519_key().public_jwk())
    assert refusal(thief.create()) == (401, "signature_invalid")


# --- replay ---

SECOND = NOW.replace(microsecond=0)  # as `created` has it


class Nonces:
    """A `Nonces` port that keeps its calls, and answers by `is_new`."""

    def __init__(self, *, is_new: bool = True) -> None:
        self.is_new = is_new
        self.calls: list[tuple[str, datetime, datetime]] = []

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Keep the call."""
        self.calls.append((key, until, now))
        return self.is_new


def with_nonces(**policy: Any) -> tuple[Service, Nonces]:
    """Return a service, and its port for nonces."""
    service, nonces = Service(**policy), Nonces()
    service.replace(nonces=nonces)
    return service, nonces


def test_nonce_key_identifies_client_key_and_nonce() -> None:
    """The key of a nonce depends on client, key and nonce, and has a fixed length."""
    service, nonces = with_nonces()
    one, other, third = service.client(), service.client(key=es256_key()), service.client(name=OTHER_SHOP)
    for client, options in (
        (one, {"nonce": "n"}),
        (one, {"nonce": "n", "created": NOW - timedelta(seconds=1)}),
        (other, {"nonce": "n"}),
        (one, {"nonce": "m"}),
        (one, {"nonce": ""}),
        (third, {"nonce": "n"}),
    ):
        assert client.send(client.creation(**options)).status == 201
    names = [key for key, *_ in nonces.calls]
    assert names[0] == names[1]
    assert len(set(names)) == 5
    assert {64} == {len(name) for name in names}


@pytest.mark.parametrize("change", [{"nonce": "m"}, {"created": NOW - timedelta(seconds=301)}])
def test_invalid_signature_uses_no_nonce(change: dict[str, Any]) -> None:
    """A client without the key cannot use up a nonce, and an old request takes no space."""
    service, nonces = with_nonces()
    request = service.client().creation(**{"nonce": "n", **change})
    headers = tuple((name, value.replace('nonce="m"', 'nonce="n"')) for name, value in request.headers)
    assert service.handle(evolve(request, headers=headers)).status == 401
    assert nonces.calls == []


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
    service, nonces = with_nonces(signature=SignaturePolicy(**policy))
    client = service.client()
    assert client.send(client.creation(nonce="n", **options)).status == 201
    assert [(until, now) for _, until, now in nonces.calls] == [(expected, NOW)]


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
    assert hint(response) == "a signature has a nonce, and ports has no nonces: pass Ports(nonces=store.nonces)"
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


def evidence_of(response: Response) -> tuple[SignatureRefused, Evidence]:
    """Return the refusal of a signature and its evidence."""
    assert isinstance(response.cause, SignatureRefused)
    assert isinstance(response.cause.evidence, Evidence)
    return response.cause, response.cause.evidence


def test_refused_signature_has_its_evidence() -> None:
    """The evidence holds the arguments of `verify`, so the same call is refused again."""
    client = Service().client()
    client.base_url = "http://bank.example/op"
    refusal, evidence = evidence_of(client.create())
    assert (list(evidence.keys), evidence.now) == (["ed25519-key"], NOW)
    with pytest.raises(SignatureRefused) as again:
        verify(evidence.request, evidence.keys, policy=evidence.policy, now=evidence.now)
    assert again.value.code == refusal.code == "signature_invalid"


def test_evidence_of_a_refused_key_has_no_keys() -> None:
    """A key that cannot be used is not in the evidence."""
    refusal, evidence = evidence_of(Service().client(jwk={"kty": "x"}).create())
    assert (refusal.code, dict(evidence.keys)) == ("key_unusable", {})


@pytest.mark.parametrize(
    ("options", "nonce", "code"), [({}, "n", "nonce_used"), ({"allow_identical": False}, None, "request_repeated")]
)
def test_repeated_request_has_its_evidence(options: dict[str, Any], nonce: str | None, code: str) -> None:
    """A repeated request with a valid signature is refused with its evidence."""
    service, nonces = with_nonces(**options)
    nonces.is_new = False
    client = service.client()
    refusal, evidence = evidence_of(client.send(client.creation(nonce=nonce)))
    assert (refusal.code, list(evidence.keys)) == (code, ["ed25519-key"])


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
        hint(response)
        == "the introspector gave no key for the token, and ports has no client_keys: pass client_keys=..."
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
    service = Service()
    service.replace(client_keys=Raising(error))
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

"""Diagnosis of refused signatures: each mistake is made with a real key, and its report names it without a secret."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import pytest
from attrs import evolve
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from campaigns.attacks.rows import Attack
from campaigns.attacks.signatures import attacks
from incoming_payments.errors import SignatureRefused
from incoming_payments.httpsig import (
    Algorithm,
    Code,
    Evidence,
    Policy,
    PrivateKey,
    PublicKey,
    RequestMessage,
    Shape,
    content_digest,
    parse_signature_input,
    sign,
    signature_base,
    verify,
)
from incoming_payments.httpsig.explain import Diagnosis, explain
from incoming_payments.limits import EXPLAIN_CAUSES_MAX, EXPLAIN_CHARS_MAX, EXPLAIN_VERIFICATIONS_MAX, SIGNATURES_MAX
from kits.signed_requests import (
    BODY,
    KEY,
    KEYS,
    NOW,
    NOW_S,
    OTHER,
    PHP_GET,
    RUST_GET,
    SCENE,
    URL,
    forge,
    get,
    get_lines,
    post,
    put,
    replace,
    signed_get,
    signed_post,
)
from kits.signing_keys import CountedKey, pem, private, rsa_key

HOST: Final = "https://ase.example"
ATTACKS: Final = list(attacks(SCENE))
BOTH: Final = {**KEYS, OTHER.kid: OTHER.public_key()}
MOUNTED: Final = f"{HOST}/op/incoming-payments"
INVALID: Final = SignatureRefused(Code.SIGNATURE_INVALID, "it does not fit")


def refused(
    request: RequestMessage,
    *,
    keys: Mapping[str, PublicKey] = KEYS,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    late_s: float = 0,
) -> Diagnosis:
    """Return the diagnosis of the refusal that `verify` raises, which names the same code."""
    now = NOW + timedelta(seconds=late_s)
    with pytest.raises(SignatureRefused) as caught:
        verify(request, keys, policy=policy, now=now)
    found = explain(caught.value, Evidence(request, keys, policy, now))
    assert found.code == caught.value.code
    return found


def diagnosed(refusal: SignatureRefused, request: RequestMessage, keys: Mapping[str, PublicKey] = KEYS) -> Diagnosis:
    """Return the diagnosis of a refusal that a host raised itself."""
    return explain(refusal, Evidence(request, keys, Policy(), NOW))


def sent_as(url: str, *headers: tuple[str, str], received: str = URL) -> RequestMessage:
    """Return a request that its client signed for `url`, as a service that believes itself at `received` gets it."""
    request = RequestMessage("GET", url, (("Authorization", "GNAP token"), *headers))
    return evolve(sign(request, KEY, created=NOW), target_uri=received)


def digested(digest: str, body: bytes = BODY) -> RequestMessage:
    """Return a signed POST with this Content-Digest."""
    return sign(post(("Content-Digest", digest), body=body), KEY, created=NOW, digest=None)


def reserialised(write: Callable[[Any], str], body: bytes = BODY) -> RequestMessage:
    """Return a signed POST whose digest is of the text that `write` makes of its body."""
    return digested(content_digest(write(json.loads(body)).encode()), body)


def input_with(old: str, new: str) -> RequestMessage:
    """Return a signed GET whose client wrote, and signed, a piece of Signature-Input differently."""
    given = signed_get().values("signature-input")[0].replace(old, new)
    lines = "".join(f"{identifier}: {value}\n" for identifier, value in get_lines())
    signed = KEY.sign(f'{lines}"@signature-params": {given.partition("=")[2]}'.encode())
    return put(put(signed_get(), "Signature-Input", given), "Signature", f"sig1=:{b64encode(signed).decode()}:")


def signed_over(change: Callable[[str], str]) -> RequestMessage:
    """Return a signed GET whose signature is over a changed signature base."""
    request = signed_get()
    given = parse_signature_input(request.values("signature-input"))["sig1"]
    base = change(signature_base(request, given.components, given.parameters).decode())
    return put(request, "Signature", f"sig1=:{b64encode(KEY.sign(base.encode())).decode()}:")


def signature_text(change: Callable[[str], str]) -> RequestMessage:
    """Return a signed GET whose Signature field is written differently."""
    return put(signed_get(), "Signature", change(signed_get().values("signature")[0]))


def base64url(text: str) -> str:
    """Return a Signature field in base64url, without padding."""
    return text.replace("+", "-").replace("/", "_").replace("==:", ":")


CAVAGE: Final = 'keyId="key-1",algorithm="hs2019",headers="(request-target) date",signature="AAAA"'
METADATA: Final = b'{"walletAddress":"https://ase.example/alice","metadata":{"a":"\xc3\xa9 <b>","n":1}}'
JS: Final = (",", ":")
DIGEST: Final = content_digest(BODY)
HEX: Final = b64decode(DIGEST[9:-1]).hex()

# The hypothesis, a request with its mistake, and a piece of the words.
PROVED: Final[list[tuple[str, RequestMessage, str]]] = [
    # --- the form of the fields
    ("form", RUST_GET, "they have the shape rust-sdk, which the policy can allow"),
    ("form", PHP_GET, "they have the shape php-sdk, which the policy can"),
    ("form", signature_text(lambda text: text[6:-1]), "Signature is not of the form label=:base64:"),
    ("form", signature_text(base64url), "Signature is not of the form label=:base64:"),
    ("form", signature_text(lambda text: text.replace(":", '"')), "Signature is not of the form label=:base64:"),
    ("form", input_with(str(NOW_S), f"{NOW_S}123"), "created is in milliseconds"),
    ("form", input_with(str(NOW_S), f'"{NOW_S}"'), "created is in quotes or has a fraction"),
    ("form", input_with(str(NOW_S), f"{NOW_S}.25"), "created is in quotes or has a fraction"),
    ("form", input_with("keyid", "keyId"), "keyid has upper-case letters"),
    ("form", input_with('"@method"', "@method"), "the components are not in quotes"),
    ("form", input_with("sig1", "Sig1"), "the label has upper-case letters"),
    ("form", signature_text(lambda text: text.replace("sig1", "sig2")), "the two fields have different labels"),
    # --- the key
    ("keyid", input_with('"key-1"', '"KEY-1"'), 'the key of this signature has the kid "key-1"'),
    ("keyid", input_with('keyid="key-1";', ""), 'the key of this signature has the kid "key-1"'),
    # --- the coverage
    ("not_covered", sign(get(), KEY, created=NOW, components=("@method",)), '"@target-uri", "authorization"'),
    ("not_covered", sign(post(), KEY, created=NOW, components=("@method", "@target-uri", "authorization")),
     'does not cover "content-digest"'),
    ("lost_field", put(signed_post(), "Content-Length"), 'signed "content-length", which did not arrive'),
    ("lost_field", put(signed_post(), "Content-Digest"), 'signed "content-digest", which did not arrive'),
    ("lost_field", forge(get(("Host", "a"), ("Host", "b")), [*get_lines(), ('"host"', "a")]), (
        '"host" once, but the '
        'field')),
    ("lost_field", forge(get(("Host", "a"), ("Host", "b")), [*get_lines(), ('"host"', "b")]), (
        '"host" once, but the '
        'field')),
    ("lost_field", forge(get(), [*get_lines(), ('"x-a"', "undefined")]), '"x-a" as the text undefined, and did not'),
    ("lost_field", forge(get(), [*get_lines(), ('"x-a"', "")]), '"x-a" as an empty value'),
    # --- the digest
    ("digest_form", digested(f"sha-512=:{HEX}:"), "is in hexadecimal digits and not in base64"),
    ("digest_form", digested(DIGEST.replace(":", "")), "is not between colons"),
    ("digest_form", digested(DIGEST.replace("==:", ":")), "has no padding"),
    ("digest_form", digested(content_digest(BODY, "sha-256").replace("256", "512")), "another algorithm than the name"),
    ("digest_form", sign(put(post(), "Content-Length", "5"), KEY, created=NOW), (
        "is correct, so Content-Length is "
        "wrong")),
    ("digest_of", reserialised(lambda body: json.dumps(body, separators=JS, ensure_ascii=False),
     json.dumps(json.loads(METADATA)).encode()), (
         "the body as compact JSON (JSON.stringify), and not to the received "
         "bytes")),
    ("digest_of", reserialised(json.dumps), "json.dumps of Python"),
    ("digest_of", reserialised(lambda body: json.dumps(body, separators=JS).replace("/", "\\/")), "json_encode of PHP"),
    ("digest_of", reserialised(lambda body: json.dumps(body, separators=JS, ensure_ascii=False).replace(
     "<", "\\u003c").replace(">", "\\u003e"), METADATA), "json.Marshal of Go"),
    ("digest_of", reserialised(lambda body: json.dumps(body, separators=JS, sort_keys=True), b'{"b":1,"a":2}'),
     "keys sorted"),
    ("digest_of", digested(content_digest(b'{"a":1.5,"b":1}'), b'{"a":1.50,"b":1.0}'), "JSON.stringify"),
    ("digest_of", digested(content_digest(BODY + b"\n")), "with a newline after it"),
    ("digest_of", digested(content_digest(b"a\nb"), b"a\r\nb"), "with LF in place of each CRLF"),
    ("digest_of", digested(content_digest(b"a\r\nb"), b"a\nb"), "with CRLF in place of each LF"),
    ("digest_of", digested(content_digest(b"\xc3\xa9"), b"\xe9"), "encoded as UTF-8 twice"),
    ("digest_of", digested(content_digest(b"")), "an empty body"),
    ("digest_of", digested(content_digest(b"undefined")), "the text undefined"),
    # --- the target
    ("scheme", sent_as(URL.replace("https", "http")), "the client signed http://ase.example/incoming-payments: "),
    ("scheme", sent_as(URL, received=URL.replace("https", "http")), "another scheme than the service expects"),
    ("host", sent_as("https://pay.example/incoming-payments", ("Host", "pay.example")), "https://pay.example/"),
    ("host", sent_as("https://pay.example:8443/incoming-payments", ("X-Forwarded-Host", "pay.example:8443")), "8443"),
    ("host", sent_as(URL, received=URL.replace("ase", "ASE")), "another host"),
    ("host", sent_as(f"{HOST}:443/incoming-payments"), f"{HOST}:443/"),
    ("host", sent_as(URL, received=f"{HOST}:8443/incoming-payments"), f"{HOST}/"),
    ("path", sent_as(f"{URL}/"), f"{URL}/"),
    ("path", sent_as(URL, received=f"{URL}/"), "another path than the service expects"),
    ("path", sent_as(URL, received=MOUNTED), f"the client signed {URL}: "),
    ("path", sent_as(MOUNTED, ("X-Forwarded-Prefix", "/op")), f"the client signed {MOUNTED}: "),
    ("path", sent_as(URL, received=f"{HOST}/x/../incoming-payments"), f"the client signed {URL}: "),
    ("path", sent_as(f"{URL}/a~b", received=f"{URL}/a%7Eb"), "a~b"),
    ("path", evolve(forge(get(), get_lines(f"{URL}/a b")), target_uri=f"{URL}/a%20b"), "a b"),
    ("query", sent_as(URL, received=f"{URL}?first=10"), "another query"),
    ("query", sent_as(f"{URL}?", received=URL), "another query"),
    ("query", sent_as(f"{URL}?a=b+c", received=f"{URL}?a=b%20c"), "another query"),
    ("query", sent_as(f"{URL}?a=b%20c", received=f"{URL}?a=b+c"), "another query"),
    ("target", sent_as("http://127.0.0.1:8080/incoming-payments", ("Host", "127.0.0.1:8080"), received=MOUNTED),
     "http://127.0.0.1:8080/incoming-payments: base_url must be the URL that clients use"),
    ("target", sent_as(f"{URL.replace('https', 'http')}/"), "http://ase.example/incoming-payments/"),
    # --- method, token, time
    ("method", forge(get(), [('"@method"', "get"), *get_lines()[1:]]), 'the method as "get"'),
    ("method", evolve(signed_get(), method="HEAD"), 'the method as "GET"'),
    ("token", forge(get(), get_lines(authorization="token")), "the token alone, without GNAP"),
    ("token", forge(get(), get_lines(authorization="Bearer token")), "Bearer"),
    ("token", forge(get(), get_lines(authorization="gnap token")), "the scheme in lower case"),
    ("token", forge(get(), get_lines(authorization="")), "an empty value"),
    ("token", forge(get(), get_lines(authorization="GNAP")), "the scheme without a token"),
    ("created", replace(signed_get(), "Signature-Input", str(NOW_S), str(NOW_S + 1)), f"created={NOW_S}, and sent"),
    ("created", signed_over(lambda base: base.replace(str(NOW_S), f"{NOW_S}000")), f"created={NOW_S}000"),
    ("created", signed_over(lambda base: base.replace(str(NOW_S), f'"{NOW_S}"')), f'created="{NOW_S}"'),
]  # fmt: skip

LIKELY: Final[list[tuple[str, RequestMessage, str]]] = [
    ("undefined", signature_text(lambda _: "undefined"), "Signature is the text undefined"),
    ("undefined", put(put(get(), "Signature", "undefined"), "Signature-Input", "undefined"), "without a new signature"),
    ("undefined", signature_text(lambda _: "sig1=:undefined:"), "Signature is the text undefined"),
    ("cavage", put(get(), "Signature", CAVAGE), "draft-cavage"),
    ("cavage", put(get(), "Authorization", f"Signature {CAVAGE}"), "draft-cavage"),
    ("form", signature_text(lambda _: f"sig1={'A' * 86}=="), "php-sdk"),
    ("form", put(RUST_GET, "Signature-Input", f"sig1=(@method);created={NOW_S}"), "rust-sdk"),
    ("keyid", sign(get(), evolve(OTHER, kid="Key-1 "), created=NOW), "only in case or white space"),
    ("keyid", sign(get(), evolve(OTHER, kid="https://me.example/jwks.json#key-1"), created=NOW), "a URL that ends in"),
    ("keyid", sign(get(), evolve(OTHER, kid="https://me.example/"), created=NOW), (
        "the keyid is a URL or a JWK "
        "thumbprint")),
    ("keyid", sign(get(), evolve(OTHER, kid="A" * 43), created=NOW), "the keyid is a URL or a JWK thumbprint"),
    ("alg", forge(get(), get_lines(), f';keyid="key-1";created={NOW_S};alg="EdDSA"'), 'write alg="ed25519"'),
    ("alg", forge(get(), get_lines(), f';keyid="key-1";created={NOW_S};alg="hmac-sha256"'), "shared secrets"),
    ("clock", sign(get(), KEY, created=0), "created=0 is in the year 1970"),
    ("clock", sign(get(), KEY, created=NOW_S - 7198), "created is 2 h behind: a clock is in the wrong time zone"),
    ("clock", sign(get(), KEY, created=NOW_S + 3600), "created is 1 h ahead: a clock is in the wrong time zone"),
    ("clock", sign(get(), KEY, created=NOW_S - 4000), "created is 4000 s behind: a clock is wrong, or a queue"),
    ("clock", sign(get(), KEY, created=NOW_S + 312), "created is 312 s ahead: a clock is wrong, synchronise both"),
    ("body_changed", evolve(signed_post(), body=BODY.replace(b"alice", b"bobby")), (
        "a proxy or the client changed the body "
        "afterwards")),
    ("body_changed", digested(content_digest(b"x"), b"\xff"), "a proxy or the client changed the body afterwards"),
    ("body_changed", digested(content_digest(b"x"), b"[" * 60_000), (
        "a proxy or the client changed the body "
        "afterwards")),
    ("body_changed", put(evolve(signed_post(), body=b"x" * 99), "Content-Length", "99"),
     "the client signed another Content-Length: a proxy or the client changed the body afterwards"),
    ("unknown", evolve(sign(post(), KEY, created=NOW, components=("@method", "@target-uri", "authorization",
     "content-digest")), body=b"x" * 99, method="PUT"), "no known mistake explains the refusal"),
    ("fields_missing", get(), "there is no Signature-Input and no Signature: the client did not sign the request, or"),
    ("fields_missing", put(signed_get(), "Signature"), "there is no Signature: "),
    ("fields_missing", put(put(signed_get(), "Signature", ""), "Signature-Input", ""), "no Signature-Input and no Sig"),
    ("fields_missing", put(signed_post(), "Signature-Input"), "there is no Signature-Input, but a Content-Digest: "),
    ("unknown", forge(get(), get_lines(), by=OTHER.sign), "no known mistake explains the refusal"),
    ("unknown", digested(f"sha-512=:{'A' * 40}:"), "no known mistake explains the refusal"),
    ("unknown", sent_as(f"{HOST}/op{URL.removeprefix(HOST)}", ("X-Forwarded-Prefix", "op")), (
        "no known mistake explains the "
        "refusal")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "request_", "words"), PROVED, ids=[f"{row[0]}: {row[2]}" for row in PROVED])
def test_mistake_is_proved(name: str, request_: RequestMessage, words: str) -> None:
    """The mistake that was made is the first cause, and it is proved."""
    found = refused(request_)
    assert (found.causes[0].name, found.causes[0].proved) == (name, True)
    assert words in found.causes[0].text
    assert f"\n  proved: {found.causes[0].text}\n" in str(found)


@pytest.mark.parametrize(("name", "request_", "words"), LIKELY, ids=[f"{row[0]}: {row[2]}" for row in LIKELY])
def test_mistake_is_recognised(name: str, request_: RequestMessage, words: str) -> None:
    """The mistake is the first cause, and no cause is said to be proved."""
    found = refused(request_)
    assert (found.causes[0].name, [cause for cause in found.causes if cause.proved]) == (name, [])
    assert words in found.causes[0].text
    assert f"\n  likely: {found.causes[0].text}\n" in str(found)


# What is covered in the place of a required component, said after the component that is not covered.
INSTEAD: Final = [
    (
        forge(get(), [*get_lines()[:2], ('"Authorization"', "GNAP token")]),
        '"Authorization" is covered, but component names must be in lower case',
    ),
    (forge(get(), [*get_lines()[:2], ('"authorization";bs', ":R05BUCB0b2tlbg==:")]), '"authorization";bs is covered'),
    (forge(get(), [get_lines()[0], ('"@path"', "/incoming-payments"), get_lines()[2]]), "but @target-uri is not"),
    (sign(post(("Digest", f"SHA-256={DIGEST}")), KEY, created=NOW, digest=None), "the old field Digest"),
]


@pytest.mark.parametrize(("request_", "words"), INSTEAD, ids=[row[1] for row in INSTEAD])
def test_another_component_is_covered_instead(request_: RequestMessage, words: str) -> None:
    """The component that is not covered comes first, and the one that the client may have meant second."""
    first, second = refused(request_).causes
    assert (first.name, second.name) == ("not_covered", "covered_instead")
    assert words in second.text


def test_another_key_of_the_client() -> None:
    """A signature by another key of the client than its keyid names is proved."""
    found = refused(forge(get(), get_lines(), by=OTHER.sign), keys=BOTH)
    assert str(found.causes[0]) == 'proved: the client signed with its key "key-2", but sent another keyid'


@pytest.mark.parametrize(("algorithm", "octets"), [(Algorithm.ES256, 32), (Algorithm.ES384, 48)])
def test_signature_in_der(algorithm: Algorithm, octets: int) -> None:
    """An ECDSA signature in the form that most libraries return is proved."""
    key = private(algorithm)
    request = sign(get(), key, created=NOW)
    raw = b64decode(request.values("signature")[0][6:-1])
    der = encode_dss_signature(int.from_bytes(raw[:octets]), int.from_bytes(raw[octets:]))
    sent = put(request, "Signature", f"sig1=:{b64encode(der).decode()}:")
    [cause] = refused(sent, keys={key.kid: key.public_key()}).causes
    assert (cause.name, cause.proved) == ("der", True)


@pytest.mark.parametrize("algorithm", [Algorithm.RS256, Algorithm.PS256, Algorithm.PS384])
def test_another_algorithm_with_the_right_key(algorithm: Algorithm) -> None:
    """An RSA key that was used with another algorithm than its JWK names is proved."""
    signer = PrivateKey.from_pem(pem(rsa_key()), kid="key-1", algorithm=algorithm)
    keys = {"key-1": PrivateKey.from_pem(pem(rsa_key()), kid="key-1", algorithm=Algorithm.PS512).public_key()}
    [cause] = refused(sign(get(), signer, created=NOW), keys=keys).causes
    assert str(cause) == f"proved: the client signed with {algorithm.value}, but the JWK names another algorithm"


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.id for attack in ATTACKS])
def test_attack_has_a_diagnosis(attack: Attack) -> None:
    """Every refused attack gets a report of its code, without token, signature, digest or body."""
    found = refused(attack.request, keys={attack.key.kid: attack.key.public_key()})
    assert found.code == attack.code
    assert found.causes
    assert str(found).startswith(f"signature refused, {attack.code}: ")
    signatures = [value.partition("=:")[2][:20] for value in attack.request.values("signature")]
    secrets = [*signatures, "walletAddress", DIGEST[9:30], content_digest(BODY, "sha-256")[9:30]]
    assert [secret for secret in secrets if len(secret) > 8 and secret in f"{found!r}{found}"] == []


# --- the report --------------------------------------------------------------------------------


def test_report_of_a_post() -> None:
    """The report holds the refusal, its causes, and the signature base with redacted values."""
    found = refused(evolve(signed_post(), target_uri="https://other.example/?a=secret&b"), late_s=2.4)
    heading, *lines = str(found).splitlines()
    assert heading.startswith("signature refused, signature_invalid: the signature does not fit the key")
    assert lines == [
        f"  likely: {found.causes[0].text}",
        '  sig1 by keyid "key-1", made 2 s ago: this signature is not valid for the base. The service built this base:',
        '    "@method": POST',
        '    "@target-uri": https://other.example/?a=<redacted, 6 characters>&<redacted, 1 character>',
        '    "authorization": GNAP <redacted, 5 characters>',
        '    "content-digest": <redacted, 98 characters>',
        f'    "content-length": {len(BODY)}',
        '    "content-type": application/json',
        (
            '    "@signature-params": ("@method" "@target-uri" "authorization" "content-digest" "content-length" '
            f'"content-type");keyid="key-1";created={NOW_S}'
        ),
    ]


@pytest.mark.parametrize(
    ("code", "nonce", "words"),
    [
        ("nonce_used", "1234", "each retry: a nonce of this client has only 4 characters, and short nonces repeat"),
        (
            "nonce_used",
            "12345678",
            "retry: the client, its HTTP library or a proxy sent a request again, or the client signed",
        ),
        (
            "request_repeated",
            None,
            "retry: the client, its HTTP library or a proxy sent a request again, or the client signed",
        ),
        ("nonce_unsupported", "1234", "ports has no nonces: pass Ports(nonces=store.nonces)"),
        ("key_unusable", None, "no known mistake explains the refusal: see the reason above"),
        ("of_a_host", None, "no known mistake explains the refusal: see the reason above"),
    ],
)
def test_refusal_of_the_host(code: str, nonce: str | None, words: str) -> None:
    """A refusal of a valid signature is reported with its description, in ASCII, and the nonce is not shown."""
    request = sign(get(), KEY, created=NOW, nonce=nonce)
    found = diagnosed(SignatureRefused(code, "because (RFC 9421 §7.2.2)"), request)
    assert str(found).startswith(f"signature refused, {code}: because (RFC 9421 section 7.2.2)\n  likely: ")
    assert words in found.causes[0].text
    assert "this signature is valid for the base" in str(found)
    assert nonce is None or f'"{nonce}"' not in str(found)


def test_target_that_is_no_url() -> None:
    """A target URI without scheme and host has no other spellings to try."""
    for request in (signed_get(), forge(get(), [('"@method"', "GET")], by=OTHER.sign)):
        found = diagnosed(INVALID, evolve(request, target_uri="*"))
        assert [cause.name for cause in found.causes] == ["unknown"]


def test_component_without_value() -> None:
    """A line of the base that could not be built says so, and the signature could not be verified."""
    text = str(refused(forge(get(), [*get_lines(), ('"x-a"', "x"), ('"x-b";sf;key="a"', "")])))
    assert '\n    "x-a": <no value>\n    "x-b";sf;key="a": <no value>\n' in text
    assert "this signature could not be verified" in text


def test_several_signatures() -> None:
    """Signatures by known keys come first, and no more are shown than the verifier looks at."""
    request = sign(sign(get(), OTHER, created=NOW), KEY, created=NOW_S + 100, label="mine")
    request = sign(request, KEY, created=NOW, components=("@method",), label="short")
    shown = [line.split()[0] for line in str(refused(request)).splitlines() if " by keyid " in line]
    assert shown == ["mine", "short", "sig1"]
    assert "made 100 s ahead of our clock: this signature is valid for the base" in str(refused(request))
    for number in range(4):
        request = sign(request, OTHER, created=NOW, label=f"sig-{number}")
    assert str(refused(request)).count(" by keyid ") == SIGNATURES_MAX


def test_signature_in_the_shape_of_an_sdk() -> None:
    """A shape that the policy allows is diagnosed like any other form, with the base that the SDK signs."""
    found = refused(evolve(RUST_GET, target_uri=URL.replace("https", "http")), policy=Policy(shapes=[Shape.RUST_SDK]))
    assert (found.causes[0].name, found.causes[0].proved) == ("scheme", True)
    last = f'"@signature-params": (@method @target-uri content-type authorization);created={NOW_S};keyid="key-1"'
    assert str(found).endswith(last)
    php = evolve(PHP_GET, method="PUT")
    assert refused(php, policy=Policy(shapes=[Shape.PHP_SDK])).causes[0].name == "method"
    assert refused(evolve(signed_get(), method="PUT"), policy=Policy(shapes=[*Shape])).causes[0].name == "method"


def test_component_is_that_of_the_signature_that_lacks_it() -> None:
    """A signature that covers everything, and fails for something else, is not said to lack a component."""
    complete = forge(get(), get_lines(), f';keyid="key-1";created={NOW_S};alg="none"')
    short = sign(complete, KEY, created=NOW, components=("@method", "@target-uri"), label="short")
    one_line = put(short, "Signature-Input", ", ".join(short.values("signature-input")))
    assert str(refused(one_line).causes[0]) == 'proved: the signature does not cover "authorization"'


def test_signature_without_keyid_and_created() -> None:
    """The report says that a signature names neither key nor time."""
    assert "  sig1 without keyid, without created: " in str(refused(forge(get(), get_lines(), "")))


def test_fields_that_cannot_be_read() -> None:
    """Nothing of an unreadable field is shown, because a secret could stand anywhere in it."""
    request = put(signed_get(), "Signature-Input", f"sig1=(x\n{'A' * 86};nonce=OS9M;keyid=k")
    text = str(refused(request))
    assert text.endswith("\n  no signature could be read")
    assert ("OS9M" in text, "AAAA" in text) == (False, False)


# --- secrets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("GNAP token", "GNAP <redacted, 5 characters>"),
        ("gnap  token", "gnap <redacted, 5 characters>"),
        ("Bearer a", "Bearer <redacted, 1 character>"),
        ("token", "<redacted, 5 characters>"),
        ("Secret token", "<redacted, 12 characters>"),
        ("", "<redacted, 0 characters>"),
    ],
)
def test_token_is_hidden(value: str, shown: str) -> None:
    """Only a known scheme is shown, because an unknown one may be a token."""
    text = str(refused(sign(put(get(), "Authorization", value), OTHER, created=NOW)))
    assert f'\n    "authorization": {shown}\n' in text


def test_unknown_fields_are_hidden() -> None:
    """Fields are shown by a list; fields with parameters, query values, nonces and unknown parameters are hidden."""
    url = f"{URL}?a=secret"
    headers = (("X-Api-Key", "secret"), ("Cookie", "a=secret"), ("Content-Type", "text/plain"))
    lines = [
        ('"x-api-key"', "secret"),
        ('"cookie"', "a=secret"),
        ('"content-type"', "text/plain"),
        ('"content-type";bs', ":dGV4dC9wbGFpbg==:"),
        ('"@query-param";name="a"', "secret"),
        ('"@query"', "?a=secret"),
    ]
    params = f';created={NOW_S};keyid="no";nonce="secret";tag="t";x="secret";y=secret;z'
    text = str(refused(forge(get(*headers, url=url), [*get_lines(url), *lines], params)))
    assert text.splitlines()[-7:-1] == [
        '    "x-api-key": <redacted, 6 characters>',
        '    "cookie": <redacted, 8 characters>',
        '    "content-type": text/plain',
        '    "content-type";bs: <redacted, 18 characters>',
        '    "@query-param";name="a": <redacted, 6 characters>',
        '    "@query": ?a=<redacted, 6 characters>',
    ]
    shown = ';nonce="<redacted, 6 characters>";tag="t";x="<redacted, 6 characters>";y=<redacted, 6 characters>;z'
    assert text.endswith(f';created={NOW_S};keyid="no"{shown}')


def test_secret_in_another_place_is_hidden() -> None:
    """A token is hidden where it does not belong: in the path, the keyid, the label and Host."""
    token = "os9m2pmhkur64tb8n6bw7ozb8cdfonp2"
    request = RequestMessage(
        "GET", f"{HOST}/{token}", (("Authorization", f"GNAP {token}"), ("Host", f"{token}.example"))
    )
    found = refused(sign(request, evolve(KEY, kid=f"key {token}"), created=NOW, label=token))
    assert token[:8] not in repr(found) + str(found)
    assert 'by keyid "<redacted, 36 characters>"' in str(found)


def test_secret_in_another_spelling_is_hidden() -> None:
    """A token is hidden when it is percent-encoded, as in a URL, and when its case differs."""
    token = "A1B2C3+D4E5F6/G7H8I9="
    request = put(get(url=f"{URL}/A1B2C3%2bD4E5F6%2FG7H8I9%3D/y"), "Authorization", f"GNAP {token}")
    assert '"@target-uri": <redacted, ' in str(refused(sign(request, OTHER, created=NOW)))
    token = "OS9M2PMHKUR64TB8"
    signed = sign(evolve(put(get(), "Authorization", f"GNAP {token}"), method=token.lower()), KEY, created=NOW)
    found = refused(evolve(signed, method=token))
    assert [cause.name for cause in found.causes] == ["method"]
    assert token.lower() not in str(found)


def test_signature_in_another_field_is_hidden() -> None:
    """A signature is hidden when the client copies it into its keyid."""
    request = signed_get()
    signature = request.values("signature")[0][6:-1]
    given = request.values("signature-input")[0].replace("key-1", signature)
    assert signature[:8] not in str(refused(put(request, "Signature-Input", given)))


# --- bounds ------------------------------------------------------------------------------------


def counted(request: RequestMessage) -> tuple[int, str]:
    """Return how many signatures are computed to diagnose `request`, and the report."""
    CountedKey.uses = 0
    key = KEY.public_key()
    found = diagnosed(INVALID, request, {"key-1": CountedKey(key.kid, key.algorithm, key._key)})
    return CountedKey.uses, str(found)


def test_verifications_are_bounded() -> None:
    """All hypotheses are tried for one signature; for four signatures the report says that some were not."""
    hostile = forge(
        get(("Host", "a.example"), ("X-Forwarded-Host", "b.example"), url=f"{URL}/a/b/c?d=e"),
        get_lines(),
        by=OTHER.sign,
    )
    uses, text = counted(hostile)
    assert 50 < uses <= EXPLAIN_VERIFICATIONS_MAX
    assert "too many possible mistakes" not in text
    for number in range(3):
        hostile = forge(hostile, [*get_lines(), ('"host"', "x")], by=OTHER.sign, label=f"a{number}")
    uses, text = counted(hostile)
    assert uses == EXPLAIN_VERIFICATIONS_MAX + SIGNATURES_MAX  # each signature is shown with its own base
    assert "too many possible mistakes" in text


def test_digests_are_bounded() -> None:
    """However many digests a request claims, a bounded number of bodies is hashed."""
    digests = ", ".join(f"sha-512=:{b64encode(bytes([number]) * 64).decode()}:" for number in range(100))
    found = refused(digested(digests))
    assert "too many possible mistakes" not in str(found)


def test_causes_are_bounded() -> None:
    """A report names the first few causes."""
    request = signed_post()
    for code in Code:
        found = diagnosed(SignatureRefused(code, "because"), request)
        assert 1 <= len(found.causes) <= EXPLAIN_CAUSES_MAX


def test_reports_are_bounded() -> None:
    """A report has a bounded number of characters, and so has a value in it."""
    names = [(f"x-{number}-{'k' * 80}", "1") for number in range(60)]
    lines = [(f'"{name}"', value) for name, value in names]
    text = str(refused(forge(get(*names), [*get_lines(), *lines], by=OTHER.sign)))
    assert len(text) < EXPLAIN_CHARS_MAX + 100
    assert text.endswith(" characters left out)")
    text = str(refused(evolve(signed_get(), target_uri=f"{HOST}/{'a' * 5000}?{'b=c&' * 1000}")))
    assert f'"@target-uri": {HOST}/{"a" * 180}... (5020 characters)?<redacted, 4000 characters>\n' in text

"""Explaining a refusal: each honest mistake is made with a real key, and the report names it; no secret is in it."""

import hashlib
import itertools
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import pytest
from attrs import evolve
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from attacks.rows import Attack
from attacks.signatures import attacks
from incoming_payments.errors import InvalidValue, SignatureRefused
from incoming_payments.httpsig import (
    Algorithm,
    Policy,
    PrivateKey,
    PublicKey,
    Reason,
    Report,
    Request,
    Shape,
    content_digest,
    explain,
    parse_signature_input,
    sign,
    signature_base,
    verify,
)
from incoming_payments.httpsig._case import Drafter, Trial, open_case
from incoming_payments.httpsig._hypotheses import ADVICE, HYPOTHESES, _first
from incoming_payments.httpsig._redaction import Redactor
from incoming_payments.limits import EXPLAIN_CHARS_MAX, EXPLAIN_VERIFICATIONS_MAX
from signed_requests import (
    BODY,
    KEY,
    KEYS,
    NOW,
    NOW_S,
    OTHER,
    SCENE,
    URL,
    get,
    post,
    put,
    replace,
    signed_get,
    signed_post,
)
from signing_keys import pem, private, rsa_key

HOST: Final = "https://ase.example"
ATTACKS: Final = list(attacks(SCENE))
BOTH: Final = {**KEYS, OTHER.kid: OTHER.public_key()}
MOUNTED: Final = f"{HOST}/op/incoming-payments"


def report(
    request: Request,
    *,
    keys: Mapping[str, PublicKey] = KEYS,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    late_s: float = 0,
    refusal: SignatureRefused | None = None,
) -> Report:
    """`explain` with what most tests give it."""
    return explain(request, keys, policy=policy, now=NOW + timedelta(seconds=late_s), refusal=refusal)


def get_lines(url: str = URL, token: str = "GNAP token") -> list[tuple[str, str]]:  # noqa: S107 - a made-up token
    """What has to be covered of `get()`."""
    return [('"@method"', "GET"), ('"@target-uri"', url), ('"authorization"', token)]


def forge(
    request: Request,
    lines: list[tuple[str, str]],
    params: str | None = None,
    *,
    key: PrivateKey = KEY,
    label: str = "sig1",
) -> Request:
    """`request` with a signature by `key` over exactly `lines`."""
    return SCENE.forge(request, lines, params, by=key.sign, label=label)


def sent_as(url: str, *headers: tuple[str, str], received: str = URL, body: bytes = b"") -> Request:
    """A request that its client signed for `url`, as it arrives at a service that believes itself at `received`."""
    request = Request("POST" if body else "GET", url, (("Authorization", "GNAP token"), *headers), body)
    return evolve(sign(request, KEY, created=NOW), target_uri=received)


def digested(digest: str, body: bytes = BODY) -> Request:
    """A signed POST whose signer made its digest in a way of its own."""
    return sign(post(("Content-Digest", digest), body=body), KEY, created=NOW, digest=None)


def reserialised(write: Callable[[Any], str], body: bytes = BODY) -> Request:
    """A signed POST whose digest is of what `write` makes of its body."""
    return digested(content_digest(write(json.loads(body)).encode()), body)


def input_with(old: str, new: str, request: Request | None = None) -> Request:
    """A signed GET whose client wrote, and signed, a piece of Signature-Input otherwise."""
    given = (request or signed_get()).values("signature-input")[0].replace(old, new)
    lines = "".join(f"{identifier}: {value}\n" for identifier, value in get_lines())
    inner_list = given.partition("=")[2]
    signature = b64encode(KEY.sign(f'{lines}"@signature-params": {inner_list}'.encode())).decode()
    return put(put(signed_get(), "Signature-Input", given), "Signature", f"sig1=:{signature}:")


def signed_over(change: Callable[[str], str | bytes]) -> Request:
    """A signed GET whose signature is over what `change` makes of the signature base."""
    request = signed_get()
    given = parse_signature_input(request.values("signature-input"))["sig1"]
    changed = change(signature_base(request, given.components, given.parameters).decode())
    octets = changed.encode() if isinstance(changed, str) else changed
    return put(request, "Signature", f"sig1=:{b64encode(KEY.sign(octets)).decode()}:")


def signature(change: Callable[[bytes], bytes]) -> Request:
    """A signed GET with its signature in another form."""
    octets = b64decode(signed_get().values("signature")[0][6:-1])
    return put(signed_get(), "Signature", f"sig1=:{b64encode(change(octets)).decode()}:")


def signature_text(change: Callable[[str], str]) -> Request:
    """A signed GET whose Signature is written otherwise."""
    return put(signed_get(), "Signature", change(signed_get().values("signature")[0]))


def rust_sdk() -> Request:
    """A GET as the Rust SDK signs it: it covers content-type always, and writes neither quotes, label nor colons."""
    names = ("@method", "@target-uri", "content-type", "authorization")
    values = ("GET", URL, "application/json", "GNAP token")
    params = f'({" ".join(names)});created={NOW_S};keyid="key-1"'
    lines = [f'"{name}": {value}' for name, value in zip(names, values, strict=True)]
    base = "\n".join([*lines, f'"@signature-params": {params}'])
    fields = (("Signature-Input", f"sig1={params}"), ("Signature", b64encode(KEY.sign(base.encode())).decode()))
    return get(("Content-Type", "application/json"), *fields)


def base64url(text: str) -> str:
    """A Signature in the other alphabet, without padding."""
    return text.replace("+", "-").replace("/", "_").replace("==:", ":")


CAVAGE: Final = 'keyId="key-1",algorithm="hs2019",headers="(request-target) date",signature="AAAA"'
METADATA: Final = b'{"walletAddress":"https://ase.example/alice","metadata":{"a":"\xc3\xa9 <b>","n":1.50}}'
JS: Final = (",", ":")

# name, what the client or its host does wrong, and a piece of the words
PROVED: Final[list[tuple[str, Request, str]]] = [
    # --- the form of the fields
    ("rust_sdk", rust_sdk(), "the form of the Rust SDK"),
    ("bare_signature", signature_text(lambda text: text[6:-1]), "no label"),
    ("php_sdk", signature_text(lambda text: text.replace(":", "")), "the form of the PHP SDK"),
    ("base64url", signature_text(base64url), "base64url"),
    ("base64url", signature_text(lambda text: text.replace("==:", ":")), "without padding"),
    ("quoted_signature", signature_text(lambda text: text.replace(":", '"')), "in quotes"),
    ("created_ms", input_with(str(NOW_S), f"{NOW_S}123"), "created is in milliseconds"),
    ("created_form", input_with(str(NOW_S), f'"{NOW_S}"'), "in quotes or has a fraction"),
    ("created_form", input_with(str(NOW_S), f"{NOW_S}.25"), "in quotes or has a fraction"),
    ("keyid_case", input_with("keyid", "keyId"), "upper-case letters: keyid="),
    ("label_case", signature_text(lambda text: text.replace("sig1", "Sig1")), "the label has upper-case letters"),
    ("unquoted_components", input_with('"@method"', "@method"), "not in double"),
    ("labels", signature_text(lambda text: text.replace("sig1", "sig2")), "one label in Signature-Input and another"),
    # --- the key
    ("another_kid", input_with('"key-1"', '"KEY-1"'), 'whose kid is "key-1"'),
    ("another_kid", input_with('keyid="key-1";', ""), 'whose kid is "key-1"'),
    # --- coverage
    ("legacy_digest", sign(post(("Digest", f"SHA-256={content_digest(BODY, 'sha-256')[9:-1]}")), KEY, created=NOW,
     digest=None), "the old Digest field"),
    ("not_covered", sign(get(), KEY, created=NOW, components=("@method",)), '"@target-uri", "authorization"'),
    ("not_covered", sign(post(), KEY, created=NOW, components=("@method", "@target-uri", "authorization")),
     'does not cover "content-digest"'),
    # --- time
    ("clock_skew", sign(get(), KEY, created=NOW_S + 312), "clock skew 312 s: created is 312 s in the future"),
    # --- the base
    ("field_dropped", put(signed_post(), "Content-Length"), "signed content-length, which did not arrive"),
    ("field_dropped", put(signed_post(), "Content-Digest"), "signed content-digest, which did not arrive"),
    ("field_dropped", put(put(signed_post(), "Content-Type"), "Content-Length"), "content-length, content-type"),
    ("field_absent", forge(get(), [*get_lines(), ('"x-a"', "undefined")]), '"x-a" as the text undefined'),
    ("field_absent", forge(get(), [*get_lines(), ('"x-a"', ""), ('"x-b"', "")]), '"x-a", "x-b" as empty'),
    ("repeated_on_purpose", forge(get(("Host", "a"), ("Host", "b")), [*get_lines(), ('"host"', "a, b")]),
     'the client itself sent "host" more than once'),
    ("repeated_on_the_way", forge(get(("Host", "a"), ("Host", "b")), [*get_lines(), ('"host"', "a")]), '"host" once'),
    ("repeated_on_the_way", forge(get(("Host", "a"), ("Host", "b")), [*get_lines(), ('"host"', "b")]), '"host" once'),
    # --- the digest
    ("digest_form", digested(f"sha-512=:{hashlib.sha512(BODY).hexdigest()}:"), "in hexadecimal digits and not"),
    ("digest_form", digested(f"sha-512=:{b64encode(hashlib.sha512(BODY).hexdigest().encode()).decode()}:"),
     "is base64 of the hexadecimal digits"),
    ("digest_form", digested(f"sha-512=:{b64encode(content_digest(BODY)[9:-1].encode()).decode()}:"),
     "base64 of base64"),
    ("digest_form", digested(content_digest(BODY, "sha-256").replace("256", "512")),
     "a sha-256 under the name sha-512"),
    ("digest_form", digested(content_digest(BODY).replace(":", "")), "is not between colons"),
    ("digest_form", digested(content_digest(BODY).replace("==:", ":")), "without padding"),
    ("digest_of_json", reserialised(lambda body: json.dumps(body, separators=JS, ensure_ascii=False),
     json.dumps(json.loads(METADATA)).encode()),
     "the body as compact JSON (JSON.stringify), and not of the bytes sent"),
    ("digest_of_json", reserialised(json.dumps), "json.dumps of Python"),
    ("digest_of_json", reserialised(lambda body: json.dumps(body, ensure_ascii=False), METADATA.replace(b".50", b"")),
     "a space after each comma and colon"),
    ("digest_of_json", reserialised(lambda body: json.dumps(body, separators=JS), METADATA.replace(b".50", b"")),
     "with \\u escapes"),
    ("digest_of_json", reserialised(lambda body: json.dumps(body, separators=JS).replace("/", "\\/")), "PHP"),
    ("digest_of_json", reserialised(lambda body: json.dumps(body, separators=JS, ensure_ascii=False).replace(
     "<", "\\u003c").replace(">", "\\u003e"), METADATA.replace(b".50", b"")), "json.Marshal of Go"),
    ("digest_of_json", reserialised(lambda body: json.dumps(body, indent=2)), "JSON indented by 2"),
    ("digest_of_json", reserialised(lambda body: json.dumps(body, indent=4) + "\n"), "by 4, with a newline after it"),
    ("digest_of_json", reserialised(lambda body: json.dumps(body, separators=JS, sort_keys=True), b'{"b":1,"a":2}'),
     "keys sorted"),
    ("digest_of_json", reserialised(json.dumps, b'{"a":"' + b"x" * 9000 + b'","b":1}'), "json.dumps of Python"),
    ("digest_of_bytes", digested(content_digest(BODY + b"\n")), "with a newline after it"),
    ("digest_of_bytes", digested(content_digest(b"a\nb"), b"a\r\nb"), "with LF for each CRLF"),
    ("digest_of_bytes", digested(content_digest(b"a\r\nb"), b"a\nb"), "with CRLF for each LF"),
    ("digest_of_bytes", digested(content_digest(b"\xef\xbb\xbfa"), b"a"), "with a byte order mark before it"),
    ("digest_of_bytes", digested(content_digest(b"a"), b"\xef\xbb\xbfa"), "without the byte order mark"),
    ("digest_of_bytes", digested(content_digest(json.dumps(BODY.decode()).encode())), "serialised twice"),
    ("digest_of_bytes", digested(content_digest(b"\xe9"), b"\xc3\xa9"), "encoded as latin-1"),
    ("digest_of_bytes", digested(content_digest(b"\xc3\xa9"), b"\xe9"), "encoded as UTF-8 twice"),
    ("digest_of_bytes", digested(content_digest(b64encode(BODY), "sha-256").replace(":", "")),
     "the body in base64, and not of the bytes sent; besides, it is not between colons"),
    ("digest_of_nothing", digested(content_digest(b"")), "an empty body"),
    ("digest_of_nothing", digested(content_digest(b"undefined")), "the text undefined"),
    ("one_digest_wrong", digested(f"{content_digest(BODY)}, {content_digest(b'x', 'sha-256')}"), "another is not"),
    ("content_length_lies", sign(put(post(), "Content-Length", "5"), KEY, created=NOW),
     "Content-Length alone is wrong"),
    ("digest_of_json", sign(evolve(post(("Content-Digest", content_digest(b'{"a":1}'))), body=b'{"a": 1}'), KEY,
     created=NOW, digest=None), "compact JSON (JSON.stringify)"),
    # --- the target
    ("scheme", sent_as(URL.replace("https", "http")), "the client signed http://ase.example/incoming-payments"),
    ("scheme", sent_as(URL, received=URL.replace("https", "http")), "has base_url the scheme"),
    ("host", sent_as("https://pay.example/incoming-payments", ("Host", "pay.example")), "https://pay.example/"),
    ("host", sent_as("https://pay.example:8443/incoming-payments", ("X-Forwarded-Host", "pay.example:8443")), "8443"),
    ("host", sent_as(URL, received=URL.replace("ase", "ASE")), "the host"),
    ("port", sent_as(f"{HOST}:443/incoming-payments"), f"{HOST}:443/"),
    ("port", sent_as(URL, received=f"{HOST}:8443/incoming-payments"), "the port"),
    ("trailing_slash", sent_as(f"{URL}/"), "the slash at the end"),
    ("trailing_slash", sent_as(URL, received=f"{URL}/"), "the slash at the end"),
    ("mount", sent_as(URL, received=MOUNTED), "has base_url the path that clients use?"),
    ("mount", sent_as(MOUNTED, ("X-Forwarded-Prefix", "/op")), "has base_url the path"),
    ("dot_segments", sent_as(f"{HOST}/x/incoming-payments", received=f"{HOST}/x/./incoming-payments"), "dot segments"),
    ("dot_segments", sent_as(URL, received=f"{HOST}/x/../incoming-payments"), "dot segments"),
    ("query", sent_as(URL, received=f"{URL}?first=10"), "the queries differ"),
    ("query", sent_as(f"{URL}?", received=URL), "the queries differ"),
    ("query", sent_as(f"{URL}?a=b+c", received=f"{URL}?a=b%20c"), "the queries differ"),
    ("query", sent_as(f"{URL}?a=b%20c", received=f"{URL}?a=b+c"), "the queries differ"),
    ("percent_encoding", sent_as(f"{URL}/a~b", received=f"{URL}/a%7Eb"), "percent-encoding"),
    ("percent_encoding", sent_as(f"{URL}/%c3%a9", received=f"{URL}/%C3%A9"), "percent-encoding"),
    ("percent_encoding", sent_as(f"{URL}/%C3%A9", received=f"{URL}/%c3%a9"), "percent-encoding"),
    ("percent_encoding", evolve(forge(get(), get_lines(f"{URL}/a b")), target_uri=f"{URL}/a%20b"), "percent-encoding"),
    ("direct", sent_as("http://127.0.0.1:8080/incoming-payments", ("Host", "127.0.0.1:8080"), received=MOUNTED),
     "http://127.0.0.1:8080/incoming-payments: it calls us past the address in base_url"),
    ("two_targets", sent_as(f"http://ase.example:80{URL.removeprefix(HOST)}"), "http://ase.example:80/"),
    ("two_targets", sent_as(f"{URL.replace('https', 'http')}/"), "is base_url the URL that clients use?"),
    # --- the method and the fields
    ("method", forge(get(), [('"@method"', "get"), *get_lines()[1:]]), 'the method as "get"'),
    ("method", evolve(signed_get(), method="HEAD"), 'the method as "GET"'),
    ("token", forge(get(), get_lines(token="token")), "the token alone, without GNAP"),
    ("token", forge(get(), get_lines(token="Bearer token")), "Bearer"),
    ("token", forge(get(), get_lines(token="gnap token")), "gnap in lower case"),
    ("token", forge(get(), get_lines(token="")), "it was empty"),
    ("token", forge(get(), get_lines(token="GNAP")), "the scheme without a token"),
    ("token", forge(get(), get_lines(token="GNAP undefined")), "as undefined"),
    ("lines_joined", forge(get(("X-A", "1"), ("X-A", "2")), [*get_lines(), ('"x-a"', "1,2")]), "no space"),
    ("lines_joined", forge(get(("X-A", "1"), ("X-A", "2")), [*get_lines(), ('"x-a"', "2")]), "the last line alone"),
    ("lines_joined", forge(get(("X-A", "1"), ("X-A", "2")), [*get_lines(), ('"x-a"', "2, 1")]), "the other way round"),
    ("white_space", forge(get(("X-A", " 1 ")), [*get_lines(), ('"x-a"', " 1 ")]), "the white space around a value"),
    # --- the parameters
    ("created_twice", replace(signed_get(), "Signature-Input", str(NOW_S), str(NOW_S + 1)), f"created={NOW_S}"),
    ("created_ms_signed", signed_over(lambda base: base.replace(str(NOW_S), f"{NOW_S}000")), f"created={NOW_S}000"),
    ("created_ms_signed", signed_over(lambda base: base.replace(str(NOW_S), f'"{NOW_S}"')), f'created="{NOW_S}"'),
    ("parameter_order", replace(signed_get(), "Signature-Input", f';keyid="key-1";created={NOW_S}',
     f';created={NOW_S};keyid="key-1"'), "keyid, created"),
    ("parameter_left_out", replace(signed_get(), "Signature-Input", f"{NOW_S}", f'{NOW_S};alg="ed25519"'), "sent: alg"),
    ("parameter_left_out", signed_over(lambda base: base.partition(";")[0]), "sent: all of them"),
    ("component_order", replace(signed_get(), "Signature-Input", '"@method" "@target-uri"', '"@target-uri" "@method"'),
     '"@method" "@target-uri" "authorization"'),
    ("component_order", replace(signed_post(), "Signature-Input", '"@method" "@target-uri" "authorization"',
     '"authorization" "@target-uri" "@method"'), '"@method" "@target-uri" "authorization" "content-digest"'),
    # --- the base
    ("base_shape", signed_over(lambda base: f"{base}\n"), "closed with a newline"),
    ("base_shape", signed_over(lambda base: base.replace("\n", "\r\n")), "CRLF"),
    ("base_shape", signed_over(lambda base: base.replace('": ', '":')), "without the space after each colon"),
    ("base_shape", signed_over(lambda base: base.replace("params\": (", "params\": sig1=(")), "with the label"),
    ("base_shape", signed_over(lambda base: base.rpartition("\n")[0]), "without its last line"),
    ("base_shape", signed_over(lambda base: base.replace('"@signature-params"', "@signature-params")),
     "quotes around @"),
    ("base_hashed", signed_over(lambda base: hashlib.sha256(base.encode()).digest()), "its SHA-256"),
    ("base_hashed", signed_over(lambda base: hashlib.sha512(base.encode()).hexdigest()), "its SHA-512 in hexadecimal"),
    # --- the signature
    ("signature_encoding", signature(lambda octets: octets.hex().encode()), "base64 of its hexadecimal digits"),
    ("signature_encoding", signature(b64encode), "base64 twice"),
]  # fmt: skip

LIKELY: Final[list[tuple[str, Request, str]]] = [
    ("undefined", signature_text(lambda _: "undefined"), "Signature is the text undefined"),
    ("undefined", put(put(get(), "Signature", "undefined"), "Signature-Input", "undefined"), "the Node client"),
    ("undefined", put(get(), "Signature", "undefined"), "a layer under the signer"),
    ("undefined", signature_text(lambda _: "sig1=:undefined:"), "Signature is the text undefined"),
    ("cavage", put(get(), "Signature", CAVAGE), "draft-cavage"),
    ("cavage", put(get(), "Authorization", f"Signature {CAVAGE}"), "draft-cavage"),
    ("one_field", put(signed_get(), "Signature"), "only Signature-Input arrived"),
    ("one_field", put(signed_get(), "Signature-Input"), "only Signature arrived"),
    ("php_sdk", signature_text(lambda _: f"sig1={'A' * 86}=="), "PHP"),
    ("near_kid", sign(get(), evolve(OTHER, kid="Key-1 "), created=NOW), "case and white space count"),
    ("near_kid", sign(get(), evolve(OTHER, kid="https://me.example/jwks.json#key-1"), created=NOW), "a URL that ends"),
    ("url_kid", sign(get(), evolve(OTHER, kid="https://me.example/"), created=NOW), "keyid is a URL"),
    ("thumbprint", sign(get(), evolve(OTHER, kid="A" * 43), created=NOW), "JWK thumbprint"),
    ("alg_jose", forge(get(), get_lines(), f';keyid="key-1";created={NOW_S};alg="EdDSA"'), 'alg="ed25519"'),
    ("alg_secret", forge(get(), get_lines(), f';keyid="key-1";created={NOW_S};alg="hmac-sha256"'), "shared secrets"),
    ("no_time", sign(get(), KEY, created=0), "created=0"),
    ("time_zone", sign(get(), KEY, created=NOW_S - 7198), "created is 2 h behind"),
    ("resent", sign(get(), KEY, created=NOW_S - 4000), "sent again 4000 s after it was signed"),
    ("duration", sign(get(), KEY, created=NOW, expires=300), "expires=300 is a duration"),
    ("body_changed", evolve(signed_post(), body=BODY.replace(b"alice", b"bobby")), "the body was changed after that"),
    ("length_in_characters", sign(put(post(("Content-Digest", content_digest(b"x")), body=b"\xc3\xa9"),
     "Content-Length", "1"), KEY, created=NOW, digest=None), "the number of characters"),
    ("signature_length", signature(lambda octets: octets[:-1]), "63 bytes, and one by EdDSA has 64"),
    ("advice", forge(get(), get_lines(), key=OTHER), "another private key signed"),
    ("body_changed", digested(content_digest(b"x"), b"\xff"), "the body was changed after that"),
    ("body_changed", digested(content_digest(b"x"), b"[" * 1001), "the body was changed after that"),
    ("body_changed", digested(content_digest(b"x"), b'{"a":"' + b"x" * 9000 + b'"}'),
     "the body was changed after that"),
    ("advice", get(), "does not sign its requests"),
    ("advice", sent_as(f"{HOST}/op{URL.removeprefix(HOST)}", ("X-Forwarded-Prefix", "op")), "another private key"),
    ("advice", evolve(sign(get(("X-A", "1"), ("X-A", "2")), KEY, created=NOW, components=(
     "@method", "@target-uri", "authorization", "x-a")), target_uri=f"{HOST}/elsewhere"), "another private key"),
]  # fmt: skip


def refused(request: Request, *, keys: Mapping[str, PublicKey] = KEYS) -> SignatureRefused:
    """What `verify` says of it."""
    with pytest.raises(SignatureRefused) as caught:
        verify(request, keys, policy=Policy(), now=NOW)
    return caught.value


@pytest.mark.parametrize(("name", "request_", "words"), PROVED, ids=[f"{row[0]}: {row[2]}" for row in PROVED])
def test_mistakes_that_can_be_proved(name: str, request_: Request, words: str) -> None:
    """The mistake that was made is the first cause, it is proved, and the reason is that of the verifier."""
    found = report(request_)
    cause = found.causes[0]
    assert (name, True, refused(request_).reason) == (cause.name, cause.proved, found.reason)
    assert words in cause.text
    assert f"  proved: {cause.text}\n" in f"{found}\n"


@pytest.mark.parametrize(("name", "request_", "words"), LIKELY, ids=[f"{row[0]}: {row[2]}" for row in LIKELY])
def test_mistakes_that_can_only_be_recognised(name: str, request_: Request, words: str) -> None:
    """It is the first cause, and nothing is said to be proved."""
    found = report(request_)
    assert (name, False, refused(request_).reason) == (found.causes[0].name, found.causes[0].proved, found.reason)
    assert not any(cause.proved for cause in found.causes)
    assert words in found.causes[0].text
    assert f"  likely: {found.causes[0].text}\n" in f"{found}\n"


# Besides that something required is not covered, what is covered in its place.
INSTEAD: Final = [
    ("names_upper_case", forge(get(), [*get_lines()[:2], ('"Authorization"', "GNAP token")]), '"Authorization"'),
    ("names_with_parameters", forge(get(), [*get_lines()[:2], ('"authorization";bs', ":R05BUCB0b2tlbg==:")]), ";bs"),
    ("old_target", forge(get(), [get_lines()[0], ('"@path"', "/incoming-payments"), get_lines()[2]]), '"@path"'),
]


@pytest.mark.parametrize(("name", "request_", "words"), INSTEAD, ids=[row[0] for row in INSTEAD])
def test_what_is_covered_instead(name: str, request_: Request, words: str) -> None:
    """What is not covered comes first, as that is certain; then what may have been meant."""
    first, second = report(request_).causes
    assert ("not_covered", name) == (first.name, second.name)
    assert words in second.text


def test_another_key_of_the_client() -> None:
    """The right keyid, and another key: proved, where the client has several."""
    request = forge(get(), get_lines(), key=OTHER)
    assert report(request, keys=BOTH).causes[0].name == "other_key"
    assert str(report(request, keys=BOTH).causes[0]).endswith('another key of this client, whose kid is "key-2"')


@pytest.mark.parametrize(("algorithm", "octets"), [(Algorithm.ES256, 32), (Algorithm.ES384, 48)])
def test_der(algorithm: Algorithm, octets: int) -> None:
    """An ECDSA signature as most libraries give it."""
    key = private(algorithm)
    request = sign(get(), key, created=NOW)
    raw = b64decode(request.values("signature")[0][6:-1])
    der = encode_dss_signature(int.from_bytes(raw[:octets]), int.from_bytes(raw[octets:]))
    sent = put(request, "Signature", f"sig1=:{b64encode(der).decode()}:")
    [cause] = report(sent, keys={key.kid: key.public_key()}).causes
    assert (cause.name, cause.proved) == ("signature_encoding", True)
    assert "is in DER" in cause.text


@pytest.mark.parametrize("algorithm", [Algorithm.RS256, Algorithm.PS256, Algorithm.PS384])
def test_another_algorithm_with_the_right_key(algorithm: Algorithm) -> None:
    """RSA keys can be used in four ways, and the JWK names one."""
    signer = PrivateKey.from_pem(pem(rsa_key()), kid="key-1", algorithm=algorithm)
    keys = {"key-1": PrivateKey.from_pem(pem(rsa_key()), kid="key-1", algorithm=Algorithm.PS512).public_key()}
    [cause] = report(sign(get(), signer, created=NOW), keys=keys).causes
    assert (cause.name, cause.proved) == ("other_algorithm", True)
    assert f"by {algorithm.value}" in cause.text
    [cause] = report(evolve(sign(get(), signer, created=NOW), target_uri=f"{HOST}/elsewhere"), keys=keys).causes
    assert cause.name == "advice"


def test_every_hypothesis_has_its_test() -> None:
    """Each row of the table is tested above, by its name, which no other row has."""
    tested = {row[0] for row in (*PROVED, *LIKELY, *INSTEAD)} | {"other_key", "other_algorithm"}
    names = [row.name for row in HYPOTHESES]
    assert sorted({*names, "advice"}) == sorted(tested)
    assert len(names) == len(set(names))


def test_every_reason_has_its_advice() -> None:
    """So that there is a cause for each refusal, also those that have nothing to do with the signature itself."""
    hosts = ["key_unusable", "nonce_unsupported", "nonce_used", "request_repeated"]
    assert sorted([*Reason, *hosts]) == sorted(ADVICE)


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.id for attack in ATTACKS])
def test_attacks_are_explained_by_the_reason_of_the_verifier(attack: Attack) -> None:
    """Whatever a request is refused for, the report says so, and gives a cause."""
    found = report(attack.request, keys={attack.key.kid: attack.key.public_key()})
    assert found.reason == attack.reason
    assert found.causes
    assert str(found).startswith(f"signature refused, {attack.reason}: ")


# --- what else a report says -------------------------------------------------------------------

POST_BASE: Final = (
    '"@method": POST',
    '"@target-uri": https://other.example/?a=<redacted, 6 characters>&<redacted, 1 character>',
    '"authorization": GNAP <redacted, 5 characters>',
    '"content-digest": sha-512=:<redacted, 88 characters>:',
    f'"content-length": {len(BODY)}',
    '"content-type": application/json',
    (
        '"@signature-params": ("@method" "@target-uri" "authorization" "content-digest" "content-length" '
        f'"content-type");keyid="key-1";created={NOW_S}'
    ),
)


def test_report_as_text() -> None:
    """Reason, causes, and for the signature what it says of itself and the base, redacted."""
    found = report(evolve(signed_post(), target_uri="https://other.example/?a=secret&b"), late_s=2.4)
    [signature] = found.signatures
    assert signature.base == POST_BASE
    assert (
        signature.label,
        signature.key_id,
        signature.rule,
        signature.holds,
    ) == ("sig1", "key-1", "signature_invalid", False)
    assert signature.age_s == pytest.approx(2.4)
    heading = 'sig1 by keyid "key-1", made 2 s ago: signature_invalid; it does not hold over this base; the base'
    assert str(found).splitlines() == [
        f"signature refused, signature_invalid: {found.description}",
        f"  likely: {found.causes[0].text}",
        f"  {heading} as we built it:",
        *(f"    {line}" for line in POST_BASE),
    ]
    assert str(found).isascii()


@pytest.mark.parametrize("request_", [signed_get(), signed_post()], ids=["GET", "POST"])
def test_drafts_are_signature_bases(request_: Request) -> None:
    """What hypotheses are tried with is put together as the verifier does it."""
    given = parse_signature_input(request_.values("signature-input"))["sig1"]
    expected = signature_base(request_, given.components, given.parameters)
    assert expected == Drafter(request_).draft(given).base()


def test_a_good_request() -> None:
    """There is nothing to explain, and the report says so."""
    found = report(signed_get())
    assert (found.reason, found.causes) == (None, ())
    assert str(found).startswith("it is signed as it should be\n  sig1 by keyid")
    assert "nothing is wrong with it; it holds over this base" in str(found)


@pytest.mark.parametrize("reason", ["key_unusable", "nonce_used", "request_repeated", "nonce_unsupported", "of_a_host"])
def test_refusals_of_the_host(reason: str) -> None:
    """They are taken as they are, whatever the signature is like: the rule, and what to do about it."""
    found = report(signed_get(), keys={}, refusal=SignatureRefused(reason, "because (RFC 9421 §7.2.2)"))
    [cause] = found.causes
    assert (reason, "because (RFC 9421 section 7.2.2)") == (found.reason, found.description)
    assert (ADVICE.get(reason, "a rule of this host: see the description"), False) == (cause.text, cause.proved)
    assert "it could not be tried" in str(found)


def test_lines_that_could_not_be_built() -> None:
    """In their place stands why."""
    [signature] = report(forge(get(), [*get_lines(), ('"x-a"', ""), ('"x-b";sf;key="a"', "")])).signatures
    assert signature.base[3:5] == (
        '"x-a": <x-a is covered but absent: send it, or do not cover it (RFC 9421 section 2.5)>',
        '"x-b";sf;key="a": <x-b is covered but absent: send it, or do not cover it (RFC 9421 section 2.5)>',
    )
    assert signature.holds is None


def test_several_signatures() -> None:
    """Each has its own rule; those by known keys come first, and there are not more than the verifier looks at."""
    request = sign(sign(get(), OTHER, created=NOW), KEY, created=NOW_S + 100, label="mine")
    request = sign(request, KEY, created=NOW, components=("@method",), label="short")
    found = report(request)
    assert [(signature.label, signature.rule) for signature in found.signatures] == [
        ("mine", "created_in_future"),
        ("short", "component_not_covered"),
        ("sig1", "key_unknown"),
    ]
    assert "made 100 s ahead of our clock" in str(found)
    assert [signature.holds for signature in found.signatures] == [True, True, None]
    for number in range(4):
        request = sign(request, OTHER, created=NOW, label=f"sig-{number}")
    assert len(report(request).signatures) == 4
    assert "  and 3 signatures more" in str(report(request))


def test_one_good_signature_of_two() -> None:
    """The rule of a signature that is good is none, also where the host refuses for another reason."""
    request = sign(sign(get(), OTHER, created=NOW), KEY, created=NOW, label="mine")
    found = report(request, refusal=SignatureRefused("nonce_used", "again"))
    assert [(one.label, one.rule) for one in found.signatures] == [("mine", None), ("sig1", "key_unknown")]


def test_a_signature_in_the_shape_of_an_sdk() -> None:
    """Where the policy takes it, it is explained as any other, with the base as that SDK writes it."""
    policy = Policy(shapes=[Shape.RUST_SDK])
    verify(rust_sdk(), KEYS, policy=policy, now=NOW)
    found = report(evolve(rust_sdk(), target_uri=URL.replace("https", "http")), policy=policy)
    assert (found.causes[0].name, found.causes[0].proved) == ("scheme", True)
    expected = f'"@signature-params": (@method @target-uri content-type authorization);created={NOW_S};keyid="key-1"'
    assert expected == found.signatures[0].base[-1]
    php = report(
        evolve(signature_text(lambda text: text.replace(":", "")), method="PUT"), policy=Policy(shapes=[Shape.PHP_SDK])
    )
    assert php.causes[0].name == "method"
    strict = report(evolve(signed_get(), method="PUT"), policy=Policy(shapes=[*Shape]))
    assert strict.causes[0].name == "method"


def test_what_is_not_covered_is_that_of_the_signature_that_lacks_it() -> None:
    """One that covers all that it has to, and fails for something before that, is not spoken of."""
    complete = forge(get(), get_lines(), f';keyid="key-1";created={NOW_S};alg="none"')
    short = sign(complete, KEY, created=NOW, components=("@method", "@target-uri"), label="short")
    one_line = put(short, "Signature-Input", ", ".join(short.values("signature-input")))
    assert str(report(one_line).causes[0]) == 'proved: the signature does not cover "authorization"'


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("request_", [get(), signed_get(), signed_post()], ids=["unsigned", "GET", "POST"])
def test_a_reason_that_does_not_fit(request_: Request, reason: Reason) -> None:
    """A host may say what it will: there is a report all the same."""
    found = report(request_, refusal=SignatureRefused(reason, "because"))
    assert (found.reason, found.description) == (reason, "because")
    assert found.causes


def test_without_keyid_and_created() -> None:
    """What a signature does not say is said to be missing."""
    assert "  sig1 without keyid, without created: keyid_missing" in str(report(forge(get(), get_lines(), "")))


def test_fields_that_cannot_be_read() -> None:
    """Signature-Input is shown, but for what may be a signature or a nonce; of Signature, how long it is."""
    request = put(signed_get(), "Signature-Input", f"sig1=(x\n{'A' * 86};nonce=secret;a=secret;keyid=k")
    assert str(report(put(request, "Signature", "a", "bcd"))).splitlines()[-2:] == [
        "  Signature-Input: sig1=(x\\x0a<redacted>;nonce=<redacted>;a=<redacted>;keyid=k",
        "  Signature: 1 and 3 characters",
    ]
    assert str(report(get())).splitlines()[-2:] == ["  Signature-Input: absent or empty", "  Signature: absent"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ('sig1=(;nonce="a;b;CNONCE12";keyid="k"', 'sig1=(;nonce=<redacted>;keyid="k"'),
        ('sig1=(;nonce ="SECRETNONCE"', "sig1=(;nonce=<redacted>"),
        ('sig1=(;nonce:"SECRETNONCE"', "sig1=(;nonce:<redacted>"),
        ("sig1=(;nonce='a b c d e f';tag=\"t\"", 'sig1=(;nonce=<redacted>;tag="t"'),
        ('sig1=("@method"), nonce="SECRETNONCE"', 'sig1=("@method"), nonce=<redacted>'),
        ('sig1=(;keyid="k" "SECRETNONCE"', 'sig1=(;keyid="k" <redacted>'),
        ('sig1=(;keyid="SECRETNONCE', "sig1=(;keyid=<redacted>"),
        ("sig1=(;SECRETNONCE;SECRETNONCE=x", "sig1=(;<redacted>;<redacted>=<redacted>"),
        ("sig1=(@method content-digest x-a);created=5 ", "sig1=(@method content-digest x-a);created=5"),
        ('keyId="k",algorithm="hs2019",signature="QUJDREVG"', 'keyId="k",algorithm=<redacted>'),
    ],
)
def test_what_cannot_be_read_hides_what_would_be_hidden_otherwise(written: str, shown: str) -> None:
    """A nonce or a signature in the wrong form, or in the wrong place, is hidden as well."""
    text = str(report(put(signed_get(), "Signature-Input", written)))
    assert f"  Signature-Input: {shown}" == text.splitlines()[-2].rstrip()


def test_a_signature_before_the_text_undefined_is_not_shown() -> None:
    """The client may send both, and only the text is said."""
    request = signature_text(lambda text: f"{text}, sig2=undefined")
    found = report(request)
    assert "Signature is the text undefined:" in found.causes[0].text
    assert request.values("signature")[0][8:40] not in f"{found!r}{found}"


def test_time_without_a_zone() -> None:
    """The one thing that is the caller's to get right, as with `verify`."""
    with pytest.raises(InvalidValue, match="zone"):
        explain(get(), KEYS, policy=Policy(), now=NOW.replace(tzinfo=None))


@pytest.mark.parametrize(
    ("off_s", "expected"),
    [(3600, "1 h ahead"), (-3600, "1 h behind"), (1800, "0.5 h ahead"), (-19_800 + 60, "5.5 h behind"),
     (2700, None), (4000, None), (-17 * 3600, None)],
)  # fmt: skip
def test_time_zones(off_s: int, expected: str | None) -> None:
    """Clocks that are off by what a zone is, to two minutes, may be in a wrong one."""
    texts = [
        cause.text for cause in report(sign(get(), KEY, created=NOW_S + off_s)).causes if cause.name == "time_zone"
    ]
    assert (
        [] if expected is None else [f"created is {expected}: a clock, theirs or ours, is in the wrong time zone"]
    ) == texts


def test_clock_skew_is_proved_by_the_signature_only() -> None:
    """When it does not hold, somebody else may have written `created`."""
    changed = replace(signed_get(), "Signature-Input", str(NOW_S), str(NOW_S + 312))
    assert [(cause.name, cause.proved) for cause in report(changed).causes] == [("clock_skew", False)]


# --- secrets -----------------------------------------------------------------------------------


def test_no_report_of_an_attack_shows_a_secret() -> None:
    """Neither token nor signature nor digest nor body of any of the attacks."""
    for attack in ATTACKS:
        found = report(attack.request, keys={attack.key.kid: attack.key.public_key()})
        text = f"{found!r}{found}"
        signatures = [value.partition("=:")[2][:20] for value in attack.request.values("signature")]
        secrets = [*signatures, "walletAddress", content_digest(BODY)[9:30], content_digest(BODY, "sha-256")[9:30]]
        assert [secret for secret in secrets if len(secret) > 8 and secret in text] == [], attack.id


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
def test_authorization(value: str, shown: str) -> None:
    """Only a scheme that is known is shown, as else it may be a token."""
    [signature] = report(sign(put(get(), "Authorization", value), OTHER, created=NOW)).signatures
    assert f'"authorization": {shown}' == signature.base[2]


def test_fields_nobody_thought_of_are_hidden() -> None:
    """Fields are shown by a list; values of fields with parameters, of query parameters, and nonces never."""
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
    [signature] = report(forge(get(*headers, url=url), [*get_lines(url), *lines], params)).signatures
    assert signature.base[3:-1] == (
        '"x-api-key": <redacted, 6 characters>',
        '"cookie": <redacted, 8 characters>',
        '"content-type": text/plain',
        '"content-type";bs: <redacted, 18 characters>',
        '"@query-param";name="a": <redacted, 6 characters>',
        '"@query": ?a=<redacted, 6 characters>',
    )
    shown = ';nonce="<redacted, 6 characters>";tag="t";x="<redacted, 6 characters>";y=<redacted>;z=<redacted>'
    assert signature.base[-1].endswith(f';created={NOW_S};keyid="no"{shown}')


def test_a_secret_in_another_place_is_masked() -> None:
    """A token is hidden also where it does not belong: here in the path, the keyid, the label and a Host."""
    token = "os9m2pmhkur64tb8n6bw7ozb8cdfonp2"
    request = Request("GET", f"{HOST}/{token}", (("Authorization", f"GNAP {token}"), ("Host", f"{token}.example")))
    signed = sign(request, evolve(KEY, kid=f"key {token}"), created=NOW, label=token)
    text = repr(found := report(signed)) + str(found)
    assert token[:8] not in text
    assert f'{"*" * 32} by keyid "key{"*" * 33}"' in text


def test_a_secret_in_another_spelling_is_masked() -> None:
    """A token is hidden also percent-encoded, as a URL has to write it, and in small letters, as we might write it."""
    token = "A1B2C3+D4E5F6/G7H8I9="
    request = put(get(url=f"{URL}/A1B2C3%2bD4E5F6%2FG7H8I9%3D/y"), "Authorization", f"GNAP {token}")
    found = report(sign(request, OTHER, created=NOW))
    assert found.signatures[0].base[1] == f'"@target-uri": {URL}/{"*" * 27}/y'
    token = "OS9M2PMHKUR64TB8"
    signed = sign(evolve(put(get(), "Authorization", f"GNAP {token}"), method=token.lower()), KEY, created=NOW)
    found = report(evolve(signed, method=token))
    assert [cause.name for cause in found.causes] == ["method"]
    assert token.lower() not in str(found)


@pytest.mark.parametrize(
    ("secrets", "shown"), [(("A" * 9,), "*" * 9), (("A" * 9, "*" * 9), "#" * 9), (("A" * 9, "*" * 9, "#" * 9), "")]
)
def test_what_stands_for_a_secret_is_no_secret(secrets: tuple[str, ...], shown: str) -> None:
    """Whatever the secrets are, what is put in place of one is no piece of another."""
    request = put(sign(get(), evolve(OTHER, kid="A" * 9), created=NOW), "Cookie", *secrets)
    assert [shown] == [signature.key_id for signature in report(request).signatures]


# --- bounds ------------------------------------------------------------------------------------


class CountedKey(PublicKey):
    """A key that counts how often it is used."""

    uses = 0

    def verify(self, signature: bytes, data: bytes) -> bool:
        """As any key's."""
        type(self).uses += 1
        return super().verify(signature, data)


def counted(request: Request) -> tuple[int, Report]:
    """How many signatures are computed to explain `request`, without those to verify it."""
    CountedKey.uses = 0
    key = KEY.public_key()
    keys: dict[str, PublicKey] = {"key-1": CountedKey(key.kid, key.algorithm, key._key)}
    refusal = SignatureRefused(Reason.SIGNATURE_INVALID, "it does not fit")
    return CountedKey.uses, report(request, keys=keys, refusal=refusal)


def test_verifications_are_bounded() -> None:
    """One signature for which nothing holds can be tried with everything; of four, the report says that it was not."""
    hostile = forge(get(("Host", "a.example"), url=f"{URL}/a/b/c?d=e"), get_lines(), key=OTHER)
    _, found = counted(hostile)
    alone = CountedKey.uses
    assert "not all of them were tried" not in str(found)
    for number in range(3):
        hostile = forge(hostile, [*get_lines(), ('"host"', "x")], key=OTHER, label=f"a{number}")
    _, found = counted(hostile)
    assert f"more than {EXPLAIN_VERIFICATIONS_MAX} hypotheses: not all of them were tried" in str(found)
    assert 50 < alone <= EXPLAIN_VERIFICATIONS_MAX < CountedKey.uses <= EXPLAIN_VERIFICATIONS_MAX + 8


def test_no_more_bases_are_made_than_are_tried() -> None:
    """However many a request leads to: they are made one at a time, and none when the budget is spent."""
    redactor, made = Redactor(get()), itertools.count()
    case = open_case(forge(get(), get_lines(), key=OTHER), KEYS, Policy(), NOW_S, Reason.SIGNATURE_INVALID, redactor)
    endless = (Trial(f"{number}".encode()) for number in made)
    assert _first(case, lambda _case, _signed: endless, case.by_known_keys()) is None
    assert next(made) == EXPLAIN_VERIFICATIONS_MAX + 1
    assert case.is_exhausted


def test_reports_are_bounded() -> None:
    """In characters, whatever is sent."""
    names = [(f"X-{number}", "1") for number in range(60)]
    lines = [(f'"x-{number}";key="{"k" * 190}"', "1") for number in range(60)]
    found = report(forge(get(*names), [*get_lines(), *lines], key=OTHER))
    assert len(str(found)) < EXPLAIN_CHARS_MAX + 100
    assert str(found).endswith(" characters left out)")
    uri = report(evolve(signed_get(), target_uri=f"{HOST}/{'a' * 5000}?{'b=c&' * 1000}")).signatures[0].base[1]
    assert uri == f'"@target-uri": {HOST}/{"a" * 180}... (5020 characters)?<redacted, 4000 characters>'

"""Properties of every request and key: a parser returns a value or its one error, and no bit can be changed."""

import json
import re
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from incoming_payments.errors import MalformedField, MalformedKey, SignatureRefused
from incoming_payments.httpsig import (
    Algorithm,
    Code,
    Component,
    Policy,
    PrivateKey,
    Proof,
    PublicKey,
    RequestMessage,
    content_digest,
    fast,
    load_jwk,
    load_private_jwk,
    parse_signature,
    parse_signature_input,
    parse_string,
    sign,
    verify,
    verify_digest,
)
from incoming_payments.httpsig.fields import parse_dictionary
from incoming_payments.limits import HEADER_BYTES_MAX, SF_PARTS_MAX
from kits.both_paths import OnSlowPath, both, only_fast_path
from kits.signed_requests import KEY, KEYS, NOW, NOW_S, get, signed_get, signed_post

quick = settings(max_examples=200, deadline=None, derandomize=True)
many = settings(max_examples=1000, deadline=None, derandomize=True)
few = settings(max_examples=40, deadline=None, derandomize=True)

# Text that resembles a structured field: pieces of valid ones in any order, with arbitrary text between them
PIECES = [
    "sig1", "sig2", "=", "(", ")", ";", ",", " ", '"', "\\", ":", "?1", "@", "%", "'", "\t", "\n", "\0", "é", "==",
    '"@method"', '"@target-uri"', '"authorization"', '"content-digest"', ";created=", str(NOW_S), ';keyid="key-1"',
    ";sf", ";key=", ";bs", ";tr", ";req", ";name=", "sha-256", "sha-512", "1.5", "-", "()", "tok:en", '%"x"', ":AQ==:",
    "AQID",
]  # fmt: skip
nearly = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=12).map("".join)
field_lines = st.lists(nearly, min_size=1, max_size=2)
names = st.sampled_from(["Signature-Input", "Signature", "Content-Digest", "Content-Length", "Authorization", "X-A"])


def _outcome(request: RequestMessage, keys: dict[str, PublicKey] = KEYS, policy: Policy | None = None) -> Proof | Code:
    """Return the proof, or the reason of the refusal. Any other exception fails the test."""
    try:
        return verify(request, keys, policy=policy or Policy(), now=NOW)
    except SignatureRefused as refusal:
        return Code(refusal.code)


@quick
@given(
    method=st.one_of(st.sampled_from(["GET", "POST"]), st.text(max_size=4)),
    target=st.one_of(st.just("https://a.example/"), st.text(max_size=8), nearly),
    headers=st.lists(st.tuples(st.one_of(names, st.text(max_size=4)), nearly), max_size=8),
    body=st.binary(max_size=4),
)
def test_any_request_is_refused_with_a_reason(
    method: str, target: str, headers: list[tuple[str, str]], body: bytes
) -> None:
    """An arbitrary request is refused with a reason."""
    assert isinstance(_outcome(RequestMessage(method, target, tuple(headers), body)), Code)


@quick
@given(
    changes=st.lists(st.tuples(names, nearly), max_size=3),
    components=st.lists(nearly, max_size=3),
    params=nearly,
    body=st.binary(max_size=4),
)
@example(changes=[], components=['"@query-param";name="x"'], params="", body=b"")
def test_nearly_valid_request_is_refused_with_a_reason(
    changes: list[tuple[str, str]], components: list[str], params: str, body: bytes
) -> None:
    """A request with valid coverage and times, and nearly valid fields, is refused with a reason."""
    base = '"@method" "@target-uri" "authorization" "content-digest"'
    inner_list = f"({' '.join([base, *components])})"
    fields = (
        ("Signature-Input", f'sig1={inner_list};created={NOW_S};keyid="key-1"{params}'),
        ("Signature", f"sig1=:{b64encode(bytes(64)).decode()}:"),
    )
    request = get(("Content-Digest", content_digest(body)), *changes, *fields)
    assert isinstance(_outcome(evolve(request, body=body)), Code)


@quick
@given(lines=field_lines)
def test_any_field_is_a_value_or_the_one_error(lines: list[str]) -> None:
    """Each parser returns a value or raises its one error."""
    for parse in (parse_signature_input, parse_signature):
        with suppress(MalformedField):
            parse(lines)
    with suppress(MalformedField):
        assert type(parse_string(lines, "X")) is str
    with suppress(SignatureRefused):
        verify_digest(lines, b"")


labels = st.from_regex(r"[a-z*][a-z0-9_\-.*]{0,3}", fullmatch=True)


# Signature-Input as clients usually write it; with unusual pieces; and with changed characters
def _list_of(name: st.SearchStrategy[str], gap: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(st.tuples(name, gap), max_size=7).map(lambda pairs: "".join(map("".join, pairs))[:-1])


plain_names = st.sampled_from(['"@method"', '"@target-uri"', '"authorization"', '"x-a"', '""', '" "', '"; ("', '"A)"'])
odd_names = st.sampled_from(['"a\\"b"', '"é"', '"\t"', "tok", "1", '"a";sf', ":AQ==:", '"', "()", '"\x7f"'])
plain_keys = st.sampled_from(["created", "expires", "keyid", "alg", "nonce", "tag", "x", "*a.b"])
odd_keys = st.sampled_from(["Created", "1a", "", " created", "_"])
plain_values = st.one_of(
    st.integers(0, 10**15 - 1).map(str),
    st.sampled_from(["0", "00", "007", str(NOW_S), "253402300799", "253402300800", '""', '"5"', '";a=1"', '"k=("']),
    st.sampled_from([256, 257]).map(lambda size: f'"{"k" * size}"'),
)
odd_values = st.sampled_from(
    ["-1", "-0", "1.5", "1" * 16, "?1", "tok", ":AQ==:", "@5", '"\\""', "", '%"x"', '"é"', "٣", "()"]
)


def _inputs(
    names: st.SearchStrategy[str],
    gap: st.SearchStrategy[str],
    pairs: st.SearchStrategy[tuple[str, str]],
    ending: st.SearchStrategy[str],
) -> st.SearchStrategy[str]:
    parameters = st.lists(pairs.map(lambda pair: f";{pair[0]}={pair[1]}"), max_size=4).map("".join)
    return st.tuples(labels, _list_of(names, gap), parameters, ending).map(
        lambda pieces: f"{pieces[0]}=({pieces[1]}){pieces[2]}{pieces[3]}"
    )


usual_pairs = st.one_of(
    st.tuples(st.sampled_from(["created", "expires"]), st.integers(0, 10**11 - 1).map(str)),
    st.tuples(
        st.sampled_from(["keyid", "alg", "nonce", "tag"]),
        st.sampled_from(['""', '"5"', '";a=1"', '"k=("', f'"{"k" * 256}"']),
    ),
)
usual_inputs = _inputs(plain_names, st.just(" "), usual_pairs, st.just(""))
plain_inputs = _inputs(plain_names, st.just(" "), st.tuples(plain_keys, plain_values), st.just(""))
odd_inputs = _inputs(
    st.one_of(plain_names, plain_names, odd_names),
    st.sampled_from([" ", " ", " ", "  ", "", "\t", ","]),
    st.tuples(
        st.one_of(plain_keys, plain_keys, odd_keys),
        st.one_of(plain_values, plain_values, odd_values),
    ),
    st.sampled_from(["", "", "", " ", "\n", ";a", ", b=()", ', b=("x")', ","]),
)
edits = st.lists(
    st.tuples(
        st.integers(0, 120), st.sampled_from(["insert", "delete", "replace"]), st.sampled_from([*PIECES, "\x7f", "A"])
    ),
    min_size=1,
    max_size=3,
)


def _edited(text: str, changes: list[tuple[int, str, str]]) -> str:
    for place, how, piece in changes:
        at = place % (len(text) + 1)
        text = text[:at] + ("" if how == "delete" else piece) + text[at + (how != "insert") :]
    return text


mutated_inputs = st.tuples(plain_inputs, edits).map(lambda pair: _edited(*pair))


@many
@given(text=st.one_of(usual_inputs, plain_inputs, odd_inputs, mutated_inputs))
@example(text='sig1=("a"')
@example(text='sig1=("a");created=1;created=1')
@example(text=f"sig1=({' '.join([chr(34) * 2] * 64)})")
@example(text=f"sig1=({' '.join([chr(34) * 2] * 65)})")
@example(text=f'sig1=("a"){"".join([f";a{number}=1" for number in range(16)])}')
@example(text=f'sig1=("a"){"".join([f";a{number}=1" for number in range(17)])}')
@example(text=f'sig1=("{"a" * HEADER_BYTES_MAX}")')
@example(text=f'sig1=("{" " * SF_PARTS_MAX}")')
def test_fast_path_for_a_signature_input_agrees_with_the_parser(text: str) -> None:
    """The fast path and the parser return the same value with the same types, or raise the same error."""
    fast_path, specification = both([text])
    assert fast_path == specification


def outcome(text: str) -> object:
    """Return the value of the first member of the dictionary `text`, or the description of its error."""
    try:
        return next(iter(parse_dictionary([text], "X").items()))
    except MalformedField as error:
        return error.description


base64_like = st.one_of(
    st.binary(max_size=70).map(lambda data: b64encode(data).decode()),
    st.text("AQgwE4/+=-_:", max_size=9),
)


@many
@given(key=st.sampled_from(["sig1", "a", "*", "A", "1a", ""]), base64=base64_like)
def test_byte_sequence_reads_the_same_alone_and_beside_others(key: str, base64: str) -> None:
    """The short way for one byte sequence and the parser of all dictionaries return the same, or raise the same."""
    alone, beside = outcome(f"{key}=:{base64}:"), outcome(f"{key}=:{base64}:, zzz")
    assert alone == beside


@quick
@given(text=usual_inputs)
def test_usual_signature_input_takes_the_fast_path(text: str) -> None:
    """The test above compares two paths, and not the specification with itself."""
    keys = re.findall(r";([a-z]{3,})=", text)
    odd = "=()" in text or '"A)"' in text or len(set(keys)) < len(keys)
    with only_fast_path():
        try:
            fast.parse_signature_input([text])
        except OnSlowPath:
            assert odd
        else:
            assert not odd


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=4,
)
base64url = st.binary(max_size=50).map(lambda value: b64encode(value, b"-_").rstrip(b"=").decode())
members = st.sampled_from(
    ["kty", "crv", "alg", "kid", "x", "y", "n", "e", "d", "p", "q", "dp", "dq", "qi", "use", "key_ops", "k"]
)
member_values = st.one_of(
    st.sampled_from(["OKP", "EC", "RSA", "oct", "Ed25519", "P-256", "P-384", "sig", "AQAB", ["verify"], ["sign"]]),
    st.sampled_from([algorithm.value for algorithm in Algorithm]),
    base64url,
    json_values,
)
SHAPES = [
    {"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "k"},
    {"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": "k"},
    {"kty": "EC", "crv": "P-384", "alg": "ES384", "kid": "k"},
    {"kty": "RSA", "alg": "PS512", "kid": "k", "e": "AQAB"},
    {},
]


@quick
@given(shape=st.sampled_from(SHAPES), rest=st.dictionaries(members, member_values, max_size=6))
def test_any_jwk_is_a_key_or_the_one_error(shape: dict[str, object], rest: dict[str, object]) -> None:
    """A public or private JWK, as a mapping or as JSON, is a key or raises `MalformedKey`."""
    jwk = {**shape, **rest}
    loaders: tuple[Callable[[Any], object], ...] = (load_jwk, load_private_jwk)
    for load in loaders:
        for form in (jwk, json.dumps(jwk)):
            with suppress(MalformedKey):
                assert isinstance(load(form), PublicKey | PrivateKey)


@quick
@given(x=st.binary(min_size=32, max_size=32), signature=st.binary(max_size=100), data=st.binary(max_size=10))
def test_any_ed25519_key_refuses_any_signature(x: bytes, signature: bytes, data: bytes) -> None:
    """Arbitrary bytes are refused as a key, or are a key that refuses arbitrary signatures."""
    try:
        key = load_jwk({**SHAPES[0], "x": b64encode(x, b"-_").rstrip(b"=").decode()})
    except MalformedKey:
        return
    assert key.verify(signature, data) is False


@quick
@given(text=st.one_of(st.text(max_size=20), st.binary(max_size=20), json_values.map(json.dumps)))
def test_any_text_is_refused_as_a_jwk(text: str | bytes) -> None:
    """Arbitrary text raises `MalformedKey`."""
    with pytest.raises(MalformedKey):
        load_jwk(text)


printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12)
extra_fields = st.dictionaries(st.from_regex(r"x-[a-z0-9]{1,5}", fullmatch=True), printable, max_size=4)
order = st.permutations(["@method", "@target-uri", "authorization", "@path", "@query", "@authority", "@scheme"])


@few
@given(
    body=st.binary(max_size=40),
    extra=extra_fields,
    components=order,
    label=labels,
    nonce=st.one_of(st.none(), printable),
    tag=st.one_of(st.none(), printable),
    life_s=st.one_of(st.none(), st.integers(1, 1000)),
    alg=st.booleans(),
    digest=st.sampled_from(["sha-256", "sha-512"]),
)
def test_signed_request_is_proven(
    body: bytes,
    extra: dict[str, str],
    components: list[str],
    label: str,
    nonce: str | None,
    tag: str | None,
    life_s: int | None,
    alg: bool,
    digest: Any,
) -> None:
    """A signed request is proven with any label, order, parameters, additional components and body."""
    covered = [*components, *extra, *(["content-digest"] if body else [])]
    signed = sign(
        evolve(get(*extra.items()), body=body),
        KEY,
        created=NOW,
        components=covered,
        label=label,
        nonce=nonce,
        tag=tag,
        expires=None if life_s is None else NOW_S + life_s,
        alg_param=alg,
        digest=digest,
    )
    proof = _outcome(signed)
    assert isinstance(proof, Proof)
    assert (proof.signature_input.label, proof.key_id, proof.algorithm) == (label, "key-1", Algorithm.ED25519)
    assert proof.signature_input.components == tuple(Component(name) for name in covered)
    assert proof.created == NOW
    assert proof.expires == (None if life_s is None else NOW + timedelta(seconds=life_s))
    assert (proof.signature_input.nonce, proof.signature_input.tag) == (nonce, tag)


COVERED = ("authorization", "content-digest", "content-length", "content-type", "signature-input", "signature")


def _flips(request: RequestMessage) -> list[RequestMessage]:
    """Return one request for each bit of a covered part of `request`, with that bit changed."""
    flipped = [evolve(request, method=method) for method in _texts(request.method)]
    flipped += [evolve(request, target_uri=uri) for uri in _texts(request.target_uri)]
    for index, (name, value) in enumerate(request.headers):
        if name.lower() in COVERED:
            for other in _texts(value):
                headers = (*request.headers[:index], (name, other), *request.headers[index + 1 :])
                flipped.append(evolve(request, headers=headers))
    for index, octet in enumerate(request.body):
        for bit in range(8):
            body = request.body[:index] + bytes([octet ^ 1 << bit]) + request.body[index + 1 :]
            flipped.append(evolve(request, body=body))
    return flipped


def _texts(text: str) -> list[str]:
    octets = text.encode("latin-1")
    return [
        (octets[:index] + bytes([octet ^ 1 << bit]) + octets[index + 1 :]).decode("latin-1")
        for index, octet in enumerate(octets)
        for bit in range(8)
    ]


@pytest.mark.parametrize("request_", [signed_get(), signed_post()], ids=["GET", "POST"])
def test_request_with_a_changed_bit_is_refused(request_: RequestMessage) -> None:
    """Each bit of the method, the target, the covered fields, the signature fields and the body is protected."""
    assert isinstance(_outcome(request_), Proof)
    accepted = [request for request in _flips(request_) if isinstance(_outcome(request), Proof)]
    assert accepted == []

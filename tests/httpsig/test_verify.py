"""The decision: what is proven, and one row for each attack, by the precedence of its reason."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from frozen_values import assert_frozen
from incoming_payments.errors import InvalidValue, SignatureRefused
from incoming_payments.httpsig import (
    Algorithm,
    Component,
    Policy,
    Proof,
    PublicKey,
    Reason,
    Request,
    Shape,
    content_digest,
    load_jwk,
    sign,
    signature_base,
    verify,
)
from incoming_payments.limits import COMPONENTS_MAX, SIGNATURES_MAX
from signed_requests import (
    BODY,
    KEY,
    KEYS,
    NOW,
    NOW_S,
    OTHER,
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
from signing_keys import private

ALSO_OTHER = {**KEYS, OTHER.kid: OTHER.public_key()}


def check(
    request: Request,
    *,
    keys: Mapping[str, PublicKey] = KEYS,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    now: datetime = NOW,
) -> Proof:
    """`verify` with what most tests give it."""
    return verify(request, keys, policy=policy, now=now)


def reason(
    request: Request,
    *,
    keys: Mapping[str, PublicKey] = KEYS,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    now: datetime = NOW,
) -> Reason:
    """Why `request` is refused."""
    with pytest.raises(SignatureRefused) as caught:
        verify(request, keys, policy=policy, now=now)
    return Reason(caught.value.reason)


def get_with(params: str) -> Request:
    """A GET that is good but for its signature parameters."""
    return forge(get(), get_lines(), params)


def covering(*extra: tuple[str, str], request: Request | None = None) -> Request:
    """A GET that also covers `extra`, with the value its signer gives it."""
    return forge(request or get(), [*get_lines(), *extra])


def post_covering(request: Request, *names: str) -> Request:
    """A POST that covers what has to be and `names`, as plain fields."""
    fields = [(f'"{name}"', ", ".join(request.values(name))) for name in ("authorization", *names)]
    return forge(request, [('"@method"', "POST"), ('"@target-uri"', URL), *fields])


def digested(*headers: tuple[str, str], body: bytes = BODY, digest: str | None = None) -> Request:
    """An unsigned POST with a digest, the right one when no other is given."""
    return post(("Content-Digest", content_digest(body) if digest is None else digest), *headers, body=body)


# --- what is proven ----------------------------------------------------------------------------


def test_proof_of_the_node_clients_post() -> None:
    """The shape that npm @interledger/open-payments sends is proven, and the proof says what was."""
    request = signed_post()
    names = ("@method", "@target-uri", "authorization", "content-digest", "content-length", "content-type")
    assert request.values("signature-input") == (
        "sig1=(" + " ".join(f'"{name}"' for name in names) + f');keyid="key-1";created={NOW_S}',
    )
    proof = check(request)
    assert (proof.label, proof.key_id, proof.algorithm) == ("sig1", "key-1", Algorithm.ED25519)
    assert proof.components == tuple(Component(name) for name in names)
    assert (proof.created, proof.expires, proof.nonce, proof.tag) == (NOW, None, None, None)


def test_values_do_not_change() -> None:
    """What is proven is not changed by who acts on it, and a policy not between two requests."""
    assert_frozen(Policy(), verify(signed_post(), KEYS, policy=Policy(), now=NOW))


def test_a_proof_does_not_show_what_was_signed() -> None:
    """The access token is in it, and proofs may be logged."""
    assert "GNAP" not in repr(verify(signed_post(), KEYS, policy=Policy(), now=NOW))


def test_proof_names_what_was_signed_and_not_the_signature() -> None:
    """Two ECDSA signatures differ, over the same base; the next second has another."""
    key = private(Algorithm.ES256)
    policy = Policy()
    proofs = [
        verify(
            sign(get(), key, created=NOW + timedelta(seconds=late)), {key.kid: key.public_key()}, policy=policy, now=NOW
        )
        for late in (0, 0, 1)
    ]
    bases = [proof.base for proof in proofs]
    assert bases[0] == bases[1] != bases[2]
    assert bases[0] == signature_base(get(), proofs[0].components, (("keyid", key.kid), ("created", NOW_S)))
    assert len({proof.signature_input.signature_params for proof in proofs}) == 2


def test_proof_has_the_times_in_utc_and_the_rest() -> None:
    """`created` and `expires` are datetimes in UTC; nonce and tag come as they were signed."""
    request = sign(get(), KEY, created=NOW, expires=NOW + timedelta(seconds=9), nonce="n", tag="t", alg_param=True)
    proof = check(request, now=NOW.astimezone(timezone(timedelta(hours=-7))))
    assert (proof.created, proof.expires) == (NOW, NOW + timedelta(seconds=9))
    assert repr(proof.expires).endswith("tzinfo=datetime.timezone.utc)")
    assert (proof.nonce, proof.tag) == ("n", "t")


def test_complete_of_the_node_client() -> None:
    """Its `complete` has no body but a Content-Type, which is not covered then."""
    request = Request("POST", f"{URL}/1/complete", (("Authorization", "GNAP t"), ("Content-Type", "application/json")))
    assert len(check(sign(request, KEY, created=NOW)).components) == 3


def test_order_and_extra_components_are_the_signers() -> None:
    """Any order, further components, parameters that nobody knows: what counts is that the required ones are there."""
    lines = [('"x-a";bs', ":MQ==:"), ('"authorization"', "GNAP token"), ('"@path"', "/incoming-payments")]
    request = forge(get(("X-A", "1")), [*lines, *get_lines()[:2]], f';x=tok;created={NOW_S};keyid="key-1"')
    assert [component.name for component in check(request).components] == [
        "x-a",
        "authorization",
        "@path",
        "@method",
        "@target-uri",
    ]


def test_labels_carry_no_meaning() -> None:
    """Any label will do."""
    assert check(sign(get(), KEY, created=NOW, label="*anything")).label == "*anything"


def test_a_forged_request_of_the_tests_is_good_when_nothing_is_wrong() -> None:
    """So that each attack below fails for what it does, and not for how the tests make it."""
    assert check(covering()).key_id == "key-1"
    assert check(post_covering(digested(), "content-digest")).key_id == "key-1"
    assert check(post_covering(digested(), "content-digest", "content-length", "content-type")).key_id == "key-1"


# --- attacks -----------------------------------------------------------------------------------

UNDEFINED = put(put(get(), "Signature", "undefined"), "Signature-Input", "undefined")
SIGNATURE = signed_get().values("signature")[0]
INPUT = signed_get().values("signature-input")[0]


def with_signature(value: str) -> Request:
    """A good GET with another Signature field."""
    return put(signed_get(), "Signature", value)


def with_input(value: str) -> Request:
    """A good GET with another Signature-Input field."""
    return put(signed_get(), "Signature-Input", value)


ATTACKS: list[tuple[str, Request, Reason]] = [
    # --- the fields as a whole
    ("nothing is signed", get(), Reason.SIGNATURE_MISSING),
    ("Signature-Input is missing", put(signed_get(), "Signature-Input"), Reason.SIGNATURE_MISSING),
    ("Signature is missing", put(signed_get(), "Signature"), Reason.SIGNATURE_MISSING),
    ("both are empty", put(with_signature(""), "Signature-Input", ""), Reason.SIGNATURE_MISSING),
    ("the text undefined for both", UNDEFINED, Reason.SIGNATURE_INPUT_MALFORMED),
    ("components without quotes", with_input(INPUT.replace('"@method"', "@method")), Reason.SIGNATURE_INPUT_MALFORMED),
    ("a component name as a token", with_input(INPUT.replace('"@method"', "a")), Reason.SIGNATURE_INPUT_MALFORMED),
    ("a label repeated", with_input(f"{INPUT}, {INPUT}"), Reason.SIGNATURE_INPUT_MALFORMED),
    ("a label repeated in another line", put(signed_get(), "Signature-Input", INPUT, INPUT),
     Reason.SIGNATURE_INPUT_MALFORMED),
    ("a parameter repeated", get_with(f';keyid="key-1";created={NOW_S};created={NOW_S}'),
     Reason.SIGNATURE_INPUT_MALFORMED),
    ("created is a string", get_with(f';keyid="key-1";created="{NOW_S}"'), Reason.SIGNATURE_INPUT_MALFORMED),
    ("created is a decimal", get_with(f';keyid="key-1";created={NOW_S}.0'), Reason.SIGNATURE_INPUT_MALFORMED),
    ("created is a date", get_with(f';keyid="key-1";created=@{NOW_S}'), Reason.SIGNATURE_INPUT_MALFORMED),
    ("created is a boolean", get_with(';keyid="key-1";created'), Reason.SIGNATURE_INPUT_MALFORMED),
    ("created is negative", get_with(';keyid="key-1";created=-1'), Reason.SIGNATURE_INPUT_MALFORMED),
    ("created is beyond all calendars", get_with(';keyid="key-1";created=999999999999999'),
     Reason.SIGNATURE_INPUT_MALFORMED),
    ("expires is beyond all calendars", get_with(f';keyid="key-1";created={NOW_S};expires=999999999999999'),
     Reason.SIGNATURE_INPUT_MALFORMED),
    ("keyid is a token", get_with(f";keyid=key-1;created={NOW_S}"), Reason.SIGNATURE_INPUT_MALFORMED),
    ("keyid is a byte sequence", get_with(f";keyid=:a2V5LTE=:;created={NOW_S}"), Reason.SIGNATURE_INPUT_MALFORMED),
    ("a newline in Signature-Input", with_input(INPUT + "\n"), Reason.SIGNATURE_INPUT_MALFORMED),
    ("a NUL in Signature-Input", with_input(INPUT + "\0"), Reason.SIGNATURE_INPUT_MALFORMED),
    ("thousands of labels", with_input(", ".join(f"a{n}=()" for n in range(1500))), Reason.SIGNATURE_INPUT_MALFORMED),
    ("Signature-Input of a megabyte", with_input(INPUT + ";x" * 500_000), Reason.SIGNATURE_INPUT_MALFORMED),
    ("more components than the limit", covering(*((f'"x-{n}"', "") for n in range(COMPONENTS_MAX))),
     Reason.SIGNATURE_INPUT_MALFORMED),
    ("the text undefined for Signature", with_signature("undefined"), Reason.SIGNATURE_MALFORMED),
    ("a label in upper case", with_signature(SIGNATURE.replace("sig1", "Sig1")), Reason.SIGNATURE_MALFORMED),
    ("a signature without colons, as PHP sends it", with_signature(SIGNATURE.replace(":", "")),
     Reason.SIGNATURE_MALFORMED),
    ("a signature without label, as Rust sends it", with_signature(SIGNATURE[6:-1]), Reason.SIGNATURE_MALFORMED),
    ("a signature in base64url", with_signature(SIGNATURE.replace("+", "-").replace("/", "_")),
     Reason.SIGNATURE_MALFORMED),
    ("a signature without padding", with_signature(SIGNATURE.replace("=:", ":")), Reason.SIGNATURE_MALFORMED),
    ("a signature with bits past its end", with_signature(SIGNATURE.replace("A==:", "B==:").replace("w==:", "x==:")
     .replace("Q==:", "R==:").replace("g==:", "h==:")), Reason.SIGNATURE_MALFORMED),
    ("a signature as a string", with_signature(SIGNATURE.replace(":", '"')), Reason.SIGNATURE_MALFORMED),
    ("a signature in a list", with_signature(f"sig1=({SIGNATURE[5:]})"), Reason.SIGNATURE_MALFORMED),
    ("a signature with a parameter", with_signature(f"{SIGNATURE};keyid=x"), Reason.SIGNATURE_MALFORMED),
    ("a signature's label repeated", with_signature(f"{SIGNATURE}, {SIGNATURE}"), Reason.SIGNATURE_MALFORMED),
    ("labels differ between the fields", with_signature(SIGNATURE.replace("sig1", "sig2")), Reason.LABELS_DIFFER),
    ("a label without a signature", with_input(f"{INPUT}, sig2=()"), Reason.LABELS_DIFFER),
    ("a signature without an input", with_signature(f"{SIGNATURE}, sig2=::"), Reason.LABELS_DIFFER),
    # --- the key
    ("keyid is missing", get_with(f";created={NOW_S}"), Reason.KEY_ID_MISSING),
    ("keyid is that of another client", sign(get(), OTHER, created=NOW), Reason.KEY_UNKNOWN),
    ("keyid is empty", get_with(f';keyid="";created={NOW_S}'), Reason.KEY_UNKNOWN),
    ("keyid differs in case", get_with(f';keyid="KEY-1";created={NOW_S}'), Reason.KEY_UNKNOWN),
    ("keyid has a space more", get_with(f';keyid="key-1 ";created={NOW_S}'), Reason.KEY_UNKNOWN),
    ("keyid is the beginning of one", get_with(f';keyid="key-";created={NOW_S}'), Reason.KEY_UNKNOWN),
    ("alg is HMAC, with the public key as secret", get_with(f';keyid="key-1";created={NOW_S};alg="hmac-sha256"'),
     Reason.ALGORITHM_MISMATCH),
    ("alg is none", get_with(f';keyid="key-1";created={NOW_S};alg="none"'), Reason.ALGORITHM_MISMATCH),
    ("alg is empty", get_with(f';keyid="key-1";created={NOW_S};alg=""'), Reason.ALGORITHM_MISMATCH),
    ("alg is the JOSE name", get_with(f';keyid="key-1";created={NOW_S};alg="EdDSA"'), Reason.ALGORITHM_MISMATCH),
    ("alg is that of another kind of key", get_with(f';keyid="key-1";created={NOW_S};alg="rsa-pss-sha512"'),
     Reason.ALGORITHM_MISMATCH),
    # --- coverage
    ("nothing is covered", forge(get(), []), Reason.COMPONENT_NOT_COVERED),
    ("the method is not covered", forge(get(), get_lines()[1:]), Reason.COMPONENT_NOT_COVERED),
    ("the target is not covered", forge(get(), [get_lines()[0], get_lines()[2]]), Reason.COMPONENT_NOT_COVERED),
    ("the path instead of the target", forge(get(), [get_lines()[0], ('"@path"', "/incoming-payments"),
     get_lines()[2]]), Reason.COMPONENT_NOT_COVERED),
    ("the token is not covered", forge(get(), get_lines()[:2]), Reason.COMPONENT_NOT_COVERED),
    ("the token is covered with ;bs", forge(get(), [*get_lines()[:2], ('"authorization";bs', ":R05BUCB0b2tlbg==:")]),
     Reason.COMPONENT_NOT_COVERED),
    ("the token is covered with ;key", forge(get(), [*get_lines()[:2], ('"authorization";key="a"', "x")]),
     Reason.COMPONENT_NOT_COVERED),
    ("the token is covered with ;req", forge(get(), [*get_lines()[:2], ('"authorization";req', "GNAP token")]),
     Reason.COMPONENT_NOT_COVERED),
    ("the method is covered with ;req", forge(get(), [('"@method";req', "GET"), *get_lines()[1:]]),
     Reason.COMPONENT_NOT_COVERED),
    ("names in upper case", forge(get(), [*get_lines()[:2], ('"Authorization"', "GNAP token")]),
     Reason.COMPONENT_NOT_COVERED),
    ("a body without a digest", post_covering(post()), Reason.BODY_NOT_COVERED),
    ("a body whose digest is not covered", post_covering(digested()), Reason.BODY_NOT_COVERED),
    ("a body added to a GET", evolve(signed_get(), body=b"{}"), Reason.BODY_NOT_COVERED),
    ("a digest covered by one of its keys", forge(digested(), [('"@method"', "POST"), *get_lines()[1:],
     ('"content-digest";key="sha-512"', content_digest(BODY)[8:])]), Reason.BODY_NOT_COVERED),
    # --- time
    ("created is missing", get_with(';keyid="key-1"'), Reason.CREATED_MISSING),
    ("created is a day ahead", get_with(f';keyid="key-1";created={NOW_S + 86_400}'), Reason.CREATED_IN_FUTURE),
    ("created is a year ago", get_with(f';keyid="key-1";created={NOW_S - 31_536_000}'), Reason.STALE),
    ("created is zero", get_with(';keyid="key-1";created=0'), Reason.STALE),
    ("expires before created", get_with(f';keyid="key-1";created={NOW_S};expires={NOW_S - 1}'),
     Reason.EXPIRES_BEFORE_CREATED),
    ("expires when created", get_with(f';keyid="key-1";created={NOW_S};expires={NOW_S}'),
     Reason.EXPIRES_BEFORE_CREATED),
    ("expired", get_with(f';keyid="key-1";created={NOW_S - 60};expires={NOW_S - 1}'), Reason.EXPIRED),
    # --- the base
    ("a component twice", covering(get_lines()[0]), Reason.COMPONENT_REPEATED),
    ("a component twice, parameters swapped", covering(('"priority";sf;key="u"', "1"), ('"priority";key="u";sf', "1"),
     request=get(("Priority", "u=1"))), Reason.COMPONENT_REPEATED),
    ("a name in upper case besides", covering(('"X-A"', "1"), request=get(("X-A", "1"))), Reason.COMPONENT_UNSUPPORTED),
    ("an unknown derived component", covering(('"@unknown"', "")), Reason.COMPONENT_UNSUPPORTED),
    ("the status of a request", covering(('"@status"', "200")), Reason.COMPONENT_UNSUPPORTED),
    ("the signature parameters as a component", covering(('"@signature-params"', "")), Reason.COMPONENT_UNSUPPORTED),
    ("an unknown parameter", covering(('"x-a";x', "1"), request=get(("X-A", "1"))), Reason.COMPONENT_UNSUPPORTED),
    (";tr", covering(('"x-a";tr', "1"), request=get(("X-A", "1"))), Reason.COMPONENT_UNSUPPORTED),
    (";req", covering(('"x-a";req', "1"), request=get(("X-A", "1"))), Reason.COMPONENT_UNSUPPORTED),
    (";sf of a field that is none", covering(('"x-a";sf', "1"), request=get(("X-A", "1"))),
     Reason.COMPONENT_UNSUPPORTED),
    (";key of a field that is none", covering(('"x-a";key="a"', "1"), request=get(("X-A", "a=1"))),
     Reason.COMPONENT_UNSUPPORTED),
    (";bs with a value", covering(('"x-a";bs=?0', "1"), request=get(("X-A", "1"))), Reason.COMPONENT_UNSUPPORTED),
    (";bs with ;sf", covering(('"te";bs;sf', "1"), request=get(("Te", "a"))), Reason.COMPONENT_UNSUPPORTED),
    ("an absent field signed as empty", covering(('"x-a"', "")), Reason.COMPONENT_ABSENT),
    ("an absent field signed as undefined", covering(('"x-a"', "undefined")), Reason.COMPONENT_ABSENT),
    ("the token taken away", put(signed_get(), "Authorization"), Reason.COMPONENT_ABSENT),
    ("the digest taken away", put(signed_post(), "Content-Digest"), Reason.COMPONENT_ABSENT),
    ("an absent query parameter", covering(('"@query-param";name="a"', "")), Reason.COMPONENT_ABSENT),
    ("a query parameter twice", forge(get(url=f"{URL}?a=1&a=2"), [*get_lines(f"{URL}?a=1&a=2"),
     ('"@query-param";name="a"', "1")]), Reason.COMPONENT_VALUE),
    ("a newline in a value", covering(('"x-a"', '1\n"x-b": 2'), request=get(("X-A", '1\n"x-b": 2'))),
     Reason.COMPONENT_VALUE),
    ("a NUL in a value", covering(('"x-a"', "1\0"), request=get(("X-A", "1\0"))), Reason.COMPONENT_VALUE),
    ("not ASCII in a value", covering(('"x-a"', "\xe9"), request=get(("X-A", "\xe9"))), Reason.COMPONENT_VALUE),
    ("a newline in the method", evolve(signed_get(), method='GET\n"x": y'), Reason.COMPONENT_VALUE),
    ("no method", evolve(signed_get(), method=""), Reason.COMPONENT_VALUE),
    ("userinfo in the target", evolve(signed_get(), target_uri=URL.replace("//", "//me@")), Reason.COMPONENT_VALUE),
    ("a fragment on the target", evolve(signed_get(), target_uri=f"{URL}#x"), Reason.COMPONENT_VALUE),
    ("a newline in the target", evolve(signed_get(), target_uri=f"{URL}\n"), Reason.COMPONENT_VALUE),
    ("a space in the target", evolve(signed_get(), target_uri=f"{URL} "), Reason.COMPONENT_VALUE),
    ("a dictionary with a key twice", covering(('"priority";key="u"', "2"), request=get(("Priority", "u=1, u=2"))),
     Reason.COMPONENT_VALUE),
    ("the token twice, signed as joined", forge(get(("Authorization", "GNAP other")),
     get_lines(token="GNAP token, GNAP other")), Reason.FIELD_REPEATED),
    ("Content-Type twice", post_covering(digested(("Content-Type", "text/plain")), "content-digest", "content-type"),
     Reason.FIELD_REPEATED),
    ("Content-Length twice", post_covering(digested(("Content-Length", "5")), "content-digest", "content-length"),
     Reason.FIELD_REPEATED),
    # --- the body
    ("Content-Length lies", post_covering(put(digested(), "Content-Length", "5"), "content-digest", "content-length"),
     Reason.CONTENT_LENGTH_MISMATCH),
    ("Content-Length with zeros before", post_covering(put(digested(), "Content-Length", f"0{len(BODY)}"),
     "content-digest", "content-length"), Reason.CONTENT_LENGTH_MISMATCH),
    ("Content-Length is no number", post_covering(put(digested(), "Content-Length", "x"), "content-digest",
     "content-length"), Reason.CONTENT_LENGTH_MISMATCH),
    ("the body cut short", evolve(signed_post(), body=BODY[:-1]), Reason.CONTENT_LENGTH_MISMATCH),
    ("the digest in hex", post_covering(digested(digest="sha-256=abcdef"), "content-digest"), Reason.DIGEST_MALFORMED),
    ("the digest cut short", post_covering(digested(digest="sha-512=:AQID:"), "content-digest"),
     Reason.DIGEST_MALFORMED),
    ("the digest repeated", post_covering(digested(("Content-Digest", content_digest(b""))), "content-digest"),
     Reason.DIGEST_MALFORMED),
    ("the digest under another name", post_covering(digested(
     digest=content_digest(BODY, "sha-256").replace("256", "512")), "content-digest"), Reason.DIGEST_MALFORMED),
    ("the digest with bits past its end", post_covering(digested(digest=content_digest(BODY).replace("==:", "=:")),
     "content-digest"), Reason.DIGEST_MALFORMED),
    ("the digest is an MD5", post_covering(digested(digest="md5=:mZFLkyvTelC5g8XnyQrpOw==:"), "content-digest"),
     Reason.DIGEST_UNSUPPORTED),
    ("the digest is empty", post_covering(digested(digest=""), "content-digest"), Reason.DIGEST_UNSUPPORTED),
    ("the digest of another body", post_covering(digested(digest=content_digest(b"{}")), "content-digest"),
     Reason.DIGEST_MISMATCH),
    ("one digest good, one wrong", post_covering(digested(("Content-Digest", content_digest(b"{}", "sha-256"))),
     "content-digest"), Reason.DIGEST_MISMATCH),
    ("the body exchanged", evolve(signed_post(), body=BODY.replace(b"alice", b"bobby")), Reason.DIGEST_MISMATCH),
    ("the body re-serialised", post_covering(evolve(digested(), body=BODY.replace(b":", b": ")), "content-digest"),
     Reason.DIGEST_MISMATCH),
    ("a member of the body twice", post_covering(evolve(digested(), body=BODY[:-1] + b',"walletAddress":"x"}'),
     "content-digest"), Reason.DIGEST_MISMATCH),
    ("the body taken away", evolve(put(signed_post(), "Content-Length", "0"), body=b""), Reason.DIGEST_MISMATCH),
    ("a digest of nothing on a GET, wrong", covering(request=get(("Content-Digest", content_digest(b"x")))),
     Reason.DIGEST_MISMATCH),
    # --- the curve
    ("signed by another key under our keyid", forge(get(), get_lines(), key=OTHER), Reason.SIGNATURE_INVALID),
    ("an empty signature", with_signature("sig1=::"), Reason.SIGNATURE_INVALID),
    ("a signature of zeros", with_signature(f"sig1=:{'A' * 86}==:"), Reason.SIGNATURE_INVALID),
    ("a signature cut short", with_signature(f"{SIGNATURE[:9]}{SIGNATURE[13:]}"), Reason.SIGNATURE_INVALID),
    ("a signature with more after it", with_signature(f"{SIGNATURE[:6]}AAAA{SIGNATURE[6:]}"), Reason.SIGNATURE_INVALID),
    ("another method", evolve(signed_get(), method="DELETE"), Reason.SIGNATURE_INVALID),
    ("the method in lower case", evolve(signed_get(), method="get"), Reason.SIGNATURE_INVALID),
    ("another path", evolve(signed_get(), target_uri=f"{URL}/1"), Reason.SIGNATURE_INVALID),
    ("a query added", evolve(signed_get(), target_uri=f"{URL}?x=1"), Reason.SIGNATURE_INVALID),
    ("http instead of https", evolve(signed_get(), target_uri=URL.replace("https", "http")), Reason.SIGNATURE_INVALID),
    ("the default port said", evolve(signed_get(), target_uri=URL.replace(".example", ".example:443")),
     Reason.SIGNATURE_INVALID),
    ("a dot segment", evolve(signed_get(), target_uri=URL.replace("/incoming", "/x/../incoming")),
     Reason.SIGNATURE_INVALID),
    ("a percent-encoded letter", evolve(signed_get(), target_uri=URL.replace("/i", "/%69")), Reason.SIGNATURE_INVALID),
    ("the host in upper case", evolve(signed_get(), target_uri=URL.replace("ase", "ASE")), Reason.SIGNATURE_INVALID),
    ("another token", put(signed_get(), "Authorization", "GNAP other"), Reason.SIGNATURE_INVALID),
    ("the token's scheme in another case", put(signed_get(), "Authorization", "gnap token"), Reason.SIGNATURE_INVALID),
    ("a covered field repeated", forge(get(("X-A", "1"), ("X-A", "2")), [*get_lines(), ('"x-a"', "1")]),
     Reason.SIGNATURE_INVALID),
    ("repeated lines joined without a space", forge(get(("X-A", "1"), ("X-A", "2")), [*get_lines(), ('"x-a"', "1,2")]),
     Reason.SIGNATURE_INVALID),
    ("repeated lines the other way round", forge(get(("X-A", "2"), ("X-A", "1")), [*get_lines(), ('"x-a"', "1, 2")]),
     Reason.SIGNATURE_INVALID),
    ("the white space around a value signed", forge(get(("X-A", " 1 ")), [*get_lines(), ('"x-a"', " 1 ")]),
     Reason.SIGNATURE_INVALID),
    ("created changed", replace(signed_get(), "Signature-Input", str(NOW_S), str(NOW_S + 1)), Reason.SIGNATURE_INVALID),
    ("expires added", with_input(f"{INPUT};expires={NOW_S + 9}"), Reason.SIGNATURE_INVALID),
    ("a nonce added", with_input(f'{INPUT};nonce="n"'), Reason.SIGNATURE_INVALID),
    ("an unknown parameter added", with_input(f"{INPUT};x"), Reason.SIGNATURE_INVALID),
    ("components in another order", with_input(INPUT.replace('"@method" "@target-uri"', '"@target-uri" "@method"')),
     Reason.SIGNATURE_INVALID),
    ("parameters in another order", with_input(INPUT.replace(f';keyid="key-1";created={NOW_S}',
     f';created={NOW_S};keyid="key-1"')), Reason.SIGNATURE_INVALID),
    ("the base of a request sent for another", forge(get(), get_lines(f"{URL}/1")), Reason.SIGNATURE_INVALID),
    ("the base closed with a newline", forge(get(), [*get_lines()[:2], ('"authorization"', "GNAP token\n")]),
     Reason.SIGNATURE_INVALID),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "expected"), [row[1:] for row in ATTACKS], ids=[row[0] for row in ATTACKS])
def test_attack(request_: Request, expected: Reason) -> None:
    """Each is refused, for the reason that it is an attack."""
    assert reason(request_) is expected


def test_attacks_stand_by_precedence_and_leave_no_reason_out() -> None:
    """The table follows the order of the reasons, and every reason is in it or in a test of its own below."""
    order = list(Reason)
    ranks = [order.index(expected) for _, _, expected in ATTACKS]
    elsewhere = {Reason.TOO_MANY_SIGNATURES, Reason.TAG_MISMATCH, Reason.NONCE_MISSING, Reason.DIGEST_MISSING}
    assert {expected for _, _, expected in ATTACKS} == set(order) - elsewhere
    assert ranks == sorted(ranks)


def test_no_refusal_repeats_a_secret() -> None:
    """Neither the token nor a signature is in what a refusal says."""
    for name, request, _ in ATTACKS:
        with pytest.raises(SignatureRefused) as caught:
            check(request)
        said = caught.value.description + repr(caught.value.details)
        assert "GNAP token" not in said, name
        assert SIGNATURE[6:14] not in said, name
        assert 5 < len(caught.value.description) < 200, name


# --- several signatures ------------------------------------------------------------------------


def both(first: Request, second: Request) -> Request:
    """A request with the signatures of both, those of `first` first."""
    fields = [(name, value) for name, value in second.headers if name.startswith("Signature")]
    return evolve(first, headers=(*first.headers, *fields))


STALE = forge(get(), get_lines(), f';keyid="key-1";created={NOW_S - 301}', label="stale")
GOOD = forge(get(), get_lines(), label="good")
WRONG = forge(get(), get_lines(), key=OTHER, label="wrong")
STRANGER = forge(get(), get_lines(), f';keyid="key-2";created={NOW_S}', key=OTHER, label="stranger")
PARTIAL = forge(get(), get_lines()[:1], label="partial")


@pytest.mark.parametrize("other", [STALE, WRONG, STRANGER, PARTIAL], ids=["stale", "wrong", "stranger", "partial"])
def test_one_good_signature_is_enough(other: Request) -> None:
    """Whatever stands before or after it, the good one is found and proven."""
    assert check(both(other, GOOD)).label == "good"
    assert check(both(GOOD, other)).label == "good"


def test_a_good_signature_under_another_key_proves_nothing() -> None:
    """One is incomplete, the other by a key that is not the client's: both are no."""
    assert reason(both(STALE, STRANGER)) is Reason.STALE
    assert check(both(STALE, STRANGER), keys=ALSO_OTHER).key_id == "key-2"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (STALE, PARTIAL, Reason.STALE),
        (PARTIAL, STALE, Reason.STALE),
        (STRANGER, PARTIAL, Reason.COMPONENT_NOT_COVERED),
        (WRONG, STALE, Reason.SIGNATURE_INVALID),
        (STALE, WRONG, Reason.SIGNATURE_INVALID),
    ],
)
def test_the_reason_of_the_one_that_came_furthest(first: Request, second: Request, expected: Reason) -> None:
    """When all fail, what is reported is the one that failed last by the order of the checks."""
    assert reason(both(first, second)) is expected


def test_covered_by_two_signatures_together_is_not_covered() -> None:
    """Each signature stands for itself: two halves are not a whole."""
    rest = forge(get(), get_lines()[1:], label="rest")
    assert reason(both(PARTIAL, rest)) is Reason.COMPONENT_NOT_COVERED


def test_not_more_signatures_than_the_limit() -> None:
    """At most so many are computed; strangers' do not count, for they cost nothing."""
    request = GOOD
    for number in range(SIGNATURES_MAX - 1):
        request = both(forge(get(), get_lines(), key=OTHER, label=f"s{number}"), request)
    for number in range(SIGNATURES_MAX):
        stranger = forge(get(), get_lines(), f';keyid="stranger";created={NOW_S}', label=f"x{number}")
        request = both(request, stranger)
    assert check(request).label == "good"
    assert reason(both(request, PARTIAL)) is Reason.TOO_MANY_SIGNATURES


def test_no_signature_is_computed_before_the_rest_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused for another reason never reaches the curve."""
    monkeypatch.setattr(PublicKey, "verify", lambda *_: pytest.fail("the curve was asked"))
    for _, request, expected in ATTACKS:
        if expected is not Reason.SIGNATURE_INVALID:
            assert reason(request) is expected


# --- keys, policy, time ------------------------------------------------------------------------


def test_one_signature_without_keyid_beside_a_stranger() -> None:
    """The reason is that the key is unknown, when there is any `keyid`: that is what can be put right."""
    nameless = forge(get(), get_lines(), f";created={NOW_S}", label="nameless")
    assert reason(both(nameless, STRANGER)) is Reason.KEY_UNKNOWN
    assert reason(nameless) is Reason.KEY_ID_MISSING


def test_keyid_is_the_kid_whatever_the_mapping_says() -> None:
    """Contract section 5: `keyid` MUST equal the `kid`, also when a key was filed under another name."""
    assert reason(get_with(f';keyid="alias";created={NOW_S}'), keys={"alias": KEY.public_key()}) is Reason.KEY_UNKNOWN
    assert reason(GOOD, keys={}) is Reason.KEY_UNKNOWN


def test_alg_for_a_key_whose_algorithm_has_no_name() -> None:
    """PS256 and PS384 are not in the registry of RFC 9421, so that no `alg` can be right."""
    vectors = json.loads((Path(__file__).parents[1] / "vectors" / "rfc9421.json").read_text())
    key = load_jwk({**vectors["keys"]["test-key-rsa-pss"], "alg": "PS256", "kid": "key-1"})
    for alg in ("rsa-pss-sha512", "PS256", "", "None"):
        request = get_with(f';keyid="key-1";created={NOW_S};alg="{alg}"')
        assert reason(request, keys={"key-1": key}) is Reason.ALGORITHM_MISMATCH


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [(-61, Reason.CREATED_IN_FUTURE), (-60, None), (0, None), (300, None), (301, Reason.STALE)],
)
def test_edges_of_the_window(age_s: int, expected: Reason | None) -> None:
    """`created` may be as old as the policy says, and as far ahead as its skew: to the second."""
    now = NOW + timedelta(seconds=age_s)
    if expected is None:
        assert check(GOOD, now=now).key_id == "key-1"
    else:
        assert reason(GOOD, now=now) is expected


@pytest.mark.parametrize("micros", [1, 999_999])
def test_edges_of_the_window_within_a_second(micros: int) -> None:
    """A fraction of a second past the window is past it."""
    part = timedelta(microseconds=micros)
    assert reason(GOOD, now=NOW + timedelta(seconds=300) + part) is Reason.STALE
    assert reason(GOOD, now=NOW - timedelta(seconds=60) - part) is Reason.CREATED_IN_FUTURE


def test_expires_is_taken_at_its_word() -> None:
    """Good until the second it names, and no skew after it."""
    request = sign(get(), KEY, created=NOW, expires=NOW_S + 9)
    assert check(request, now=NOW + timedelta(seconds=9)).expires == NOW + timedelta(seconds=9)
    assert reason(request, now=NOW + timedelta(seconds=9, microseconds=1)) is Reason.EXPIRED


def test_now_needs_a_zone() -> None:
    """A naive time is the caller's mistake, and not the client's."""
    with pytest.raises(InvalidValue, match="zone") as caught:
        check(GOOD, now=NOW.replace(tzinfo=None))
    assert caught.value.details == {"member": "now"}


def test_policy_with_a_window_of_its_own() -> None:
    """A narrower window and no skew."""
    policy = Policy(max_age_s=5, clock_skew_s=0)
    assert check(GOOD, policy=policy, now=NOW + timedelta(seconds=5)).key_id == "key-1"
    assert reason(GOOD, policy=policy, now=NOW + timedelta(seconds=6)) is Reason.STALE
    assert reason(GOOD, policy=policy, now=NOW - timedelta(seconds=1)) is Reason.CREATED_IN_FUTURE


def test_policy_for_another_route() -> None:
    """Other components can be required, so that a route without tokens can be protected too; its body always is."""
    policy = Policy(required=("@method", "@path", "x-a"))
    request = Request("POST", URL, (("X-A", "1"),), b"{}")
    good = sign(request, KEY, created=NOW, components=("@path", "x-a", "@method", "content-digest"))
    assert check(good, policy=policy).key_id == "key-1"
    for components, expected in (
        (("@path", "@method", "content-digest"), Reason.COMPONENT_NOT_COVERED),
        (("@path", "x-a", "@method"), Reason.BODY_NOT_COVERED),
    ):
        assert reason(sign(request, KEY, created=NOW, components=components), policy=policy) is expected


def test_policy_with_a_tag() -> None:
    """Only a signature made for this application counts."""
    policy = Policy(tag="pay")
    assert check(sign(get(), KEY, created=NOW, tag="pay"), policy=policy).tag == "pay"
    for tag in (None, "Pay", ""):
        assert reason(sign(get(), KEY, created=NOW, tag=tag), policy=policy) is Reason.TAG_MISMATCH


def test_policy_with_a_nonce() -> None:
    """A nonce has to be there, and not empty."""
    policy = Policy(nonce_required=True)
    assert check(sign(get(), KEY, created=NOW, nonce="n"), policy=policy).nonce == "n"
    for nonce in (None, ""):
        assert reason(sign(get(), KEY, created=NOW, nonce=nonce), policy=policy) is Reason.NONCE_MISSING


@pytest.mark.parametrize(
    "arguments",
    [
        {"required": ()},
        {"required": ("Authorization",)},
        {"required": ("@status",)},
        {"required": ("@query-param",)},
        {"required": ("",)},
        {"required": ("@method", "authorization, date")},
        {"max_age_s": 0},
        {"max_age_s": -1},
        {"max_age_s": 1.5},
        {"max_age_s": True},
        {"clock_skew_s": -1},
        {"clock_skew_s": "1"},
        {"clock_skew_s": False},
        {"shapes": ["php-sdk"]},
        {"shapes": [Shape.PHP_SDK, None]},
    ],
)
def test_policies_that_mean_nothing(arguments: dict[str, Any]) -> None:
    """A policy that could not mean anything cannot be made."""
    with pytest.raises(InvalidValue) as caught:
        Policy(**arguments)
    assert caught.value.details == {"member": next(iter(arguments))}


def test_policy_of_open_payments() -> None:
    """Contract section 5 by default; and what a caller gave can change without changing the policy."""
    policy = Policy()
    assert (policy.required, policy.max_age_s) == (("@method", "@target-uri", "authorization"), 300)
    assert (policy.clock_skew_s, policy.nonce_required, policy.tag, policy.shapes) == (60, False, None, frozenset())
    shapes = [Shape.PHP_SDK]
    policy = Policy(shapes=shapes)
    shapes.append(Shape.RUST_SDK)
    assert policy.shapes == {Shape.PHP_SDK}
    assert hash(policy) == hash(Policy(shapes=[Shape.PHP_SDK]))
    with pytest.raises(TypeError):
        Policy(("@method",))  # type: ignore[misc] # each is named, so that no number stands for another


@pytest.mark.parametrize(
    ("request_", "details"),
    [
        (forge(get(), get_lines()[1:]), {"component": "@method"}),
        (forge(post(), get_lines()), {"component": "content-digest"}),
        (get_with(f';keyid="key-1";created={NOW_S - 301}'), {"age_s": 301}),
        (get_with(f';keyid="key-1";created={NOW_S + 61}'), {"age_s": -61}),
        (put(signed_get(), "Signature-Input", "sig1=("), {"field": "Signature-Input", "position": 6}),
        (put(signed_get(), "Signature", "sig1=:A:"), {"field": "Signature", "position": 7}),
    ],
    ids=["component", "body", "stale", "ahead", "input", "signature"],
)
def test_refusals_say_where(request_: Request, details: dict[str, object]) -> None:
    """What to change, for who reads it with a program."""
    with pytest.raises(SignatureRefused) as caught:
        check(request_)
    assert caught.value.details == details


def test_a_digest_of_nothing() -> None:
    """A digest on a request without body is fine when it is right, covered or not."""
    assert check(covering(request=get(("Content-Digest", content_digest(b""))))).key_id == "key-1"
    field = ("Content-Digest", content_digest(b""))
    assert check(covering(('"content-digest"', field[1]), request=get(field))).key_id == "key-1"


def test_content_length_that_is_not_covered_is_not_looked_at() -> None:
    """It proves nothing and is the server's to judge."""
    assert check(post_covering(put(digested(), "Content-Length", "5"), "content-digest")).key_id == "key-1"

"""Every refused request gets a diagnosis in bounded lines of ASCII, without secrets."""

from typing import Final

import pytest
from attrs import evolve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from incoming_payments.errors import SignatureRefused
from incoming_payments.httpsig import Code, Evidence, Policy, RequestMessage, sign, verify
from incoming_payments.httpsig.explain import Diagnosis, explain
from incoming_payments.limits import EXPLAIN_CHARS_MAX
from kits.signed_requests import KEY, KEYS, NOW, NOW_S, OTHER, URL, get, post, put

quick = settings(max_examples=100, deadline=None, derandomize=True)
PIECE_CHARS: Final = 8

# Text that is nearly a structured field, and nearly what clients get wrong.
PIECES: Final = [
    "sig1", "sig2", "=", "(", ")", ";", ",", " ", '"', "\\", ":", "?1", "@", "\n", "\r\n", "\0", "é", "\ud800",
    "\u2028",
    '"@method"', '"@target-uri"', '"authorization"', '"content-digest"', "@method", ";created=", str(NOW_S),
    f"{NOW_S}000", ';keyid="key-1"', ";keyId=", ";sf", ";key=", ";bs", "sha-256", "sha-512=", "undefined", "A" * 86,
    "A" * 40, "==", "/", "%", "..", "[", "]", "https://", "ase.example", "headers=", "=:", "x\x1b[31m",
]  # fmt: skip
nearly = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=12).map("".join)
names = st.sampled_from(
    ["Signature-Input", "Signature", "Content-Digest", "Content-Length", "Digest", "Authorization", "Host",
     "X-Forwarded-Host", "X-Forwarded-Prefix", "Cookie", "X-A"]
)  # fmt: skip
headers = st.lists(st.tuples(st.one_of(names, nearly), nearly), max_size=8).map(tuple)
targets = st.one_of(st.just(URL), nearly, nearly.map(lambda text: f"https://{text}"))
bodies = st.one_of(st.binary(max_size=9), st.just(b"[" * 5000), st.just(b'{"a":1e999}'), st.just(b'"\\ud800"'))
codes = st.sampled_from([*Code, "nonce_used", "of_a_host"])


def check(request: RequestMessage, code: str) -> Diagnosis:
    """Return the diagnosis of a request that was refused for `code`, once its text is known to be well-formed."""
    found = explain(SignatureRefused(code, "because"), Evidence(request, KEYS, Policy(), NOW))
    assert all(line.isprintable() and line.isascii() for line in str(found).split("\n"))
    assert len(str(found)) < EXPLAIN_CHARS_MAX + 100
    assert found.causes
    return found


def check_refused(request: RequestMessage) -> Diagnosis:
    """Return the diagnosis of a request that `verify` refuses."""
    with pytest.raises(SignatureRefused) as caught:
        verify(request, KEYS, policy=Policy(), now=NOW)
    return check(request, caught.value.code)


@quick
@given(method=nearly, target=targets, headers=headers, body=bodies, code=codes)
@example(method="GET", target="https://[", headers=(("Host", "["),), body=b"", code=Code.SIGNATURE_INVALID)
def test_any_request_has_a_diagnosis(
    method: str, target: str, headers: tuple[tuple[str, str], ...], body: bytes, code: str
) -> None:
    """Whatever arrives, and for whatever code it is refused, there is a report and no exception."""
    check(RequestMessage(method, target, headers, body), code)


@quick
@given(
    method=nearly,
    target=targets,
    changes=st.lists(st.tuples(names, nearly), max_size=3),
    components=st.lists(st.sampled_from(["x-a", "host", "content-digest", "cookie", "@query", "@path"]), unique=True),
    body=bodies,
    code=st.sampled_from(Code),
)
def test_any_signed_request_has_a_diagnosis(
    method: str, target: str, changes: list[tuple[str, str]], components: list[str], body: bytes, code: str
) -> None:
    """A good signature over another request gets a report, and every hypothesis is tried for it."""
    there = get(*[(name, "1") for name in ("X-A", "Host", "Content-Digest", "Cookie")])
    signed = sign(there, KEY, created=NOW, components=("@method", "@target-uri", "authorization", *components))
    for name, value in changes:
        signed = put(signed, name, value)
    check(evolve(signed, method=method, target_uri=target, body=body), code)


# Digits and capitals, so that no piece of one is a word of ours.
tokens = st.text(st.sampled_from("0123456789QXZ"), min_size=PIECE_CHARS, max_size=60)


def refused(token: str, kind: int) -> RequestMessage:
    """A request with this token, refused in one of several ways; the token is in places where it has no business."""
    authorization = ("Authorization", f"GNAP {token}")
    request = put(post(("Cookie", f"a={token}")), *authorization)
    wrong_key = sign(request, OTHER if kind == 0 else KEY, created=NOW)
    return (
        wrong_key,
        evolve(wrong_key, target_uri=f"{URL}/{token}?{token}&a={token}"),
        put(wrong_key, "Signature-Input", f'sig1=("{token}");keyid="{token}";created={token}'),
        put(evolve(wrong_key, target_uri=f"{URL}/x"), "Host", f"{token}.example"),
        put(put(wrong_key, "Content-Digest", f"sha-512=:{token}:"), "Content-Length", token),
        put(wrong_key, "Signature", f"{token}=:{token}:, undefined={token}"),
        evolve(sign(request, evolve(KEY, kid=token), created=NOW, nonce=token, tag=token), method=token),
    )[kind]


@quick
@given(token=tokens, kind=st.integers(0, 6))
def test_no_piece_of_a_token_is_in_a_report(token: str, kind: int) -> None:
    """Eight characters of a token are never shown, wherever else the client has put it."""
    found = check_refused(refused(token, kind))
    text = f"{found!r}{found}"
    assert [at for at in range(len(token) - PIECE_CHARS + 1) if token[at : at + PIECE_CHARS] in text] == []


@quick
@given(kind=st.integers(0, 6), code=st.sampled_from(Code))
def test_no_piece_of_a_signature_is_in_a_report(kind: int, code: Code) -> None:
    """Eight characters of a signature are never shown, wherever the client has copied it."""
    signature = refused("Q0X1Z2Q3X4Z5", 0).values("signature")[0][6:-1]
    request = put(refused("Q0X1Z2Q3X4Z5", kind), "X-Copy", signature)
    given = request.values("signature-input")[0].replace("key-1", signature)
    copied = put(put(request, "Signature-Input", given), "Signature", f"sig1=:{signature}:", signature)
    text = str(check(copied, code))
    assert [at for at in range(80) if signature[at : at + PIECE_CHARS] in text] == []


@quick
@given(pair=st.integers(1, 60).flatmap(lambda size: st.tuples(*[st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=size, max_size=size)] * 2)))  # fmt: skip
def test_a_report_does_not_depend_on_the_token(pair: tuple[str, str]) -> None:
    """Two tokens of one length, any that can be sent, give the same report, as do two bodies of one length."""

    def of(secret: str) -> str:
        unsigned = put(post(("Cookie", secret), body=secret.encode()), "Authorization", f"GNAP {secret}")
        signed = sign(unsigned, KEY, created=NOW, components=(
            "@method", "@target-uri", "authorization", "content-digest", "cookie"))  # fmt: skip
        return str(check_refused(evolve(signed, target_uri=f"{URL}/x/y")))

    first, second = pair
    assert of(first) == of(second)

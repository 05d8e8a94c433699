"""What holds for every refused request: it is explained, in bounded lines of ASCII, and no secret is in them."""

from typing import Final

from attrs import evolve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from incoming_payments.errors import SignatureRefused
from incoming_payments.httpsig import Policy, Reason, Report, Request, explain, sign, verify
from incoming_payments.limits import EXPLAIN_CHARS_MAX
from signed_requests import KEY, KEYS, NOW, NOW_S, OTHER, URL, get, post, put

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
reasons = st.one_of(st.none(), st.sampled_from([*Reason, "nonce_used", "of_a_host"]))


def check(request: Request, reason: str | None) -> Report:
    """A report of `request`, once everything about its text is as it has to be."""
    refusal = None if reason is None else SignatureRefused(reason, "because")
    report = explain(request, KEYS, policy=Policy(), now=NOW, refusal=refusal)
    lines = str(report).split("\n")
    assert all(line.isprintable() and line.isascii() for line in lines)
    assert len(str(report)) < EXPLAIN_CHARS_MAX + 100
    assert (report.reason is None) is (report.causes == ())
    assert all("\n" not in text for one in report.signatures for text in (one.label, one.key_id or "", *one.base))
    return report


@quick
@given(method=nearly, target=targets, headers=headers, body=bodies, reason=reasons)
@example(method="GET", target="https://[", headers=(("Host", "["),), body=b"", reason=Reason.SIGNATURE_INVALID)
def test_any_request_is_explained(
    method: str, target: str, headers: tuple[tuple[str, str], ...], body: bytes, reason: str | None
) -> None:
    """Whatever arrives, and whatever it is said to be refused for: a report, and no exception."""
    check(Request(method, target, headers, body), reason)


@quick
@given(
    method=nearly,
    target=targets,
    changes=st.lists(st.tuples(names, nearly), max_size=3),
    components=st.lists(st.sampled_from(["x-a", "host", "content-digest", "cookie", "@query", "@path"]), unique=True),
    body=bodies,
    reason=st.sampled_from([None, *Reason]),
)
def test_any_signed_request_is_explained(
    method: str, target: str, changes: list[tuple[str, str]], components: list[str], body: bytes, reason: str | None
) -> None:
    """So it is with a good signature over another request, so that everything is tried."""
    there = get(*[(name, "1") for name in ("X-A", "Host", "Content-Digest", "Cookie")])
    signed = sign(there, KEY, created=NOW, components=("@method", "@target-uri", "authorization", *components))
    for name, value in changes:
        signed = put(signed, name, value)
    check(evolve(signed, method=method, target_uri=target, body=body), reason)


secrets = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=PIECE_CHARS, max_size=60)
# Digits and capitals, so that no piece of one is a word of ours.
tokens = st.text(st.sampled_from("0123456789QXZ"), min_size=PIECE_CHARS, max_size=60)


def refused(token: str, kind: int) -> Request:
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
    """Of eight characters or more, wherever else the client has put it."""
    report = check(refused(token, kind), None)
    text = f"{report!r}{report}"
    assert report.reason is not None
    assert [at for at in range(len(token) - PIECE_CHARS + 1) if token[at : at + PIECE_CHARS] in text] == []


@quick
@given(pair=st.integers(1, 60).flatmap(lambda size: st.tuples(*[st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=size, max_size=size)] * 2)))  # fmt: skip
def test_a_report_does_not_depend_on_the_token(pair: tuple[str, str]) -> None:
    """Two tokens of one length, any that can be sent, give the same report, as do two bodies of one length."""

    def of(secret: str) -> str:
        unsigned = put(post(("Cookie", secret), body=secret.encode()), "Authorization", f"GNAP {secret}")
        signed = sign(unsigned, KEY, created=NOW, components=(
            "@method", "@target-uri", "authorization", "content-digest", "cookie"))  # fmt: skip
        return str(check(evolve(signed, target_uri=f"{URL}/x/y"), None))

    first, second = pair
    assert of(first) == of(second)


@quick
@given(token=secrets)
def test_a_good_request_is_said_to_be_good(token: str) -> None:
    """Explaining agrees with verifying: nothing is refused, nothing is given as a cause."""
    signed = sign(put(post(), "Authorization", f"GNAP {token}"), KEY, created=NOW)
    assert verify(signed, KEYS, policy=Policy(), now=NOW).key_id == "key-1"
    assert check(signed, None).reason is None

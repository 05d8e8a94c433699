"""Whatever a client sends, it gets one of the documented answers: never an exception, never a 500, never a hang.

And whatever is changed about a signed request on its way, it is not acted upon.
"""

import json
from typing import Final

from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from incoming_payments.domain.payment import IncomingPayment
from incoming_payments.endpoints.open_payments import Request, Response
from incoming_payments.errors import MalformedField
from kits.service_kit import ALICE, AUTH_SERVER, JSON, NOBODYS_ID, PATH, Service, header

SERVICE: Final = Service()
CLIENT: Final = SERVICE.client()
ID: Final = CLIENT.creates(incomingAmount={"value": "2500", "assetCode": "USD", "assetScale": 2})

GOOD: Final = {200, 201}
REFUSED: Final = {400, 401, 403, 404, 405, 406, 413, 414, 415, 422, 431}

latin1 = st.text(st.characters(max_codepoint=255), max_size=40)
visible = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40)
methods = st.one_of(st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "PUT", "get", ""]), latin1)
paths = st.one_of(
    st.sampled_from([PATH, f"{PATH}/", f"{PATH}/{ID}", f"{PATH}/{NOBODYS_ID}", f"{PATH}/{ID}/complete", "*", ""]),
    latin1.map(lambda tail: f"{PATH}/{tail}"),
    latin1,
)
names = st.one_of(
    st.sampled_from(
        [
            "Authorization",
            "Signature",
            "Signature-Input",
            "Content-Digest",
            "Content-Type",
            "Content-Length",
            "Content-Encoding",
            "Accept",
            "Host",
            "Idempotency-Key",
        ]
    ),
    latin1,
)
values = st.one_of(
    st.sampled_from(
        [
            f"GNAP {CLIENT.token}",
            "application/json",
            "undefined",
            'sig1=("@method" "@target-uri" "authorization");keyid="ed25519-key";created=1767268800',
            'sig1=("@query-param";name="a" "x";key="y" "z";sf);keyid="ed25519-key";created=-1',
            'sig1=("content-digest";bs;req;tr "@status");keyid="ed25519-key";created=1e9;nonce=""',
            "sig1=:AAAA:",
            "sig1=:AAAA:, sig2=:AAAA:",
            "sha-256=:AAAA:",
            "text/html;q=0, ;;,",
        ]
    ),
    visible,
    latin1,
)
headers = st.lists(st.tuples(names, values), max_size=8)

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
amounts = st.fixed_dictionaries(
    {
        "value": st.one_of(st.sampled_from(["0", "1", "18446744073709551616"]), documents),
        "assetCode": st.one_of(st.just("USD"), documents),
        "assetScale": st.one_of(st.just(2), documents),
    }
)
creations = st.fixed_dictionaries(
    {"walletAddress": st.one_of(st.sampled_from([ALICE.url, f"{ALICE.url}/", "https://bank.example/bob"]), documents)},
    optional={
        "incomingAmount": st.one_of(amounts, documents),
        "expiresAt": st.one_of(
            st.sampled_from(["2026-01-02T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"]),
            st.datetimes().map(lambda time: f"{time.isoformat()}Z"),
            documents,
        ),
        "metadata": documents,
        "x": documents,
    },
)
bodies = st.one_of(
    creations.map(lambda document: json.dumps(document).encode()),
    documents.map(lambda document: json.dumps(document).encode()),
    st.binary(max_size=100),
    st.builds(
        lambda piece, times: piece * times, st.sampled_from([b"[", b'{"a":', b"9", b"\xff"]), st.integers(0, 9000)
    ),
)


def check(response: Response) -> None:
    """Check the promises about every answer, whatever the request."""
    assert response.status in GOOD | REFUSED
    assert header(response, "Content-Type") == "application/json"
    assert header(response, "Cache-Control") == "no-store"
    assert (f"GNAP as_uri={AUTH_SERVER}" if response.status == 401 else None) == header(response, "WWW-Authenticate")
    assert (response.status == 405) == (header(response, "Allow") is not None)
    assert all("\n" not in value and "\r" not in value for _, value in response.headers)
    document = json.loads(response.body)
    if response.status in REFUSED:
        assert list(document) == ["error"]
        assert {"code", "description"} <= document["error"].keys() <= {"code", "description", "details"}
        assert CLIENT.token.encode() not in response.body


@settings(max_examples=800, deadline=None)
@given(st.builds(Request, methods, paths, st.one_of(st.just(""), latin1), headers, bodies))
def test_anything_gets_a_documented_answer(request: Request) -> None:
    """Arbitrary methods, paths, queries, header fields and bodies: a response, and no payment out of nothing."""
    response = SERVICE.handle(request)
    check(response)
    assert response.status != 201


@settings(max_examples=400, deadline=None)
@given(bodies)
def test_any_signed_body_gets_a_documented_answer(body: bytes) -> None:
    """Past the signature the body may still be anything: a payment, or a refusal that says what to change."""
    request = CLIENT.creation(body)
    response = SERVICE.handle(request)
    check(response)
    assert response.status in {201, 400, 403}


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(visible, visible.map(json.dumps), latin1), max_size=2), st.sampled_from([b" ", b"  "]))
def test_any_signed_idempotency_key_gets_a_documented_answer(keys: list[str], space: bytes) -> None:
    """Past the signature the key may be anything: a payment, 400, or 422 if the key was used for another body."""
    body = json.dumps({"walletAddress": ALICE.url}).encode() + space
    request = Request("POST", PATH, headers=(JSON, *(("Idempotency-Key", key) for key in keys)), body=body)
    try:
        signed = CLIENT.sign(request)
    except MalformedField:
        return  # no client can sign such a field
    response = SERVICE.handle(signed)
    check(response)
    assert response.status in {201, 400, 422}
    assert response.status != 201 or SERVICE.handle(signed) == response or not keys


@settings(max_examples=400, deadline=None)
@given(methods, paths, st.one_of(st.just(""), visible), headers)
def test_anything_with_a_token_gets_a_documented_answer(
    method: str, path: str, query: str, extra: list[tuple[str, str]]
) -> None:
    """The token holds, so that whatever is sent reaches the verifier."""
    request = Request(method, path, query, [("Authorization", f"GNAP {CLIENT.token}"), *extra])
    check(SERVICE.handle(request))


# --- a signed request, changed on its way ----------------------------------------------------------

CREATION: Final = CLIENT.creation()  # covers everything that is sent
KEYED: Final = CLIENT.sign(Request("POST", PATH, headers=(JSON, ("Idempotency-Key", '"order-1"')), body=CREATION.body))
READING: Final = CLIENT.sign(Request("GET", f"{PATH}/{ID}", "a=b"))


def stored() -> int:
    """How many payments there are."""
    return sum(isinstance(row, IncomingPayment) for row in SERVICE.store._rows.values())


@st.composite
def changed_fields(draw: st.DrawFn, request: Request) -> Request:
    """`request` with one header field line dropped, emptied, repeated or altered in one character."""
    lines = list(request.headers)
    at = draw(st.integers(0, len(lines) - 1))
    name, value = lines[at]
    before, after = lines[:at], lines[at + 1 :]
    spot = draw(st.integers(0, len(value) - 1))
    other = draw(st.characters(min_codepoint=0x21, max_codepoint=0xFF).filter(lambda char: char != value[spot]))
    again = draw(st.one_of(st.just(value), visible))
    altered = value[:spot] + other + value[spot + 1 :]
    ways: tuple[list[tuple[str, str]], ...] = ([], [(name, "")], [(name, value), (name, again)], [(name, altered)])
    return evolve(request, headers=[*before, *draw(st.sampled_from(ways)), *after])


@st.composite
def changed_body(draw: st.DrawFn, request: Request) -> Request:
    """`request` with one byte of its body altered, the rest of it cut off, or more of it."""
    body = request.body
    spot = draw(st.integers(0, len(body) - 1))
    byte = draw(st.integers(0, 255).filter(lambda byte: byte != body[spot]))
    ways = (
        body[:spot] + bytes([byte]) + body[spot + 1 :],
        body[:spot],
        body + draw(st.binary(min_size=1, max_size=10)),
    )
    return evolve(request, body=draw(st.sampled_from(ways)))


def changed_target(request: Request) -> st.SearchStrategy[Request]:
    """`request` with another method, another path or another query."""
    return st.one_of(
        methods.filter(lambda method: method != request.method).map(lambda method: evolve(request, method=method)),
        paths.filter(lambda path: path != request.path).map(lambda path: evolve(request, path=path)),
        latin1.filter(lambda query: query != request.query).map(lambda query: evolve(request, query=query)),
    )


def test_unchanged_request_is_acted_upon() -> None:
    """What the two properties below change is good as it stands."""
    before = stored()
    assert (SERVICE.handle(CREATION).status, SERVICE.handle(READING).status) == (201, 200)
    assert [SERVICE.handle(KEYED).status for _ in range(2)] == [201, 201]
    assert before + 2 == stored()


@settings(max_examples=800, deadline=None)
@given(
    st.one_of(
        changed_fields(CREATION), changed_body(CREATION), changed_target(CREATION), changed_fields(KEYED),
        changed_body(KEYED),
    )
)  # fmt: skip
def test_changed_create_is_never_acted_upon(request: Request) -> None:
    """A header field, a byte of the body, the target: whichever it is, it is refused and nothing is stored."""
    before = stored()
    response = SERVICE.handle(request)
    check(response)
    assert response.status in REFUSED
    assert before == stored()


@settings(max_examples=400, deadline=None)
@given(st.one_of(changed_fields(READING), changed_target(READING)))
def test_changed_get_shows_nothing(request: Request) -> None:
    """Nor does a signed GET that was changed show the resource: not even the public part of it."""
    response = SERVICE.handle(request)
    check(response)
    assert response.status in REFUSED

"""Cross-checks with other implementations of RFC 9421: each side verifies the other's signatures, and refuses changes.

The peers are npm `http-message-signatures`, npm `@interledger/http-signature-utils`, which the Open Payments clients
and Rafiki use, and PyPI `http-message-signatures`. Each case is made at random from one seed, and a failing test prints
the command that repeats it. A test run has a few cases. This command runs many:

    nox -s interop [-- --rounds 20000] [--seed 1]

The random cases leave out the known differences between a peer and this library. These are in the tables at the end,
each with its reason and an example, and a test checks that each still exists.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

import pytest
from attrs import asdict, evolve, frozen

from incoming_payments.errors import MalformedField, SignatureRefused
from incoming_payments.httpsig import (
    Algorithm,
    Code,
    Component,
    Policy,
    RequestMessage,
    content_digest,
    sign,
    signature_base,
    verify,
)
from kits import node_packages
from kits.signature_cases import ORDER, Case, changes, required
from kits.signature_peers import (
    ALGORITHMS,
    DERIVED,
    DHENSBY,
    INTERLEDGER,
    VERSIONS,
    Dhensby,
    Interledger,
    Node,
    Peer,
    PyAuth,
    running_node,
)
from kits.signing_keys import private

PYPI: Final = "PyPI"
ROUNDS: Final = int(os.environ.get("INCOMING_PAYMENTS_INTEROP_ROUNDS", "50"))
SEED: Final = int(os.environ.get("INCOMING_PAYMENTS_INTEROP_SEED", "1"))


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Run Node.js with the two packages."""
    with running_node(node_packages.installed(VERSIONS, request, tmp_path_factory)) as node:
        yield node


@pytest.fixture
def peer(request: pytest.FixtureRequest) -> Peer:
    """Return the peer that a test names. The one from PyPI needs no npm."""
    if request.param == PYPI:
        return PyAuth()
    node: Node = request.getfixturevalue("node")
    return Dhensby(node) if request.param == DHENSBY else Interledger(node)


# --- the random cases --------------------------------------------------------------------------


def we_sign(case: Case) -> RequestMessage:
    """Return the request of `case`, signed by this library."""
    return sign(
        case.request,
        case.key,
        created=case.created,
        components=case.components,
        label=case.label,
        expires=case.expires,
        nonce=case.nonce,
        tag=case.tag,
        alg_param=case.alg,
        digest=None,
    )


@frozen
class Facts:
    """The facts that a signature proves."""

    label: str
    key_id: str
    algorithm: Algorithm
    components: tuple[Component, ...]
    created: datetime
    expires: datetime | None
    nonce: str | None
    tag: str | None


def facts_of(case: Case) -> Facts:
    """Return the facts that a good signature of `case` proves."""
    return Facts(
        case.label,
        case.key.kid,
        case.key.algorithm,
        case.components,
        datetime.fromtimestamp(case.created, UTC),
        None if case.expires is None else datetime.fromtimestamp(case.expires, UTC),
        case.nonce,
        case.tag,
    )


def we_verify(request: RequestMessage, case: Case, now: datetime) -> Facts | Code:
    """Return the facts that this library finds proven, or the code of its refusal."""
    policy = Policy(required=(required(case).name,))
    try:
        proof = verify(request, {case.key.kid: case.key.public_key()}, policy=policy, now=now)
    except SignatureRefused as refusal:
        return Code(refusal.code)
    proven = proof.signature_input
    return Facts(
        proven.label,
        proof.key_id,
        proof.algorithm,
        proven.components,
        proof.created,
        proof.expires,
        proven.nonce,
        proven.tag,
    )


def check(peer: Peer, random: Random, *, they_sign: bool) -> str:
    """Sign a random case, verify it unchanged and changed, and return the name of the change."""
    case = peer.to_sign(random) if they_sign else peer.to_verify(random)
    signed = peer.sign(case) if they_sign else we_sign(case)
    now = datetime.fromtimestamp(case.created, UTC) + timedelta(seconds=random.randint(-59, 299))
    change, changed, reasons = random.choice(changes(random, case, signed))
    try:
        assert facts_of(case) == we_verify(signed, case, now)
        assert peer.verify(signed, case)
        assert we_verify(changed, case, now) in reasons
        assert (change == "body" and not peer.reads_body) or not peer.verify(changed, case)
    except AssertionError as error:
        error.add_note(f"{case}\nsigned: {asdict(signed)}\nchanged, {change}: {asdict(changed)}")
        raise
    return change


@pytest.mark.parametrize("they_sign", [True, False], ids=["theirs", "ours"])
@pytest.mark.parametrize("peer", [DHENSBY, INTERLEDGER, PYPI], indirect=True)
def test_both_sides_verify_the_signatures_of_either(peer: Peer, they_sign: bool) -> None:
    """Both sides accept the signature, and both refuse it after a change of a covered part."""
    refused = Counter[str]()
    for seed in range(SEED, SEED + ROUNDS):
        try:
            refused[check(peer, Random(seed), they_sign=they_sign)] += 1
        except Exception as error:
            error.add_note(f"to repeat this: nox -s interop -- --seed {seed} --rounds 1")
            raise
    print(
        f"{ROUNDS} good signatures, and refused with these changes: {dict(refused.most_common())}"
    )  # for `nox -s interop`


# --- known differences -------------------------------------------------------------------


@frozen
class Difference:
    """The value of `component` on each side, or None where that side refuses it."""

    why: str
    request: RequestMessage
    component: Component
    ours: str | None
    theirs: str | None


def component(name: str, /, **parameters: str | bool) -> Component:
    """Return a component with its parameters."""
    return Component(name, tuple(parameters.items()))


def to(target_uri: str, method: str = "GET") -> RequestMessage:
    """Return a request without fields."""
    return RequestMessage(method, target_uri, ())


def having(*headers: tuple[str, str]) -> RequestMessage:
    """Return a request with fields."""
    return RequestMessage("GET", "https://a.example/", headers)


QUERY_PARAM: Final = component("@query-param", name="a")

OF_DHENSBY: Final = [
    # It uses `URL` and `encodeURIComponent` of JavaScript.
    Difference(
        "it leaves !'()~ in a query parameter unencoded; RFC 9421 §2.2.8 encodes them",
        to("https://a.example/?a=!'()~"), QUERY_PARAM, "%21%27%28%29%7E", "!'()~",
    ),
    Difference(
        "it signs a query parameter that occurs twice, as two lines; RFC 9421 §2.2.8 forbids it",
        to("https://a.example/?a=1&a=2"), QUERY_PARAM, None, "1\n2",
    ),
    Difference(
        "it signs U+FFFD for bytes that are not UTF-8, so different queries have one signature",
        to("https://a.example/?a=%FF"), QUERY_PARAM, None, "%EF%BF%BD",
    ),
    Difference(
        "it removes dot segments from the path; RFC 9421 §2.2.6 keeps them",
        to("https://a.example/a/../b"), component("@path"), "/a/../b", "/b",
    ),
    Difference(
        "it encodes characters of the path that were sent unencoded",
        to('https://a.example/"'), component("@path"), '/"', "/%22",
    ),
    Difference(
        "it encodes an apostrophe of the query that was sent unencoded",
        to("https://a.example/?it's"), component("@query"), "?it's", "?it%27s",
    ),
    Difference(
        "it drops an empty query from the request target; RFC 9421 §2.2.5 keeps it",
        to("https://a.example/?"), component("@request-target"), "/?", "/",
    ),
    Difference(
        "it removes zeros before a port",
        to("https://a.example:08443/"), component("@authority"), "a.example:08443", "a.example:8443",
    ),
    Difference(
        "it normalizes IP addresses",
        to("https://[0:0::1]/"), component("@authority"), "[0:0::1]", "[::1]",
    ),
    Difference(
        "it makes methods upper case; RFC 9421 §2.2.1 keeps the case",
        to("https://a.example/", "get"), component("@method"), "get", "GET",
    ),
    # It does not check the content of fields.
    Difference(
        "it keeps the CR of obsolete line folding; RFC 9421 §2.1 replaces the folding by a space",
        having(("x-a", "1\r\n 2")), component("x-a"), "1 2", "1\r 2",
    ),
    Difference(
        "it signs characters outside ASCII; RFC 9421 §2.1 and §2.5 do not allow that",
        having(("x-a", "\xe9")), component("x-a"), None, "\xe9",
    ),
    Difference(
        "it signs control characters",
        having(("x-a", "1\0")), component("x-a"), None, "1\0",
    ),
    Difference(
        "it encodes a field as UTF-8 instead of the bytes that Node received (RFC 9421 §2.1.3)",
        having(("x-a", "\xe9")), component("x-a", bs=True), ":6Q==:", ":w6k=:",
    ),
    Difference(
        "it ignores unknown parameters",
        having(("x-a", "1")), component("x-a", tr=True), None, "1",
    ),
    Difference(
        "it ignores parameters of derived components",
        to("https://a.example/"), component("@method", sf=True), None, "GET",
    ),
    # It guesses the types of structured fields, and parses them by npm structured-headers.
    Difference(
        "it guesses the type of a field; RFC 9421 §2.1.1 requires a known type",
        having(("x-a", "b=1")), component("x-a", sf=True), None, "b=1",
    ),
    Difference(
        "it parses a dictionary of flags as a list",
        having(("priority", "i, u")), component("priority", key="i"), "?1", None,
    ),
    Difference(
        "it uses the last of two members with one key; here they are refused, because another parser may use the first",
        having(("priority", "u=1, u=2")), component("priority", key="u"), None, "2",
    ),
    Difference(
        "it writes a decimal without fraction as an integer (RFC 9651 §4.1.5)",
        having(("age", "1.0")), component("age", sf=True), "1.0", "1",
    ),
    Difference(
        "it cannot parse a date with a parameter (RFC 9651 §4.2.9)",
        having(("age", "@5;a")), component("age", sf=True), "@5;a", None,
    ),
    Difference(
        "it writes octets below 16 in a display string with one digit (RFC 9651 §4.1.11)",
        having(("age", '%"%0a"')), component("age", sf=True), '%"%0a"', '%"%a"',
    ),
    Difference(
        "it does not strip tabs around a structured field",
        having(("age", "\t1")), component("age", sf=True), "1", None,
    ),
]  # fmt: skip

OF_PYPI: Final = [
    Difference(
        "it adds the slash of an empty path; here the application decides the target URI (RFC 9421 §2.2.2)",
        to("https://a.example"), component("@target-uri"), "https://a.example", "https://a.example/",
    ),
    Difference(
        "it drops user and fragment; here they are refused, because no target URI has them (RFC 9110 §7.1)",
        to("https://user@a.example/#b"), component("@target-uri"), None, "https://a.example/",
    ),
    Difference(
        "it refuses characters that clients send although RFC 3986 forbids them",
        to("https://a.example/?a=|"), component("@query"), "?a=|", None,
    ),
    Difference(
        "it refuses methods with lower-case letters, which RFC 9110 §9.1 allows",
        to("https://a.example/", "get"), component("@method"), "get", None,
    ),
    Difference(
        "it supports the request target of CONNECT, which a service of resources never receives",
        to("https://a.example:1", "CONNECT"), component("@request-target"), "/", "a.example:1",
    ),
    Difference(
        "it signs U+FFFD for bytes that are not UTF-8, so different queries have one signature",
        to("https://a.example/?a=%FF"), QUERY_PARAM, None, "%EF%BF%BD",
    ),
    Difference(
        "it accepts a query parameter's name that is not encoded as RFC 9421 §2.2.8 says",
        to("https://a.example/?%21=1"), component("@query-param", name="!"), None, "1",
    ),
    Difference(
        "it does not know the types of the fields of RFC 9440 and RFC 9421",
        having(("client-cert", ":AQ==:")), component("client-cert", sf=True), ":AQ==:", None,
    ),
    Difference(
        "it parses any field as a dictionary for ;key; RFC 9421 §2.1.2 requires a known dictionary",
        having(("x-a", "b=1")), component("x-a", key="b"), None, "1",
    ),
    Difference(
        "it uses the last of two members with one key; here they are refused, because another parser may use the first",
        having(("priority", "u=1, u=2")), component("priority", key="u"), None, "2",
    ),
    Difference(
        "it signs control characters under ;bs, where they cannot forge a line; no server accepts them",
        having(("x-a", "1\0")), component("x-a", bs=True), None, ":MQA=:",
    ),
    Difference(
        "it adds ;bs to several lines of Set-Cookie, a field of responses",
        having(("set-cookie", "a"), ("set-cookie", "b")), component("set-cookie"),
        "a, b", '"set-cookie";bs: :YQ==:, :Yg==:',
    ),
]  # fmt: skip


def we_sign_over(difference: Difference) -> str | None:
    """Return the value of the component in our signature base."""
    try:
        base = signature_base(difference.request, [difference.component], ())
    except MalformedField:
        return None
    return base.decode().rpartition("\n")[0].removeprefix(f"{difference.component.identifier}: ")


@pytest.mark.parametrize("difference", OF_DHENSBY, ids=lambda difference: difference.why)
def test_dhensby_still_differs(node: Node, difference: Difference) -> None:
    """Each row about npm http-message-signatures is true."""
    theirs = Dhensby(node).value(difference.request, difference.component)
    assert (difference.ours, difference.theirs) == (we_sign_over(difference), theirs)


@pytest.mark.parametrize("difference", OF_PYPI, ids=lambda difference: difference.why)
def test_pypi_still_differs(difference: Difference) -> None:
    """Each row about PyPI http-message-signatures is true."""
    theirs = PyAuth().value(difference.request, difference.component)
    assert (difference.ours, difference.theirs) == (we_sign_over(difference), theirs)


def a_case(*headers: tuple[str, str], body: bytes = b"", components: Sequence[Component] = ()) -> Case:
    """Return a case that all peers handle, unless it gets more components."""
    return Case(
        request=RequestMessage("POST", "https://a.example/b", headers, body),
        key=private(Algorithm.ED25519),
        label="sig1",
        components=(component("@method"), component("@target-uri"), *components),
        created=1_600_000_000,
    )


FIELD: Final = component("x-a")
NOT_FOR_INTERLEDGER: Final = [
    ("it accepts the label sig1 only; labels carry no meaning (RFC 9421 §4)", evolve(a_case(), label="sig2")),
    ("it verifies Ed25519 only", evolve(a_case(), key=private(Algorithm.ES256))),
    ("it derives @method and @target-uri only", a_case(components=[component("@path")])),
    ("it ignores parameters of components", a_case(("x-a", "1"), components=[component("x-a", bs=True)])),
    ("it does not strip white space around fields", a_case(("x-a", " 1"), components=[FIELD])),
    ("it requires a covered authorization", a_case(("authorization", "GNAP t"), ("x-a", "1"), components=[FIELD])),
    (
        "it requires content-length and content-type with content-digest",
        a_case(("content-digest", content_digest(b"{}")), body=b"{}", components=[component("content-digest")]),
    ),
    (
        "it does not support several signatures",
        a_case(("signature-input", "a=()"), ("signature", "a=:AQ==:")),
    ),
]


@pytest.mark.parametrize(("why", "case"), NOT_FOR_INTERLEDGER, ids=[why for why, _ in NOT_FOR_INTERLEDGER])
def test_interledger_still_refuses(node: Node, why: str, case: Case) -> None:
    """npm http-signature-utils refuses each good signature in the table."""
    signed, now = we_sign(case), datetime.fromtimestamp(case.created, UTC)

    assert facts_of(case) == we_verify(signed, case, now), why
    assert not Interledger(node).verify(signed, case), why


def test_interledger_verifies_the_plain_case(node: Node) -> None:
    """Without the differences in the table, it accepts the signature."""
    assert Interledger(node).verify(we_sign(a_case()), a_case())


def test_interledger_still_digests_another_body(node: Node) -> None:
    """It digests the body in a reserialized form, so this library refuses the body as it was sent."""
    case = a_case(body=b'{"a": 1}')
    signed, now = Interledger(node).sign(case), datetime.fromtimestamp(case.created, UTC)

    assert we_verify(signed, case, now) is Code.DIGEST_MISMATCH
    assert content_digest(b'{"a":1}') == signed.values("content-digest")[0]


def test_dhensby_still_uses_another_salt_length(node: Node) -> None:
    """Its own rsa-pss-sha512 uses the longest possible salt. RFC 9421 §3.3.1 requires 64 bytes."""
    peer, case = Dhensby(node), evolve(a_case(), key=private(Algorithm.PS512))
    signed, now = peer.sign(case, as_it_comes=True), datetime.fromtimestamp(case.created, UTC)

    assert peer.verify(signed, case)
    assert we_verify(signed, case, now) is Code.SIGNATURE_INVALID


def test_dhensby_still_ignores_the_body(node: Node) -> None:
    """It never compares Content-Digest with the body. Here that is a part of the verification."""
    digest = ("content-digest", content_digest(b"{}"))
    case = a_case(digest, body=b"{}", components=[component("content-digest")])
    changed, now = evolve(we_sign(case), body=b"[]"), datetime.fromtimestamp(case.created, UTC)

    assert Dhensby(node).verify(changed, case)
    assert we_verify(changed, case, now) is Code.DIGEST_MISMATCH


def test_dhensby_still_leaves_out_empty_parameters(node: Node) -> None:
    """It writes neither a created of 0 nor an empty nonce. This library signs both."""
    case = evolve(a_case(), created=0, nonce="")

    assert we_sign(case).values("signature-input")[0].endswith(';keyid="key-1";created=0;nonce=""')
    assert Dhensby(node).sign(case).values("signature-input")[0].endswith(');keyid="key-1"')


# --- the cases themselves ----------------------------------------------------------------------


def test_random_cases_are_of_all_kinds() -> None:
    """The random cases have every algorithm, component and parameter of the peer, with and without a body."""
    cases = [PyAuth().to_verify(Random(seed)) for seed in range(300)]
    components = [component for case in cases for component in case.components]

    assert set(ALGORITHMS) == {case.key.algorithm for case in cases}
    assert set(DERIVED) <= {component.name for component in components}
    assert {("sf",), ("bs",), ("key",), ("key", "sf"), ("sf", "key"), ("name",), ()} == {
        tuple(name for name, _ in component.parameters) for component in components
    }
    assert {True, False} == {bool(case.request.body) for case in cases}
    for name in ORDER:
        assert name in ("keyid", "created") or {True, False} == {name in dict(case.parameters) for case in cases}


def test_seed_gives_one_case() -> None:
    """A seed always gives the same case."""
    first, again = (PyAuth().to_verify(Random(7)) for _ in range(2))
    assert first == again

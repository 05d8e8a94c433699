"""ILP over HTTP: what each request of a peer's is answered with, and who is taken for a peer."""

from collections.abc import Callable
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.api import Request, Response
from incoming_payments.errors import InvalidValue, PortMissing, StoreUnavailable, StoreUnusable
from incoming_payments.flows.run import run
from incoming_payments.gnap import AccessToken
from incoming_payments.ilp.ildcp import ildcp_request, read_ildcp_response
from incoming_payments.ilp.packet import Fulfill, Reject, encode
from incoming_payments.ilp.stream import condition_of
from incoming_payments.ilp_http import HttpPeer, handle_packet
from incoming_payments.limits import HEADERS_MAX, ILP_PREPARE_BYTES_MAX, PEER_TOKENS_MAX
from incoming_payments.ports import Ports
from incoming_payments.testing import NOW
from packet_kit import BEARER, EURO_PEER, EURO_TOKEN, OCTETS, OLD_TOKEN, TOKEN, a_policy, a_request, code, reply, tokens
from service_kit import header, refusal
from stream_kit import METHODS, PEER, Service


def answer(request: Request, service: Service | None = None) -> Response:
    """The response to `request`."""
    service = service or Service()
    return run(
        handle_packet(request, policy=a_policy(receiver=service.receiver), clock=lambda: service.now), service.ports
    )


# --- packets -----------------------------------------------------------------------------------------


def test_a_packet_is_fulfilled_once_it_is_booked() -> None:
    """A Prepare is answered with the Fulfill in the response, and its money is in the books."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(400)
    response = answer(a_request(encode(prepare)), service)
    fulfill = reply(response)
    assert isinstance(fulfill, Fulfill)
    assert condition_of(fulfill.fulfillment) == prepare.condition
    assert (service.received, response.cause) == (400, None)


def test_a_reject_is_a_good_answer() -> None:
    """What is wrong with a packet is said by a Reject, with status 200."""
    service = Service(limit=1000)
    assert code(answer(a_request(encode(service.sender.prepare(2000))), service)) == "F08"
    assert code(answer(a_request(encode(service.sender.prepare(1000))), service)) == "fulfilled"
    assert code(answer(a_request(encode(service.sender.prepare(1))), service)) == "F99"


@pytest.mark.parametrize("body", [b"", b"{}", b"\x0c", b"\x0d\x00", bytes(ILP_PREPARE_BYTES_MAX)])
def test_bytes_that_are_no_packet(body: bytes) -> None:
    """They are answered with F01, so that the connector has a Reject to pass on."""
    assert code(answer(a_request(body))) == "F01"


def test_the_token_says_which_peer() -> None:
    """Each peer is told its own address and asset, and brings money in that asset."""
    service = Service()
    asked = encode(ildcp_request(NOW))
    for token, peer in ((TOKEN, PEER), (OLD_TOKEN, PEER), (EURO_TOKEN, EURO_PEER)):
        response = answer(a_request(asked, OCTETS, ("Authorization", f"Bearer {token}")), service)
        assert read_ildcp_response(reply(response).data) == peer
    euros = a_request(encode(service.sender.prepare(1)), OCTETS, ("Authorization", f"Bearer {EURO_TOKEN}"))
    assert code(answer(euros, service)) == "F07"
    assert service.received == 0


@pytest.mark.parametrize(
    "media_type",
    [
        "application/octet-stream",
        "application/ilp+octet-stream",
        "Application/Octet-Stream",
        "application/octet-stream; charset=utf-8",
    ],
)
def test_media_types_of_packets(media_type: str) -> None:
    """The type of RFC 35 is taken, in any spelling, and that of an older plugin; the answer has the former."""
    assert code(answer(a_request(b"", ("content-type", media_type), BEARER))) == "F01"


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(("Accept", "application/json"), id="there is nothing else to be had"),
        pytest.param(("Callback-Url", "https://a.example/ilp"), id="the answer is in the response all the same"),
        pytest.param(("Request-Id", "42ee09c8-a6de-4ae3-8a47-4732b0cbb07b"), id="nothing needs to be correlated"),
        pytest.param(("Content-Encoding", "identity"), id="not encoded"),
    ],
)
def test_header_fields_that_change_nothing(more: tuple[str, str]) -> None:
    """What else RFC 35 has peers send is not needed here."""
    assert code(answer(a_request(b"", OCTETS, BEARER, more))) == "F01"


# --- requests that are no packets ----------------------------------------------------------------------

REFUSED: Final = [
    pytest.param(evolve(a_request(method="GET"), query="a" * 5000), (414, "target_too_long"), id="too long a target"),
    pytest.param(
        a_request(b"", *(HEADERS_MAX + 1) * [("A", "")], method="GET"), (431, "headers_too_large"), id="many fields"
    ),
    pytest.param(a_request(method="GET"), (405, "method_not_allowed"), id="GET"),
    pytest.param(a_request(method="OPTIONS"), (405, "method_not_allowed"), id="OPTIONS"),
    pytest.param(a_request(b"", ("X-A", "b"), method="PUT"), (405, "method_not_allowed"), id="PUT, and more is wrong"),
    pytest.param(a_request(b"", BEARER), (415, "unsupported_media_type"), id="no type"),
    pytest.param(a_request(b"", OCTETS, OCTETS, BEARER), (415, "unsupported_media_type"), id="two types"),
    pytest.param(a_request(b"", ("Content-Type", "text/plain")), (415, "unsupported_media_type"), id="another type"),
    pytest.param(
        a_request(b"", OCTETS, ("Content-Encoding", "gzip"), BEARER), (415, "unsupported_encoding"), id="encoded"
    ),
    pytest.param(a_request(bytes(ILP_PREPARE_BYTES_MAX + 1), OCTETS), (401, "token_missing"), id="no token"),
    *(
        pytest.param(a_request(b"", OCTETS, ("Authorization", value)), (401, "invalid_token"), id=value[:40])
        for value in (
            f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN.upper()}", f"Bearer {TOKEN}, {TOKEN}",
            "Bearer", "Bearer ", "", TOKEN, f"GNAP {TOKEN}", f"Basic {TOKEN}", f"Bearer  {TOKEN} ", f'Bearer "{TOKEN}"',
            f"Bearer\t{TOKEN}", f"Bearer é{TOKEN}", f"Bearer {'x' * 5000}",
        )
    ),
    pytest.param(a_request(b"", OCTETS, BEARER, BEARER), (401, "invalid_token"), id="two Authorization fields"),
    pytest.param(a_request(bytes(ILP_PREPARE_BYTES_MAX + 1)), (413, "body_too_large"), id="too large"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "expected"), REFUSED)
def test_requests_that_are_no_packets(request_: Request, expected: tuple[int, str]) -> None:
    """Head, method, type, token and size are refused in this order, with what to do instead."""
    refused = answer(request_)
    assert refusal(refused, challenge="Bearer") == expected
    assert header(refused, "Allow") == ("POST" if expected[0] == 405 else None)
    if expected[1] == "unsupported_media_type":
        assert header(refused, "Accept") == "application/octet-stream, application/ilp+octet-stream"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
def test_schemes_have_no_case(scheme: str) -> None:
    """RFC 9110 §11.1: the scheme's case does not matter, nor do spaces after it."""
    assert code(answer(a_request(b"", OCTETS, ("authorization", f"{scheme} {TOKEN}")))) == "F01"


def test_without_a_peer_nobody_is_one() -> None:
    """A policy may begin with no peers; then every token is refused."""
    policy = a_policy(peers=[])
    refused = run(handle_packet(a_request(), policy=policy, clock=lambda: NOW), Ports())
    assert refusal(refused, challenge="Bearer") == (401, "invalid_token")


# --- trouble -------------------------------------------------------------------------------------------


def raising(error: Exception) -> Callable[..., Any]:
    """A port's method that raises."""

    def fail(*_: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("trouble", [StoreUnavailable("disk full: /srv/p"), StoreUnusable("another schema")])
@pytest.mark.parametrize("method", ["update", "load"])
def test_trouble_of_the_store(monkeypatch: pytest.MonkeyPatch, trouble: Exception, method: str) -> None:
    """The peer is told to try again, and nothing else; what the store said is the response's `cause`."""
    service = Service()
    monkeypatch.setattr(service.store, method, raising(trouble))
    prepare = service.sender.prepare(1) if method == "update" else service.sender.probe(1)
    response = answer(a_request(encode(prepare)), service)
    assert reply(response) == Reject("T00", METHODS.prefix, "try again later")
    assert response.cause is trouble


def test_a_port_that_is_missing_is_the_hosts() -> None:
    """It is raised, for the host to log, and to answer what the policy has for that."""
    service = Service()
    service.replace(store=None)
    with pytest.raises(PortMissing):
        answer(a_request(encode(service.sender.prepare(1))), service)
    assert reply(a_policy().failed()) == Reject("T00", METHODS.prefix, "try again later")


# --- the policy ----------------------------------------------------------------------------------------

BAD_TOKENS: Final = [
    pytest.param([], "give 1 to 8 tokens", id="none"),
    pytest.param([f"token-number-{n:06}" for n in range(PEER_TOKENS_MAX + 1)], "give 1 to 8 tokens", id="too many"),
    pytest.param([TOKEN, "x" * 15], "a peer's token is at least 16 random characters", id="short"),
]


@pytest.mark.parametrize(("values", "says"), BAD_TOKENS)
def test_tokens_that_a_peer_may_not_have(values: list[str], says: str) -> None:
    """A peer has a few tokens, and none that could be guessed."""
    with pytest.raises(InvalidValue, match=says) as refused:
        HttpPeer(PEER, tokens(*values))
    assert refused.value.details == {"member": "tokens"}


@pytest.mark.parametrize(
    "peers",
    [
        [HttpPeer(PEER, tokens(TOKEN)), HttpPeer(EURO_PEER, tokens(EURO_TOKEN, TOKEN))],
        [HttpPeer(PEER, tokens(TOKEN, TOKEN))],
    ],
)
def test_a_token_stands_for_one_peer(peers: list[HttpPeer]) -> None:
    """The same token for two peers, or twice for one, is a mistake."""
    with pytest.raises(InvalidValue, match="a token is listed twice") as refused:
        a_policy(peers=peers)
    assert refused.value.details == {"member": "peers"}


@pytest.mark.parametrize("path", ["/ilp", "/a/b", "/.well-known/ilp", "/incoming-payments-ilp", "/~x/a:b@c"])
def test_paths_for_packets(path: str) -> None:
    """Any path that has one spelling, and is not one of Open Payments."""
    assert a_policy(path=path).path == path


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "ilp", "/ilp/", "//ilp", "/a//b", "/a/../b", "/..", "/.", "/a b", "/a%20b", "/a?b", "/é", "/a\n"),
        *("/incoming-payments", "/incoming-payments/ilp", None),
    ],
)
def test_paths_that_are_refused(path: Any) -> None:
    """A path that has several spellings, or would hide payments, is refused."""
    with pytest.raises(InvalidValue, match="path must") as refused:
        a_policy(path=path)
    assert refused.value.details == {"member": "path"}


def test_a_policy_holds_no_token() -> None:
    """It keeps their digests, and shows not even those."""
    policy = a_policy()
    kept = repr((policy, policy.peers, policy._known))
    digest = AccessToken(TOKEN).digest
    assert policy.peers[0].digests[0] == digest
    assert [secret for secret in (TOKEN, OLD_TOKEN, EURO_TOKEN) if secret in kept] == []
    assert repr(digest)[2:-1] not in repr(policy)

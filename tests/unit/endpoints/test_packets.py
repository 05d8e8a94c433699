"""Tests of `ilp_http`: the response to each request, and the authentication of peers."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.endpoints.open_payments import Request, Response
from incoming_payments.endpoints.packets import HttpPeer, internal_reject, receive_packet_request
from incoming_payments.errors import (
    HttpRefused,
    InvalidValue,
    PortMissing,
    PortUnavailable,
    StoreUnavailable,
    StoreUnusable,
)
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.flows.machinery.run import run
from incoming_payments.gnap import AccessToken
from incoming_payments.ilp.packet import Fulfill, Reject, encode
from incoming_payments.ilp.receive import Receiver
from incoming_payments.ilp.stream import condition_of
from incoming_payments.limits import HEADERS_MAX, ILP_PREPARE_BYTES_MAX, PEER_TOKENS_MAX
from incoming_payments.testing import NOW
from incoming_payments.testing.replies import ildcp_request, read_ildcp_response
from kits.packet_kit import (
    BEARER,
    EURO_PEER,
    EURO_TOKEN,
    OCTETS,
    OLD_TOKEN,
    TOKEN,
    a_policy,
    a_request,
    code,
    reply,
    tokens,
)
from kits.service_kit import refusal
from kits.stream_kit import METHODS, PEER, Service


def answer(request: Request, service: Service | None = None) -> Response:
    """Return the response to `request`."""
    service = service or Service()
    return run(
        receive_packet_request(request, policy=a_policy(), receiver=service.receiver, clock=lambda: service.now),
        service.ports,
    )


# --- packets -----------------------------------------------------------------------------------------


def test_packet_is_credited_and_fulfilled() -> None:
    """The response to a Prepare holds the Fulfill, and the money is credited."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(400)
    response = answer(a_request(encode(prepare)), service)
    fulfill = reply(response)
    assert isinstance(fulfill, Fulfill)
    assert condition_of(fulfill.fulfillment) == prepare.condition
    assert (service.received, response.cause) == (400, None)


def test_reject_has_status_200() -> None:
    """A packet that is refused is answered with a Reject and status 200. The refusal is no failure to report."""
    service = Service(limit=1000)
    refused = answer(a_request(encode(service.sender.prepare(2000))), service)
    assert (code(refused), refused.cause) == ("F08", None)
    assert code(answer(a_request(encode(service.sender.prepare(1000))), service)) == "fulfilled"
    assert code(answer(a_request(encode(service.sender.prepare(1))), service)) == "F07"


@pytest.mark.parametrize("body", [b"", b"{}", b"\x0c", b"\x0d\x00", bytes(ILP_PREPARE_BYTES_MAX)])
def test_malformed_packet_is_answered(body: bytes) -> None:
    """Bytes that are not a packet are answered with F01, so that the connector can forward the Reject."""
    assert code(answer(a_request(body))) == "F01"


def test_token_identifies_the_peer() -> None:
    """Each token belongs to a peer, which has its own address and asset."""
    service = Service()
    ildcp = encode(ildcp_request(NOW))
    for token, peer in ((TOKEN, PEER), (OLD_TOKEN, PEER), (EURO_TOKEN, EURO_PEER)):
        response = answer(a_request(ildcp, OCTETS, ("Authorization", f"Bearer {token}")), service)
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
def test_media_types(media_type: str) -> None:
    """The media types of RFC 35 and of an older plugin are accepted, in upper and lower case, with parameters."""
    assert code(answer(a_request(b"", ("content-type", media_type), BEARER))) == "F01"


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param(("Accept", "application/json"), id="Accept"),
        pytest.param(("Callback-Url", "https://a.example/ilp"), id="Callback-Url"),
        pytest.param(("Request-Id", "42ee09c8-a6de-4ae3-8a47-4732b0cbb07b"), id="Request-Id"),
        pytest.param(("Content-Encoding", "identity"), id="identity encoding"),
    ],
)
def test_other_header_fields_are_ignored(extra: tuple[str, str]) -> None:
    """Other header fields of RFC 35 do not change the response."""
    assert code(answer(a_request(b"", OCTETS, BEARER, extra))) == "F01"


# --- refused requests ----------------------------------------------------------------------------------

MEDIA_TYPES: Final = ("Accept", "application/octet-stream, application/ilp+octet-stream")
CHALLENGE: Final = ("WWW-Authenticate", "Bearer")
POST: Final = ("Allow", "POST")
ONE_TOKEN: Final = "send exactly one header field Authorization: Bearer <token>"
UNKNOWN: Final = "the token does not belong to a known peer"
TOO_LARGE: Final = bytes(ILP_PREPARE_BYTES_MAX + 1)


def with_token(value: str) -> Request:
    """Return a request with this value of `Authorization`."""
    return a_request(b"", OCTETS, ("Authorization", value))


REFUSED: Final = [
    (evolve(a_request(method="GET"), query="a" * 5000), 414, "target_too_long", "4096", None),
    (a_request(b"", *(HEADERS_MAX + 1) * [("A", "")], method="GET"), 431, "headers_too_large", "100", None),
    (a_request(method="GET"), 405, "method_not_allowed", "use POST for ILP packets", POST),
    (a_request(method="OPTIONS"), 405, "method_not_allowed", "use POST for ILP packets", POST),
    (a_request(b"", ("X-A", "b"), method="PUT"), 405, "method_not_allowed", "use POST for ILP packets", POST),
    (a_request(b"", BEARER), 415, "unsupported_media_type", "", MEDIA_TYPES),
    (a_request(b"", OCTETS, OCTETS, BEARER), 415, "unsupported_media_type", "", MEDIA_TYPES),
    (a_request(b"", ("Content-Type", "text/plain")), 415, "unsupported_media_type", "", MEDIA_TYPES),
    (a_request(TOO_LARGE, OCTETS), 401, "token_missing", "send the header field Authorization: Bearer", CHALLENGE),
    *((with_token(value), 401, "invalid_token", UNKNOWN, CHALLENGE) for value in (
        f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN.upper()}", f"Bearer {'x' * 5000}",
    )),
    *((with_token(value), 401, "invalid_token", ONE_TOKEN, CHALLENGE) for value in (
        f"Bearer {TOKEN}, {TOKEN}", "Bearer", "Bearer ", "", TOKEN, f"GNAP {TOKEN}", f"Basic {TOKEN}",
        f'Bearer "{TOKEN}"', f"Bearer\t{TOKEN}", f"Bearer é{TOKEN}",
    )),
    (a_request(b"", OCTETS, BEARER, BEARER), 401, "invalid_token", ONE_TOKEN, CHALLENGE),
    (a_request(TOO_LARGE), 413, "body_too_large", "at most 34816 bytes", None),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "status", "code_", "description", "field"), REFUSED)
def test_refused_request(
    request_: Request, status: int, code_: str, description: str, field: tuple[str, str] | None
) -> None:
    """Head, method, media type, token and size are checked in this order. The body says what to change."""
    response = answer(request_)
    assert refusal(response, challenge="Bearer") == (status, code_)
    found = json.loads(response.body)["error"]["description"]
    assert description in found
    assert found[0].islower()
    common = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
    assert response.headers == (*common, *([field] if field else []))


def test_content_encoding_is_refused() -> None:
    """A packet is not compressed."""
    request = a_request(b"", OCTETS, ("Content-Encoding", "gzip"), BEARER)
    assert refusal(answer(request)) == (415, "unsupported_encoding")


def test_reply_has_one_header_field() -> None:
    """The response to a packet has only a media type."""
    assert answer(a_request()).headers == (("Content-Type", "application/octet-stream"),)


def test_second_half_of_the_digest_is_compared() -> None:
    """A token is unknown when only the first half of its digest, which finds the peer, is that of a known token."""

    class Similar(AccessToken):
        @property
        def digest(self) -> bytes:
            return AccessToken(TOKEN).digest[:16] + bytes(16)

    policy = a_policy(peers=[HttpPeer(PEER, [Similar(TOKEN)])])
    with pytest.raises(HttpRefused) as refused:
        policy.peer_of([f"Bearer {TOKEN}"])
    assert refused.value.code == "invalid_token"


@pytest.mark.parametrize("value", [f" Bearer {TOKEN}", f"Bearer {TOKEN} ", f"\tBearer {TOKEN} \t "])
def test_white_space_around_the_authorization_is_no_part_of_it(value: str) -> None:
    """Some servers leave the white space around a value. RFC 9110 §5.5."""
    assert code(answer(a_request(b"", OCTETS, ("authorization", value)))) == "F01"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
def test_scheme_is_case_insensitive(scheme: str) -> None:
    """The case of the scheme and the number of spaces after it do not matter. RFC 9110 §11.1."""
    assert code(answer(a_request(b"", OCTETS, ("authorization", f"{scheme} {TOKEN}")))) == "F01"


def test_policy_without_peers_refuses_every_token() -> None:
    """A policy may have no peers. It then refuses every token."""
    policy = a_policy(peers=[])
    refused = run(
        receive_packet_request(a_request(), policy=policy, receiver=Receiver(METHODS), clock=lambda: NOW), Ports()
    )
    assert refusal(refused, challenge="Bearer") == (401, "invalid_token")


# --- failures ------------------------------------------------------------------------------------------


def raising(error: Exception) -> Callable[..., Any]:
    """Return a method that raises `error`."""

    def fail(*_: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [StoreUnavailable("disk full: /srv/p"), StoreUnusable("another schema"), PortUnavailable("no ledger")]
)
@pytest.mark.parametrize("method", ["update", "load"])
def test_failure_of_the_store(monkeypatch: pytest.MonkeyPatch, error: Exception, method: str) -> None:
    """A failure of the store is answered with T00. The exception is only in `cause`."""
    service = Service()
    monkeypatch.setattr(service.store, method, raising(error))
    prepare = service.sender.prepare(1) if method == "update" else service.sender.probe(1)
    response = answer(a_request(encode(prepare)), service)
    assert reply(response) == Reject("T00", METHODS.prefix, "try again later")
    assert response.cause is error


def test_missing_port_raises() -> None:
    """`PortMissing` reaches the host, which then answers with `internal_reject`."""
    service = Service()
    service.replace(store=None)
    with pytest.raises(PortMissing):
        answer(a_request(encode(service.sender.prepare(1))), service)
    assert reply(internal_reject(Receiver(METHODS))) == Reject("T00", METHODS.prefix, "try again later")


# --- the policy ----------------------------------------------------------------------------------------

COUNT: Final = "a peer must have 1 to 8 tokens: add or remove tokens"
INVALID_TOKENS: Final = [
    pytest.param([], COUNT, id="none"),
    pytest.param([f"token-number-{n:06}" for n in range(PEER_TOKENS_MAX + 1)], COUNT, id="too many"),
    pytest.param([TOKEN, "x" * 15], "a peer token must be at least 16 random characters", id="short"),
]


@pytest.mark.parametrize(("values", "message"), INVALID_TOKENS)
def test_invalid_tokens_are_refused(values: list[str], message: str) -> None:
    """A peer must have 1 to 8 tokens of at least 16 characters."""
    with pytest.raises(InvalidValue, match=message) as refused:
        HttpPeer(PEER, tokens(*values))
    assert refused.value.details == {"member": "tokens"}


@pytest.mark.parametrize(
    "values", [["x" * 16], [f"token-number-{n:06}" for n in range(PEER_TOKENS_MAX)]], ids=["shortest", "most"]
)
def test_tokens_within_the_limits_are_accepted(values: list[str]) -> None:
    """A peer may have 8 tokens, and a token may have 16 characters."""
    assert HttpPeer(PEER, tokens(*values)).digests == tuple(token.digest for token in tokens(*values))


@pytest.mark.parametrize(
    "peers",
    [
        [HttpPeer(PEER, tokens(TOKEN)), HttpPeer(EURO_PEER, tokens(EURO_TOKEN, TOKEN))],
        [HttpPeer(PEER, tokens(TOKEN, TOKEN))],
    ],
)
def test_duplicate_token_is_refused(peers: list[HttpPeer]) -> None:
    """A token may be listed only once among all peers."""
    with pytest.raises(InvalidValue, match=r"^a token is listed twice: list each token only once$") as refused:
        a_policy(peers=peers)
    assert refused.value.details == {"member": "peers"}


@pytest.mark.parametrize("path", ["/ilp", "/a/b", "/.well-known/ilp", "/incoming-payments-ilp", "/~x/a:b@c", "/ILP"])
def test_valid_path_is_accepted(path: str) -> None:
    """A path in normal form that does not belong to Open Payments is accepted."""
    assert a_policy(path=path).path == path


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "ilp", "/ilp/", "//ilp", "/a//b", "/a/../b", "/..", "/.", "/a b", "/a%20b", "/a?b", "/é", "/a\n"),
        *("/incoming-payments", "/incoming-payments/ilp", None),
    ],
)
def test_invalid_path_is_refused(path: Any) -> None:
    """A path that is not in normal form, or belongs to Open Payments, is refused."""
    with pytest.raises(InvalidValue, match=r"^path must") as refused:
        a_policy(path=path)
    assert refused.value.details == {"member": "path"}


def test_policy_contains_no_token() -> None:
    """The policy stores the digests of the tokens, and leaves them out of its `repr`."""
    policy = a_policy()
    stored = repr((policy, policy.peers, policy._tokens))
    digest = AccessToken(TOKEN).digest
    assert policy.peers[0].digests[0] == digest
    assert [secret for secret in (TOKEN, OLD_TOKEN, EURO_TOKEN) if secret in stored] == []
    assert repr(digest)[2:-1] not in repr(policy)

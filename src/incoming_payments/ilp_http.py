"""ILP over HTTP: from a request of a peer's to the reply to its packet. RFC 35 of the Interledger RFCs, as deployed.

A peer POSTs one Prepare, and finds the Fulfill or Reject in the response: 200 for both. RFC 35 would have the reply
sent in a request of its own, to a callback URL; no implementation in use does that, nor is it done here. A status other
than 200 says that the request never got as far as being a packet of a known peer.

**A peer's token is worth money**: whoever shows it is believed that what it brings will be settled. So tokens may not
be short, only their digests are kept, and the time it takes to refuse one says nothing about those that are good.
"""

import hmac
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Final

from attrs import field, frozen

from incoming_payments.api import Request, Response, body_too_large, check_head, http_refusal, require_content
from incoming_payments.errors import HttpRefused, InvalidValue, StoreError
from incoming_payments.flows.effects import Flow
from incoming_payments.flows.policy import COLLECTION_PATH
from incoming_payments.flows.receive_packet import answer_packet
from incoming_payments.gnap.token import AccessToken
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import ErrorCode, encode
from incoming_payments.ilp.receive import Receiver
from incoming_payments.limits import ILP_PREPARE_BYTES_MAX, PEER_TOKEN_CHARS_MIN, PEER_TOKENS_MAX

ILP_PATH: Final = "/ilp"  # the default
ILP_MEDIA_TYPE: Final = "application/octet-stream"
_MEDIA_TYPES: Final = (ILP_MEDIA_TYPE, "application/ilp+octet-stream")  # the second as npm ilp-plugin-http sends it
_HEADERS: Final = (("Content-Type", ILP_MEDIA_TYPE),)

_BEARER: Final = re.compile(r"bearer +([A-Za-z0-9\-._~+/]+=*)", re.IGNORECASE)  # RFC 6750 §2.1
# RFC 3986 §3.3: segments that are neither empty nor dots, and need no encoding, so that each path has one spelling.
_PATH: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~!$&'()*+,;=:@\-]+)+")
_HALF: Final = 16  # bytes of a digest: by these it is found, by the other 16 it is proven


def _digests(tokens: Iterable[AccessToken]) -> tuple[bytes, ...]:
    tokens = tuple(tokens)
    if not 1 <= len(tokens) <= PEER_TOKENS_MAX:
        raise InvalidValue(f"give 1 to {PEER_TOKENS_MAX} tokens", member="tokens")
    if any(len(token.value) < PEER_TOKEN_CHARS_MIN for token in tokens):
        raise InvalidValue(f"a peer's token is at least {PEER_TOKEN_CHARS_MIN} random characters", member="tokens")
    return tuple(token.digest for token in tokens)


@frozen
class HttpPeer:
    """A `peer` that sends packets over HTTP with one of `tokens` as its bearer token; each may be used at any time.

    To change a token, add the new one, let the peer move to it, and remove the old one. Digests of the tokens are kept,
    not the tokens. Raises `InvalidValue` unless there are 1 to 8 of them, of 16 characters or more.
    """

    peer: Peer
    digests: tuple[bytes, ...] = field(converter=_digests, alias="tokens", repr=False)


def _peers(peers: Iterable[HttpPeer]) -> tuple[HttpPeer, ...]:
    return tuple(peers)


@frozen(kw_only=True)
class PacketPolicy:
    """From whom ILP packets are taken over HTTP, and at which `path` below the service's base URL.

    `receiver` is what takes them. Raises `InvalidValue` when a token is listed twice, or the path is none, needs
    percent-encoding, or is one of Open Payments.

    >>> from incoming_payments import Asset, DerivedMethods
    >>> connector = HttpPeer(Peer("test.bank.connector", Asset("USD", 2)), tokens=[AccessToken("a-token-of-theirs")])
    >>> receiver = Receiver(DerivedMethods("test.bank", [b"a server secret of 32 bytes only"]))
    >>> PacketPolicy(receiver=receiver, peers=[connector]).path
    '/ilp'
    """

    receiver: Receiver
    peers: tuple[HttpPeer, ...] = field(converter=_peers)
    path: str = field(default=ILP_PATH)
    _known: Mapping[bytes, tuple[bytes, Peer]] = field(init=False, eq=False, repr=False)

    @path.validator
    def _is_free(self, _: object, path: object) -> None:
        if not isinstance(path, str) or not _PATH.fullmatch(path):
            text = "path must be such as /ilp: no slash at its end, no dot segments, nothing percent-encoded, no query"
            raise InvalidValue(text, member="path")
        if f"{path}/".startswith(f"{COLLECTION_PATH}/"):
            raise InvalidValue(f"path must not be below {COLLECTION_PATH}, where payments are", member="path")

    @_known.default
    def _by_token(self) -> dict[bytes, tuple[bytes, Peer]]:
        known = {digest[:_HALF]: (digest[_HALF:], account.peer) for account in self.peers for digest in account.digests}
        if len(known) < sum(len(account.digests) for account in self.peers):
            raise InvalidValue("a token is listed twice", member="peers")
        return known

    def sender_of(self, head: Request) -> Peer:
        """The peer that sends this request. Its body is not looked at, so that a host can ask before it reads one.

        Raises `HttpRefused` when no peer sends it, or it cannot be a packet: with 414, 431, 405, 415 or 401.
        """
        check_head(head)
        if head.method != "POST":
            raise HttpRefused(405, "method_not_allowed", "use POST here", headers=(("Allow", "POST"),))
        require_content(head, *_MEDIA_TYPES)
        return self.peer_of(head.values("authorization"))

    def peer_of(self, values: Sequence[str]) -> Peer:
        """The peer whose token is in `values`, those of the `Authorization` field lines.

        Raises `HttpRefused` with 401 when there is no bearer token, or none of a peer's.
        """
        if not values:
            raise _unauthorized("token_missing", "send the token of a peer: Authorization: Bearer <token>")
        bearer = _BEARER.fullmatch(values[0])
        if bearer is None or len(values) > 1:
            raise _unauthorized("invalid_token", "send one Authorization field, of the form: Bearer <token>")
        digest = sha256(bearer[1].encode("ascii")).digest()
        rest, peer = self._known.get(digest[:_HALF], (b"", None))
        if peer is None or not hmac.compare_digest(rest, digest[_HALF:]):
            raise _unauthorized("invalid_token", "the token is none of a peer's")
        return peer

    def failed(self) -> Response:
        """What a host answers when a port or this library failed: the peer may try again. The reason is for its log."""
        reject = self.receiver.reject(ErrorCode.INTERNAL_ERROR, "try again later")
        return Response(200, _HEADERS, encode(reject))


def handle_packet(request: Request, *, policy: PacketPolicy, clock: Callable[[], datetime]) -> Flow[Response]:
    """Answer one request of a peer's; the host has compared its path with `policy.path`.

    The answer to anything that a peer can send is a response, and never a 5xx: what is wrong with a packet, and trouble
    of the store, is said by a Reject. Raises only what no peer can cause, such as `PortMissing`; a host answers
    `policy.failed()` then.
    """
    try:
        peer = policy.sender_of(request)
    except HttpRefused as error:
        return http_refusal(error)
    return (yield from handle_packet_of(peer, request.body, policy=policy, clock=clock))


def handle_packet_of(peer: Peer, body: bytes, *, policy: PacketPolicy, clock: Callable[[], datetime]) -> Flow[Response]:
    """As `handle_packet`, for a host that has asked `policy.sender_of` before it read the `body`."""
    if len(body) > ILP_PREPARE_BYTES_MAX:
        return http_refusal(body_too_large(ILP_PREPARE_BYTES_MAX))
    answer = yield from answer_packet(body, peer=peer, receiver=policy.receiver, clock=clock)
    cause = answer.cause if isinstance(answer.cause, StoreError) else None
    return Response(200, _HEADERS, answer.reply, cause)


def _unauthorized(code: str, description: str) -> HttpRefused:
    return HttpRefused(401, code, description, headers=(("WWW-Authenticate", "Bearer"),))

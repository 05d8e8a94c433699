"""ILP over HTTP (Interledger RFC 35): answer the request of a peer with the reply to its packet.

A peer POSTs one Prepare. The response has status 200 and contains the Fulfill or the Reject. In RFC 35, the reply is a
separate request to a callback URL. No implementation in use sends such requests, and this module does not send them
either. A status other than 200 means that the request did not carry a packet of a known peer.

**A peer's token is worth money**, because this service trusts each sender that has the token to settle its packets. So
a token has a minimum length, the service stores only its digest, and the time of a refusal reveals nothing about valid
tokens.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

from attrs import field, frozen

from incoming_payments.domain.checks import all_of, instance
from incoming_payments.endpoints._bearer import BearerTokens, digests_of
from incoming_payments.endpoints.open_payments import (
    Request,
    Response,
    body_too_large,
    check_head,
    http_refusal,
    require_content,
)
from incoming_payments.errors import HttpRefused, InvalidValue, PortUnavailable, StoreError
from incoming_payments.flows.machinery.effects import Flow, flow
from incoming_payments.flows.policy import COLLECTION_PATH
from incoming_payments.flows.receive_packet import receive_packet_with_cause
from incoming_payments.gnap.token import AccessToken
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import ErrorCode, encode
from incoming_payments.ilp.receive import Receiver
from incoming_payments.limits import ILP_PREPARE_BYTES_MAX

ILP_PATH: Final = "/ilp"  # the default path below the base URL
ILP_MEDIA_TYPE: Final = "application/octet-stream"
# npm ilp-plugin-http sends the second media type
_MEDIA_TYPES: Final = (ILP_MEDIA_TYPE, "application/ilp+octet-stream")
_HEADERS: Final = (("Content-Type", ILP_MEDIA_TYPE),)

# A path (RFC 3986 §3.3) with no empty segments, no dot segments and no percent-encoding, so that each path has one
# form.
_PATH: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~!$&'()*+,;=:@\-]+)+")


def _digests(tokens: Iterable[AccessToken]) -> tuple[bytes, ...]:
    return digests_of(tokens, "peer")


@frozen
class HttpPeer:
    """A `peer` that sends packets over HTTP. Any of `tokens` may be the bearer token of a request.

    To replace a token, add the new token, let the peer switch to the new token, and remove the old token. The object
    stores only the digests of the tokens. Raises `InvalidValue` unless there are 1 to 8 tokens of at least 16
    characters.
    """

    peer: Peer = field(validator=instance(Peer))
    digests: tuple[bytes, ...] = field(converter=_digests, alias="tokens", repr=False)


def _peers(peers: Iterable[HttpPeer]) -> tuple[HttpPeer, ...]:
    return all_of(HttpPeer, peers, member="peers")


@frozen(kw_only=True)
class PacketPolicy:
    """The settings for ILP over HTTP: the peers, and the `path` of the endpoint below the service's base URL.

    Raises `InvalidValue` when a token is listed twice, or when the path is invalid, needs percent-encoding, or belongs
    to Open Payments.

    >>> from incoming_payments import Asset
    >>> connector = HttpPeer(Peer("test.bank.connector", Asset("USD", 2)), tokens=[AccessToken("a-token-of-the-peer")])
    >>> PacketPolicy(peers=[connector]).path
    '/ilp'
    """

    peers: tuple[HttpPeer, ...] = field(converter=_peers)
    path: str = field(default=ILP_PATH)
    _tokens: BearerTokens[Peer] = field(init=False, eq=False, repr=False)

    @path.validator
    def _check_path(self, _: object, path: object) -> None:
        if not isinstance(path, str) or not _PATH.fullmatch(path):
            text = "path must look like /ilp, without a slash at the end, dot segments, percent-encoding or a query"
            raise InvalidValue(text, member="path")
        if f"{path}/".startswith(f"{COLLECTION_PATH}/"):
            raise InvalidValue(
                f"path must not be below {COLLECTION_PATH}, which is the path of payments", member="path"
            )

    @_tokens.default
    def _index_tokens(self) -> BearerTokens[Peer]:
        digests = [(digest, account.peer) for account in self.peers for digest in account.digests]
        return BearerTokens.of(digests, member="peers")

    def sender_of(self, head: Request) -> Peer:
        """Return the peer that sends this request. A host can call this method before it reads the body.

        Raises `HttpRefused` with 414, 431, 405, 415 or 401 when the request cannot be a packet of a known peer.
        """
        check_head(head)
        if head.method != "POST":
            raise HttpRefused(405, "method_not_allowed", "use POST for ILP packets", headers=(("Allow", "POST"),))
        require_content(head, *_MEDIA_TYPES)
        return self.peer_of(head.values("authorization"))

    def peer_of(self, values: Sequence[str]) -> Peer:
        """Return the peer that has the token in `values`, the values of the `Authorization` field lines.

        Raises `HttpRefused` with 401 when there is no bearer token, or when no peer has this token.
        """
        return self._tokens.holder_of(values, unknown="the token does not belong to a known peer")


@flow
def receive_packet_request(
    request: Request, *, policy: PacketPolicy, receiver: Receiver, clock: Callable[[], datetime]
) -> Flow[Response]:
    """Answer one request of a peer. The host has already compared its path with `policy.path`.

    No request leads to a 5xx, because the answer to an invalid packet or to a failure of the store is a Reject. A peer
    can never cause an exception such as `PortMissing`. After an exception, the host answers with `internal_reject`, and
    logs the reason.
    """
    try:
        peer = policy.sender_of(request)
    except HttpRefused as error:
        return http_refusal(error)
    return (yield from receive_packet_body(peer, request.body, receiver=receiver, clock=clock))


def receive_packet_body(
    peer: Peer, body: bytes, *, receiver: Receiver, clock: Callable[[], datetime]
) -> Flow[Response]:
    """Answer the `body` of a request, for a host that has called `policy.sender_of` before it read the body."""
    if len(body) > ILP_PREPARE_BYTES_MAX:
        return http_refusal(body_too_large(ILP_PREPARE_BYTES_MAX))
    answer = yield from receive_packet_with_cause(body, peer=peer, receiver=receiver, clock=clock)
    cause = answer.cause if isinstance(answer.cause, PortUnavailable | StoreError) else None
    return Response(200, _HEADERS, answer.reply, cause)


def internal_reject(receiver: Receiver) -> Response:
    """Return the response for a failure of a port or of this library. Its T00 lets the peer retry."""
    return Response(200, _HEADERS, encode(receiver.reject(ErrorCode.INTERNAL_ERROR, "try again later")))

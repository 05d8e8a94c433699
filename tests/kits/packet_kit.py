"""Helpers for ILP over HTTP: tokens and requests of peers, and the packets in responses."""

from typing import Any, Final

from incoming_payments.domain.amount import Asset
from incoming_payments.endpoints.open_payments import Request, Response
from incoming_payments.endpoints.packets import HttpPeer, PacketPolicy
from incoming_payments.gnap import AccessToken
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Fulfill, Reject
from incoming_payments.testing.replies import decode_reply
from kits.service_kit import header
from kits.stream_kit import PEER

TOKEN: Final = "connector-token-1"
OLD_TOKEN: Final = "connector-token-0="
EURO_TOKEN: Final = "euro-connector-token"
EURO_PEER: Final = Peer("test.bank.euro", Asset("EUR", 2))
OCTETS: Final = ("Content-Type", "application/octet-stream")
BEARER: Final = ("Authorization", f"Bearer {TOKEN}")


def tokens(*values: str) -> list[AccessToken]:
    """Return these values as tokens."""
    return [AccessToken(value) for value in values]


def a_policy(**changes: Any) -> PacketPolicy:
    """Return a policy with two peers. The first peer has two tokens."""
    peers = [HttpPeer(PEER, tokens(TOKEN, OLD_TOKEN)), HttpPeer(EURO_PEER, tokens(EURO_TOKEN))]
    return PacketPolicy(**{"peers": peers, **changes})


def a_request(body: bytes = b"", *headers: tuple[str, str], method: str = "POST") -> Request:
    """Return a request with `headers`, by default those of a valid request."""
    return Request(method, "/ilp", headers=headers or (OCTETS, BEARER), body=body)


def reply(response: Response) -> Fulfill | Reject:
    """Return the packet in a response, and check its status and media type."""
    assert (response.status, header(response, "Content-Type")) == (200, "application/octet-stream")
    return decode_reply(response.body)


def code(response: Response) -> str:
    """Return `fulfilled`, or the error code in the reply."""
    packet = reply(response)
    return "fulfilled" if isinstance(packet, Fulfill) else str(packet.code)

"""Read replies to ILP packets, and request an address from a parent with ILDCP, on the side of the sender."""

from datetime import datetime

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.methods import IlpAddress, ilp_address
from incoming_payments.errors import InvalidValue, MalformedPacket
from incoming_payments.ilp.ildcp import ILDCP_ADDRESS, ILDCP_CONDITION, Peer
from incoming_payments.ilp.oer import read_octets, read_text, read_uint8
from incoming_payments.ilp.packet import (
    AMOUNTS,
    CODE,
    CONDITION_BYTES,
    INVALID_ADDRESS,
    INVALID_CODE,
    Fulfill,
    PacketType,
    Prepare,
    Reject,
    Reply,
    contents_span,
    read_data,
)
from incoming_payments.limits import ILP_MESSAGE_CHARS_MAX


def decode_reply(packet: bytes) -> Reply:
    """Decode a Fulfill or a Reject. Raise `MalformedPacket` for any other bytes, including a Prepare."""
    if packet[:1] == bytes((PacketType.FULFILL,)):
        at, end = contents_span(packet, PacketType.FULFILL)
        data_at = at + CONDITION_BYTES
        if data_at > end:
            raise MalformedPacket("the fulfillment is truncated", at)
        return Fulfill(packet[at:data_at], read_data(packet, data_at, end))
    at, end = contents_span(packet, PacketType.REJECT)
    code = packet[at : min(at + 3, end)].decode("ascii", "replace")
    if not CODE.fullmatch(code):
        raise MalformedPacket(INVALID_CODE, at)
    triggered_by, message_at = read_octets(packet, at + 3, end)
    address = _address(triggered_by, at + 3) if triggered_by else ""
    message, data_at = read_text(packet, message_at, end)
    if len(message) > ILP_MESSAGE_CHARS_MAX:
        raise MalformedPacket(f"the message has more than {ILP_MESSAGE_CHARS_MAX} characters", message_at)
    return Reject(code, address, message, read_data(packet, data_at, end))


def read_amounts(data: bytes) -> tuple[int, int]:
    """Return the received and the maximum amount from the `data` of an F08. Raise `MalformedPacket` for other bytes."""
    if len(data) < AMOUNTS.size:
        raise MalformedPacket("the amounts of the F08 are truncated", 0)
    received, maximum = AMOUNTS.unpack_from(data)
    return received, maximum


def _address(octets: bytes, at: int) -> IlpAddress:
    try:
        return ilp_address(octets.decode("ascii"))
    except (InvalidValue, UnicodeDecodeError):
        raise MalformedPacket(INVALID_ADDRESS, at) from None


def ildcp_request(expires_at: datetime) -> Prepare:
    """Return the ILDCP request that a child sends to its parent."""
    return Prepare(0, expires_at, ILDCP_CONDITION, ILDCP_ADDRESS)


def read_ildcp_response(data: bytes) -> Peer:
    """Return the address and asset in the `data` of an ILDCP response. Raise `MalformedPacket` for other bytes.

    >>> from incoming_payments.ilp.ildcp import ildcp_response
    >>> response = ildcp_response(Peer("g.bank.shop", Asset("USD", 2)))
    >>> read_ildcp_response(response.data)
    Peer(address='g.bank.shop', asset=Asset(code='USD', scale=2))
    """
    end = len(data)
    address, scale_at = read_octets(data, 0, end)
    scale, code_at = read_uint8(data, scale_at, end)
    code, _ = read_text(data, code_at, end)
    try:
        return Peer(address.decode("ascii"), Asset(code, scale))
    except (InvalidValue, UnicodeDecodeError):
        raise MalformedPacket("the ILDCP response contains an invalid ILP address or asset", 0) from None

"""Tests of `testing.replies`: Interledger RFC 27 and RFC 31, as a sender reads them."""

from datetime import UTC, datetime

import pytest

from incoming_payments.errors import MalformedPacket
from incoming_payments.ilp.oer import write_octets
from incoming_payments.ilp.packet import Prepare, encode, write_amounts
from incoming_payments.limits import UINT64_MAX
from incoming_payments.testing.replies import decode_reply, ildcp_request, read_amounts, read_ildcp_response

EXPIRY = datetime(2017, 12, 24, 16, 14, 32, 279_000, UTC)
PREPARE = encode(Prepare(0, EXPIRY, bytes(32), "g.a"))
INVALID_ADDRESS = "the ILP address is invalid (Interledger RFC 15)"
INVALID_CODE = "an error code must be F, T or R and two digits"

# The packet that npm ilp-protocol-ildcp makes for the same expiry.
REQUEST_HEX = (
    "0c460000000000000000323031373132323431363134333232373966687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f"
    "29250b706565722e636f6e66696700"
)


def a_packet(kind: int, *parts: bytes) -> bytes:
    return bytes((kind,)) + write_octets(b"".join(parts))


def test_amounts_of_an_f08() -> None:
    """The data of an F08 has two 64-bit integers. Bytes after them are ignored."""
    assert read_amounts(write_amounts(107, UINT64_MAX) + b"more") == (107, UINT64_MAX)
    with pytest.raises(MalformedPacket) as caught:
        read_amounts(bytes(15))
    assert str(caught.value) == "the amounts of the F08 are truncated, at byte 0"


@pytest.mark.parametrize(
    ("packet", "message", "position"),
    [
        pytest.param(b"", "a byte is missing", 0, id="empty"),
        pytest.param(PREPARE, "a packet of type 12 is not a Reject", 0, id="Prepare"),
        pytest.param(a_packet(13, bytes(31)), "the fulfillment is truncated", 2, id="fulfillment of 31 bytes"),
        pytest.param(a_packet(13, bytes(32)), "a length is missing", 34, id="Fulfill without data"),
        pytest.param(a_packet(14, b"F0"), INVALID_CODE, 2, id="code of two characters"),
        pytest.param(a_packet(14, b"F\xb2\xb2"), INVALID_CODE, 2, id="code without digits"),
        pytest.param(a_packet(14, b"F00"), "a length is missing", 5, id="no address"),
        pytest.param(a_packet(14, b"F00\x01g"), INVALID_ADDRESS, 5, id="not an ILP address"),
        pytest.param(a_packet(14, b"F00\x03g.\xe9"), INVALID_ADDRESS, 5, id="not ASCII"),
        pytest.param(a_packet(14, b"F00\x00\x01\xff\x00"), "a string is not UTF-8", 6, id="message"),
        pytest.param(
            a_packet(14, b"F00\x00", write_octets(b"x" * 8192), b"\x00"),
            "the message has more than 8191 characters",
            8,
            id="long message",
        ),
    ],
)
def test_malformed_reply_is_refused(packet: bytes, message: str, position: int) -> None:
    """A malformed Fulfill or Reject is refused, with the reason and the position."""
    with pytest.raises(MalformedPacket) as caught:
        decode_reply(packet)
    assert str(caught.value) == f"{message}, at byte {position}"


def test_request_equals_that_of_the_node_library() -> None:
    """The request is encoded as npm `ilp-protocol-ildcp` encodes it."""
    assert encode(ildcp_request(datetime(2017, 12, 24, 16, 14, 32, 279_000, UTC))).hex() == REQUEST_HEX


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "a length is missing, at byte 0"),
        ("03672e61", "a byte is missing, at byte 4"),
        ("03672e6109", "a length is missing, at byte 5"),
        ("01670903585250", "the ILDCP response contains an invalid ILP address or asset, at byte 0"),
        ("03672ee90903585250", "the ILDCP response contains an invalid ILP address or asset, at byte 0"),
        ("03672e610900", "the ILDCP response contains an invalid ILP address or asset, at byte 0"),
    ],
)
def test_malformed_response_is_refused(data: str, message: str) -> None:
    """A response that is truncated or has invalid values raises `MalformedPacket`."""
    with pytest.raises(MalformedPacket) as caught:
        read_ildcp_response(bytes.fromhex(data))
    assert str(caught.value) == message

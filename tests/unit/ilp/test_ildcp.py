"""Tests of `ilp.ildcp`: Interledger RFC 31."""

from datetime import UTC, datetime

import pytest

from incoming_payments.domain.amount import Asset
from incoming_payments.errors import InvalidValue, MalformedPacket
from incoming_payments.ilp.ildcp import ILDCP_CONDITION, Peer, ildcp_response
from incoming_payments.ilp.packet import encode
from incoming_payments.testing.replies import decode_reply, ildcp_request, read_ildcp_response
from kits.frozen_values import assert_frozen

PEER = Peer("example.client", Asset("XRP", 9))

# The packets that npm ilp-protocol-ildcp makes for the same values.
REQUEST_HEX = (
    "0c460000000000000000323031373132323431363134333232373966687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f"
    "29250b706565722e636f6e66696700"
)
RESPONSE_HEX = (
    "0d350000000000000000000000000000000000000000000000000000000000000000140e6578616d706c652e636c69656e740903585250"
)


def test_request_equals_that_of_the_node_library() -> None:
    """The request is encoded as npm `ilp-protocol-ildcp` encodes it."""
    assert encode(ildcp_request(datetime(2017, 12, 24, 16, 14, 32, 279_000, UTC))).hex() == REQUEST_HEX


def test_rfc_31_condition() -> None:
    """The condition of a request is the constant in RFC 31."""
    assert ILDCP_CONDITION.hex() == "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925"


def test_response_equals_that_of_the_node_library() -> None:
    """The response is encoded as npm `ilp-protocol-ildcp` encodes it, and can be read."""
    assert encode(ildcp_response(PEER)).hex() == RESPONSE_HEX
    assert read_ildcp_response(decode_reply(bytes.fromhex(RESPONSE_HEX)).data) == PEER


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "a length is missing, at byte 0"),
        ("03672e61", "a byte is missing, at byte 4"),
        ("03672e6109", "a length is missing, at byte 5"),
        ("01670903585250", "the ILDCP response holds an invalid ILP address or asset, at byte 0"),
        ("03672ee90903585250", "the ILDCP response holds an invalid ILP address or asset, at byte 0"),
        ("03672e610900", "the ILDCP response holds an invalid ILP address or asset, at byte 0"),
    ],
)
def test_malformed_response_is_refused(data: str, message: str) -> None:
    """A response that is truncated or has invalid values raises `MalformedPacket`."""
    with pytest.raises(MalformedPacket) as caught:
        read_ildcp_response(bytes.fromhex(data))
    assert str(caught.value) == message


def test_peer_with_invalid_address_is_refused() -> None:
    """A peer needs a valid ILP address."""
    with pytest.raises(InvalidValue) as caught:
        Peer("client", Asset("XRP", 9))
    assert caught.value.details == {"member": "ilpAddress"}


def test_peer_is_frozen() -> None:
    """The address and asset of a peer cannot change."""
    assert_frozen(PEER)

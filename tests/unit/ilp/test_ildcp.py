"""Tests of `ilp.ildcp`: Interledger RFC 31."""

import pytest

from incoming_payments.domain.amount import Asset
from incoming_payments.errors import InvalidValue
from incoming_payments.ilp.ildcp import ILDCP_CONDITION, Peer, ildcp_response
from incoming_payments.ilp.packet import encode
from incoming_payments.testing.replies import decode_reply, read_ildcp_response

PEER = Peer("example.client", Asset("XRP", 9))

# The packet that npm ilp-protocol-ildcp makes for the same value.
RESPONSE_HEX = (
    "0d350000000000000000000000000000000000000000000000000000000000000000140e6578616d706c652e636c69656e740903585250"
)


def test_rfc_31_condition() -> None:
    """The condition of a request is the constant in RFC 31."""
    assert ILDCP_CONDITION.hex() == "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925"


def test_response_equals_that_of_the_node_library() -> None:
    """The response is encoded as npm `ilp-protocol-ildcp` encodes it, and can be read."""
    assert encode(ildcp_response(PEER)).hex() == RESPONSE_HEX
    assert read_ildcp_response(decode_reply(bytes.fromhex(RESPONSE_HEX)).data) == PEER


def test_peer_with_invalid_address_is_refused() -> None:
    """A peer needs a valid ILP address."""
    with pytest.raises(InvalidValue) as caught:
        Peer("client", Asset("XRP", 9))
    assert caught.value.details == {"member": "ilpAddress"}

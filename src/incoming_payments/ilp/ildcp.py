"""ILDCP, Interledger RFC 31: a peer requests its own ILP address and the asset of its account.

The request is a Prepare for `peer.config` with a fixed condition. The response is its Fulfill.
"""

import hashlib
from datetime import datetime
from typing import Final

from attrs import field, frozen

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.methods import IlpAddress, ilp_address
from incoming_payments.errors import InvalidValue, MalformedPacket
from incoming_payments.ilp.oer import read_octets, read_text, read_uint8, write_octets, write_text, write_uint8
from incoming_payments.ilp.packet import CONDITION_BYTES, Fulfill, Prepare

ILDCP_ADDRESS: Final = ilp_address("peer.config")
ILDCP_FULFILLMENT: Final = bytes(CONDITION_BYTES)
ILDCP_CONDITION: Final = hashlib.sha256(ILDCP_FULFILLMENT).digest()


@frozen
class Peer:
    """A party that sends ILP packets to this service.

    `address` is the ILP address that the peer is to use. `asset` is the asset of the account with the peer.
    """

    address: IlpAddress = field(converter=ilp_address)
    asset: Asset


def ildcp_request(expires_at: datetime) -> Prepare:
    """Return the request that a child sends to its parent."""
    return Prepare(0, expires_at, ILDCP_CONDITION, ILDCP_ADDRESS)


def ildcp_response(peer: Peer) -> Fulfill:
    """Return the response to a request of `peer`.

    >>> response = ildcp_response(Peer("g.bank.shop", Asset("USD", 2)))
    >>> read_ildcp_response(response.data)
    Peer(address='g.bank.shop', asset=Asset(code='USD', scale=2))
    """
    address = write_octets(peer.address.encode("ascii"))
    return Fulfill(ILDCP_FULFILLMENT, address + write_uint8(peer.asset.scale) + write_text(peer.asset.code))


def read_ildcp_response(data: bytes) -> Peer:
    """Return the address and asset in the `data` of a response. Raise `MalformedPacket`."""
    end = len(data)
    address, scale_at = read_octets(data, 0, end)
    scale, code_at = read_uint8(data, scale_at, end)
    code, _ = read_text(data, code_at, end)
    try:
        return Peer(address.decode("ascii"), Asset(code, scale))
    except (InvalidValue, UnicodeDecodeError):
        raise MalformedPacket("the ILDCP response holds an invalid ILP address or asset", 0) from None

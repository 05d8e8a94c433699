"""ILDCP (Interledger RFC 31), by which a peer requests its own ILP address and the asset of its account.

The request is a Prepare for `peer.config` with a fixed condition. The response is a Fulfill.
"""

import hashlib
from typing import Final

from attrs import field, frozen

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.checks import instance
from incoming_payments.domain.methods import IlpAddress, ilp_address
from incoming_payments.ilp.oer import write_octets, write_text, write_uint8
from incoming_payments.ilp.packet import CONDITION_BYTES, Fulfill

ILDCP_ADDRESS: Final = ilp_address("peer.config")
ILDCP_FULFILLMENT: Final = bytes(CONDITION_BYTES)
ILDCP_CONDITION: Final = hashlib.sha256(ILDCP_FULFILLMENT).digest()


@frozen
class Peer:
    """A peer that sends ILP packets to this service, with its ILP address and the asset of its account."""

    address: IlpAddress = field(converter=ilp_address)
    asset: Asset = field(validator=instance(Asset))


def ildcp_response(peer: Peer) -> Fulfill:
    """Return the response to a request of `peer`."""
    address = write_octets(peer.address.encode("ascii"))
    return Fulfill(ILDCP_FULFILLMENT, address + write_uint8(peer.asset.scale) + write_text(peer.asset.code))

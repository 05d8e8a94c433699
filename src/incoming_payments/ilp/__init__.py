"""The ILP receiver: addresses, payment details, packets, and the decisions about packets."""

from incoming_payments.domain.methods import IlpAddress, ilp_address
from incoming_payments.ilp.credentials import DerivedMethods, StreamCredentials
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.receive import Receiver

__all__ = ["DerivedMethods", "IlpAddress", "Peer", "Receiver", "StreamCredentials", "ilp_address"]

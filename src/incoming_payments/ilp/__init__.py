"""ILP: addresses, and the details by which a sender reaches a payment."""

from incoming_payments.ilp.address import IlpAddress, ilp_address
from incoming_payments.ilp.credentials import DerivedMethods, StreamCredentials

__all__ = ["DerivedMethods", "IlpAddress", "StreamCredentials", "ilp_address"]

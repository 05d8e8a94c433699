"""The service, which is the object that a host uses. It has a method for each use case, sync or async.

`IncomingPayments` calls sync ports. `AsyncIncomingPayments` awaits its ports, and has the same methods as coroutines.
Both classes run the same flows.
"""

from incoming_payments.service._base import Endpoint
from incoming_payments.service._service import AsyncIncomingPayments, IncomingPayments

__all__ = ["AsyncIncomingPayments", "Endpoint", "IncomingPayments"]

"""The relay, which calls a handler with the deliveries of one consumer of the feed.

`service.relay` makes a relay. A host imports the names of this package only for type hints.
"""

from incoming_payments.relay._settings import Handler, RelayOptions, RelaySettings
from incoming_payments.relay._tasks import AsyncRelay
from incoming_payments.relay._threads import Relay

__all__ = ["AsyncRelay", "Handler", "Relay", "RelayOptions", "RelaySettings"]

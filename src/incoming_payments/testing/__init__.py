"""Public tools for tests: example values, a port of wallet addresses, a fake clock, and sync views of async ports.

The submodules contain contract suites for stores (`contract`), feeds (`feed`), nonces (`nonces`), quotas (`quotas`) and
erasures (`erasure`), a kit that kills processes with an open store (`crash`), a STREAM sender (`sender`), and a
simulation of the whole service over a store (`simulation`). `contract` and `feed` need pytest and Hypothesis. `nonces`,
`quotas` and `erasure` need pytest. The other modules need only the library.
"""

from incoming_payments.testing.clock import FakeClock
from incoming_payments.testing.values import NOW, AnyWalletAddress, a_creation, a_wallet_address, crediting
from incoming_payments.testing.views import SyncFeed, SyncNonces, SyncQuotas, SyncView

__all__ = [
    "NOW",
    "AnyWalletAddress",
    "FakeClock",
    "SyncFeed",
    "SyncNonces",
    "SyncQuotas",
    "SyncView",
    "a_creation",
    "a_wallet_address",
    "crediting",
]

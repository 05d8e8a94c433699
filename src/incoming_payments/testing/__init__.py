"""Public tools for tests: a contract suite for stores, values to begin with, a clock, a sync view of async stores.

Importing this needs nothing but the library, nor do `incoming_payments.testing.sender`, a STREAM sender, and
`incoming_payments.testing.simulation`, which runs the whole service over a store; `incoming_payments.testing.contract`
needs pytest and Hypothesis.
"""

from incoming_payments.testing.clock import FakeClock
from incoming_payments.testing.values import NOW, a_creation, a_wallet_address, crediting
from incoming_payments.testing.views import SyncNonces, SyncView

__all__ = ["NOW", "FakeClock", "SyncNonces", "SyncView", "a_creation", "a_wallet_address", "crediting"]

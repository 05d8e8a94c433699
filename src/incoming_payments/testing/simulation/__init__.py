"""Simulate the whole service with faults, in an order that a seed decides.

`simulate` runs the library's flows in several simulated processes over one store: creates, credits, STREAM packets,
completions, expiries and reads. Many calls run at once, one effect at a time, in one thread. The simulation injects
these faults:

- A process crashes at any effect.
- A packet or a credit is repeated at the same time, in another process, after a crash, or with another amount.
- An answer is lost.
- Clocks differ and jump.
- The store fails before a commit, after a commit, or before a commit that still succeeds later. The store also rolls
  back, decides again, commits several updates together, or refuses all writes for a while.

If the store has the property `feed`, two consumers lease the events of all payments, crash, and report results beside
the traffic. Each event must arrive at least once, first arrivals must be in order, and a duplicate must be the same.

After each step the simulation compares the answers and the content of the store with a ledger, to the minor unit. The
ledger (`ledger.py`) does not use the library's own rules. At the end, each operation that got no answer is repeated.
Then the totals of the senders, of the host and of the payments must agree.

Test your own store with `simulate(seed, steps, store_factory=...)`.
"""

from incoming_payments.testing.simulation.operation import Flows
from incoming_payments.testing.simulation.report import KINDS, Report, SimulationFailed
from incoming_payments.testing.simulation.scheduler import StoreFactory, simulate

__all__ = ["KINDS", "Flows", "Report", "SimulationFailed", "StoreFactory", "simulate"]

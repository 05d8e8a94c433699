"""The stores of payments: `memory` for tests and demonstrations, and `sqlite`, the durable default.

`guard` has the checks that both make before they write. `incoming_payments.testing.contract` tests any store.
"""

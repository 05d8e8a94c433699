"""Where payments are kept: one module a store, each importing its own driver and no other.

`memory` for tests and demonstrations, `sqlite` as the durable default. `guard` is what every store of ours
checks before it writes; `incoming_payments.testing.contract` is what every store, ours or a host's, is
measured by.
"""

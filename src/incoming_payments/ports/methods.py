"""The allocator of payment methods."""

from collections.abc import Sequence
from typing import Protocol

from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import (
    IncomingPayment,
)


class MethodAllocator(Protocol):
    """The allocator of payment methods (spec section 2.3)."""

    def allocate(self, payment: IncomingPayment) -> Sequence[IlpPaymentMethod]:
        """Return the methods by which `payment` can be paid.

        Always return the same methods for the same payment, because each request that returns the payment calls this
        method.
        """


class AsyncMethodAllocator(Protocol):
    """`MethodAllocator` with an `async def` method."""

    async def allocate(self, payment: IncomingPayment) -> Sequence[IlpPaymentMethod]: ...

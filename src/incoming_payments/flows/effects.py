"""The questions a flow may ask of the outside world, as data. One effect is one atomic port operation."""

from collections.abc import Generator, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from attrs import frozen

from incoming_payments.domain.events import Event
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import (
    CreditId,
    IncomingPayment,
    PaymentId,
    WalletAddress,
    WalletAddressUrl,
)
from incoming_payments.gnap.introspection import AccessTokenInfo
from incoming_payments.gnap.token import AccessToken
from incoming_payments.ports import Decide

T = TypeVar("T")


class Effect(Generic[T]):
    """A question to a port. `answer = yield from effect` keeps the answer's type."""

    __slots__ = ()

    def __iter__(self) -> "Generator[Effect[Any], Any, T]":
        answer: T = yield self
        return answer


Flow = Generator[Effect[Any], Any, T]
"""One use case: yields effects, returns its answer, raises an `IncomingPaymentsError`."""


@frozen
class DrawRandomness(Effect[bytes]):
    """`count` random bytes, fit for secrets."""

    count: int


@frozen
class FindWalletAddress(Effect[WalletAddress | None]):
    """The wallet address with this URL, if it is hosted here."""

    url: WalletAddressUrl


@frozen
class IntrospectToken(Effect[AccessTokenInfo | None]):
    """What an access token stands for, if it is active."""

    token: AccessToken


@frozen
class UseNonce(Effect[bool]):
    """Whether `key` is used for the first time; it is used from then on, until `until` has passed."""

    key: str
    until: datetime
    now: datetime


@frozen
class AllocateMethods(Effect[Sequence[IlpPaymentMethod]]):
    """The payment details of a payment that can receive."""

    payment: IncomingPayment


@frozen
class InsertPayment(Effect[None]):
    """Store a new payment with its events; answered when it is durable. Raises `PaymentExists`."""

    decision: Decision[IncomingPayment]


@frozen
class LoadPayment(Effect[IncomingPayment]):
    """The payment as last stored. Raises `PaymentNotFound`."""

    id: PaymentId


@frozen
class UpdatePayment(Effect[T]):
    """Load, decide and store as one transaction; answered when the outcome is durable. Raises `PaymentNotFound`."""

    id: PaymentId
    decide: Decide[T]
    credit_id: CreditId | None = None


@frozen
class LoadEvents(Effect[Sequence[Event]]):
    """The events of one payment, oldest first. Raises `PaymentNotFound`."""

    id: PaymentId


@frozen
class FindExpired(Effect[Sequence[PaymentId]]):
    """Payments that have expired at `now` without their `expired` event, at most `limit` of them."""

    now: datetime
    limit: int

"""The transition table of an incoming payment (spec section 3).

`TABLE` holds every rule about the effect of a trigger on a payment. A row has the states to which it applies, the
trigger, a condition and an outcome. The decisions in `lifecycle` select the rows of a trigger and a state. The first
row whose condition holds decides. `docs/generate.py` prints `docs/lifecycle.md` from the same rows.

COMPLETED and EXPIRED are final states, because no row leads to another state. Time is an argument of every decision, so
a payment expires even if no sweep runs.

A credit and a packet differ in two rules. The money of a credit has already arrived, so an open payment accepts the
whole amount. The sender of a packet can still send less, so the payment refuses a packet with too much money. A credit
of zero is refused. A packet of zero is legal, because it carries STREAM frames, and it changes nothing.
"""

import enum
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Generic, NamedTuple, TypeVar

from attrs import frozen

from incoming_payments import errors
from incoming_payments.domain.amount import Amount, Tolerance
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.payment import Credit, IncomingPayment, WalletAddress
from incoming_payments.limits import UINT64_MAX

S = TypeVar("S")  # the type of the subject of a condition, which is usually the payment
F = TypeVar("F")  # the type of the facts that come with the trigger, such as the amount
P = TypeVar("P")  # the type of the host's setting on which the condition depends, such as the tolerance


class State(enum.StrEnum):
    """The state of a payment. `lifecycle.state_of` derives the state, so no store keeps it."""

    PENDING = "pending"  # the payment has received nothing yet
    PROCESSING = "processing"  # the payment has received some money, and may receive more
    COMPLETED = "completed"  # the payment has received its `incomingAmount`, or its client closed it
    EXPIRED = "expired"  # `expiresAt` has passed


class Trigger(enum.StrEnum):
    """The reason for a decision about a payment."""

    CREATE = "create"  # a client requests a payment
    CREDIT = "credit"  # the host credits money that has arrived
    PACKET = "packet"  # an ILP packet offers money
    REPEAT = "repeat"  # a credit or a packet has the credit id of an earlier credit
    QUOTE = "quote"  # an ILP packet that cannot be fulfilled asks how much money would arrive
    COMPLETE = "complete"  # the client closes the payment
    TIME = "time"  # the sweep looks at the payment


class Creation(NamedTuple):
    """The terms that a client requests for a payment, and the time of the request."""

    limit: Amount | None
    expires_at: datetime | None
    now: datetime


# --- rows --------------------------------------------------------------------------------------


@frozen
class Move:
    """An outcome that is not a refusal. The payment enters the state `next`, and gets the `events` in this order."""

    next: State | None
    events: tuple[EventKind, ...]


UNCHANGED: Final = Move(None, ())
"""The outcome that neither changes the payment nor raises an error."""


@frozen
class Refuse(Generic[S, F, P]):
    """An outcome that changes nothing and raises an `error`, which `make` builds."""

    error: type[errors.IncomingPaymentsError]
    make: Callable[[S, F, P], errors.IncomingPaymentsError]


@frozen
class Row(Generic[S, F, P]):
    """A rule. When `trigger` meets a payment in one of `states`, and `condition` is true, `outcome` follows.

    `states` is empty when the payment does not exist yet. `condition` takes the subject, the facts and the policy.
    """

    states: tuple[State, ...]
    trigger: Trigger
    condition: Callable[[S, F, P], bool]
    outcome: Move | Refuse[S, F, P]


# --- conditions --------------------------------------------------------------------------------


def always(_subject: object, _facts: object, _policy: object) -> bool:
    """Return true. The row decides when no earlier row decides."""
    return True


def limit_has_other_asset(wallet_address: WalletAddress, wanted: Creation, _: int) -> bool:
    """Return whether `incomingAmount` is not in the asset of the wallet address."""
    return wanted.limit is not None and wanted.limit.asset != wallet_address.asset


def limit_is_zero(_: WalletAddress, wanted: Creation, _expiry_s_max: int) -> bool:
    """Return whether `incomingAmount` is zero."""
    return wanted.limit is not None and wanted.limit.value == 0


def expiry_is_not_ahead(_: WalletAddress, wanted: Creation, _expiry_s_max: int) -> bool:
    """Return whether `expiresAt` is not in the future."""
    return wanted.expires_at is not None and wanted.expires_at <= wanted.now


def expiry_is_too_far_ahead(_: WalletAddress, wanted: Creation, expiry_s_max: int) -> bool:
    """Return whether `expiresAt` is later than the policy allows."""
    return wanted.expires_at is not None and wanted.expires_at - wanted.now > timedelta(seconds=expiry_s_max)


def amount_differs(earlier: Credit, amount: Amount, _: object) -> bool:
    """Return whether the earlier credit has another amount."""
    return earlier.amount != amount


def amount_has_other_asset(payment: IncomingPayment, amount: Amount, _: object) -> bool:
    """Return whether the amount is not in the asset of the payment."""
    return amount.asset != payment.asset


def amount_is_zero(_: IncomingPayment, amount: Amount, _policy: object) -> bool:
    """Return whether the amount is zero."""
    return amount.value == 0


def total_overflows(payment: IncomingPayment, amount: Amount, _: object) -> bool:
    """Return whether the total exceeds 2**64 - 1."""
    return payment.received.value + amount.value > UINT64_MAX


def total_is_too_large(payment: IncomingPayment, amount: Amount, tolerance: Tolerance) -> bool:
    """Return whether the total exceeds `incomingAmount` by more than the tolerance, or exceeds 2**64 - 1."""
    excess = payment.received.value + amount.value - receive_max(payment)
    return excess > tolerance.excess_max(payment.limit)


def total_reaches_limit(payment: IncomingPayment, amount: Amount, _: object) -> bool:
    """Return whether the total reaches or exceeds `incomingAmount`."""
    return _is_full(payment, payment.received.value + amount.value)


def total_is_below_limit(payment: IncomingPayment, amount: Amount, _: object) -> bool:
    """Return whether the total stays below `incomingAmount`, or there is no `incomingAmount`."""
    return not total_reaches_limit(payment, amount, None)


def expiry_has_passed(payment: IncomingPayment, now: datetime, _: object = None) -> bool:
    """Return whether the time is after `expiresAt`."""
    # The payment expires when the current time *exceeds* `expiresAt` (spec section 3, row 2).
    return payment.expires_at is not None and now > payment.expires_at


def is_completed(payment: IncomingPayment) -> bool:
    """Return whether `payment` has received its `incomingAmount`, or was closed by its client or by the host."""
    return payment.closed_at is not None or _is_full(payment, payment.received.value)


def _is_full(payment: IncomingPayment, total: int) -> bool:
    return payment.limit is not None and total >= payment.limit.value


def receive_max(payment: IncomingPayment) -> int:
    """Return the total that `payment` accepts, in minor units: `incomingAmount`, or else 2**64 - 1."""
    return UINT64_MAX if payment.limit is None else payment.limit.value


# --- refusals ----------------------------------------------------------------------------------


def _limit_asset(wallet_address: WalletAddress, _wanted: Creation, _: int) -> errors.AssetMismatch:
    asset = f"{wallet_address.asset.code} at scale {wallet_address.asset.scale}"
    text = f"incomingAmount must be in {asset}, the asset of the wallet address"
    return errors.AssetMismatch(text, member="incomingAmount")


def _too_far_ahead(_: WalletAddress, _wanted: Creation, expiry_s_max: int) -> errors.TermsRefused:
    return errors.TermsRefused(f"expiresAt must be at most {expiry_s_max} seconds in the future", member="expiresAt")


def _reused(earlier: Credit, _amount: Amount, _: object) -> errors.CreditIdReused:
    text = f"credit id {earlier.id} was already used for a credit of {earlier.amount.text}"
    advice = "pass the same amount to repeat that credit, or a new id to credit other money"
    return errors.CreditIdReused(f"{text}: {advice}")


def _other_asset(payment: IncomingPayment, _amount: Amount, _: object) -> errors.AssetMismatch:
    asset = payment.asset
    return errors.AssetMismatch(f"the payment accepts only {asset.code} at scale {asset.scale}")


def _too_large(payment: IncomingPayment, _amount: Amount, _: object) -> errors.AmountTooLarge:
    remaining = receive_max(payment) - payment.received.value
    text = f"the packet carries more money than the payment can still accept: send at most {remaining}"
    return errors.AmountTooLarge(text, remaining=remaining)


def _always(error: type[errors.IncomingPaymentsError], text: str, **details: str) -> Refuse[Any, Any, Any]:
    """Return a refusal with the same text for every payment."""
    return Refuse(error, lambda *_: error(text, **details))


_LIMIT_ZERO: Final = _always(
    errors.TermsRefused, "incomingAmount.value must be greater than zero", member="incomingAmount.value"
)
_NOT_AHEAD: Final = _always(errors.TermsRefused, "expiresAt must be in the future", member="expiresAt")
_ZERO: Final = _always(errors.InvalidValue, "a credit must be greater than zero", member="amount")
_OVERFLOW: Final = _always(errors.AmountOverflow, "the total received would exceed 2**64 - 1: create another payment")
_IS_COMPLETED: Final = _always(
    errors.PaymentCompleted, "the payment is completed and accepts no more money: create another payment"
)
_HAS_EXPIRED: Final = _always(
    errors.PaymentExpired, "the payment has expired and accepts no more money: create another payment"
)


# --- the table ---------------------------------------------------------------------------------

ANY: Final = tuple(State)
OPEN: Final = (State.PENDING, State.PROCESSING)
_PROCESSING: Final = (State.PROCESSING,)
_COMPLETED: Final = (State.COMPLETED,)
_EXPIRED: Final = (State.EXPIRED,)

_CREDITED: Final = Move(State.PROCESSING, (EventKind.CREDITED,))
_FILLED: Final = Move(State.COMPLETED, (EventKind.CREDITED, EventKind.COMPLETED))
_CLOSED: Final = Move(State.COMPLETED, (EventKind.COMPLETED,))
_LAPSED: Final = Move(State.EXPIRED, (EventKind.EXPIRED,))

CREATE: Final[tuple[Row[WalletAddress, Creation, int], ...]] = (
    Row((), Trigger.CREATE, limit_has_other_asset, Refuse(errors.AssetMismatch, _limit_asset)),
    Row((), Trigger.CREATE, limit_is_zero, _LIMIT_ZERO),
    Row((), Trigger.CREATE, expiry_is_not_ahead, _NOT_AHEAD),
    Row((), Trigger.CREATE, expiry_is_too_far_ahead, Refuse(errors.TermsRefused, _too_far_ahead)),
    Row((), Trigger.CREATE, always, Move(State.PENDING, (EventKind.CREATED,))),
)
CREDIT: Final[tuple[Row[IncomingPayment, Amount, None], ...]] = (
    Row(ANY, Trigger.CREDIT, amount_has_other_asset, Refuse(errors.AssetMismatch, _other_asset)),
    Row(ANY, Trigger.CREDIT, amount_is_zero, _ZERO),
    Row(_COMPLETED, Trigger.CREDIT, always, _IS_COMPLETED),
    Row(_EXPIRED, Trigger.CREDIT, always, _HAS_EXPIRED),
    Row(_PROCESSING, Trigger.CREDIT, total_overflows, _OVERFLOW),
    Row(OPEN, Trigger.CREDIT, total_reaches_limit, _FILLED),
    Row(OPEN, Trigger.CREDIT, total_is_below_limit, _CREDITED),
)
PACKET: Final[tuple[Row[IncomingPayment, Amount, Tolerance], ...]] = (
    Row(ANY, Trigger.PACKET, amount_has_other_asset, Refuse(errors.AssetMismatch, _other_asset)),
    Row(ANY, Trigger.PACKET, amount_is_zero, UNCHANGED),
    Row(_COMPLETED, Trigger.PACKET, always, _IS_COMPLETED),
    Row(_EXPIRED, Trigger.PACKET, always, _HAS_EXPIRED),
    Row(OPEN, Trigger.PACKET, total_is_too_large, Refuse(errors.AmountTooLarge, _too_large)),
    Row(OPEN, Trigger.PACKET, total_reaches_limit, _FILLED),
    Row(OPEN, Trigger.PACKET, total_is_below_limit, _CREDITED),
)
REPEAT: Final[tuple[Row[Credit, Amount, None], ...]] = (
    Row(ANY, Trigger.REPEAT, amount_differs, Refuse(errors.CreditIdReused, _reused)),
    Row(ANY, Trigger.REPEAT, always, UNCHANGED),
)
QUOTE: Final[tuple[Row[IncomingPayment, Amount, None], ...]] = (
    Row(ANY, Trigger.QUOTE, amount_has_other_asset, Refuse(errors.AssetMismatch, _other_asset)),
    Row(_COMPLETED, Trigger.QUOTE, always, _IS_COMPLETED),
    Row(_EXPIRED, Trigger.QUOTE, always, _HAS_EXPIRED),
    Row(OPEN, Trigger.QUOTE, always, UNCHANGED),
)
COMPLETE: Final[tuple[Row[IncomingPayment, None, None], ...]] = (
    Row(OPEN, Trigger.COMPLETE, always, _CLOSED),
    Row(_COMPLETED, Trigger.COMPLETE, always, UNCHANGED),
    Row(_EXPIRED, Trigger.COMPLETE, always, _HAS_EXPIRED),
)
TIME: Final[tuple[Row[IncomingPayment, datetime, None], ...]] = (
    Row(OPEN, Trigger.TIME, expiry_has_passed, _LAPSED),
    Row(ANY, Trigger.TIME, always, UNCHANGED),
)
TABLE: Final[tuple[Row[Any, Any, Any], ...]] = (*CREATE, *REPEAT, *CREDIT, *PACKET, *QUOTE, *COMPLETE, *TIME)


def by_state(rows: tuple[Row[S, F, P], ...]) -> Mapping[State, tuple[Row[S, F, P], ...]]:
    """Return the `rows` of each state, in their order."""
    return {state: tuple(row for row in rows if state in row.states) for state in State}


def follow(rows: tuple[Row[S, F, P], ...], subject: S, facts: F, policy: P) -> Move:
    """Return the outcome of the first of `rows` whose condition is true. For a refusal, raise its error."""
    for row in rows:
        if row.condition(subject, facts, policy):
            outcome = row.outcome
            if isinstance(outcome, Refuse):
                raise outcome.make(subject, facts, policy)
            return outcome
    raise AssertionError("the table has no row for this state, trigger and facts")

"""The decisions to create, credit, complete and expire an incoming payment (spec section 3).

Each decision is a pure function, and the time is an argument. A decision follows the rows that `transitions.TABLE` has
for the trigger and the state of the payment. The function returns a `Decision` or raises the refusal of the row.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar

from attrs import evolve, frozen

from incoming_payments.domain.amount import Amount, Tolerance
from incoming_payments.domain.approval import Approved
from incoming_payments.domain.checks import check_time
from incoming_payments.domain.events import Event
from incoming_payments.domain.idempotency import KeyedCreation
from incoming_payments.domain.payment import (
    ClientId,
    Credit,
    CreditId,
    IncomingPayment,
    MetadataJson,
    PaymentId,
    Progress,
    Terms,
    WalletAddress,
)
from incoming_payments.domain.transitions import (
    COMPLETE,
    CREATE,
    CREDIT,
    OPEN,
    PACKET,
    QUOTE,
    REPEAT,
    TIME,
    UNCHANGED,
    Creation,
    Move,
    State,
    by_state,
    expiry_has_passed,
    follow,
    is_completed,
)
from incoming_payments.limits import EXPIRY_S_MAX_DEFAULT

T = TypeVar("T")

_CREDIT_IN: Final = by_state(CREDIT)
_PACKET_IN: Final = by_state(PACKET)
_QUOTE_IN: Final = by_state(QUOTE)
_COMPLETE_IN: Final = by_state(COMPLETE)
_TIME_IN: Final = by_state(TIME)
_BEFORE_EXPIRIES: Final = datetime.min.replace(tzinfo=UTC)  # a time before all expiries


@frozen
class Decision(Generic[T]):
    """The `answer` for the caller, and the values that the store writes in one transaction.

    `payment` is the payment after the decision, and `events` are its new events. `credit` is the new credit or `None`.
    If `payment` is `None`, the store writes nothing. `keyed` is the record of an idempotency key if a new payment has
    one, and `None` otherwise. `approved` is the proof that the money of a packet may be credited. The store does not
    write this proof.
    """

    answer: T
    payment: IncomingPayment | None = None
    events: tuple[Event, ...] = ()
    credit: Credit | None = None
    keyed: KeyedCreation | None = None
    approved: Approved | None = None


def state_of(payment: IncomingPayment, now: datetime) -> State:
    """Return the state of `payment` at `now`. A completed payment never expires.

    Raises `InvalidValue` unless `now` is in UTC.
    """
    check_time(now)
    if is_completed(payment):
        return State.COMPLETED
    # A clock that lags behind must not reopen the payment after its `expired` event.
    if payment.expiry_announced_at is not None or expiry_has_passed(payment, now):
        return State.EXPIRED
    return State.PROCESSING if payment.received.value else State.PENDING


def is_receivable(payment: IncomingPayment, now: datetime) -> bool:
    """Return whether `payment` accepts a credit at `now`."""
    return state_of(payment, now) in OPEN


def create(
    *,
    id: PaymentId,
    wallet_address: WalletAddress,
    client: ClientId,
    limit: Amount | None,
    expires_at: datetime | None,
    metadata: MetadataJson | None,
    now: datetime,
    expiry_s_max: int = EXPIRY_S_MAX_DEFAULT,
    default_expiry_s: int | None = None,
) -> Decision[IncomingPayment]:
    """Create a payment into `wallet_address` that has received nothing (spec section 4.1).

    If `limit` and `expires_at` are `None`, the payment expires `default_expiry_s` seconds after `now`. If
    `default_expiry_s` is `None` too, the payment never expires. Raises `AssetMismatch` when `limit` is not in the
    wallet address's asset. Raises `TermsRefused` when `limit` is zero, when `expires_at` is not in the future, or when
    it is more than `expiry_s_max` seconds after `now`.
    """
    if limit is None and expires_at is None and default_expiry_s is not None:
        expires_at = now + timedelta(seconds=default_expiry_s)
    move = follow(CREATE, wallet_address, Creation(limit, expires_at, now), expiry_s_max)
    terms = Terms(id, wallet_address.url, client, wallet_address.asset, now, limit, expires_at, metadata)
    payment = IncomingPayment(terms, Progress(Amount(0, wallet_address.asset), now))
    return Decision(payment, payment, _events(payment, move, now))


def as_created(payment: IncomingPayment) -> IncomingPayment:
    """Return `payment` in the state of its creation, which follows from its terms. Erased metadata stays away."""
    return IncomingPayment(payment.terms, Progress(Amount(0, payment.asset), payment.created_at))


def without_metadata(payment: IncomingPayment) -> IncomingPayment:
    """Return `payment` after the erasure of its metadata. No version and no time changes."""
    return IncomingPayment(evolve(payment.terms, metadata=None), payment.progress)


def credit(
    payment: IncomingPayment,
    earlier: Credit | None,
    *,
    credit_id: CreditId,
    amount: Amount,
    now: datetime,
) -> Decision[Credit]:
    """Credit `amount` to `payment` under `credit_id`. Spec section 3.

    `earlier` is the credit that `payment` already has under `credit_id`, if there is one. If there is one, nothing
    changes and the answer is `earlier`, in every state of the payment.

    Raises, in this order: `CreditIdReused` when `earlier` has another amount, `AssetMismatch`, `InvalidValue` when
    `amount` is zero, `PaymentCompleted`, `PaymentExpired`, and `AmountOverflow` when the total would exceed 2**64 - 1.
    """
    if earlier is not None:
        follow(REPEAT, earlier, amount, None)
        return Decision(earlier)
    move = follow(_CREDIT_IN[state_of(payment, now)], payment, amount, None)
    after, made, events = _credited(payment, move, credit_id, amount, now, None)
    return Decision(made, after, events, made)


def credit_packet(
    payment: IncomingPayment,
    earlier: Credit | None,
    *,
    credit_id: CreditId,
    amount: Amount,
    now: datetime,
    tolerance: Tolerance,
    peer: str,
) -> Decision[IncomingPayment]:
    """Credit the `amount` of an ILP packet to `payment` under `credit_id`. Spec section 3.

    `peer` is the ILP address of the peer that sent the packet. The `credited` event names the peer, because the peer
    owes the money. The answer is the payment as it is now, because the reply to the packet reports its total.

    Raises the same errors as `credit`, with two differences. A packet of zero changes nothing. `AmountTooLarge`, which
    has the remaining amount, replaces `AmountOverflow`. It is also raised when the total would exceed `incomingAmount`
    by more than `tolerance`.
    """
    if earlier is not None:
        follow(REPEAT, earlier, amount, None)
        return Decision(payment)
    move = follow(_PACKET_IN[state_of(payment, now)], payment, amount, tolerance)
    if move is UNCHANGED:
        return Decision(payment)
    after, made, events = _credited(payment, move, credit_id, amount, now, peer)
    return Decision(after, after, events, made)


def require_receivable(payment: IncomingPayment, amount: Amount, now: datetime) -> None:
    """Check that `payment` accepts packets in the asset of `amount` at `now`.

    Raises `AssetMismatch`, `PaymentCompleted` and `PaymentExpired`.
    """
    follow(_QUOTE_IN[state_of(payment, now)], payment, amount, None)


def complete(payment: IncomingPayment, _earlier: Credit | None = None, *, now: datetime) -> Decision[IncomingPayment]:
    """Close `payment` at the request of its client. A completed payment does not change. Raises `PaymentExpired`."""
    move = follow(_COMPLETE_IN[state_of(payment, now)], payment, None, None)
    if move is UNCHANGED:
        return Decision(payment)
    at = max(now, payment.updated_at)
    return _changed(payment, move, at, updated_at=at, closed_at=at)


def expire(payment: IncomingPayment, _earlier: Credit | None = None, *, now: datetime) -> Decision[IncomingPayment]:
    """Record that `payment` has expired, so that its `expired` event is written once.

    No other decision depends on this decision. A payment that has not expired, or whose event is already written, does
    not change. `updatedAt` stays the same, because a client sees no difference.
    """
    move = follow(_TIME_IN[state_of(payment, _BEFORE_EXPIRIES)], payment, now, None)
    if move is UNCHANGED:
        return Decision(payment)
    return _changed(payment, move, max(now, payment.updated_at), expiry_announced_at=now)


def _changed(payment: IncomingPayment, move: Move, at: datetime, **changes: Any) -> Decision[IncomingPayment]:
    version = payment.version + len(move.events)
    after = IncomingPayment(payment.terms, evolve(payment.progress, version=version, **changes))
    return Decision(after, after, _events(after, move, at))


def _credited(
    payment: IncomingPayment, move: Move, credit_id: CreditId, amount: Amount, now: datetime, peer: str | None
) -> tuple[IncomingPayment, Credit, tuple[Event, ...]]:
    """Return `payment` after the credit of `amount`, the credit itself, and the events of `move`."""
    terms, before = payment.terms, payment.progress
    at = max(now, before.updated_at)
    total = Amount(before.received.value + amount.value, amount.asset)
    progress = Progress(total, at, before.version + len(move.events), before.closed_at, before.expiry_announced_at)
    after = IncomingPayment(terms, progress)
    made = Credit(terms.id, credit_id, amount, total, is_completed(after), at)
    return after, made, _events(after, move, at, credit_id, peer)


def _events(
    after: IncomingPayment, move: Move, at: datetime, credit_id: CreditId | None = None, peer: str | None = None
) -> tuple[Event, ...]:
    """Return the events of `move`, which led to `after`. The first event names `credit` and `peer`, if given."""
    id, progress = after.terms.id, after.progress
    first, *others = move.events
    version = progress.version - len(others)
    event = Event(id, version, first, at, progress.received, credit_id, peer)
    return event, *(Event(id, n, kind, at, progress.received) for n, kind in enumerate(others, version + 1))

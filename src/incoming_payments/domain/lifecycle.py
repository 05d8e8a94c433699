"""What may happen to an incoming payment, and when: the one transition table, and the decisions that obey it.

```
trigger    from \\ to    what must hold                                    events
create     (none)       -> PENDING                                        created
credit     PENDING,     -> PROCESSING  total below incomingAmount         credited
           PROCESSING   -> COMPLETED   total reaches or passes it         credited, completed
packet     PENDING,     -> PROCESSING  total below incomingAmount         credited
           PROCESSING   -> COMPLETED   total reaches it, or passes it     credited, completed
                                       by the tolerance at most
complete   PENDING,     -> COMPLETED   its client says so                 completed
           PROCESSING
time       PENDING,     -> EXPIRED     now is after expiresAt             expired (once, by the sweep)
           PROCESSING
```

COMPLETED and EXPIRED take nothing more and never change into anything: contract section 3, both rows. Time is an
argument, and it is looked at in every decision, so an expiry holds whether or not a sweep ever runs.

A credit and a packet differ in one thing. Money that the host books as a credit has arrived, so it is taken however
much it is. That of a packet has not: its sender waits for the answer and can still send less, so a packet that brings
too much is refused, with what would do.

A decision answers with a `Decision`: what to tell the caller, and what to store; or it raises a `PaymentRefused`.
"""

import enum
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from attrs import Attribute, evolve, field, frozen

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.payment import (
    ClientId,
    Credit,
    CreditId,
    IncomingPayment,
    MetadataJson,
    PaymentId,
    WalletAddress,
)
from incoming_payments.errors import (
    AmountOverflow,
    AmountTooLarge,
    AssetMismatch,
    CreditIdReused,
    InvalidValue,
    PaymentCompleted,
    PaymentExpired,
    PaymentRefused,
    TermsRefused,
)
from incoming_payments.limits import EXCESS_BASIS_POINTS_MAX, EXCESS_UNITS_MAX, EXPIRY_S_MAX, UINT64_MAX

T = TypeVar("T")


class State(enum.StrEnum):
    """Where a payment stands. Derived by `state_of`, never stored."""

    PENDING = "pending"  # nothing received yet
    PROCESSING = "processing"  # something received, more may come
    COMPLETED = "completed"  # full, or closed by its client: takes nothing more
    EXPIRED = "expired"  # its time is over: takes nothing more


class Trigger(enum.StrEnum):
    """What can happen to a payment."""

    CREATE = "create"
    CREDIT = "credit"
    PACKET = "packet"
    COMPLETE = "complete"
    TIME = "time"


# Here, as to read a member of an enumeration costs a call, and for each packet there would be ten.
_PENDING, _PROCESSING, _COMPLETED, _EXPIRED = State
_CREATE, _CREDIT, _PACKET, _COMPLETE, _TIME = Trigger


@frozen
class Transition:
    """A row of the table: in `state`, `trigger` leads to `next` when `condition` holds, and gives `events`."""

    state: State | None  # None: there is no payment yet
    trigger: Trigger
    next: State
    condition: str
    events: tuple[EventKind, ...]


_BELOW: Final = "total below incomingAmount, or no incomingAmount"
_REACHED: Final = "total reaches or passes incomingAmount"
_FITS: Final = "total reaches incomingAmount, or passes it by the tolerance at most"
_TOO_MUCH: Final = "total passes incomingAmount by more than the tolerance, or 2**64 - 1"
_CREDITED: Final = (EventKind.CREDITED,)
_FILLED: Final = (EventKind.CREDITED, EventKind.COMPLETED)
_CLOSED: Final = (EventKind.COMPLETED,)
_OVER: Final = (EventKind.EXPIRED,)

TRANSITIONS: Final = (
    Transition(None, Trigger.CREATE, State.PENDING, "the request is allowed", (EventKind.CREATED,)),
    Transition(State.PENDING, Trigger.CREDIT, State.PROCESSING, _BELOW, _CREDITED),
    Transition(State.PENDING, Trigger.CREDIT, State.COMPLETED, _REACHED, _FILLED),
    Transition(State.PROCESSING, Trigger.CREDIT, State.PROCESSING, _BELOW, _CREDITED),
    Transition(State.PROCESSING, Trigger.CREDIT, State.COMPLETED, _REACHED, _FILLED),
    Transition(State.PENDING, Trigger.PACKET, State.PROCESSING, _BELOW, _CREDITED),
    Transition(State.PENDING, Trigger.PACKET, State.COMPLETED, _FITS, _FILLED),
    Transition(State.PROCESSING, Trigger.PACKET, State.PROCESSING, _BELOW, _CREDITED),
    Transition(State.PROCESSING, Trigger.PACKET, State.COMPLETED, _FITS, _FILLED),
    Transition(State.PENDING, Trigger.COMPLETE, State.COMPLETED, "its client closes it", _CLOSED),
    Transition(State.PROCESSING, Trigger.COMPLETE, State.COMPLETED, "its client closes it", _CLOSED),
    Transition(State.PENDING, Trigger.TIME, State.EXPIRED, "now is after expiresAt", _OVER),
    Transition(State.PROCESSING, Trigger.TIME, State.EXPIRED, "now is after expiresAt", _OVER),
)

REFUSALS: Final[Mapping[tuple[State, Trigger], type[PaymentRefused]]] = {
    (State.COMPLETED, Trigger.CREDIT): PaymentCompleted,
    (State.EXPIRED, Trigger.CREDIT): PaymentExpired,
    (State.COMPLETED, Trigger.PACKET): PaymentCompleted,
    (State.EXPIRED, Trigger.PACKET): PaymentExpired,
    (State.EXPIRED, Trigger.COMPLETE): PaymentExpired,
}


@frozen
class Excess:
    """What a state that takes money does not take: by `trigger`, when `condition` holds, `refusal`."""

    state: State
    trigger: Trigger
    condition: str
    refusal: type[PaymentRefused]


EXCESSES: Final = (
    Excess(State.PROCESSING, Trigger.CREDIT, "total passes 2**64 - 1", AmountOverflow),
    Excess(State.PENDING, Trigger.PACKET, _TOO_MUCH, AmountTooLarge),
    Excess(State.PROCESSING, Trigger.PACKET, _TOO_MUCH, AmountTooLarge),
)

# What may be asked for again, or goes by, and changes nothing.
STAYS: Final = frozenset(
    {(State.COMPLETED, Trigger.COMPLETE), (State.COMPLETED, Trigger.TIME), (State.EXPIRED, Trigger.TIME)}
)

_SAYS: Final[Mapping[type[PaymentRefused], str]] = {
    PaymentCompleted: "the payment is completed and takes nothing more: create another one",
    PaymentExpired: "the payment has expired and takes nothing more: create another one",
}

_EVENTS: Final = {(row.state, row.trigger, row.next): row.events for row in TRANSITIONS}


def _not_negative(_: object, attribute: "Attribute[int]", value: object) -> None:
    if type(value) is not int or not 0 <= value <= UINT64_MAX:
        raise InvalidValue(f"{attribute.name} must be an integer from 0 to {UINT64_MAX}", member=attribute.name)


@frozen
class Tolerance:
    """By how much one packet may pass `incomingAmount`: `units` minor units or `basis_points` of it, what is more.

    Senders count in other assets, perhaps coarser ones, and rates are rounded: with none of this a payment could stay a
    unit short for ever. Raises `InvalidValue`.

    >>> from incoming_payments.domain.amount import Asset
    >>> Tolerance().excess_max(Amount(2500, Asset("USD", 2)))
    25
    """

    units: int = field(default=EXCESS_UNITS_MAX, validator=_not_negative)
    basis_points: int = field(default=EXCESS_BASIS_POINTS_MAX, validator=_not_negative)

    def excess_max(self, limit: Amount | None) -> int:
        """The most by which a total may pass `limit`, in minor units; a total never passes 2**64 - 1."""
        if limit is None:
            return 0
        return min(max(self.units, limit.value * self.basis_points // 10_000), UINT64_MAX - limit.value)


@frozen
class Decision(Generic[T]):
    """What a decision says: the `answer` for the caller, and what the store has to write, all of it or nothing.

    `payment` is the new value and `events` what it gives rise to; `credit` is there when money was booked. Nothing is
    to be written when `payment` is `None`.
    """

    answer: T
    payment: IncomingPayment | None = None
    events: tuple[Event, ...] = ()
    credit: Credit | None = None


def state_of(payment: IncomingPayment, now: datetime) -> State:
    """Where `payment` stands at `now`. `COMPLETED` wins over `EXPIRED`: what is full stays full."""
    if payment.closed_at is not None:
        return _COMPLETED
    if payment.limit is not None and payment.received.value >= payment.limit.value:
        return _COMPLETED
    # Contract section 3, row 2: the current time *exceeds* expiresAt, so the moment itself still accepts. Once the
    # `expired` event is out, a clock that lags behind cannot take it back.
    if payment.expires_at is not None and (now > payment.expires_at or payment.expiry_announced_at is not None):
        return _EXPIRED
    return _PROCESSING if payment.received.value else _PENDING


def is_receivable(payment: IncomingPayment, now: datetime) -> bool:
    """Whether a credit would be taken at `now`."""
    return (state_of(payment, now), _CREDIT) not in REFUSALS


def create(
    *,
    id: PaymentId,
    wallet_address: WalletAddress,
    client: ClientId,
    limit: Amount | None,
    expires_at: datetime | None,
    metadata: MetadataJson | None,
    now: datetime,
    expiry_s_max: int = EXPIRY_S_MAX,
) -> Decision[IncomingPayment]:
    """A new payment into `wallet_address` with nothing received. Contract section 4.1.

    Raises `AssetMismatch` when `limit` is not in the wallet address's asset, and `TermsRefused` when it is zero or
    `expires_at` is not in the future, or more than `expiry_s_max` seconds ahead.
    """
    if limit is not None and limit.asset != wallet_address.asset:
        raise AssetMismatch(
            f"incomingAmount must be in {_spell(wallet_address)}, the asset of the wallet address",
            member="incomingAmount",
        )
    if limit is not None and limit.value == 0:
        raise TermsRefused("incomingAmount.value must be greater than zero", member="incomingAmount.value")
    if expires_at is not None and expires_at <= now:
        raise TermsRefused("expiresAt must lie in the future", member="expiresAt")
    if expires_at is not None and expires_at - now > timedelta(seconds=expiry_s_max):
        raise TermsRefused(f"expiresAt must lie at most {expiry_s_max} seconds ahead", member="expiresAt")
    payment = IncomingPayment(
        id=id,
        wallet_address=wallet_address.url,
        client=client,
        limit=limit,
        received=Amount(0, wallet_address.asset),
        expires_at=expires_at,
        metadata=metadata,
        created_at=now,
        updated_at=now,
    )
    payment, events = _step(None, _CREATE, payment, now)
    return Decision(payment, payment, events)


def credit(
    payment: IncomingPayment,
    earlier: Credit | None,
    *,
    id: CreditId,
    amount: Amount,
    now: datetime,
) -> Decision[Credit]:
    """Book `amount` into `payment` under the credit id `id`. Contract section 3, both rows.

    `earlier` is what was booked into this payment under the same id before: then nothing changes and it is the answer
    again, whatever the state is by now. Raises `CreditIdReused` when it was for another amount; `InvalidValue` when
    `amount` is zero; `AssetMismatch`; `PaymentCompleted`; `PaymentExpired`; `AmountOverflow`.
    """
    if earlier is not None:
        return Decision(_same(earlier, amount))
    before = _open_for(payment, amount, _CREDIT, now)
    if payment.received.value + amount.value > UINT64_MAX:
        raise AmountOverflow("the total received would pass 2**64 - 1: create another payment")
    after, booked, events = _book(payment, before, _CREDIT, id, amount, now)
    return Decision(booked, after, events, booked)


def credit_packet(
    payment: IncomingPayment,
    earlier: Credit | None,
    *,
    id: CreditId,
    amount: Amount,
    now: datetime,
    tolerance: Tolerance,
    peer: str,
) -> Decision[IncomingPayment]:
    """Book the `amount` of an ILP packet, whose sender can still send less. Contract section 3, both rows.

    `peer` is the ILP address of the peer that brought it, which the event names: that one owes the money.

    As `credit`, but an amount that passes `incomingAmount` by more than `tolerance` is refused with `AmountTooLarge`,
    which says what remains; so is one that would pass 2**64 - 1. A packet of nothing changes nothing, in any state,
    unless it was one of something before: `CreditIdReused`. The answer is the payment as it is afterwards, since that
    is what the sender is told: for a repeated packet as it is now.
    """
    if earlier is not None:
        _same(earlier, amount)
        return Decision(payment)
    if not amount.value:
        require_asset(payment, amount)
        return Decision(payment)
    before = _open_for(payment, amount, _PACKET, now)
    excess = payment.received.value + amount.value - receive_max(payment)
    if excess > 0 and excess > tolerance.excess_max(payment.limit):
        raise AmountTooLarge(
            "the packet brings more than the payment can still take: send less", remaining=amount.value - excess
        )
    after, booked, events = _book(payment, before, _PACKET, id, amount, now, peer)
    return Decision(after, after, events, booked)


def receive_max(payment: IncomingPayment) -> int:
    """The total that `payment` is open for, in minor units: `incomingAmount`, or without one all that 64 bits hold."""
    return UINT64_MAX if payment.limit is None else payment.limit.value


def require_open(payment: IncomingPayment, now: datetime) -> None:
    """Raise what any packet is refused with at `now`, however small: `PaymentCompleted` or `PaymentExpired`."""
    _accepting_state(payment, _PACKET, now)


def require_asset(payment: IncomingPayment, amount: Amount) -> None:
    """Raise `AssetMismatch` unless `amount` is in the asset of `payment`."""
    asset = payment.received.asset
    if amount.asset is not asset and amount.asset != asset:
        raise AssetMismatch(f"the payment takes {payment.asset.code} at scale {payment.asset.scale} only")


def _same(earlier: Credit, amount: Amount) -> Credit:
    if earlier.amount != amount:
        raise CreditIdReused(
            f"credit id {earlier.id} was booked as {earlier.amount.text} before: a new receipt needs a new id"
        )
    return earlier


def _open_for(payment: IncomingPayment, amount: Amount, trigger: Trigger, now: datetime) -> State:
    """The state in which `payment` takes `amount`, if it is not too much."""
    require_asset(payment, amount)
    if amount.value == 0:
        raise InvalidValue("a credit must be greater than zero", member="amount")
    return _accepting_state(payment, trigger, now)


def _book(
    payment: IncomingPayment,
    before: State,
    trigger: Trigger,
    id: CreditId,
    amount: Amount,
    now: datetime,
    peer: str | None = None,
) -> tuple[IncomingPayment, Credit, tuple[Event, ...]]:
    """`payment` with `amount` more, the credit, and the events."""
    total = Amount(payment.received.value + amount.value, amount.asset)
    after = payment.with_received(total, at=_later(payment, now), version=payment.version + 1)
    after, events = _step(before, trigger, after, now, id, peer)
    completes = events[-1].kind is EventKind.COMPLETED
    return after, Credit(payment.id, id, amount, total, completes, after.updated_at), events


def complete(payment: IncomingPayment, _earlier: Credit | None = None, *, now: datetime) -> Decision[IncomingPayment]:
    """Close `payment` at its client's wish; a completed one is returned as it is. Raises `PaymentExpired`."""
    if (state_of(payment, now), _COMPLETE) in STAYS:
        return Decision(payment)
    before = _accepting_state(payment, _COMPLETE, now)
    at = _later(payment, now)
    closed = evolve(payment, closed_at=at, updated_at=at, version=payment.version + 1)
    closed, events = _step(before, _COMPLETE, closed, now)
    return Decision(closed, closed, events)


def expire(payment: IncomingPayment, _earlier: Credit | None = None, *, now: datetime) -> Decision[IncomingPayment]:
    """Note that `payment` has expired, so that its `expired` event is given once. Not what enforces the expiry.

    A payment that has not expired, or whose expiry was announced before, is returned as it is. `updatedAt` stays:
    nothing that a client can see has changed.
    """
    if state_of(payment, now) is not _EXPIRED or payment.expiry_announced_at is not None:
        return Decision(payment)
    noted = evolve(payment, expiry_announced_at=now, version=payment.version + 1)
    before = _PROCESSING if payment.received.value else _PENDING
    expired, events = _step(before, _TIME, noted, now)
    return Decision(expired, expired, events)


def _accepting_state(payment: IncomingPayment, trigger: Trigger, now: datetime) -> State:
    """The state of `payment`, or the refusal that the table has for it."""
    state = state_of(payment, now)
    if refusal := REFUSALS.get((state, trigger)):
        raise refusal(_SAYS[refusal])
    return state


def _step(
    before: State | None,
    trigger: Trigger,
    after: IncomingPayment,
    now: datetime,
    credit: CreditId | None = None,
    peer: str | None = None,
) -> tuple[IncomingPayment, tuple[Event, ...]]:
    """`after`, whose version is that of its first new event, with all of them counted, and the events.

    A step that the table lacks is our own bug: `KeyError`.
    """
    first, *others = _EVENTS[before, trigger, state_of(after, now)]
    at = _later(after, now)
    event = Event(after.id, after.version, first, at, after.received, credit, peer)
    if not others:
        return after, (event,)
    more = [
        Event(after.id, version, kind, at, after.received) for version, kind in enumerate(others, event.version + 1)
    ]
    return evolve(after, version=more[-1].version), (event, *more)


def _later(payment: IncomingPayment, now: datetime) -> datetime:
    """`now`, unless a clock went backwards: `updatedAt` never does."""
    return max(now, payment.updated_at)


def _spell(wallet_address: WalletAddress) -> str:
    return f"{wallet_address.asset.code} at scale {wallet_address.asset.scale}"

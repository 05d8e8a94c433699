"""The feed delivers the events of all payments to consumers, at least once.

The events of one payment are a *stream*. A consumer gets the events of a stream in the order of their versions. Nothing
orders the events of two streams, so no stream waits for another one.

A *delivery* has one event, or several consecutive `credited` events. A consumer *leases* a delivery, handles it, and
settles it. While a delivery is open, no other delivery of its stream begins. The events and the id of a delivery never
change, so a consumer that gets a delivery twice can recognise it by its id.
"""

import enum
import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NewType

from attrs import converters, evolve, field, frozen
from attrs.validators import optional

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.checks import check_time, instance, seconds
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.payment import CreditId, PaymentId, WalletAddressUrl, wallet_address_url
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import (
    CONSUMER_DOWN_S_MAX,
    CONSUMER_NAME_CHARS_MAX,
    CREDIT_DELAY_S_MAX,
    DELIVERY_ERROR_CHARS_MAX,
    DELIVERY_EVENTS_MAX,
    PROBE_S_MAX,
)

ConsumerName = NewType("ConsumerName", str)
Lease = NewType("Lease", bytes)  # a random name of one lease

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")


@frozen(kw_only=True)
class FeedEvent:
    """An event, with everything that a consumer needs to act on it.

    `received` is the total of the payment after the event. Only a `credited` event has an `amount`, which is the amount
    of its credit, and a `credit_id`. If the money came in a packet, the event has a `peer`, the ILP address of the peer
    that owes the money.
    """

    payment_id: PaymentId
    version: int
    kind: EventKind
    at: datetime
    wallet_address: WalletAddressUrl
    received: Amount
    amount: Amount | None = None
    credit_id: CreditId | None = None
    peer: str | None = None

    @classmethod
    def of(cls, event: Event, wallet_address: WalletAddressUrl, amount: Amount | None) -> "FeedEvent":
        """Return `event` of a payment into `wallet_address`. `amount` is the amount of its credit, if it has one."""
        return cls(
            payment_id=event.payment_id,
            version=event.version,
            kind=event.kind,
            at=event.at,
            wallet_address=wallet_address,
            received=event.received,
            amount=amount,
            credit_id=event.credit_id,
            peer=event.peer,
        )

    @property
    def id(self) -> str:
        """The id of the event, which is unique among the events of all payments."""
        return f"{self.payment_id}_{self.version}"


# --- consumers ---------------------------------------------------------------------------------------


def consumer_name(text: str) -> ConsumerName:
    """Return `text` as the name of a consumer. Raises `InvalidValue` for a name that no consumer can have.

    >>> consumer_name("core-ledger")
    'core-ledger'
    """
    if not isinstance(text, str) or len(text) > CONSUMER_NAME_CHARS_MAX or not _NAME.fullmatch(text):
        raise InvalidValue(
            f"the name of a consumer must have 1 to {CONSUMER_NAME_CHARS_MAX} of the characters a-z, 0-9, '.', '_' and "
            "'-', and begin with a letter or digit",
            member="name",
        )
    return ConsumerName(text)


def _kinds(kinds: Iterable[str]) -> frozenset[EventKind]:
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    try:
        found = frozenset(EventKind(name) for name in names)
    except ValueError:
        raise InvalidValue(f"kinds must be some of {', '.join(EventKind)}", member="kinds") from None
    if not found:
        raise InvalidValue("kinds is empty: name at least one kind, or leave it out for all kinds", member="kinds")
    return found


def _wallet_addresses(urls: Iterable[str]) -> frozenset[WalletAddressUrl]:
    found = frozenset(wallet_address_url(url) for url in ([urls] if isinstance(urls, str) else urls))
    if not found:
        text = "wallet_addresses is empty: name at least one, or leave it out for all wallet addresses"
        raise InvalidValue(text, member="wallet_addresses")
    return found


@frozen(kw_only=True)
class Consumer:
    """A consumer of the feed. All processes that use the same `name` share its deliveries.

    `kinds` and `wallet_addresses` filter the events, and `None` admits all. Events that the filter excludes count as
    handled. If `joins_credits` is true, consecutive `credited` events of a payment are joined into one delivery, and
    the first of them waits `credit_delay_s` seconds for others. An event of another kind ends that wait.

    A consumer is *down* when attempts have failed for `down_after_s` seconds without any success. While it is down, it
    gets one delivery at a time, and failed attempts do not count. After `disable_after_s` such seconds, it is disabled.
    `None` turns a rule off.

    Raises `InvalidValue` for an invalid member.
    """

    name: ConsumerName = field(converter=consumer_name)
    kinds: frozenset[EventKind] | None = field(default=None, converter=converters.optional(_kinds))
    wallet_addresses: frozenset[WalletAddressUrl] | None = field(
        default=None, converter=converters.optional(_wallet_addresses)
    )
    joins_credits: bool = True
    credit_delay_s: float = field(default=0.0, validator=seconds(CREDIT_DELAY_S_MAX))
    down_after_s: float | None = field(default=None, validator=optional(seconds(CONSUMER_DOWN_S_MAX)))
    disable_after_s: float | None = field(default=None, validator=optional(seconds(CONSUMER_DOWN_S_MAX)))

    def admits(self, kind: EventKind, wallet_address: WalletAddressUrl) -> bool:
        """Return whether the filter admits events of `kind` of payments into `wallet_address`."""
        return (self.kinds is None or kind in self.kinds) and (
            self.wallet_addresses is None or wallet_address in self.wallet_addresses
        )

    @property
    def admits_credits(self) -> bool:
        """Whether the filter admits `credited` events, of which a payment may have any number."""
        return self.kinds is None or EventKind.CREDITED in self.kinds

    def due_at(self, event: Event | FeedEvent) -> datetime:
        """Return the time at which the first delivery of a stream may begin, if `event` is its first new event."""
        delays = event.kind is EventKind.CREDITED and self.joins_credits
        return event.at + timedelta(seconds=self.credit_delay_s) if delays else event.at


class Start(enum.StrEnum):
    """The events with which a new consumer begins."""

    BEGINNING = "beginning"  # all events that the store holds
    NOW = "now"  # the events that are stored after the registration


@frozen
class Health:
    """The success of a consumer.

    `failing_since` is the time of the first failure since the last success. A disabled consumer gets no deliveries.
    """

    failing_since: datetime | None = None
    disabled_at: datetime | None = None

    def is_down(self, consumer: Consumer, now: datetime) -> bool:
        """Return whether attempts have failed for `down_after_s` without any success."""
        return _has_failed_for(self, consumer.down_after_s, now)

    def is_up_until(self, consumer: Consumer) -> datetime | None:
        """Return the time until which the consumer stays up although attempts fail, or `None` if it is unknown."""
        limits = [after_s for after_s in (consumer.down_after_s, consumer.disable_after_s) if after_s is not None]
        if self.failing_since is None or self.disabled_at is not None or not limits:
            return None
        return self.failing_since + timedelta(seconds=min(limits))


def _has_failed_for(health: Health, seconds: float | None, now: datetime) -> bool:
    since = health.failing_since
    return since is not None and seconds is not None and now - since >= timedelta(seconds=seconds)


@frozen(kw_only=True)
class ConsumerState:
    """A registered consumer, as a store reports it.

    `is_ready` is false while the registration over old events is incomplete. `oldest_due_at` is the earliest time at
    which a delivery is due, and may have passed. It is `None` if no delivery waits.
    """

    consumer: Consumer
    health: Health
    is_ready: bool
    oldest_due_at: datetime | None


# --- deliveries --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Delivery:
    """The events of one delivery, and its lease.

    `payload` holds the bytes that the consumer's renderer made from the events before the first attempt. `attempt`
    numbers the attempts that count, from 1. The lease ends at `leased_until`. After that, the delivery may be claimed
    again. Raises `InvalidValue` for a payload that is not `bytes`.
    """

    consumer: ConsumerName
    events: tuple[FeedEvent, ...] = field(repr=False)
    payload: bytes = field(repr=False, validator=instance(bytes))
    attempt: int
    lease: Lease = field(repr=False)
    leased_until: datetime

    @property
    def payment_id(self) -> PaymentId:
        """The payment of all events."""
        return self.events[0].payment_id

    @property
    def first_version(self) -> int:
        """The version of the first event."""
        return self.events[0].version

    @property
    def last_version(self) -> int:
        """The version of the last event."""
        return self.events[-1].version

    @property
    def id(self) -> str:
        """The id of the delivery, which is the same in each attempt."""
        return delivery_id(self.payment_id, self.first_version, self.last_version)


@frozen(kw_only=True)
class LeasedDelivery:
    """The part of a `Delivery` that is needed to settle it, for a holder of a lease that keeps no events."""

    consumer: ConsumerName
    payment_id: PaymentId
    first_version: int
    attempt: int
    lease: Lease = field(repr=False)


def delivery_id(payment_id: PaymentId, first_version: int, last_version: int) -> str:
    """Return the id of the delivery of these events. A consumer gets no other delivery with one of these events.

    >>> delivery_id(PaymentId("019b76da-a800-7000-8000-000000000000"), 2, 5)
    '019b76da-a800-7000-8000-000000000000_2_5'
    """
    return f"{payment_id}_{first_version}_{last_version}"


class Ending(enum.StrEnum):
    """How a delivery has ended."""

    DELIVERED = "delivered"  # the consumer has acknowledged it
    DEAD = "dead"  # the attempts are used up, so it is a dead letter


@frozen(kw_only=True)
class DeliveryRecord:
    """A delivery, as a store keeps it. `ending` is `None` while the delivery is open.

    `attempts` is the number of attempts that count. `due_at` is the time of the next attempt, or the end of the lease.
    `error` is the reason of the last failed attempt.
    """

    consumer: ConsumerName
    payment_id: PaymentId
    first_version: int
    last_version: int
    attempts: int
    created_at: datetime
    due_at: datetime | None = None
    ending: Ending | None = None
    ended_at: datetime | None = None
    error: str | None = None

    @property
    def id(self) -> str:
        """See `Delivery.id`."""
        return delivery_id(self.payment_id, self.first_version, self.last_version)


@frozen
class Delivered:
    """The result of an attempt that succeeded."""


@frozen
class Released:
    """The result of a lease without an attempt. The delivery may be claimed again at once."""


def _storable(text: str) -> str:
    """Return the beginning of `text`, with spaces in place of control characters and of surrogates."""
    return "".join(char if char.isprintable() else " " for char in text[:DELIVERY_ERROR_CHARS_MAX])


@frozen(kw_only=True)
class Failed:
    """The result of an attempt that failed with `error`. The next attempt may begin at `retry_at`.

    If `is_last` is true, the delivery becomes a dead letter, unless the consumer is down. If `disables` is true, the
    consumer is disabled.
    """

    error: str = field(converter=_storable)
    retry_at: datetime = field(converter=check_time)
    is_last: bool = False
    disables: bool = False


Result = Delivered | Released | Failed


@frozen
class Acknowledged:
    """The answer of a handler that has acknowledged its delivery itself, so that the relay stores no result."""


@frozen(kw_only=True)
class Settled:
    """What a store writes after a result: the end of the delivery, or the time of its next attempt.

    `attempts` is the number of attempts that count. If `error` is `None`, the delivery keeps its earlier error.
    """

    health: Health
    attempts: int
    ending: Ending | None = None
    due_at: datetime | None = None
    error: str | None = None


def settle(consumer: Consumer, health: Health, attempts: int, result: Result, now: datetime) -> Settled:
    """Decide what follows from the `result` of the attempt with the number `attempts`."""
    if isinstance(result, Delivered):
        return Settled(health=evolve(health, failing_since=None), attempts=attempts, ending=Ending.DELIVERED)
    if isinstance(result, Released):
        return Settled(health=health, attempts=attempts - 1, due_at=now)
    health = evolve(health, failing_since=health.failing_since or now)
    is_down = health.is_down(consumer, now)
    if health.disabled_at is None and (result.disables or _has_failed_for(health, consumer.disable_after_s, now)):
        health = evolve(health, disabled_at=now)
    if is_down or health.disabled_at is not None:
        due_at = min(result.retry_at, now + timedelta(seconds=PROBE_S_MAX))
        return Settled(health=health, attempts=attempts - 1, due_at=due_at, error=result.error)
    if result.is_last:
        return Settled(health=health, attempts=attempts, ending=Ending.DEAD, error=result.error)
    return Settled(health=health, attempts=attempts, due_at=result.retry_at, error=result.error)


def claimable(consumer: Consumer, health: Health, *, limit: int, has_lease: bool, now: datetime) -> int:
    """Return how many of `limit` deliveries the consumer may claim. `has_lease` tells whether it holds a lease.

    A consumer that is down gets one delivery at a time, which shows whether it works again.
    """
    if health.disabled_at is not None:
        return 0
    if health.is_down(consumer, now):
        return 0 if has_lease else min(limit, 1)
    return limit


def next_delivery(consumer: Consumer, events: Sequence[FeedEvent]) -> tuple[FeedEvent, ...]:
    """Return the next delivery of the waiting `events`: the first event, or the first consecutive `credited` events."""
    if not consumer.joins_credits or events[0].kind is not EventKind.CREDITED:
        return (events[0],)
    end = 1
    for previous, event in itertools.pairwise(events[:DELIVERY_EVENTS_MAX]):
        if event.kind is not EventKind.CREDITED or event.version != previous.version + 1:
            break
        end += 1
    return tuple(events[:end])


def admitted(consumer: Consumer, events: Collection[Event], wallet_address: WalletAddressUrl) -> list[Event]:
    """Return the new `events` of one payment, without the events that the filter of `consumer` excludes."""
    return [event for event in events if consumer.admits(event.kind, wallet_address)]

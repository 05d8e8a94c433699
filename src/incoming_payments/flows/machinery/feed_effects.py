"""The effects of the port `feed`. See `effects`."""

from collections.abc import Sequence
from datetime import datetime
from types import NoneType
from typing import ClassVar

from attrs import frozen

from incoming_payments.domain.feed import (
    ConsumerName,
    ConsumerState,
    Delivery,
    DeliveryRecord,
    LeasedDelivery,
    Result,
)
from incoming_payments.flows.machinery.effects import Effect


@frozen
class FindDeadLetters(Effect[Sequence[DeliveryRecord]]):
    """Return at most `limit` dead letters of a consumer that follow `after`, oldest first."""

    method: ClassVar = "feed.dead_letters"
    answers: ClassVar = (Sequence,)
    consumer: ConsumerName
    after: DeliveryRecord | None
    limit: int


@frozen
class Redeliver(Effect[None]):
    """Make a dead letter due again at the time `now`."""

    method: ClassVar = "feed.redeliver"
    delivery: DeliveryRecord
    now: datetime


@frozen
class FindNextDue(Effect[datetime | None]):
    """Return the time at which the next delivery of a consumer is due, or `None`. The time may have passed."""

    method: ClassVar = "feed.next_due"
    answers: ClassVar = (datetime, NoneType)
    consumer: ConsumerName


@frozen
class ClaimDeliveries(Effect[Sequence[Delivery]]):
    """Lease at most `limit` due deliveries until `until`. New deliveries have no payload."""

    method: ClassVar = "feed.claim"
    answers: ClassVar = (Sequence,)
    consumer: ConsumerName
    now: datetime
    until: datetime
    limit: int


@frozen
class SettleDelivery(Effect[bool]):
    """Store what follows from `result`. The answer is false if the delivery no longer has the lease."""

    method: ClassVar = "feed.settle"
    answers: ClassVar = (bool,)
    delivery: LeasedDelivery
    result: Result
    now: datetime


@frozen
class FindConsumers(Effect[Sequence[ConsumerState]]):
    """Return the consumers of the feed, by name."""

    method: ClassVar = "feed.consumers"
    answers: ClassVar = (Sequence,)


@frozen
class EnableConsumer(Effect[None]):
    """Enable or disable a consumer at the time `now`."""

    method: ClassVar = "feed.set_enabled"
    consumer: ConsumerName
    now: datetime
    enabled: bool


@frozen
class SkipDeliveries(Effect[bool]):
    """Drop a batch of the deliveries that were due by `now`. Answer whether no such delivery is left."""

    method: ClassVar = "feed.skip"
    answers: ClassVar = (bool,)
    consumer: ConsumerName
    now: datetime


@frozen
class RemoveConsumer(Effect[bool]):
    """Remove a batch of the data of a consumer. Answer whether the removal is complete."""

    method: ClassVar = "feed.remove"
    answers: ClassVar = (bool,)
    consumer: ConsumerName

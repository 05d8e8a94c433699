"""List the dead letters of a consumer, read them, and send them again."""

import itertools
from collections.abc import Sequence
from datetime import datetime

from attrs import evolve

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.checks import check_time, name_of
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.feed import DeliveryRecord, FeedEvent, consumer_name
from incoming_payments.errors import InvalidValue
from incoming_payments.flows.machinery.effects import Flow, LoadEvents, LoadPayment, flow
from incoming_payments.flows.machinery.feed_effects import FindDeadLetters, Redeliver
from incoming_payments.limits import DEAD_LETTERS_MAX


@flow
def dead_letters(
    consumer: str, *, after: DeliveryRecord | None = None, limit: int = DEAD_LETTERS_MAX
) -> Flow[Sequence[DeliveryRecord]]:
    """Return at most `limit` dead letters of the consumer, oldest first. `after` is the last one of an earlier page.

    Raises `ConsumerNotFound`, and `InvalidValue` for an invalid name or limit.
    """
    name = consumer_name(consumer)
    if type(limit) is not int or not 1 <= limit <= DEAD_LETTERS_MAX:
        raise InvalidValue(f"limit must be an integer from 1 to {DEAD_LETTERS_MAX}", member="limit")
    if after is not None:
        _check(after, "after")
    return (yield from FindDeadLetters(name, after, limit))


@flow
def read_delivery(delivery: DeliveryRecord) -> Flow[Sequence[FeedEvent]]:
    """Return the events of a delivery, oldest first. This reads all events of its payment."""
    _check(delivery, "delivery")
    payment = yield from LoadPayment(delivery.payment_id)
    events = yield from LoadEvents(delivery.payment_id)
    first, last = delivery.first_version, delivery.last_version
    return [
        FeedEvent.of(event, payment.wallet_address, _credited(previous, event))
        for previous, event in itertools.pairwise([None, *events])
        if event is not None and first <= event.version <= last
    ]


def _credited(previous: Event | None, event: Event) -> Amount | None:
    if previous is None or event.kind is not EventKind.CREDITED:
        return None
    return evolve(event.received, value=event.received.value - previous.received.value)


@flow
def redeliver(delivery: DeliveryRecord, now: datetime) -> Flow[None]:
    """Make a dead letter due again. Its attempts count from the beginning. Raises `DeliveryNotFound`."""
    _check(delivery, "delivery")
    yield from Redeliver(delivery, check_time(now))


def _check(delivery: object, member: str) -> None:
    if not isinstance(delivery, DeliveryRecord):
        text = f"{member} must be a DeliveryRecord, such as those of dead_letters, not {name_of(delivery)}"
        raise InvalidValue(text, member=member)

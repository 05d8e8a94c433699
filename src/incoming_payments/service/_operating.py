"""The methods of both services for operators: sweep, deliveries, consumers, erasure and readiness."""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from incoming_payments.domain.feed import ConsumerState, DeliveryRecord, FeedEvent, consumer_name
from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.errors import PaymentNotFound, StoreUnavailable
from incoming_payments.flows import dead_letters as letters
from incoming_payments.flows import erase, expire
from incoming_payments.flows.machinery.effects import EraseMetadata, Flow, LoadPayment
from incoming_payments.flows.machinery.feed_effects import EnableConsumer, FindConsumers, RemoveConsumer, SkipDeliveries
from incoming_payments.limits import DEAD_LETTERS_MAX, SWEEP_PAYMENTS_MAX
from incoming_payments.observers.log import LogEvent, log_event
from incoming_payments.service._base import Service

logger = logging.getLogger(__name__)

# a valid id, because a store may refuse an invalid one without asking its database
_NO_PAYMENT: Final = PaymentId("00000000-0000-7000-8000-000000000000")


def announce_expired(service: Service[Any], *, limit: int = SWEEP_PAYMENTS_MAX) -> Flow[int]:
    """Write the `expired` event of at most `limit` payments that have expired. Return the number of payments found.

    Call this method periodically. If the result is `limit`, call it again at once, because more payments may have
    expired.
    """
    return (yield from expire.announce_expired(service.clock(), limit=limit))


def dead_letters(
    _: Service[Any], consumer: str, *, after: DeliveryRecord | None = None, limit: int = DEAD_LETTERS_MAX
) -> Flow[Sequence[DeliveryRecord]]:
    """Return at most `limit` dead letters of `consumer`, oldest first. `after` is the last one of an earlier page.

    Raises `ConsumerNotFound` and `InvalidValue`.
    """
    return (yield from letters.dead_letters(consumer, after=after, limit=limit))


def read_delivery(_: Service[Any], delivery: DeliveryRecord) -> Flow[Sequence[FeedEvent]]:
    """Return the events of `delivery`, oldest first. This reads all events of its payment."""
    return (yield from letters.read_delivery(delivery))


def redeliver(service: Service[Any], delivery: DeliveryRecord) -> Flow[None]:
    """Make the dead letter `delivery` due again. Its attempts count from the beginning. Raises `DeliveryNotFound`.

    The delivery has the same id as before. It may arrive after later events of its payment.
    """
    yield from letters.redeliver(delivery, service.clock())


def consumers(_: Service[Any]) -> Flow[Sequence[ConsumerState]]:
    """Return the consumers of the events, by name, each with its health and its oldest waiting delivery."""
    return (yield from FindConsumers())


def disable(service: Service[Any], consumer: str) -> Flow[None]:
    """Disable `consumer`. It gets no deliveries until you enable it again, and loses none.

    Raises `ConsumerNotFound` and `InvalidValue`.
    """
    yield from set_enabled(consumer, service.clock(), enabled=False)


def set_enabled(consumer: str, now: datetime, *, enabled: bool) -> Flow[None]:
    """Enable or disable the consumer."""
    yield from EnableConsumer(consumer_name(consumer), now, enabled)


def skip_batch(consumer: str, now: datetime) -> Flow[bool]:
    """Drop a batch of the deliveries that were due by `now`, and return whether no delivery is left."""
    return (yield from SkipDeliveries(consumer_name(consumer), now))


def remove_batch(consumer: str) -> Flow[bool]:
    """Remove a batch of the data of the consumer, and return whether the removal is complete."""
    return (yield from RemoveConsumer(consumer_name(consumer)))


def erase_metadata(service: Service[Any], payment: PaymentId | str) -> Flow[IncomingPayment]:
    """Erase the metadata of `payment`, and return the payment without it. The other data of the payment stays.

    When the method returns, the metadata is in none of the files of the database. Backups still have it. A repeated
    call is safe, so repeat a call that was interrupted. Raises `PaymentNotFound`, `PortMissing` if the service has no
    port `erasure`, and `StoreUnavailable` if a log may still hold the metadata.
    """
    return (yield from EraseMetadata(service.policy.payment_id(payment)))


def erase_old_metadata(service: Service[Any], *, kept_s: int) -> Flow[bool]:
    """Erase the metadata of a batch of the payments that ended more than `kept_s` seconds ago.

    Return whether no such metadata is left. Until then, call the method again. A payment ends when it is completed, or
    when it expires and `announce_expired` has written its `expired` event. Raises `InvalidValue` unless `kept_s` is an
    integer from 0 to `limits.KEPT_S_MAX`, and the exceptions of `erase_metadata`.
    """
    return (yield from erase.erase_old_metadata(service.clock(), kept_s=kept_s))


def is_ready(service: Service[Any]) -> Flow[bool]:
    """Return whether the store answers, for a readiness check. If not, the log shows the failure.

    The result does not depend on the authorization server, because packets and credits of the host need only the store.
    """
    try:
        yield from LoadPayment(_NO_PAYMENT)
    except PaymentNotFound:
        return True
    except StoreUnavailable as error:
        if service.unready_lines.admits(logger, "failed readiness checks"):
            text = "a readiness check failed, because the store is unavailable: %s"
            log_event(logger, logging.ERROR, LogEvent.NOT_READY, text, error.description)
    except Exception as error:  # noqa: BLE001 - it is logged
        if service.unready_lines.admits(logger, "failed readiness checks"):
            text = "a readiness check failed, because the store failed"
            log_event(logger, logging.ERROR, LogEvent.NOT_READY, text, error=error)
    return False

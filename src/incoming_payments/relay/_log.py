"""The log lines of one relay."""

import logging
from datetime import datetime

from incoming_payments.domain.feed import Delivery
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.observers.log import LineLimit, LogEvent, log_event
from incoming_payments.relay._results import HandlerTimeout, summary

logger = logging.getLogger(__name__)


class RelayLog:
    """The log lines about the consumer `name`. A problem that persists is logged once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._limit = LineLimit()
        self._is_in_trouble = False
        self._is_down = False
        self._is_disabled = False

    def trouble(self, error: Exception) -> None:
        """Log that a call of the feed failed, but only once before the next `works`."""
        if not self._is_in_trouble:
            self._is_in_trouble = True
            text = "a call of the feed failed, and the relay of the consumer %s tries again: %s"
            log_event(
                logger, logging.ERROR, LogEvent.RELAY_FAILED, text, self._name, summary(error), error=error, depth=2
            )

    def works(self) -> None:
        """Record that the feed answers."""
        self._is_in_trouble = False

    def failed(self, delivery: Delivery, error: BaseException, *, is_dead: bool) -> None:
        """Log a failed attempt, with the traceback of an unknown error. A dead letter is always logged."""
        unknown = None if isinstance(error, IncomingPaymentsError | HandlerTimeout) else error
        if is_dead:
            text = "the delivery %s to the consumer %s is a dead letter after attempt %s: %s"
            dead = delivery.id, self._name, delivery.attempt, summary(error)
            log_event(logger, logging.ERROR, LogEvent.DEAD_LETTER, text, *dead, error=unknown)
        elif self._limit.admits(logger, f"failed deliveries to the consumer {self._name}"):
            text = "attempt %s of the delivery %s to the consumer %s failed: %s"
            values = delivery.attempt, delivery.id, self._name, summary(error)
            log_event(logger, logging.WARNING, LogEvent.DELIVERY_FAILED, text, *values, error=unknown)

    def lease_lost(self, delivery: Delivery) -> None:
        """Log that a result was not stored."""
        if self._limit.admits(logger, f"lost leases of the consumer {self._name}"):
            text = (
                "the result of the delivery %s to the consumer %s was not stored, because its lease had ended, the "
                "consumer was removed, or the feed did not answer"
            )
            log_event(logger, logging.WARNING, LogEvent.LEASE_LOST, text, delivery.id, self._name)

    def down(self, since: datetime) -> None:
        """Log that the consumer is down, but only once before the next `is_up`."""
        if not self._is_down:
            self._is_down = True
            text = "the consumer %s is down: it has had no success since %s, so it gets one delivery at a time"
            log_event(logger, logging.WARNING, LogEvent.CONSUMER_DOWN, text, self._name, since.isoformat())

    def disabled(self) -> None:
        """Log that the consumer is disabled, but only once before the next `is_up`."""
        if not self._is_disabled:
            self._is_disabled = True
            text = (
                "the consumer %s is disabled: correct the cause, and enable it with service.enable, or with "
                "`incoming-payments enable-consumer`"
            )
            log_event(logger, logging.ERROR, LogEvent.CONSUMER_DISABLED, text, self._name)

    def is_up(self) -> None:
        """Record that a delivery succeeded."""
        self._is_down = self._is_disabled = False

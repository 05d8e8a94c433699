"""The log lines of this library, with their stable event names and a rate limit for each kind.

Each line names its event in the attribute `event` of its record. A message begins with `incoming payments:`.
"""

import enum
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

from incoming_payments.limits import LOGGED_A_MINUTE_MAX


class LogEvent(enum.StrEnum):
    """The stable name of each kind of line. Programs must match on this name, never on the message."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        """Return the member `name`. `docs/observability.md` shows its `meaning`."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning = meaning
        return member

    REQUEST_FAILED = (
        "request_failed",
        "a port or this library raised an unexpected exception. The line has the traceback",
    )
    STORE_UNAVAILABLE = "store_unavailable", "the store did not answer, so a request was refused"
    AUTHORIZATION_SERVER_UNAVAILABLE = (
        "authorization_server_unavailable",
        "the authorization server did not answer. Clients with a token are refused, but packets are still accepted",
    )
    CLOCK_BEHIND = "clock_behind", "the clock was set back, so requests with a nonce are refused. Correct the clocks"
    PORT_UNAVAILABLE = "port_unavailable", "another port did not answer, so a request was refused"
    DOCUMENT_REFRESH_FAILED = (
        "document_refresh_failed",
        "a key set or a wallet address could not be fetched again, so the cached document stays in use",
    )
    NOT_READY = (
        "not_ready",
        "a readiness check failed because of the store. The line has the reason, or the traceback of another error",
    )
    SIGNATURE_REFUSED = "signature_refused", "the reason why a signature was refused, if `explain_refusals` is on"
    EXPLANATION_FAILED = "explanation_failed", "a refused signature could not be explained. The line has the traceback"
    BODY_NOT_READ = (
        "body_not_read",
        "no byte of an announced body arrived, perhaps because other code has read it, or the server failed to read it",
    )
    WRONG_MOUNT = "wrong_mount", "a request got 404, but would reach the service with another `mount`"
    SETTING_SUSPECTED = "setting_suspected", "a setting of the service may be the reason for a refused request"
    PORT_BLOCKS = "port_blocks", "a sync port blocked the event loop for a long time. This is logged once for each port"
    LINES_SUPPRESSED = "lines_suppressed", "the number of lines of one kind that the rate limit suppressed"
    OBSERVER_FAILED = "observer_failed", "an observer raised an exception. The line has the traceback"
    DATABASE_CREATED = "database_created", "the SQLite store has created a database, because the file did not exist"
    DATABASE_UPGRADED = "database_upgraded", "the SQLite store has upgraded a database of an earlier release"
    CHECKPOINT_FAILED = "checkpoint_failed", "SQLite's log could not be copied into the database. The store tries again"
    CONFIGURATION_READ = "configuration_read", "`serve` has read its configuration again after SIGHUP"
    CONFIGURATION_REFUSED = (
        "configuration_refused",
        "after SIGHUP, `serve` found an error in its configuration, so the old settings stay",
    )
    CONFIGURATION_WARNING = "configuration_warning", "a setting is probably a mistake, or needs a restart after SIGHUP"
    WORKER_LOST = (
        "worker_lost",
        "a worker process of `serve` has ended or hangs. A new process replaces it, or the service stops",
    )
    EXPIRY_SWEEP_FAILED = "expiry_sweep_failed", "`serve` could not write `expired` events, and tries again"
    CLEAN_UP_FAILED = (
        "clean_up_failed",
        "`serve` could not erase old metadata or delete old deliveries, and tries again",
    )
    REQUEST_ANSWERED = "request_answered", "a line of the access log of `serve`, for a request and its response"
    HEADERS_WITHOUT_END = (
        "headers_without_end",
        "`serve` closed a connection, because its request headers were too long",
    )
    PIPELINE_TOO_LONG = "pipeline_too_long", "`serve` closed a connection, because too many of its requests waited"
    METRICS_UNAVAILABLE = "metrics_unavailable", "another program has taken the port of a worker's metrics"
    DELIVERY_FAILED = "delivery_failed", "an attempt of a delivery failed, and the relay tries again later"
    DEAD_LETTER = "dead_letter", "the attempts of a delivery are used up. Read it, correct the cause, and send it again"
    LEASE_LOST = (
        "lease_lost",
        "the result of an attempt was not stored, so the delivery may be handled twice",
    )
    CONSUMER_DOWN = "consumer_down", "a consumer has had no success for a long time, so it gets one delivery at a time"
    CONSUMER_DISABLED = "consumer_disabled", "a consumer gets no deliveries until you enable it again"
    RELAY_FAILED = "relay_failed", "a call of the feed failed, and the relay tries again. The line has the traceback"
    CONSUMER_UNREGISTERED = "consumer_unregistered", "`serve` could not register a consumer, and tries again"
    ON_STOP_FAILED = "on_stop_failed", "`on_stop` of the SQLite store raised an exception. The line has the traceback"


def log_event(
    logger: logging.Logger,
    level: int,
    event: LogEvent,
    message: str,
    *args: object,
    error: BaseException | None = None,
    fields: Mapping[str, object] | None = None,
    depth: int = 1,
) -> None:
    """Write a line with the `event`, and with the traceback of `error`. `depth` is the number of frames to the caller.

    The log record names that frame, because `serve` limits the lines of each place in the code. `fields` are further
    members of a JSON line.
    """
    text = f"incoming payments: {message}"
    logger.log(
        level, text, *args, extra={"event": event.value, "fields": fields or {}}, exc_info=error, stacklevel=depth + 1
    )


class LineLimit:
    """A limit of `a_minute_max` lines a minute, which counts the suppressed lines. Thread-safe.

    `clock` returns monotonic seconds. The first line after the end of a minute begins the next minute.
    """

    def __init__(self, a_minute_max: int = LOGGED_A_MINUTE_MAX, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._a_minute_max = a_minute_max
        self._clock = clock
        self._lock = threading.Lock()
        self._minute_ends_s = clock()
        self._left = 0
        self._suppressed = 0

    def admit(self) -> int | None:
        """Return the number of lines suppressed since the last admitted line, or `None` to suppress this line."""
        with self._lock:
            now = self._clock()
            if now >= self._minute_ends_s:
                self._minute_ends_s, self._left = now + 60, self._a_minute_max
            if self._left == 0:
                self._suppressed += 1
                return None
            self._left -= 1
            suppressed, self._suppressed = self._suppressed, 0
            return suppressed

    def admits(self, logger: logging.Logger, kind: str) -> bool:
        """Return whether to write the next line of this `kind`.

        If lines were suppressed before, first log their number.
        """
        suppressed = self.admit()
        if suppressed:
            text = "%s more %s were not logged"
            log_event(logger, logging.WARNING, LogEvent.LINES_SUPPRESSED, text, suppressed, kind, depth=2)
        return suppressed is not None

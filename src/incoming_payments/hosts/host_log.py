"""The log of a host. It shows failed requests, outages of ports, mistakes of the host, and refused signatures."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from incoming_payments.endpoints.open_payments import Response
from incoming_payments.errors import (
    ApprovalUnavailable,
    AuthorizationServerUnavailable,
    ClientKeysUnavailable,
    ClockBehind,
    HttpRefused,
    IncomingPaymentsError,
    PortUnavailable,
    Refused,
    SignatureRefused,
    StoreError,
    WalletAddressesUnavailable,
)
from incoming_payments.hosts._paths import Mount, below
from incoming_payments.httpsig import Evidence
from incoming_payments.httpsig.explain import explain
from incoming_payments.limits import EXPLAIN_VALUE_CHARS_MAX, EXPLAINED_A_MINUTE_MAX
from incoming_payments.observers.log import LineLimit, LogEvent, log_event


class NothingRead(HttpRefused):
    """The client announced a body, but no byte of it reached the adapter."""


class ReadFailed(HttpRefused):
    """The server's stream raised an exception other than `OSError`, because of a malformed body or a defect."""


# The port to which each failure belongs. The first matching row decides. Each port has its own rate limit.
_PORTS: Final[Mapping[type[IncomingPaymentsError], tuple[LogEvent, str]]] = {
    StoreError: (LogEvent.STORE_UNAVAILABLE, "the store"),
    AuthorizationServerUnavailable: (LogEvent.AUTHORIZATION_SERVER_UNAVAILABLE, "the authorization server"),
    ApprovalUnavailable: (LogEvent.PORT_UNAVAILABLE, "the port approval"),
    ClientKeysUnavailable: (LogEvent.PORT_UNAVAILABLE, "the port client_keys"),
    WalletAddressesUnavailable: (LogEvent.PORT_UNAVAILABLE, "the port wallet_addresses"),
    ClockBehind: (LogEvent.CLOCK_BEHIND, "the record of nonces"),
    PortUnavailable: (LogEvent.PORT_UNAVAILABLE, "a port"),
}


class HostLog:
    """A log with a rate limit for each kind of line, which counts suppressed lines. Thread-safe.

    If `explain` is true, the log reports why signatures were refused. Such a report needs several verifications, so the
    log builds no report for a suppressed line. `clock` returns monotonic seconds.
    """

    def __init__(
        self, logger: logging.Logger, *, explain: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._explain = explain
        self._failures = LineLimit(clock=clock)
        self._outages = {port: LineLimit(clock=clock) for _, port in _PORTS.values()}
        self._hints = LineLimit(clock=clock)
        self._settings = LineLimit(clock=clock)
        self._refusals = LineLimit(EXPLAINED_A_MINUTE_MAX, clock=clock)

    def failed(self, error: Exception) -> None:
        """Log the exception `error` that made a request fail, with its traceback."""
        if self._failures.admits(self._logger, "failures"):
            log_event(self._logger, logging.ERROR, LogEvent.REQUEST_FAILED, "a request failed", error=error)

    def note(self, response: Response) -> None:
        """Log the cause of `response` if it is a failed port, a suspected setting or a refused signature.

        Raises no exception.
        """
        cause = response.cause
        if cause is None:
            return
        event, port = next((row for cls, row in _PORTS.items() if isinstance(cause, cls)), (None, ""))
        if event is not None and self._outages[port].admits(self._logger, f"outages of {port}"):
            # An outage ends by itself, but an operator has to correct a wrong clock.
            level = logging.ERROR if event is LogEvent.CLOCK_BEHIND else logging.WARNING
            text = "%s is unavailable, so clients have to retry: %s"
            log_event(self._logger, level, event, text, port, cause)
        if isinstance(cause, Refused) and cause.hint and self._settings.admits(self._logger, "suspected settings"):
            self._warn(LogEvent.SETTING_SUSPECTED, "a request was refused with %s: %s", cause.code, cause.hint)
        if self._explain and isinstance(cause, SignatureRefused) and isinstance(cause.evidence, Evidence):
            self._diagnose(cause, cause.evidence)

    def nothing_read(self, method: str, path: str) -> None:
        """Log that no byte of a body arrived, with both possible causes."""
        self._hint(
            LogEvent.BODY_NOT_READ,
            f"no byte of the body of {method[:20]} {_shown(path)} arrived. The client sent no body, or code "
            "in front of the service has read the body. Such code must pass the body on with answer(..., body=...)",
        )

    def read_failed(self, method: str, path: str, error: Exception) -> None:
        """Log that the server raised an exception while the adapter read a body, with the traceback."""
        self._hint(
            LogEvent.BODY_NOT_READ,
            f"the server could not read the body of {method[:20]} {_shown(path)}. The client sent malformed "
            "chunks, or there is a defect in the server or in code in front of the service",
            error,
        )

    def not_found(self, path: str, mount: Mount) -> None:
        """Log a 404 if the whole `path` would lead to an endpoint of the service with another `mount`."""
        actual = mount.actual(path)
        if actual is not None and mount.actual(below(path, mount.path)) != "":
            expected = mount.path + path.removeprefix(actual)
            self._hint(
                LogEvent.WRONG_MOUNT,
                f"{_shown(path)} does not exist, because the service expects {_shown(expected)}: set "
                f"mount={_shown(actual)}, or correct the path in base_url, in the proxy or in the route",
            )

    def _hint(self, event: LogEvent, text: str, error: Exception | None = None) -> None:
        if self._hints.admits(self._logger, "hints"):
            self._warn(event, "%s", text, error=error)

    def _diagnose(self, refusal: SignatureRefused, evidence: Evidence) -> None:
        if self._refusals.admits(self._logger, "refused signatures"):
            try:
                self._warn(LogEvent.SIGNATURE_REFUSED, "%s", explain(refusal, evidence))
            except Exception as error:  # noqa: BLE001 - it is logged
                text = "a refused signature could not be explained"
                log_event(self._logger, logging.ERROR, LogEvent.EXPLANATION_FAILED, text, error=error)

    def _warn(self, event: LogEvent, text: str, *args: object, error: Exception | None = None) -> None:
        log_event(self._logger, logging.WARNING, event, text, *args, error=error, depth=2)


def _shown(path: str) -> str:
    """Return `path` as an ASCII literal of limited length."""
    return ascii(path[:EXPLAIN_VALUE_CHARS_MAX])

"""The log of a host: failed requests, outages of the ports, its own mistakes, and why signatures were refused."""

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
    """The server's stream raised an exception that is no `OSError`, because of a malformed body or a defect."""


# The port that each failure belongs to. The first row that matches decides. Each port has a rate limit of its own.
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
    """Write to `logger` at a limited rate for each kind of line, and count the suppressed lines. Thread-safe.

    With `explain` the log says why signatures were refused. Such a report needs several verifications, so it is not
    built if its line is suppressed. `clock` returns monotonic seconds.
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
        """Log `error`, which made a request fail, with its traceback."""
        if self._failures.admits(self._logger, "failures"):
            log_event(self._logger, logging.ERROR, LogEvent.REQUEST_FAILED, "a request failed", error=error)

    def note(self, response: Response) -> None:
        """Log the failure of a port, the suspected setting or the refused signature that caused `response`, if any.

        Raises nothing.
        """
        cause = response.cause
        if cause is None:
            return
        event, port = next((row for cls, row in _PORTS.items() if isinstance(cause, cls)), (None, ""))
        if event is not None and self._outages[port].admits(self._logger, f"outages of {port}"):
            # An outage ends by itself. A wrong clock has to be corrected.
            level = logging.ERROR if event is LogEvent.CLOCK_BEHIND else logging.WARNING
            text = "%s is unavailable; clients have to retry: %s"
            log_event(self._logger, level, event, text, port, cause)
        if isinstance(cause, Refused) and cause.hint and self._settings.admits(self._logger, "suspected settings"):
            self._warn(LogEvent.SETTING_SUSPECTED, "a request was refused with %s: %s", cause.code, cause.hint)
        if self._explain and isinstance(cause, SignatureRefused) and isinstance(cause.evidence, Evidence):
            self._diagnose(cause, cause.evidence)

    def nothing_read(self, method: str, path: str) -> None:
        """Log that no byte of a body arrived, with both possible causes, because the adapter cannot tell them apart."""
        self._hint(
            LogEvent.BODY_NOT_READ,
            f"no byte of the body of {method[:20]} {_shown(path)} arrived. The client sent none, or code in front of "
            "the service has read the body; such code must pass the bytes on, as answer(..., body=...)",
        )

    def read_failed(self, method: str, path: str, error: Exception) -> None:
        """Log that the server raised an exception while its body was read, with the traceback of its cause."""
        self._hint(
            LogEvent.BODY_NOT_READ,
            f"the server could not read the body of {method[:20]} {_shown(path)}. The client sent malformed chunks, "
            "or the server or code in front of the service has a defect",
            error,
        )

    def not_found(self, path: str, mount: Mount) -> None:
        """Log a 404 if the whole `path` would lead to an endpoint of the service with another `mount`."""
        actual = mount.actual(path)
        if actual is not None and mount.actual(below(path, mount.path)) != "":
            expected = mount.path + path.removeprefix(actual)
            self._hint(
                LogEvent.WRONG_MOUNT,
                f"{_shown(path)} is not found, because the service expects {_shown(expected)}: set "
                f"mount={_shown(actual)}, or correct the path of base_url, the proxy or the route",
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

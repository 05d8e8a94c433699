"""The log of a host: failed requests, outages of the ports, its own mistakes, and why signatures were refused."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from incoming_payments.api import Response
from incoming_payments.errors import (
    AuthorizationServerUnavailable,
    HttpRefused,
    IncomingPaymentsError,
    PortUnavailable,
    SignatureRefused,
    StoreError,
)
from incoming_payments.hosts.log_limits import LineLimit
from incoming_payments.hosts.paths import Mount, below
from incoming_payments.httpsig import Evidence
from incoming_payments.httpsig.explain import explain
from incoming_payments.limits import EXPLAIN_VALUE_CHARS_MAX, EXPLAINED_A_MINUTE_MAX


class NothingRead(HttpRefused):
    """No byte of the body reached the adapter, although the client announced a body."""


# The port that each failure belongs to. The first row that fits decides. Each port has a rate limit of its own.
_PORTS: Final[Mapping[type[IncomingPaymentsError], str]] = {
    StoreError: "the store",
    AuthorizationServerUnavailable: "the authorization server",
    PortUnavailable: "a port",
}


class HostLog:
    """Write to `logger` at a limited rate for each kind of line, and count the suppressed lines. Thread-safe.

    With `explain` the log says why signatures were refused. Such a report costs several verifications, so a
    suppressed report is not computed. `clock` returns monotonic seconds.
    """

    def __init__(
        self, logger: logging.Logger, *, explain: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._explain = explain
        self._failures = LineLimit(clock=clock)
        self._outages = {port: LineLimit(clock=clock) for port in _PORTS.values()}
        self._hints = LineLimit(clock=clock)
        self._refusals = LineLimit(EXPLAINED_A_MINUTE_MAX, clock=clock)

    def failed(self, error: Exception) -> None:
        """Log `error`, which made a request fail, with its traceback."""
        if self._may_log(self._failures, "failures"):
            self._logger.error("incoming payments: a request failed", exc_info=error)

    def note(self, response: Response) -> None:
        """Log the failure of a port or the refused signature that caused `response`, if any. Raises nothing."""
        cause = response.cause
        port = next((port for cls, port in _PORTS.items() if isinstance(cause, cls)), None)
        if port is not None and self._may_log(self._outages[port], f"outages of {port}"):
            self._logger.warning("incoming payments: %s is unavailable; clients have to retry: %s", port, cause)
        if self._explain and isinstance(cause, SignatureRefused) and isinstance(cause.evidence, Evidence):
            self._diagnose(cause, cause.evidence)

    def nothing_read(self, method: str, path: str) -> None:
        """Log that no byte of a body arrived, with both possible causes, because the adapter cannot tell them apart."""
        self._hint(
            f"no byte of the body of {method[:20]} {_shown(path)} arrived. The client sent none, or code in front of "
            "the service has read the body; such code must pass the bytes on, as answer(..., body=...)"
        )

    def not_found(self, path: str, mount: Mount) -> None:
        """Log a 404 if the whole `path` would lead to an endpoint of the service with another `mount`."""
        actual = mount.actual(path)
        if actual is not None and mount.actual(below(path, mount.path)) != "":
            expected = mount.path + path.removeprefix(actual)
            self._hint(
                f"{_shown(path)} is not found, because the service expects {_shown(expected)}: set "
                f"mount={_shown(actual)}, or correct the path of base_url, the proxy or the route"
            )

    def _hint(self, text: str) -> None:
        if self._may_log(self._hints, "hints"):
            self._logger.warning("incoming payments: %s", text)

    def _diagnose(self, refusal: SignatureRefused, evidence: Evidence) -> None:
        if self._may_log(self._refusals, "refused signatures"):
            try:
                self._logger.warning("incoming payments: %s", explain(refusal, evidence))
            except Exception:
                self._logger.exception("incoming payments: a refused signature could not be explained")

    def _may_log(self, lines: LineLimit, kind: str) -> bool:
        suppressed = lines.admit()
        if suppressed:
            self._logger.warning("incoming payments: %s more %s were not logged", suppressed, kind)
        return suppressed is not None


def _shown(path: str) -> str:
    """Return `path` as an ASCII literal of limited length."""
    return ascii(path[:EXPLAIN_VALUE_CHARS_MAX])

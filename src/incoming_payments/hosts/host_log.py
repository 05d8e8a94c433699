"""What a host's log says of its answers: what failed, when the store was in trouble, why signatures were refused."""

import logging
import time
from collections.abc import Callable

from incoming_payments.api import Response
from incoming_payments.errors import SignatureRefused, StoreError
from incoming_payments.hosts.sparse_log import Sparse
from incoming_payments.httpsig import Evidence
from incoming_payments.httpsig.explain import explain
from incoming_payments.limits import EXPLAINED_A_MINUTE_MAX


class HostLog:
    """Writes to `logger`, of each kind so many lines a minute, and counts the others. For any number of threads.

    With `explain` the log says why signatures were refused. Such a report costs some verifications: those past the
    bound are not made. `clock` tells seconds that never go backwards.
    """

    def __init__(
        self, logger: logging.Logger, *, explain: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._explain = explain
        self._failures = Sparse(clock=clock)
        self._troubles = Sparse(clock=clock)
        self._refusals = Sparse(EXPLAINED_A_MINUTE_MAX, clock=clock)

    def failed(self, error: Exception) -> None:
        """Log `error`, for which a request failed, with its trace. Raises nothing."""
        if self._may_log(self._failures, "failures not logged"):
            self._logger.error("incoming payments: a request failed", exc_info=error)

    def note(self, response: Response) -> None:
        """Log the store failure or the refused signature behind `response`, if there is one. Raises nothing."""
        cause = response.cause
        if isinstance(cause, StoreError) and self._may_log(self._troubles, "troubles of the store not logged"):
            text = "incoming payments: the store is in trouble, and whoever asked was told to try again: %s"
            self._logger.warning(text, cause)
        if self._explain and isinstance(cause, SignatureRefused) and isinstance(cause.evidence, Evidence):
            self._diagnose(cause, cause.evidence)

    def _diagnose(self, refusal: SignatureRefused, evidence: Evidence) -> None:
        if self._may_log(self._refusals, "refusals not explained"):
            try:
                self._logger.warning("incoming payments: %s", explain(refusal, evidence))
            except Exception:
                self._logger.exception("incoming payments: a refusal could not be explained")

    def _may_log(self, lines: Sparse, others: str) -> bool:
        left_out = lines.admit()
        if left_out:
            self._logger.warning("incoming payments: %s %s", left_out, others)
        return left_out is not None

"""Report to an observer. A failure of the observer must not make a request or a commit fail."""

import inspect
import logging
from typing import Final

from incoming_payments.domain.checks import name_of
from incoming_payments.errors import ConfigurationError
from incoming_payments.observers.log import LineLimit, LogEvent, log_event
from incoming_payments.ports import Observation, Observer

logger = logging.getLogger(__name__)


class Reporter:
    """A function that passes observations to `observer`, and logs its exceptions at a limited rate. Thread-safe.

    Raises `ConfigurationError` if the observer has no sync method `observe`.
    """

    def __init__(self, observer: Observer) -> None:
        observe = getattr(observer, "observe", None)
        if isinstance(observer, type) or not callable(observe) or inspect.iscoroutinefunction(observe):
            text = f"observer must be an object with a sync method observe, not {name_of(observer)}"
            raise ConfigurationError(text, setting="observer")
        self._observe: Final = observe
        self._limit: Final = LineLimit()

    def __call__(self, observation: Observation) -> None:
        """Report `observation`. Raises no exception."""
        try:
            self._observe(observation)
        except Exception as error:  # noqa: BLE001 - it is logged
            if self._limit.admits(logger, "failures of the observer"):
                log_event(
                    logger, logging.ERROR, LogEvent.OBSERVER_FAILED, "the observer raised an exception", error=error
                )

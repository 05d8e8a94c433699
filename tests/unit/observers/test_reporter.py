"""The reporter: what it passes on, and observers that fail."""

import logging
from typing import Any

import pytest

from incoming_payments.errors import ConfigurationError
from incoming_payments.limits import LOGGED_A_MINUTE_MAX
from incoming_payments.observers.reporter import Reporter
from incoming_payments.ports import StoreBatch
from kits.service_kit import BrokenObserver, Recorder

BATCH = StoreBatch(size=1, outcome="committed", duration_s=0.25)


class Async:
    """An observer with an async method, which nothing would await."""

    async def observe(self, _: object) -> None:
        """Do nothing."""


def test_observations_are_passed_on() -> None:
    """The observer gets the observation itself."""
    recorder = Recorder()
    Reporter(recorder)(BATCH)
    assert recorder.observations == [BATCH]


def test_failures_of_an_observer_are_logged_at_a_limited_rate(caplog: pytest.LogCaptureFixture) -> None:
    """Each line has its event and the traceback. The call raises nothing."""
    report = Reporter(BrokenObserver())
    for _ in range(LOGGED_A_MINUTE_MAX + 5):
        report(BATCH)
    assert len(caplog.records) == LOGGED_A_MINUTE_MAX
    for record in caplog.records:
        assert record.getMessage() == "incoming payments: the observer raised an exception"
        assert record.__dict__["event"] == "observer_failed"
        assert record.levelno == logging.ERROR
        assert record.exc_info


@pytest.mark.parametrize("observer", [object(), Recorder, Async(), print])
def test_object_without_a_sync_method_is_refused(observer: Any) -> None:
    """The error says what to pass."""
    with pytest.raises(ConfigurationError, match="observer must be an object with a sync method observe,") as caught:
        Reporter(observer)
    assert caught.value.details["setting"] == "observer"

"""Reports in the log: what they hold, how many there are, and that nothing is computed that nobody reads."""

import logging
import threading
from datetime import timedelta

import pytest

from incoming_payments.api import Response
from incoming_payments.hosts.refusals import RefusalLog
from incoming_payments.httpsig import Report
from incoming_payments.limits import EXPLAINED_A_MINUTE_MAX
from incoming_payments.testing import NOW

logger = logging.getLogger("tests.refusals")


class Explained:
    """A refusal that counts how often it was explained."""

    def __init__(self) -> None:
        self.count = 0

    def response(self) -> Response:
        """The answer to a refused request."""
        return Response(401, (), b"", explain=self._explain)

    def _explain(self) -> Report:
        self.count += 1
        return Report("signature_invalid", "no", (), (), f"report {self.count}")


def test_answers_without_a_report_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is logged or counted for them."""
    log = RefusalLog(logger, reports_max=1)
    for _ in range(5):
        log.note(Response(404, (), b""), NOW)
    log.note(Explained().response(), NOW)
    assert [record.getMessage() for record in caplog.records] == ["incoming payments: report 1"]


def test_reports_are_bounded_and_the_others_counted(caplog: pytest.LogCaptureFixture) -> None:
    """So many within a minute; the rest is not computed, and its number is said with the first of the next minute."""
    explained = Explained()
    log = RefusalLog(logger)
    for number in range(EXPLAINED_A_MINUTE_MAX + 17):
        log.note(explained.response(), NOW + timedelta(seconds=number))
    assert explained.count == EXPLAINED_A_MINUTE_MAX
    log.note(explained.response(), NOW + timedelta(seconds=59, microseconds=999_999))
    assert explained.count == EXPLAINED_A_MINUTE_MAX
    log.note(explained.response(), NOW + timedelta(seconds=60))
    log.note(explained.response(), NOW + timedelta(seconds=61))
    assert [record.getMessage() for record in caplog.records][EXPLAINED_A_MINUTE_MAX:] == [
        "incoming payments: 18 refusals not explained",
        "incoming payments: report 11",
        "incoming payments: report 12",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_clock_that_is_set_back_does_not_silence_the_log() -> None:
    """A minute ends as well when the clock shows an earlier time than at its beginning."""
    explained = Explained()
    log = RefusalLog(logger, reports_max=1)
    for seconds in (0, 1, -3600, -3599):
        log.note(explained.response(), NOW + timedelta(seconds=seconds))
    assert explained.count == 2


def test_a_report_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The answer does not depend on it."""
    RefusalLog(logger).note(Response(401, (), b"", explain=lambda: 1 // 0), NOW)  # type: ignore[arg-type,return-value]
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == ("ERROR", "incoming payments: a refusal could not be explained")
    assert "ZeroDivisionError" in caplog.text


def test_threads_share_the_bound() -> None:
    """A WSGI server has one application for all of its threads."""
    explained = Explained()
    log = RefusalLog(logger)
    threads = [threading.Thread(target=lambda: log.note(explained.response(), NOW)) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert explained.count == EXPLAINED_A_MINUTE_MAX

"""The log of a host: its lines, their rate limits, and no report without a line."""

import logging
from collections.abc import Callable

import pytest

from incoming_payments.api import Response
from incoming_payments.errors import StoreUnavailable
from incoming_payments.hosts.host_log import HostLog
from incoming_payments.httpsig import Report
from incoming_payments.limits import EXPLAINED_A_MINUTE_MAX, LOGGED_A_MINUTE_MAX

logger = logging.getLogger("tests.host_log")


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


def in_trouble() -> Response:
    """The answer when the store cannot do its work now."""
    return Response(200, (), b"", cause=StoreUnavailable("locked"))


def fail(log: HostLog) -> None:
    """Let a request fail."""
    try:
        raise RuntimeError("gone")
    except RuntimeError as error:
        log.failed(error)


def test_answers_without_anything_to_say_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Such responses leave no line, and a refusal is explained only with `explain`."""
    log = HostLog(logger, explain=True)
    for _ in range(2 * EXPLAINED_A_MINUTE_MAX):
        log.note(Response(404, (), b""))
    log.note(Explained().response())
    HostLog(logger).note(Explained().response())
    assert [record.getMessage() for record in caplog.records] == ["incoming payments: report 1"]


@pytest.mark.parametrize(
    ("happen", "bound", "line", "left_out"),
    [
        (fail, LOGGED_A_MINUTE_MAX, "a request failed", "more failures were not logged"),
        (
            lambda log: log.note(in_trouble()),
            LOGGED_A_MINUTE_MAX,
            "the store is unavailable; clients were asked to retry: locked",
            "more store outages were not logged",
        ),
        (
            lambda log: log.note(Explained().response()),
            EXPLAINED_A_MINUTE_MAX,
            "report 1",
            "more refused signatures were not logged",
        ),
    ],
    ids=["failure", "trouble", "refusal"],
)
def test_each_kind_is_bounded_and_the_others_counted(
    caplog: pytest.LogCaptureFixture, happen: Callable[[HostLog], None], bound: int, line: str, left_out: str
) -> None:
    """So many within a minute; the number of the rest is said with the first of the next."""
    now = 0.0
    log = HostLog(logger, explain=True, clock=lambda: now)
    for _ in range(bound + 17):
        happen(log)
    said = [f"incoming payments: {line}"] * bound
    assert said == [record.getMessage() for record in caplog.records]
    now = 60.0
    happen(log)
    said += [f"incoming payments: 17 {left_out}", f"incoming payments: {line}"]
    assert said == [record.getMessage() for record in caplog.records]


def test_no_kind_silences_another(caplog: pytest.LogCaptureFixture) -> None:
    """The limit of one kind does not suppress the lines of another."""
    log = HostLog(logger, explain=True)
    for _ in range(2 * LOGGED_A_MINUTE_MAX):
        log.note(Explained().response())
    for _ in range(2 * LOGGED_A_MINUTE_MAX):
        log.note(in_trouble())
    fail(log)
    assert caplog.records[-1].getMessage() == "incoming payments: a request failed"
    assert len(caplog.records) == EXPLAINED_A_MINUTE_MAX + LOGGED_A_MINUTE_MAX + 1


def test_what_is_not_said_is_not_computed() -> None:
    """A report costs some verifications: those past the bound are not made."""
    explained = Explained()
    log = HostLog(logger, explain=True)
    for _ in range(EXPLAINED_A_MINUTE_MAX + 17):
        log.note(explained.response())
    assert explained.count == EXPLAINED_A_MINUTE_MAX


def test_a_failure_has_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    """The traceback is logged with the failure."""
    fail(HostLog(logger))
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert "RuntimeError: gone" in caplog.text


def test_a_report_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The answer does not depend on it."""
    response = Response(401, (), b"", explain=lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    HostLog(logger, explain=True).note(response)
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "ERROR",
        "incoming payments: a refused signature could not be explained",
    )
    assert "ZeroDivisionError" in caplog.text

"""Rate limits for log lines, under a clock that the test advances."""

import io
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from attrs import define

from incoming_payments.hosts.log_limits import LineLimit, LineLimitFilter
from incoming_payments.limits import LOGGED_A_MINUTE_MAX


@define
class Seconds:
    """A clock that the test advances."""

    now: float = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0, 0], [0, 0]),
        ([0, 1, 2, 3, 59.9], [0, 0, None, None, None]),
        ([0, 1, 2, 3, 60, 61, 62], [0, 0, None, None, 2, 0, None]),
        ([0, 30, 90, 91, 92, 149, 150], [0, 0, 0, 0, None, None, 2]),  # a minute begins with a line
    ],
)
def test_lines_a_minute_are_limited(times: list[float], expected: list[int | None]) -> None:
    """Two lines a minute pass; the next one that passes gets the number of the suppressed ones."""
    clock = Seconds()
    limit = LineLimit(2, clock=clock)
    admitted = []
    for clock.now in times:
        admitted.append(limit.admit())
    assert expected == admitted


def test_threads_share_the_limit() -> None:
    """Of 40 threads, the limit passes. The next line has the number of all others."""
    clock = Seconds()
    limit = LineLimit(clock=clock)
    admitted: list[int | None] = []
    threads = [threading.Thread(target=lambda: admitted.append(limit.admit())) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert admitted.count(0) == LOGGED_A_MINUTE_MAX
    clock.now = 60
    assert limit.admit() == 40 - LOGGED_A_MINUTE_MAX


logger: Final = logging.getLogger("tests.limit_log")


@contextmanager
def written(clock: Seconds) -> Iterator[io.StringIO]:
    """Yield the output of a handler with the filter."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(LineLimitFilter(clock=clock))
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield stream
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_each_place_in_the_code_has_its_own_limit() -> None:
    """The limit of one place suppresses no other. The count comes with the next line from the same place."""
    clock = Seconds()
    with written(clock) as stream:
        for number in range(LOGGED_A_MINUTE_MAX + 5):
            if number == LOGGED_A_MINUTE_MAX + 4:
                clock.now = 60
            logger.warning("request %s", number)
        logger.warning("the store: %s", "locked")

    *_, before, last, other = stream.getvalue().splitlines()
    assert (before, last, other) == (
        "request 9",
        "request 14 (4 more of these lines were suppressed)",
        "the store: locked",
    )
    assert stream.getvalue().count("\n") == LOGGED_A_MINUTE_MAX + 2


def test_line_with_wrong_arguments_passes() -> None:
    """The filter does not format a line, so wrong arguments raise nothing there."""
    clock = Seconds()
    limited = LineLimitFilter(clock=clock)
    for _ in range(LOGGED_A_MINUTE_MAX + 1):
        limited.filter(logging.LogRecord("x", logging.WARNING, "f.py", 1, "a %d", ("s",), None))
    clock.now += 60
    last = logging.LogRecord("x", logging.WARNING, "f.py", 1, "a %d", ("s",), None)
    assert limited.filter(last)
    assert (last.msg, last.args) == ("a %d (1 more of these lines were suppressed)", ("s",))


def test_lines_with_a_traceback_are_limited() -> None:
    """A line with a traceback counts as one line."""
    with written(Seconds()) as stream:
        for _ in range(LOGGED_A_MINUTE_MAX + 5):
            try:
                raise RuntimeError("gone")
            except RuntimeError:
                logger.exception("failed")
    assert stream.getvalue().count("Traceback") == LOGGED_A_MINUTE_MAX


def test_lines_below_warning_pass() -> None:
    """Lines below WARNING are not limited: clients do not cause them."""
    with written(Seconds()) as stream:
        for number in range(2 * LOGGED_A_MINUTE_MAX):
            logger.info("started %s", number)
    assert stream.getvalue().count("\n") == 2 * LOGGED_A_MINUTE_MAX

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
    """A clock that stands still until it is put forward."""

    now: float = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ([0, 0], [0, 0]),
        ([0, 1, 2, 3, 59.9], [0, 0, None, None, None]),
        ([0, 1, 2, 3, 60, 61, 62], [0, 0, None, None, 2, 0, None]),
        ([0, 30, 90, 91, 92, 149, 150], [0, 0, 0, 0, None, None, 2]),  # a minute begins with a line, not by the clock
    ],
)
def test_so_many_in_a_minute(moments: list[float], expected: list[int | None]) -> None:
    """Two lines a minute pass; the next one that passes gets the number of the suppressed ones."""
    clock = Seconds()
    limit = LineLimit(2, clock=clock)
    told = []
    for clock.now in moments:
        told.append(limit.admit())
    assert expected == told


def test_threads_share_the_bound() -> None:
    """However many write at once, no more pass, and none is forgotten."""
    clock = Seconds()
    limit = LineLimit(clock=clock)
    told: list[int | None] = []
    threads = [threading.Thread(target=lambda: told.append(limit.admit())) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told.count(0) == LOGGED_A_MINUTE_MAX
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


def test_each_place_in_the_code_has_its_bound() -> None:
    """The limit of one place suppresses no other. The count comes with the next line from the same place."""
    clock = Seconds()
    with written(clock) as stream:
        for number in range(LOGGED_A_MINUTE_MAX + 5):
            if number == LOGGED_A_MINUTE_MAX + 4:
                clock.now = 60
            logger.warning("stranger %s", number)
        logger.warning("the store: %s", "locked")

    *_, before, last, other = stream.getvalue().splitlines()
    assert (before, last, other) == (
        "stranger 9",
        "stranger 14 (4 more of these lines were suppressed)",
        "the store: locked",
    )
    assert stream.getvalue().count("\n") == LOGGED_A_MINUTE_MAX + 2


def test_a_line_that_cannot_be_formatted() -> None:
    """It is logging's to complain about, and not the caller's to be raised at."""
    clock = Seconds()
    bounded = LineLimitFilter(clock=clock)
    for _ in range(LOGGED_A_MINUTE_MAX + 1):
        bounded.filter(logging.LogRecord("x", logging.WARNING, "f.py", 1, "a %d", ("s",), None))
    clock.now += 60
    last = logging.LogRecord("x", logging.WARNING, "f.py", 1, "a %d", ("s",), None)
    assert bounded.filter(last)
    assert (last.msg, last.args) == ("a %d (1 more of these lines were suppressed)", ("s",))


def test_traces_are_bounded_too() -> None:
    """A line with a trace is one line of its place."""
    with written(Seconds()) as stream:
        for _ in range(LOGGED_A_MINUTE_MAX + 5):
            try:
                raise RuntimeError("gone")
            except RuntimeError:
                logger.exception("failed")
    assert stream.getvalue().count("Traceback") == LOGGED_A_MINUTE_MAX


def test_what_is_no_warning_passes() -> None:
    """Lines below WARNING are not limited: clients do not cause them."""
    with written(Seconds()) as stream:
        for number in range(2 * LOGGED_A_MINUTE_MAX):
            logger.info("started %s", number)
    assert stream.getvalue().count("\n") == 2 * LOGGED_A_MINUTE_MAX

"""The rate limit of a log handler, under a clock that the test advances."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from incoming_payments.limits import LOGGED_A_MINUTE_MAX
from incoming_payments.server.log_filter import LineLimitFilter
from kits.clocks import Seconds

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
        "request 14 (4 lines from the same place were suppressed)",
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
    assert (last.msg, last.args) == ("a %d (1 lines from the same place were suppressed)", ("s",))


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

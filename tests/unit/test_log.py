"""Rate limits for log lines, under a clock that the test advances."""

import threading

import pytest
from attrs import define

from incoming_payments.limits import LOGGED_A_MINUTE_MAX
from incoming_payments.log import LineLimit


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

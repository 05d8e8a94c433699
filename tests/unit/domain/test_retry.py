"""The schedule of attempts."""

from datetime import timedelta
from typing import Any

import pytest

from incoming_payments.domain.retry import Retry, RetryPolicy, probe_pause_s
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import RETRY_ATTEMPTS_MAX, RETRY_FACTOR_MAX, RETRY_PAUSE_S_MAX


def test_default_schedule_takes_three_days() -> None:
    """The pauses grow to a day, and the last attempt has no next one."""
    policy = RetryPolicy()
    retries = [policy.next(attempt, 0.0) for attempt in range(1, 12)]
    pauses = [retry.pause_s for retry in retries]
    assert pauses == [5, 20, 80, 320, 1280, 5120, 20480, 81920, 86400, 86400, 86400]
    assert [retry.is_last for retry in retries] == [False] * 10 + [True]
    assert 3 * 86400 < sum(pauses[:10]) < 4 * 86400


@pytest.mark.parametrize(
    ("random", "after_s", "pause_s"),
    [
        (0.0, 0.0, 100.0),
        (1.0, 0.0, 50.0),
        (0.5, 0.0, 75.0),
        (1.0, 60.0, 60.0),
        (0.0, 60.0, 100.0),
        (0.0, 1e9, 604800.0),
    ],
)
def test_pause_has_jitter_and_obeys_the_handler(random: float, after_s: float, pause_s: float) -> None:
    """Jitter makes a pause shorter, but never shorter than the handler asks."""
    policy = RetryPolicy(first_s=100, jitter=0.5)
    assert policy.next(1, random, after_s=after_s) == Retry(pause_s, is_last=False)


def test_no_setting_overflows() -> None:
    """The longest pause limits the largest factor."""
    policy = RetryPolicy(attempts=RETRY_ATTEMPTS_MAX, first_s=1, factor=RETRY_FACTOR_MAX, longest_s=RETRY_PAUSE_S_MAX)
    assert policy.next(RETRY_ATTEMPTS_MAX, 0.0) == Retry(RETRY_PAUSE_S_MAX, is_last=True)
    assert policy.next(1, 0.0, after_s=float("nan")).pause_s == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"attempts": 0}, "attempts must be an integer from 1 to 1000"),
        ({"first_s": -1}, "first_s must be a number from 0 to 604800, not -1"),
        ({"factor": 0.5}, "factor must be a number from 1 to 100, not 0.5"),
        ({"longest_s": 4}, "longest_s must be at least first_s, which is 5.0"),
        ({"jitter": True}, "jitter must be a number from 0 to 1, not True"),
    ],
)
def test_wrong_setting_is_named(changes: dict[str, Any], text: str) -> None:
    """The error says which values are valid."""
    with pytest.raises(InvalidValue) as caught:
        RetryPolicy(**changes)
    assert caught.value.description == text
    assert caught.value.details == {"member": next(iter(changes))}


def test_probes_become_rarer() -> None:
    """A consumer that is down for long is asked every five minutes."""
    assert [probe_pause_s(timedelta(seconds=seconds)) for seconds in (0, 50, 1000, 10**6)] == [5, 5, 100, 300]

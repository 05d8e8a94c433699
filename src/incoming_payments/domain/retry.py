"""The schedule of attempts of one delivery."""

from datetime import timedelta
from typing import Final

from attrs import field, frozen

from incoming_payments.domain.checks import integer, number
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import (
    PROBE_S_MAX,
    PROBE_S_MIN,
    PROBE_SHARE_DEFAULT,
    RETRY_ATTEMPTS_DEFAULT,
    RETRY_ATTEMPTS_MAX,
    RETRY_FACTOR_DEFAULT,
    RETRY_FACTOR_MAX,
    RETRY_FIRST_S_DEFAULT,
    RETRY_JITTER_DEFAULT,
    RETRY_LONGEST_S_DEFAULT,
    RETRY_PAUSE_S_MAX,
)

_EXPONENT_MAX: Final = 64  # the largest exponent of `factor`, so that the power does not overflow


@frozen
class Retry:
    """What follows from a failed attempt: the pause until the next attempt, and whether there is no next attempt."""

    pause_s: float
    is_last: bool


@frozen(kw_only=True)
class RetryPolicy:
    """When a failed delivery is attempted again, and how often.

    A delivery has `attempts` attempts. The pause after the first attempt is `first_s` seconds, and each pause is
    `factor` times as long as the one before, but at most `longest_s`. A random share of up to `jitter` is taken off
    each pause. By default, there are eleven attempts in about three days. Raises `InvalidValue` for an invalid member.
    """

    attempts: int = field(default=RETRY_ATTEMPTS_DEFAULT, validator=integer(1, RETRY_ATTEMPTS_MAX))
    first_s: float = field(default=RETRY_FIRST_S_DEFAULT, validator=number(0, RETRY_PAUSE_S_MAX))
    factor: float = field(default=RETRY_FACTOR_DEFAULT, validator=number(1, RETRY_FACTOR_MAX))
    longest_s: float = field(default=RETRY_LONGEST_S_DEFAULT, validator=number(0, RETRY_PAUSE_S_MAX))
    jitter: float = field(default=RETRY_JITTER_DEFAULT, validator=number(0, 1))

    @longest_s.validator
    def _not_shorter(self, _: object, longest_s: float) -> None:
        if longest_s < self.first_s:
            raise InvalidValue(f"longest_s must be at least first_s, which is {self.first_s}", member="longest_s")

    def next(self, attempt: int, random: float, *, after_s: float = 0.0) -> Retry:
        """Return what follows from the failure of the attempt with the number `attempt`, which counts from 1.

        `random` is a random number from 0 to 1. The pause is at least `after_s` seconds, which the handler has asked
        for, but at most `limits.RETRY_PAUSE_S_MAX`.

        >>> policy = RetryPolicy(attempts=4, first_s=10, factor=3, longest_s=60)
        >>> [policy.next(attempt, 0.0) for attempt in (1, 2)]
        [Retry(pause_s=10.0, is_last=False), Retry(pause_s=30.0, is_last=False)]
        >>> [policy.next(attempt, 1.0) for attempt in (3, 4)]
        [Retry(pause_s=48.0, is_last=False), Retry(pause_s=48.0, is_last=True)]
        """
        full_s = min(self.first_s * self.factor ** min(attempt - 1, _EXPONENT_MAX), self.longest_s)
        pause_s = max(full_s * (1 - self.jitter * random), after_s)
        return Retry(float(min(pause_s, RETRY_PAUSE_S_MAX)), is_last=attempt >= self.attempts)


def probe_pause_s(failing_for: timedelta) -> float:
    """Return the seconds until the next attempt for a consumer that is down, which has failed for `failing_for`.

    The pause depends only on this time, so no process has to know the attempts of the others.

    >>> [probe_pause_s(timedelta(minutes=minutes)) for minutes in (0, 5, 300)]
    [5.0, 30.0, 300.0]
    """
    return min(max(failing_for.total_seconds() * PROBE_SHARE_DEFAULT, PROBE_S_MIN), PROBE_S_MAX)

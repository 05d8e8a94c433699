"""Limit the time for which slow reads block an event loop."""

from incoming_payments.limits import STORE_SLOW_READ_S_MIN, STORE_SLOW_READS_S_MAX, STORE_SLOW_READS_SHARE_MAX


class SlowReads:
    """The slow reads of event loops. Times are seconds of a monotonic clock.

    After slow reads, the next reads have to use other threads for some time. So slow reads take at most
    `limits.STORE_SLOW_READS_SHARE_MAX` of the time of a loop. Slow reads in a row take at most
    `limits.STORE_SLOW_READS_S_MAX` seconds, plus the time of one more read. The time of a read is known only when the
    read has ended. So a disk that does not answer blocks a loop once, until the disk answers.
    """

    def __init__(self) -> None:
        self._paused_until_s = 0.0

    def may_read(self, now_s: float) -> bool:
        """Return whether an event loop may wait for a read."""
        return now_s >= self._paused_until_s

    def add(self, began_s: float, ended_s: float) -> None:
        """Record a read of an event loop."""
        spent_s = ended_s - began_s
        if spent_s > STORE_SLOW_READ_S_MIN:
            least_s = ended_s - STORE_SLOW_READS_S_MAX / STORE_SLOW_READS_SHARE_MAX
            self._paused_until_s = max(self._paused_until_s, least_s) + spent_s / STORE_SLOW_READS_SHARE_MAX

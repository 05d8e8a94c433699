"""The requests of each client in a minute, as one process knows them."""

import threading
from datetime import datetime, timedelta
from typing import Final

from incoming_payments.domain.payment import ClientId
from incoming_payments.domain.quotas import MINUTE, RecentClients, excess_s, used_until
from incoming_payments.limits import QUOTA_CLIENTS_MAX, QUOTA_UNSENT_PERCENT_MAX

DEBT: Final = MINUTE  # the most that requests admitted by several processes can exceed the quota of a minute


class _Usage:
    """The requests of one client, as this process knows them. `unsent` are not in the database yet."""

    def __init__(self) -> None:
        self.full_at: datetime | None = None
        self.unsent = 0


class RequestCounts:
    """The requests of each client in a minute. Thread-safe.

    A process counts in memory. It exchanges counts with the other processes through the database: with the first
    request of a client, and then once for each `limits.QUOTA_UNSENT_PERCENT_MAX` percent of the quota. No request waits
    for this exchange. So the processes together may admit more requests than the quota. `full_at` in the database keeps
    the excess as a debt: the client has to wait longer afterwards, so the rate over a longer time does not exceed the
    quota.
    """

    def __init__(self, quota: int) -> None:
        self.share = MINUTE / quota
        self._unsent_max = max(1, quota * QUOTA_UNSENT_PERCENT_MAX // 100)
        self._lock = threading.Lock()
        self._used = RecentClients(_Usage, QUOTA_CLIENTS_MAX)

    def admit(self, client: ClientId, now: datetime) -> tuple[float | None, timedelta | None]:
        """Count a request.

        Return the seconds until a request can succeed, or `None`, and the time to add to `full_at` in the database, or
        `None`.
        """
        with self._lock:
            usage = self._used.of(client)
            is_new = usage.full_at is None
            usage.full_at = used_until(usage.full_at, now, debt=DEBT)
            wait_s = excess_s(usage.full_at, now, self.share)
            if wait_s > 0:
                return wait_s, None
            usage.full_at += self.share
            usage.unsent += 1
            if not is_new and usage.unsent < self._unsent_max:
                return None, None
            count, usage.unsent = usage.unsent, 0
            return None, count * self.share

    def learn(self, client: ClientId, full_at: datetime) -> None:
        """Take over `full_at` from the database, which has the requests of all processes."""
        with self._lock:
            usage = self._used.of(client)
            usage.full_at = max(usage.full_at or full_at, full_at + usage.unsent * self.share)

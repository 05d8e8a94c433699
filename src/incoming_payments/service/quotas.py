"""A `Quotas` port in memory, for a service in one process."""

import threading
from collections.abc import Sequence
from datetime import datetime

from attrs import Factory, define, field, frozen

from incoming_payments.domain.payment import ClientId, PaymentId
from incoming_payments.domain.quotas import MINUTE, RecentClients, check_quota, check_quotas, excess_s, used_until
from incoming_payments.limits import QUOTA_CLIENTS_MAX


@define
class _Usage:
    """The quota usage of one client. The whole quota is available again at `full_at`."""

    full_at: datetime | None = None
    unpaid: dict[PaymentId, None] = field(factory=dict)


@frozen(kw_only=True)
class MemoryQuotas:
    """A `Quotas` port in memory, for one process. Thread-safe. The counts are lost when the process ends.

    - `requests_per_minute`: the average number of requests that a client may send in a minute. A client may also send
      that many requests at once. After a request, `60 / requests_per_minute` seconds make room for another one.
    - `unpaid_payments`: the number of payments that a client may have that have received nothing, and are neither
      completed nor expired.
    - `clients`: the number of clients in memory. An additional client replaces the least recently active client.

    `None` means no limit. Raises `ConfigurationError` for an invalid argument.

    >>> from incoming_payments.testing import NOW
    >>> quotas = MemoryQuotas(requests_per_minute=2)
    >>> [quotas.admit(ClientId("https://shop.example/"), NOW) for _ in range(3)]
    [None, None, 30.0]
    """

    requests_per_minute: int | None = None
    unpaid_payments: int | None = None
    clients: int = QUOTA_CLIENTS_MAX
    _used: RecentClients[_Usage] = field(
        default=Factory(lambda self: RecentClients(_Usage, self.clients), takes_self=True),
        init=False,
        eq=False,
        repr=False,
    )
    _lock: threading.Lock = field(factory=threading.Lock, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        check_quotas(self.requests_per_minute, self.unpaid_payments)
        check_quota("clients", self.clients, 100 * QUOTA_CLIENTS_MAX)

    def admit(self, client: ClientId, now: datetime) -> float | None:
        """Count a request and return `None`, or return the number of seconds until a request is admitted.

        A refused request is not counted.
        """
        if self.requests_per_minute is None:
            return None
        share = MINUTE / self.requests_per_minute
        with self._lock:
            usage = self._used.of(client)
            usage.full_at = used_until(usage.full_at, now)
            wait_s = excess_s(usage.full_at, now, share)
            if wait_s > 0:
                return wait_s
            usage.full_at += share
            return None

    def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]:
        """Count the unpaid payment `id`, or return the payments that use up the quota, oldest first."""
        if self.unpaid_payments is None:
            return ()
        with self._lock:
            unpaid = self._used.of(client).unpaid
            if len(unpaid) >= self.unpaid_payments:
                return tuple(unpaid)
            unpaid[id] = None
            return ()

    def release(self, client: ClientId, id: PaymentId) -> None:
        """Stop counting the payment `id`."""
        with self._lock:
            if (usage := self._used.find(client)) is not None:
                usage.unpaid.pop(id, None)

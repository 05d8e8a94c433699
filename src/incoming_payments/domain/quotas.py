"""The rules of quotas. The used quota of requests is a single time, at which the whole quota is available again."""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from incoming_payments.domain.payment import ClientId
from incoming_payments.errors import ConfigurationError
from incoming_payments.limits import QUOTA_REQUESTS_MAX, QUOTA_UNPAID_MAX

T = TypeVar("T")

MINUTE: Final = timedelta(minutes=1)


def used_until(full_at: datetime | None, now: datetime, debt: timedelta = timedelta(0)) -> datetime:
    """Return the time at which the whole quota is available again, if no request is counted.

    A clock that was set back must not lock a client out. So the time is never later than `now` plus one minute plus
    `debt`.
    """
    return min(max(full_at or now, now), now + MINUTE + debt)


def excess_s(full_at: datetime, now: datetime, share: timedelta) -> float:
    """Return the seconds until a request is admitted, or 0 or less if it is admitted now.

    A request moves `full_at` by `share`, and is admitted if `full_at` is then at most a minute after `now`.
    """
    return (full_at + share - now - MINUTE).total_seconds()


def check_quotas(requests_per_minute: object, unpaid_payments: object) -> None:
    """Raise `ConfigurationError` for a quota that is out of range. `None` means no quota."""
    check_quota("requests_per_minute", requests_per_minute, QUOTA_REQUESTS_MAX)
    check_quota("unpaid_payments", unpaid_payments, QUOTA_UNPAID_MAX)


def check_quota(name: str, value: object, most: int) -> None:
    """Raise `ConfigurationError` unless `value` is an integer from 1 to `most`, or `None`."""
    if value is not None and (type(value) is not int or not 1 <= value <= most):
        raise ConfigurationError(f"{name} must be an integer from 1 to {most}, not {value!r}", setting=name)


class RecentClients(Generic[T]):
    """The usage of at most `most` clients. An additional client replaces the least recently active client."""

    def __init__(self, make: Callable[[], T], most: int) -> None:
        self._make = make
        self._most = most
        self._used: OrderedDict[ClientId, T] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._used)

    def find(self, client: ClientId) -> T | None:
        """Return the usage of `client` if it is known."""
        return self._used.get(client)

    def of(self, client: ClientId) -> T:
        """Return the usage of `client`, which is now the most recently active one."""
        if client not in self._used and len(self._used) >= self._most:
            self._used.popitem(last=False)
        usage = self._used.setdefault(client, self._make())
        self._used.move_to_end(client)
        return usage

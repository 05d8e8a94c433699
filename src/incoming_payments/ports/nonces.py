"""The record of used nonces."""

from datetime import datetime
from typing import Protocol


class Nonces(Protocol):
    """The record of used nonces, so that a signed request with a nonce is accepted only once. RFC 9421 §7.2.2.

    Processes that serve the same URL must share one record.
    """

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Record `key`, and return `True` if this is its first use or `False` otherwise, in one atomic step.

        `key` has 64 hexadecimal digits. Keep the key until `now` is later than `until`, and raise `StoreUnavailable`
        when there is no space for the key. Return `False` when `until` is before `now`. The record of a key may already
        be removed, because `now` is out of date or another clock was ahead. So for an unknown key, raise `ClockBehind`
        when `until` is not later than the latest `until` of the removed keys. `stores.guard.check_nonce_time` makes
        this check.
        """


class AsyncNonces(Protocol):
    """`Nonces` with an `async def` method."""

    async def use(self, key: str, until: datetime, now: datetime) -> bool: ...

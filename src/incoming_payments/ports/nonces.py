"""The record of used nonces."""

from datetime import datetime
from typing import Protocol


class Nonces(Protocol):
    """The record of used nonces, so that a signed request with a nonce is accepted only once. RFC 9421 §7.2.2.

    Processes that serve the same URL must share one record.
    """

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Record `key`, and return `True` if this is its first use or `False` otherwise, in one atomic step.

        `key` has 64 hexadecimal digits. Keep it until `now` is later than its `until`, and raise `StoreUnavailable`
        when there is no space for it. Return `False` when `until` is before `now`. For a key that is not recorded,
        raise `ClockBehind` when `until` is not later than the `until` of a key that was removed: `now` may be out of
        date when the call arrives, or another clock was ahead. `stores.guard.check_nonce_time` does this.
        """


class AsyncNonces(Protocol):
    """`Nonces` with an `async def` method."""

    async def use(self, key: str, until: datetime, now: datetime) -> bool: ...

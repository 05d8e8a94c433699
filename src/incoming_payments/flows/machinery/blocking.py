"""Refuse sync ports of this library that would block an event loop, and log slow sync ports of a host.

While a sync port blocks the event loop, all other requests wait, and no other log line shows the cause.
"""

import logging
import time
from collections.abc import Callable

from incoming_payments.errors import ConfigurationError
from incoming_payments.limits import PORT_BLOCKS_S_MAX
from incoming_payments.observers.log import LogEvent, log_event

logger = logging.getLogger(__name__)


def check_unblocking(name: str, port: object) -> None:
    """Raise `ConfigurationError` if `port` is a sync port of this library that would block an event loop.

    The class of such a port has the attribute `async_class`, which names the async class to use instead.
    """
    async_class = getattr(type(port), "async_class", None)
    if async_class is not None:
        text = f"{name} is a {type(port).__name__}, which would block the event loop: use {async_class}"
        raise ConfigurationError(text, setting=name)


class LoopWatch:
    """Log the first call of each port that blocks the thread for more than `limits.PORT_BLOCKS_S_MAX` seconds.

    `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._logged: set[str] = set()

    def called(self, method: str, ports: object, begin_s: float) -> None:
        """Record a call of `method`, such as `wallet_addresses.find`, which began at `begin_s`.

        For an `async def` method, only the time until it is awaited counts.
        """
        took_s = self.clock() - begin_s
        if took_s <= PORT_BLOCKS_S_MAX:
            return
        name = method.partition(".")[0]
        # The other ports of this library do not wait, so a slow call of such a port has another cause.
        is_own = type(getattr(ports, name, None)).__module__.startswith("incoming_payments.")
        if name not in self._logged and not is_own:
            self._logged.add(name)
            text = (
                "%s blocked the event loop for %.2f s: write this method with async def, so that other requests "
                "do not wait"
            )
            log_event(logger, logging.WARNING, LogEvent.PORT_BLOCKS, text, method, took_s)

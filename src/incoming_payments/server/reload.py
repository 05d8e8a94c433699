"""Reload the settings of a running service, which reads its configuration again on SIGHUP."""

import logging
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue

from incoming_payments.errors import ConfigurationError
from incoming_payments.hosts.asgi import Receive, Scope, Send
from incoming_payments.observers.log import LogEvent, log_event
from incoming_payments.server.config.settings import Settings, load_settings, reloaded
from incoming_payments.server.fixed_paths import Application

logger = logging.getLogger(__name__)


def hangups() -> "SimpleQueue[int]":
    """Return a queue that receives each later SIGHUP.

    Call this function in the main thread, before a SIGHUP can arrive.
    """
    signals: SimpleQueue[int] = SimpleQueue()  # unlike in `Queue`, a signal handler may call `put` at any time
    signal.signal(signal.SIGHUP, lambda number, _: signals.put(number))
    return signals


class ReloadableApplication:
    """An ASGI application for the newest settings.

    `build` returns the application for given settings. A request keeps the application with which it began, so a reload
    loses no request. Raises the exceptions of `build`.
    """

    def __init__(self, settings: Settings, build: Callable[[Settings], Application]) -> None:
        self._settings = settings
        self._build = build
        self._application = build(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the application for the newest settings."""
        await self._application(scope, receive, send)

    def reload_on(self, signals: "SimpleQueue[int]") -> None:
        """Start a thread that reloads the settings for each of the `signals`."""

        def work() -> None:
            while True:
                signals.get()
                self.reload()

        threading.Thread(target=work, name="reload", daemon=True).start()

    def reload(self) -> None:
        """Read the configuration again. Use its wallet addresses, tokens, secrets and peers for the next requests.

        If the configuration or a file that it names is wrong, the old settings stay, and the error is logged. The log
        also names the settings that have changed but need a restart.
        """
        old, path = self._settings, self._settings.path
        try:
            new = load_settings(path)
            settings, unused = reloaded(old, new)
            application = self._build(settings)
        except (ConfigurationError, OSError) as error:
            text = "the new configuration has an error, so the old settings stay: %s"
            log_event(logger, logging.ERROR, LogEvent.CONFIGURATION_REFUSED, text, error)
            return
        self._application, self._settings = application, settings
        log_event(logger, logging.INFO, LogEvent.CONFIGURATION_READ, "%s was read again", path)
        for warning in new.warnings:
            log_event(logger, logging.WARNING, LogEvent.CONFIGURATION_WARNING, "%s", warning)
        for name in unused:
            text = "%s: %s has changed, but the old value stays until a restart"
            log_event(logger, logging.WARNING, LogEvent.CONFIGURATION_WARNING, text, path, name)

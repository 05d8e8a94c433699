"""The calls of handlers."""

import inspect

from incoming_payments.errors import ConfigurationError
from incoming_payments.relay._settings import Handler
from incoming_payments.relay._slots import Attempt


def is_async(handler: Handler) -> bool:
    """Return whether `handler` is an `async def` function, or an object with such a `__call__`."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def call_handler(handler: Handler, attempt: Attempt) -> None:
    """Call a sync `handler`. Raises `ConfigurationError` when it returns a coroutine, which no code would await."""
    answer = handler(attempt.delivery)
    if inspect.iscoroutine(answer):
        answer.close()  # prevent a warning of Python that the coroutine was never awaited
        raise ConfigurationError("the handler returns a coroutine: write it with async def", setting="handler")

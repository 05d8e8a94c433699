"""Call handlers."""

import inspect

from incoming_payments.domain.feed import Acknowledged
from incoming_payments.errors import ConfigurationError
from incoming_payments.relay._results import summary
from incoming_payments.relay._settings import Handler
from incoming_payments.relay._slots import Attempt


def is_async(handler: Handler) -> bool:
    """Return whether `handler` is an `async def` function, or an object with such a `__call__`."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def call_handler(handler: Handler, attempt: Attempt) -> bool:
    """Call a sync `handler`, and return whether it has acknowledged the delivery itself.

    Raises `ConfigurationError` when the handler returns a coroutine, which no code would await.

    The exceptions of the handler are raised as they are. One that is neither an `Exception` nor an exit is raised as
    the cause of a `RuntimeError`. Otherwise the `CancelledError` of an event loop inside the handler would end the
    attempt without a result.
    """
    try:
        answer = handler(attempt.delivery)
    except (Exception, SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RuntimeError(summary(error)) from error
    if inspect.iscoroutine(answer):
        answer.close()  # prevent a warning of Python that the coroutine was never awaited
        raise ConfigurationError("the handler returns a coroutine: write it with async def", setting="handler")
    return isinstance(answer, Acknowledged)

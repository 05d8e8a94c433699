"""The settings of a relay."""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from attrs import Attribute, Factory, field, frozen

from incoming_payments.domain.checks import name_of
from incoming_payments.domain.feed import Consumer, Delivery, FeedEvent, Start
from incoming_payments.domain.retry import RetryPolicy
from incoming_payments.errors import ConfigurationError
from incoming_payments.limits import (
    ATTEMPT_S_DEFAULT,
    ATTEMPT_S_MAX,
    LEASE_MARGIN_S_DEFAULT,
    LEASE_S_MAX,
    POLL_S_DEFAULT,
    POLL_S_MAX,
    RELAY_CONCURRENCY_DEFAULT,
    RELAY_CONCURRENCY_MAX,
)
from incoming_payments.ports import Render

Handler = Callable[[Delivery], Any]
Validator = Callable[[object, "Attribute[Any]", Any], None]


class RelayOptions(TypedDict, total=False):
    """The optional arguments of `service.relay`. See `RelaySettings`."""

    start: Start
    retry: RetryPolicy
    concurrency: int
    attempt_s: float
    lease_s: float
    poll_s: float
    render: Render


def no_payload(_: Sequence[FeedEvent]) -> bytes:
    """Return the payload of deliveries whose handler needs only the events."""
    return b""


def _is_a(cls: type, hint: str) -> Validator:
    def check(_: object, attribute: "Attribute[Any]", value: object) -> None:
        if not isinstance(value, cls):
            raise ConfigurationError(f"{attribute.name} must not be {name_of(value)}: {hint}", setting=attribute.name)

    return check


def _is_called(hint: str) -> Validator:
    def check(_: object, attribute: "Attribute[Any]", value: object) -> None:
        if not callable(value) or isinstance(value, type):
            raise ConfigurationError(f"{attribute.name} must not be {name_of(value)}: {hint}", setting=attribute.name)

    return check


def _up_to(most: float) -> Validator:
    def check(_: object, attribute: "Attribute[float]", value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            text = f"{attribute.name} must be a number of seconds up to {most:g}, not {value!r}"
            raise ConfigurationError(text, setting=attribute.name)

    return check


def _start(start: str) -> Start:
    try:
        return Start(start)
    except ValueError:
        raise ConfigurationError(f"start must be one of {', '.join(Start)}", setting="start") from None


def _default_lease_s(attempt_s: object) -> float:
    # The validator of `attempt_s`, which refuses other types, has not run yet.
    return LEASE_MARGIN_S_DEFAULT + (attempt_s if isinstance(attempt_s, int | float) else 0)


@frozen(kw_only=True)
class RelaySettings:
    """The settings of a relay.

    The relay registers `consumer`, which begins at `start`, and calls `handler` with each delivery. At most
    `concurrency` calls are in progress at the same time. An attempt fails after `attempt_s` seconds, and `retry` is the
    schedule of further attempts. A lease lasts `lease_s` seconds, by default 30 seconds longer than the longest
    attempt. If the process is killed, another process gets the delivery when the lease has ended. The relay looks for
    the changes of other processes every `poll_s` seconds. `render` makes the payload of a delivery from its events,
    before the first attempt.

    A delivery is acknowledged when the handler returns. If the handler has acknowledged it itself, for example with
    `PostgresStore.acknowledging`, it returns `Acknowledged()`.

    Raises `ConfigurationError` for a wrong setting.
    """

    consumer: Consumer = field(validator=_is_a(Consumer, "pass Consumer(name=...)"))
    handler: Handler = field(validator=_is_called("pass a function that takes a Delivery"))
    start: Start = field(default=Start.NOW, converter=_start)
    retry: RetryPolicy = field(default=RetryPolicy(), validator=_is_a(RetryPolicy, "pass RetryPolicy(...)"))
    concurrency: int = field(default=RELAY_CONCURRENCY_DEFAULT)
    attempt_s: float = field(default=ATTEMPT_S_DEFAULT, validator=_up_to(ATTEMPT_S_MAX))
    lease_s: float = field(
        default=Factory(lambda self: _default_lease_s(self.attempt_s), takes_self=True),
        validator=_up_to(LEASE_S_MAX),
    )
    poll_s: float = field(default=POLL_S_DEFAULT, validator=_up_to(POLL_S_MAX))
    render: Render = field(default=no_payload, validator=_is_called("pass a function that takes a list of FeedEvent"))

    @concurrency.validator
    def _few(self, _: object, concurrency: int) -> None:
        if type(concurrency) is not int or not 1 <= concurrency <= RELAY_CONCURRENCY_MAX:
            text = f"concurrency must be an integer from 1 to {RELAY_CONCURRENCY_MAX}, not {concurrency!r}"
            raise ConfigurationError(text, setting="concurrency")

    @lease_s.validator
    def _longer_than_an_attempt(self, _: object, lease_s: float) -> None:
        if lease_s <= self.attempt_s:
            text = (
                f"lease_s must be more than attempt_s, which is {self.attempt_s:g}, so that no lease ends during an "
                "attempt"
            )

            raise ConfigurationError(text, setting="lease_s")

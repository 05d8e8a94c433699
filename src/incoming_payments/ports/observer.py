"""The port that receives observations, and the observations."""

from typing import Protocol

from attrs import frozen


@frozen(kw_only=True)
class RequestAnswered:
    """An HTTP request got its response.

    `method` is `_OTHER` for an unknown method. `route` is the path below the base URL, with `{id}` for the id of a
    payment, or `""` if there is no such path. `outcome` is `ok`, or the code of the refusal or the failure.
    """

    method: str
    route: str
    status: int
    outcome: str
    duration_s: float


@frozen(kw_only=True)
class PacketAnswered:
    """An ILP packet got its reply. `outcome` is `fulfilled`, or the ILP error code of the Reject, such as `F08`."""

    outcome: str
    duration_s: float


@frozen(kw_only=True)
class CreditDecided:
    """The store decided about a credit. `outcome` is `credited`, even for a repeated call, or the code of the error."""

    outcome: str
    duration_s: float


@frozen(kw_only=True)
class TokenIntrospected:
    """The introspector answered. `outcome` is `active`, `inactive` or the code of the error."""

    outcome: str
    duration_s: float


@frozen(kw_only=True)
class StoreBatch:
    """A store committed `size` updates together. `outcome` is `committed`, or the code of the error."""

    size: int
    outcome: str
    duration_s: float


@frozen(kw_only=True)
class DeliveryAttempted:
    """A relay has made an attempt of a delivery.

    `consumer` is the name of its consumer. `outcome` is `delivered`, `lease_lost` if the lease had ended, `timed_out`,
    or the code of the error of the handler, which is `internal_error` for an unknown error.
    """

    consumer: str
    outcome: str
    duration_s: float


Observation = RequestAnswered | PacketAnswered | CreditDecided | TokenIntrospected | StoreBatch | DeliveryAttempted


class Observer(Protocol):
    """A receiver of observations, for metrics. `incoming_payments.observers` has two such receivers.

    The service calls the observer in the thread of the request or of the store. So an observer must be thread-safe and
    fast, and must not call the service. The service logs an exception of the observer and continues.
    """

    def observe(self, observation: Observation) -> None:
        """Record `observation`.

        The texts of an observation come from small sets of values, so you can use them as labels of metrics. They
        contain no secret.
        """

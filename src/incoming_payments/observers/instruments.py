"""The metrics that both adapters record.

If OpenTelemetry's conventions define a name for a metric, the metric has that name.
"""

from collections.abc import Mapping
from typing import Final

from incoming_payments.errors import AuthorizationServerUnavailable
from incoming_payments.ports import (
    CreditDecided,
    DeliveryAttempted,
    Observation,
    PacketAnswered,
    RequestAnswered,
    StoreBatch,
    TokenIntrospected,
)

OUTCOME: Final = "outcome"
CONSUMER: Final = "consumer"
HTTP_LABELS: Final = ("http.request.method", "http.route", "http.response.status_code", "error.type")

# For each kind of observation, the name and the description of its histogram, which is in seconds.
DURATIONS: Final[Mapping[type[Observation], tuple[str, str]]] = {
    RequestAnswered: ("http.server.request.duration", "Duration of HTTP server requests."),
    PacketAnswered: ("incoming_payments.packet.duration", "Duration of the replies to ILP packets."),
    CreditDecided: ("incoming_payments.credit.duration", "Duration of credits in the store."),
    TokenIntrospected: ("incoming_payments.introspection.duration", "Duration of token introspections."),
    StoreBatch: ("incoming_payments.store.batch.duration", "Duration of the commits of the SQLite store."),
    DeliveryAttempted: ("incoming_payments.delivery.duration", "Duration of the attempts of deliveries."),
}
# For each kind of observation, the names of its labels.
LABELS: Final[Mapping[type[Observation], tuple[str, ...]]] = {
    **dict.fromkeys(DURATIONS, (OUTCOME,)),
    RequestAnswered: HTTP_LABELS,
    DeliveryAttempted: (CONSUMER, OUTCOME),
}
BATCH_SIZE: Final = ("incoming_payments.store.batch.size", "Updates in a commit of the SQLite store.")
DEGRADED: Final = (
    "incoming_payments.degraded",
    "1 if the authorization server did not answer the last request, or else 0.",
)

# Upper limits in seconds, as OpenTelemetry's conventions advise for HTTP, with smaller buckets for packets and commits.
DURATION_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
SIZE_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def labels(observation: Observation) -> dict[str, str | int]:
    """Return the labels of `observation`. A label for HTTP that has no value is left out."""
    if isinstance(observation, DeliveryAttempted):
        return {CONSUMER: observation.consumer, OUTCOME: observation.outcome}
    if not isinstance(observation, RequestAnswered):
        return {OUTCOME: observation.outcome}
    found: dict[str, str | int] = {
        "http.request.method": observation.method,
        "http.response.status_code": observation.status,
    }
    if observation.route:
        found["http.route"] = observation.route
    if observation.status >= 500:  # do not count a refusal as an error of the server
        found["error.type"] = observation.outcome
    return found


def degraded(observation: Observation) -> bool | None:
    """Return whether `observation` shows an outage of the authorization server.

    Return `None` if the observation is not about that server.
    """
    if not isinstance(observation, TokenIntrospected):
        return None
    return observation.outcome == AuthorizationServerUnavailable.code

"""The metrics of OpenTelemetry, read with its SDK."""

from typing import Any

import pytest
from opentelemetry.metrics import get_meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric

from incoming_payments.observers.instruments import DURATION_BUCKETS, DURATIONS
from incoming_payments.observers.otel import OpenTelemetryObserver
from incoming_payments.ports import (
    CreditDecided,
    DeliveryAttempted,
    PacketAnswered,
    RequestAnswered,
    StoreBatch,
    TokenIntrospected,
)


def metrics_in(reader: InMemoryMetricReader) -> dict[str, Metric]:
    """Return the metrics by name."""
    data = reader.get_metrics_data()
    assert data is not None
    [scope] = data.resource_metrics[0].scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def only_point(metric: Metric) -> Any:
    """Return the only data point of `metric`."""
    [point] = metric.data.data_points
    return point


def test_metrics_follow_the_conventions() -> None:
    """Durations are histograms in seconds, with the attributes of the conventions."""
    reader = InMemoryMetricReader()
    observer = OpenTelemetryObserver(MeterProvider([reader]).get_meter("test"))
    route = "/incoming-payments/{id}"
    observer.observe(
        RequestAnswered(method="GET", route=route, status=503, outcome="store_unavailable", duration_s=0.5)
    )
    observer.observe(PacketAnswered(outcome="F08", duration_s=0.004))
    observer.observe(CreditDecided(outcome="credited", duration_s=0.002))
    observer.observe(TokenIntrospected(outcome="authorization_server_unavailable", duration_s=1.5))
    observer.observe(StoreBatch(size=17, outcome="committed", duration_s=0.002))
    observer.observe(DeliveryAttempted(consumer="ledger", outcome="delivered", duration_s=0.5))

    metrics = metrics_in(reader)
    http = only_point(metrics["http.server.request.duration"])
    assert http.attributes == {
        "http.request.method": "GET",
        "http.route": route,
        "http.response.status_code": 503,
        "error.type": "store_unavailable",
    }
    assert (http.sum, tuple(http.explicit_bounds)) == (0.5, DURATION_BUCKETS)
    assert {metrics[name].unit for name, _ in DURATIONS.values()} == {"s"}
    packet = only_point(metrics["incoming_payments.packet.duration"])
    assert (packet.sum, packet.attributes) == (0.004, {"outcome": "F08"})
    delivery = only_point(metrics["incoming_payments.delivery.duration"])
    assert (delivery.sum, delivery.attributes) == (0.5, {"consumer": "ledger", "outcome": "delivered"})
    assert only_point(metrics["incoming_payments.store.batch.size"]).sum == 17
    assert only_point(metrics["incoming_payments.degraded"]).value == 1

    observer.observe(TokenIntrospected(outcome="active", duration_s=0.5))
    assert only_point(metrics_in(reader)["incoming_payments.degraded"]).value == 0


@pytest.mark.parametrize("meter", [None, get_meter("a host")])
def test_observer_works_without_an_sdk(meter: Any) -> None:
    """The API alone records nothing, and raises nothing."""
    OpenTelemetryObserver(meter).observe(StoreBatch(size=1, outcome="committed", duration_s=0.5))

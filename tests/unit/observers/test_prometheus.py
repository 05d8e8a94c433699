"""The metrics of Prometheus."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from incoming_payments.observers.prometheus import PrometheusObserver
from incoming_payments.ports import (
    CreditDecided,
    DeliveryAttempted,
    PacketAnswered,
    RequestAnswered,
    StoreBatch,
    TokenIntrospected,
)


def test_metrics_have_the_documented_names() -> None:
    """Durations are histograms in seconds. A label without a value is empty."""
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    observer.observe(RequestAnswered(method="GET", route="", status=404, outcome="not_found", duration_s=0.5))
    observer.observe(PacketAnswered(outcome="fulfilled", duration_s=0.004))
    observer.observe(CreditDecided(outcome="credited", duration_s=0.002))
    observer.observe(TokenIntrospected(outcome="authorization_server_unavailable", duration_s=1.5))
    observer.observe(StoreBatch(size=17, outcome="committed", duration_s=0.002))
    observer.observe(DeliveryAttempted(consumer="ledger", outcome="delivered", duration_s=0.5))

    http = {"http_request_method": "GET", "http_route": "", "http_response_status_code": "404", "error_type": ""}
    assert registry.get_sample_value("http_server_request_duration_seconds_sum", http) == 0.5
    for name, outcome, seconds in [
        ("packet", "fulfilled", 0.004),
        ("credit", "credited", 0.002),
        ("introspection", "authorization_server_unavailable", 1.5),
        ("store_batch", "committed", 0.002),
    ]:
        metric = f"incoming_payments_{name}_duration_seconds"
        assert registry.get_sample_value(f"{metric}_sum", {"outcome": outcome}) == seconds
        assert registry.get_sample_value(f"{metric}_count", {"outcome": outcome}) == 1
    assert registry.get_sample_value("incoming_payments_store_batch_size_sum") == 17
    delivered = {"consumer": "ledger", "outcome": "delivered"}
    assert registry.get_sample_value("incoming_payments_delivery_duration_seconds_sum", delivered) == 0.5
    assert registry.get_sample_value("incoming_payments_degraded") == 1

    observer.observe(TokenIntrospected(outcome="active", duration_s=0.5))
    assert registry.get_sample_value("incoming_payments_degraded") == 0
    assert b"# TYPE http_server_request_duration_seconds histogram" in generate_latest(registry)


def test_second_observer_needs_its_own_registry() -> None:
    """One registry cannot have two metrics of one name."""
    registry = CollectorRegistry()
    PrometheusObserver(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusObserver(registry)

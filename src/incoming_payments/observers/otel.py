"""Metrics for OpenTelemetry. This module needs `opentelemetry-api` (the extra `otel`)."""

from typing import Final

from opentelemetry.metrics import Meter, get_meter

from incoming_payments.observers.instruments import (
    BATCH_SIZE,
    DEGRADED,
    DURATION_BUCKETS,
    DURATIONS,
    SIZE_BUCKETS,
    degraded,
    labels,
)
from incoming_payments.ports import Observation, StoreBatch


class OpenTelemetryObserver:
    """An `Observer` that records the metrics of `docs/observability.md` on `meter`. Thread-safe.

    If `meter` is `None`, the observer uses the meter `incoming_payments` of the global provider.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or get_meter("incoming_payments")
        self._durations: Final = {
            kind: meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=DURATION_BUCKETS)
            for kind, (name, text) in DURATIONS.items()
        }
        name, text = BATCH_SIZE
        self._sizes: Final = meter.create_histogram(
            name, "{update}", text, explicit_bucket_boundaries_advisory=SIZE_BUCKETS
        )
        name, text = DEGRADED
        self._degraded: Final = meter.create_gauge(name, "1", text)

    def observe(self, observation: Observation) -> None:
        """Record `observation`."""
        self._durations[type(observation)].record(observation.duration_s, labels(observation))
        if isinstance(observation, StoreBatch):
            self._sizes.record(observation.size)
        if (is_degraded := degraded(observation)) is not None:
            self._degraded.set(int(is_degraded))

"""Metrics for Prometheus. This module needs `prometheus-client` (the extra `prometheus`).

The metrics have their OpenTelemetry names, with underscores and the unit.
"""

from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, Histogram

from incoming_payments.observers.instruments import (
    BATCH_SIZE,
    DEGRADED,
    DURATION_BUCKETS,
    DURATIONS,
    LABELS,
    SIZE_BUCKETS,
    degraded,
    labels,
)
from incoming_payments.ports import Observation, StoreBatch


class PrometheusObserver:
    """An `Observer` that records the metrics of `docs/observability.md` in `registry`. Thread-safe.

    Raises `ValueError` when `registry` has a metric of the same name, for example from another observer.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._durations: Final = {}
        for kind, (name, text) in DURATIONS.items():
            names = LABELS[kind]
            shown = [_name(label) for label in names]
            metric = Histogram(f"{_name(name)}_seconds", text, shown, registry=registry, buckets=DURATION_BUCKETS)
            self._durations[kind] = metric, names
        name, text = BATCH_SIZE
        self._sizes: Final = Histogram(_name(name), text, registry=registry, buckets=SIZE_BUCKETS)
        name, text = DEGRADED
        self._degraded: Final = Gauge(_name(name), text, registry=registry, multiprocess_mode="livemax")

    def observe(self, observation: Observation) -> None:
        """Record `observation`."""
        metric, names = self._durations[type(observation)]
        found = labels(observation)
        metric.labels(*(found.get(name, "") for name in names)).observe(observation.duration_s)
        if isinstance(observation, StoreBatch):
            self._sizes.observe(observation.size)
        if (is_degraded := degraded(observation)) is not None:
            self._degraded.set(int(is_degraded))


def _name(name: str) -> str:
    return name.replace(".", "_")

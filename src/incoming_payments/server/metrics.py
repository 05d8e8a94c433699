"""The metrics of `serve`, for Prometheus on a port of their own."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from attrs import frozen

from incoming_payments.errors import ConfigurationError
from incoming_payments.ports import Observer
from incoming_payments.server.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_NAME: Final = "listen.metrics_port"


@frozen
class Metrics:
    """The metrics of one process. `observer` records them."""

    observer: Observer
    _registry: "CollectorRegistry"
    _host: str
    _port: int

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """Return the metrics for `settings`, or `None` if `metrics_port` is not set.

        Raises `ConfigurationError` when prometheus-client is not installed, or when a worker could not listen on its
        port.
        """
        if settings.metrics_port is None:
            return None
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector

            from incoming_payments.observers.prometheus import PrometheusObserver
        except ImportError:
            text = f"{_NAME} needs prometheus-client: pip install 'incoming-payments[prometheus]'"
            raise ConfigurationError(text, setting=_NAME) from None
        for worker in range(settings.workers):
            with _naming(settings.host, settings.metrics_port + worker) as address:
                family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
                socket.create_server(address, family=family).close()
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        return cls(PrometheusObserver(registry), registry, settings.host, settings.metrics_port)

    def serve(self, worker: int) -> None:
        """Serve the metrics in a thread. Worker 0 uses `metrics_port`, worker 1 the next port, and so on.

        Raises `ConfigurationError` when the port cannot be listened on.
        """
        from prometheus_client import start_http_server

        with _naming(self._host, self._port + worker) as (host, port):
            start_http_server(port, host, self._registry)


@contextmanager
def _naming(host: str, port: int) -> Iterator[tuple[str, int]]:
    """Yield the address, and name the setting in its errors."""
    try:
        yield host, port
    except OSError as error:
        why = str(error.strerror or error).partition(" (while")[0]  # the rest repeats the address
        text = f"{_NAME}: cannot listen on {host} port {port}: {why}"
        how = "give a free port, with a free one after it for each further worker"
        raise ConfigurationError(f"{text}; {how}", setting=_NAME) from None

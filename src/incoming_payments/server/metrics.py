"""The metrics of `serve`, for Prometheus on a port of their own."""

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
        """Return the metrics for `settings`, or `None` if the setting has no port.

        Raises `ConfigurationError` when prometheus-client is not installed.
        """
        if settings.metrics_port is None:
            return None
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector

            from incoming_payments.observers.prometheus import PrometheusObserver
        except ImportError:
            text = f"{_NAME} needs prometheus-client: pip install 'incoming-payments[prometheus]'"
            raise ConfigurationError(text, setting=_NAME) from None
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        return cls(PrometheusObserver(registry), registry, settings.host, settings.metrics_port)

    def serve(self, worker: int) -> None:
        """Serve the metrics in a thread. Each `worker` has a port of its own: the first has that of the setting.

        Raises `ConfigurationError` when the port cannot be listened on.
        """
        from prometheus_client import start_http_server

        port = self._port + worker
        try:
            start_http_server(port, self._host, self._registry)
        except OSError as error:
            text = f"{_NAME}: cannot listen on {self._host} port {port}: {error.strerror}"
            raise ConfigurationError(f"{text}; give a free port", setting=_NAME) from None

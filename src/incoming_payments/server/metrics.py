"""The metrics of `serve`, for Prometheus on a port of their own."""

from incoming_payments.errors import ConfigurationError
from incoming_payments.ports import Observer
from incoming_payments.server.settings import Settings


def start_metrics(settings: Settings) -> Observer | None:
    """Serve metrics in a thread, and return the observer that records them; `None` if the setting has no port.

    Raises `ConfigurationError` when prometheus-client is not installed, or when the port cannot be listened on.
    """
    if settings.metrics_port is None:
        return None
    name = "listen.metrics_port"
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

        from incoming_payments.observers.prometheus import PrometheusObserver
    except ImportError:
        text = f"{name} needs prometheus-client: pip install 'incoming-payments[prometheus]'"
        raise ConfigurationError(text, setting=name) from None
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    try:
        start_http_server(settings.metrics_port, settings.host, registry)
    except OSError as error:
        text = f"{name}: cannot listen on {settings.host} port {settings.metrics_port}: {error.strerror}"
        raise ConfigurationError(f"{text}; give a free port", setting=name) from None
    return PrometheusObserver(registry)

"""The metrics of `serve` for Prometheus, which have their own port."""

import logging
import socket
from typing import TYPE_CHECKING, Final, Self

from attrs import frozen

from incoming_payments.errors import ConfigurationError
from incoming_payments.observers.log import LogEvent, log_event
from incoming_payments.ports import Observer
from incoming_payments.server.config.tables import ListenTable

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = logging.getLogger(__name__)

_NAME: Final = "listen.metrics_port"


@frozen
class Metrics:
    """The metrics of one process. `observer` records them."""

    observer: Observer
    _registry: "CollectorRegistry"
    _host: str
    _port: int

    @classmethod
    def of(cls, listen: ListenTable) -> Self | None:
        """Return the metrics for `[listen]`, or `None` if `metrics_port` is not set.

        Raises `ConfigurationError` when prometheus-client is not installed, or when the port of a worker is not free.
        """
        if listen.metrics_port is None:
            return None
        check_installed(listen)
        from prometheus_client import CollectorRegistry, ProcessCollector

        from incoming_payments.observers.prometheus import PrometheusObserver

        for worker in range(listen.workers):
            _check_free(listen.host, listen.metrics_port + worker)
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        return cls(PrometheusObserver(registry), registry, listen.host, listen.metrics_port)

    def serve(self, worker: int) -> None:
        """Serve the metrics in a thread. Worker 0 uses `metrics_port`, worker 1 the next port, and so on.

        If another program has taken the port since `of` checked it, this function logs the error, and the process has
        no metrics.
        """
        from prometheus_client import start_http_server

        port = self._port + worker
        try:
            start_http_server(port, self._host, self._registry)
        except OSError as error:
            text = (
                "worker %d has no metrics, because it cannot listen on %s port %d (%s): stop the program that "
                "uses the port, and restart"
            )
            log_event(
                logger, logging.ERROR, LogEvent.METRICS_UNAVAILABLE, text, worker, self._host, port, error.strerror
            )


def check_installed(listen: ListenTable) -> None:
    """Raise `ConfigurationError` if `metrics_port` is set and prometheus-client is not installed."""
    if listen.metrics_port is None:
        return
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        text = f"{_NAME} needs prometheus-client: run pip install 'incoming-payments[prometheus]'"
        raise ConfigurationError(text, setting=_NAME) from None


def _check_free(host: str, port: int) -> None:
    """Raise `ConfigurationError` unless a server can listen on the port."""
    try:
        # the same look-up as in prometheus-client
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
    except OSError as error:
        # leave out the rest of the text, which repeats the address
        why = str(error.strerror or error).partition(" (while")[0]
        how = "choose another port: the first worker uses this port, and each other worker uses the next one"
        raise ConfigurationError(f"{_NAME}: cannot listen on {host} port {port}: {why}; {how}", setting=_NAME) from None

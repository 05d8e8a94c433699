"""The metrics of `serve`: when they start, and the errors that keep them from starting."""

import builtins
import socket
from typing import Any

import httpx
import pytest

from incoming_payments.errors import ConfigurationError
from incoming_payments.ports import PacketAnswered
from incoming_payments.server.config.tables import ListenTable
from incoming_payments.server.metrics import Metrics
from kits.processes import free_port


@pytest.fixture
def listen() -> ListenTable:
    """Return a `[listen]` with a free port for metrics."""
    return ListenTable(metrics_port=free_port())


def test_metrics_are_optional() -> None:
    """Without a port there is no observer."""
    assert Metrics.of(ListenTable()) is None


def test_metrics_are_served(listen: ListenTable) -> None:
    """The port serves the metrics of the observer, and no version of a program."""
    metrics = Metrics.of(listen)
    assert metrics is not None
    metrics.serve(0)
    metrics.observer.observe(PacketAnswered(outcome="F08", duration_s=0.5))
    with httpx.Client(trust_env=False) as client:
        text = client.get(f"http://127.0.0.1:{listen.metrics_port}/metrics").text
    assert 'incoming_payments_packet_duration_seconds_sum{outcome="F08"} 0.5' in text
    assert "version" not in text


def test_used_port_is_named(listen: ListenTable) -> None:
    """The error names the setting and what to change."""
    says = rf"listen.metrics_port: cannot listen on 127.0.0.1 port {listen.metrics_port}: [^(]*; choose another port"
    with (
        socket.create_server(("127.0.0.1", listen.metrics_port or 0)),
        pytest.raises(ConfigurationError, match=says),
    ):
        Metrics.of(listen)


def test_port_that_is_taken_later_keeps_no_worker_from_payments(
    listen: ListenTable, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the worker and the port."""
    port = listen.metrics_port or 0
    metrics = Metrics.of(listen)
    assert metrics is not None
    with socket.create_server(("127.0.0.1", port)):
        metrics.serve(0)
    (record,) = caplog.records
    text = f"incoming payments: worker 0 has no metrics, because it cannot listen on 127.0.0.1 port {port} ("
    assert (record.levelname, record.event) == ("ERROR", "metrics_unavailable")  # type: ignore[attr-defined]
    assert record.getMessage().startswith(text)


def test_missing_library_is_named(listen: ListenTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra to install."""
    real = builtins.__import__

    def importing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ConfigurationError, match=r"incoming-payments\[prometheus\]"):
        Metrics.of(listen)

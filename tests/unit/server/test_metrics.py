"""The metrics of `serve`: when they start, and the errors that keep them from starting."""

import builtins
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from attrs import evolve

from incoming_payments.errors import ConfigurationError
from incoming_payments.ports import PacketAnswered
from incoming_payments.server.init import CONFIGURATION
from incoming_payments.server.metrics import Metrics
from incoming_payments.server.settings import Settings, load_settings
from kits.processes import free_port


@pytest.fixture
def settings(folder: Path) -> Settings:
    """Return the settings of `init`, with a free port for metrics."""
    return evolve(load_settings(folder / CONFIGURATION), metrics_port=free_port())


def test_metrics_are_optional(settings: Settings) -> None:
    """Without a port there is no observer."""
    assert Metrics.of(evolve(settings, metrics_port=None)) is None


def test_metrics_are_served(settings: Settings) -> None:
    """The port serves the metrics of the observer, and no version of a program."""
    metrics = Metrics.of(settings)
    assert metrics is not None
    metrics.serve(0)
    metrics.observer.observe(PacketAnswered(outcome="F08", duration_s=0.5))
    with httpx.Client(trust_env=False) as client:
        text = client.get(f"http://127.0.0.1:{settings.metrics_port}/metrics").text
    assert 'incoming_payments_packet_duration_seconds_sum{outcome="F08"} 0.5' in text
    assert "version" not in text


def test_used_port_is_named(settings: Settings) -> None:
    """The error names the setting and what to change."""
    says = rf"listen.metrics_port: cannot listen on 127.0.0.1 port {settings.metrics_port}: [^(]*; choose a port"
    with socket.create_server(("127.0.0.1", settings.metrics_port or 0)), pytest.raises(ConfigurationError, match=says):
        Metrics.of(settings)


def test_port_that_is_taken_later_keeps_no_worker_from_payments(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the worker and the port."""
    port = settings.metrics_port or 0
    metrics = Metrics.of(settings)
    assert metrics is not None
    with socket.create_server(("127.0.0.1", port)):
        metrics.serve(0)
    (record,) = caplog.records
    text = f"incoming payments: worker 0 has no metrics, because it cannot listen on 127.0.0.1 port {port}: "
    assert (record.levelname, record.event) == ("ERROR", "metrics_unavailable")  # type: ignore[attr-defined]
    assert record.getMessage().startswith(text)


def test_missing_library_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra to install."""
    real = builtins.__import__

    def importing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ConfigurationError, match=r"incoming-payments\[prometheus\]"):
        Metrics.of(settings)

"""The heartbeats for the watchdog of systemd, and the health check of the container."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from incoming_payments.server.watchdog import tell_watchdog
from kits.processes import ROOT, Bank


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Yield the socket on which systemd waits for heartbeats."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        yield receiver


def health_check(port: int) -> int:
    """Return the exit status of the health check in the `Containerfile`, with a shorter timeout."""
    text = (ROOT / "docs" / "Containerfile").read_text("utf-8")
    found = re.search(r"(?m)^HEALTHCHECK .* CMD (\[.*\])$", text)
    assert found is not None
    _, *arguments = json.loads(found[1].replace("8080", str(port)).replace("timeout=4", "timeout=1"))
    return subprocess.run([sys.executable, *arguments], stderr=subprocess.DEVNULL, check=False).returncode


@pytest.mark.parametrize("workers", [1, 2])
def test_service_sends_heartbeats(bank: Bank, systemd: socket.socket, workers: int) -> None:
    """The event loop of a single worker, or the supervisor, sends heartbeats, but not while the process hangs.

    The health check of a container fails while a single worker hangs.
    """
    bank.edit("# workers = 1", f"workers = {workers}")
    with bank.serving() as process:
        assert systemd.recv(99) == b"WATCHDOG=1"
        assert health_check(bank.port) == 0
        process.send_signal(signal.SIGSTOP)
        assert health_check(bank.port) == (1 if workers == 1 else 0)
        systemd.settimeout(1.5)
        with pytest.raises(TimeoutError):
            [systemd.recv(99) for _ in range(20)]  # some heartbeats may be on their way
        process.send_signal(signal.SIGCONT)
        systemd.settimeout(10)
        assert systemd.recv(99) == b"WATCHDOG=1"


def test_heartbeat_reaches_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd may name a socket that has no file."""
    name = f"watchdog-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        tell_watchdog()
        assert receiver.recv(99) == b"WATCHDOG=1"
    tell_watchdog()  # systemd no longer listens


@pytest.mark.parametrize("missing", ["NOTIFY_SOCKET", "WATCHDOG_USEC"])
def test_service_without_a_watchdog_sends_no_heartbeat(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Another unit may listen on the socket."""
    monkeypatch.delenv(missing)
    tell_watchdog()
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(99)

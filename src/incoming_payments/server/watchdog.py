"""The watchdog of systemd, which restarts a service that hangs (`WatchdogSec`, sd_notify)."""

import os
import socket
from contextlib import suppress


def tell_watchdog() -> None:
    """Tell systemd that this process works. Do nothing if systemd does not expect this."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address is None or "WATCHDOG_USEC" not in os.environ:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)  # a full queue must not stop the event loop
        sender.sendto(b"WATCHDOG=1", address.replace("@", "\0", 1) if address.startswith("@") else address)

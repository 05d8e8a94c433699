"""Measure ILP packets over HTTP, from a Prepare to a durable Fulfill, through a process of `serve` on SQLite.

The benchmark keeps 1, 16 and 64 packets in flight, each on a connection of its own, to one payment and to 200 payments.
The service has one worker process for each processor, unless `--workers` gives another number.
The same run measures the HTTP server alone: uvicorn, with the same parser and an application that reads the body and
answers with the same number of bytes.

    nox -s bench -- packets [--json] [--packets N] [--workers N]
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from _load import WORKERS, drive, free_port, run_bare, server
from _prepares import prepares
from _report import finish, table
from incoming_payments.ilp.packet import PacketType
from incoming_payments.server.config.settings import Settings, load_settings
from incoming_payments.server.init import CONFIGURATION, PEER_TOKEN
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import a_creation

IN_FLIGHT: Final = (1, 16, 64)
PAYMENTS: Final = (1, 200)
ANSWER: Final = bytes((PacketType.FULFILL,)) + bytes(100)
Measured = Mapping[tuple[str, int], tuple[float, float, float]]
RAFIKI: Final = {1: 63, 16: 79, 64: 71}  # packets a second of its backend, measured on a similar machine


def is_fulfilled(_: bytes, body: bytes) -> bool:
    """Return whether the body of a response is an ILP Fulfill."""
    return body[0] == PacketType.FULFILL


def bodies(settings: Settings, payments: int, packets: int) -> list[bytes]:
    """Store new payments without a limit. Return Prepares of one unit each, to these payments in turn."""
    now = datetime.now(UTC)
    with SqliteStore(settings.path.parent / "payments.sqlite3") as store:
        created = [a_creation(limit=None, now=now) for _ in range(payments)]
        for creation in created:
            store.insert(creation)
    return prepares(settings.receiver.methods, [creation.answer.id for creation in created], packets, amount=1, now=now)


def measure(folder: Path, packets: int, workers: int = WORKERS) -> Measured:
    """Return the results of `drive`, by the name of the row and the number in flight."""
    port, bare_port = free_port(), free_port()
    init = ["-m", "incoming_payments.server.command", "init", str(folder), "--port", str(port)]
    subprocess.run([sys.executable, *init], check=True, stdout=subprocess.DEVNULL)
    path = folder / CONFIGURATION
    path.write_text(path.read_text("utf-8").replace("# workers = 1", f"workers = {workers}"), "utf-8")
    settings = load_settings(path)
    token = (folder / PEER_TOKEN).read_text("ascii").strip()
    serve = ["-m", "incoming_payments.server.command", "serve", "--config", str(path)]
    measured = {}
    with server(serve, port), server([__file__, "--bare", str(bare_port)], bare_port):
        for in_flight in IN_FLIGHT:
            for payments in PAYMENTS:
                requests = [post(port, token, body) for body in bodies(settings, payments, packets)]
                name = f"{payments} payment{'s' if payments > 1 else ''}"
                measured[name, in_flight] = asyncio.run(drive(port, [requests] * in_flight, is_fulfilled))
            requests = [post(bare_port, token, bytes(300)) for _ in range(packets)]
            measured["bare server", in_flight] = asyncio.run(drive(bare_port, [requests] * in_flight, is_fulfilled))
    return measured


def post(port: int, token: str, body: bytes) -> bytes:
    """Return the bytes of one request."""
    head = (
        f"POST /ilp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/octet-stream\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def show(measured: Measured) -> None:
    """Print the table."""
    rows = [
        [f"{name}, {in_flight} in flight", f"{rate:,.0f}", f"{median:.2f}", f"{late:.2f}"]
        for (name, in_flight), (rate, median, late) in measured.items()
    ]
    table("Prepare to durable Fulfill, over HTTP", ["", "per second", "p50 ms", "p99 ms"], rows)


def figures_of(measured: Measured) -> dict[str, object]:
    """Return the packets a second and their milliseconds by the number in flight, and the ratios."""
    names = {"": "1 payment", "_into_200": "200 payments"}
    figures: dict[str, object] = {
        f"http_{figure}": {
            f"{in_flight}{suffix}": round(measured[name, in_flight][place], 2 if place else None)
            for in_flight in IN_FLIGHT
            for suffix, name in names.items()
        }
        for place, figure in enumerate(("packets_per_s", "p50_ms", "p99_ms"))
    }
    for in_flight in IN_FLIGHT:
        rate = measured["1 payment", in_flight][0]
        figures[f"vs_bare_{in_flight}"] = round(rate / measured["bare server", in_flight][0], 3)
        figures[f"vs_rafiki_{in_flight}"] = round(rate / RAFIKI[in_flight], 1)
    return figures


def main() -> None:
    """Measure and report. With `--bare`, run the bare server instead."""
    parser = argparse.ArgumentParser(description="Measure ILP packets over HTTP, to a durable Fulfill.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on the last line")
    parser.add_argument("--packets", type=int, default=4000, help="the number of packets for each row (4000)")
    parser.add_argument("--workers", type=int, default=WORKERS, help="worker processes (one for each processor)")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        run_bare(options.bare, ANSWER)
        return
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), options.packets, options.workers)
    show(measured)
    figures = figures_of(measured) | {"workers": options.workers}
    table("Ratios", ["", "figure"], [[name, str(value)] for name, value in figures.items() if name.startswith("vs_")])
    finish(figures, as_json=options.json)


if __name__ == "__main__":
    main()

"""Measure ILP packets over HTTP, from a Prepare to a durable Fulfill, through a process of `serve` on SQLite.

The benchmark keeps 1, 16 and 64 packets in flight, each on a connection of its own, to one payment and to 200 payments.
The same run measures the HTTP server alone: uvicorn, with the same parser and an application that reads the body and
answers with the same number of bytes.

    nox -s bench -- packets [--json] [--packets N]
"""

import argparse
import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from _prepares import prepares
from _report import finish, table
from incoming_payments.ilp.packet import PacketType
from incoming_payments.server.init import CONFIGURATION, PEER_TOKEN
from incoming_payments.server.settings import Settings, load_settings
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import a_creation

IN_FLIGHT: Final = (1, 16, 64)
PAYMENTS: Final = (1, 200)
ANSWER: Final = bytes((PacketType.FULFILL,)) + bytes(100)
Measured = Mapping[tuple[str, int], tuple[float, float, float]]
RAFIKI: Final = {1: 63, 16: 79, 64: 71}  # packets a second of its backend, measured on a similar machine


async def bare(_scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    """Answer a request with `ANSWER`: an ASGI application that does no other work."""
    while (await receive()).get("more_body"):
        pass
    length = str(len(ANSWER)).encode()
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


class Connection(asyncio.Protocol):
    """A connection that sends requests, each when the request before it has its response."""

    def __init__(self, requests: list[bytes], seconds: list[float]) -> None:
        self.requests, self.seconds = requests, seconds
        self.done = asyncio.get_running_loop().create_future()
        self.answer, self.since = b"", 0.0
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self.transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        """Send the next request when the response is complete."""
        self.answer += data
        head, _, body = self.answer.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if not length or len(body) < int(length):
            return
        self.seconds.append(time.perf_counter() - self.since)
        if body[0] != PacketType.FULFILL:
            self.done.set_exception(RuntimeError(f"not fulfilled: {self.answer!r}"))
            self.transport.close()
            return
        self.answer = b""
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail if requests are left."""
        if not self.done.done():
            self.done.set_exception(RuntimeError(f"the connection was closed: {error}"))

    def _next(self) -> None:
        if not self.requests:
            self.done.set_result(None)
            self.transport.close()
            return
        self.since = time.perf_counter()
        self.transport.write(self.requests.pop())


async def drive(port: int, requests: list[bytes], in_flight: int) -> tuple[float, float, float]:
    """Return the requests a second, and the median and the 99th percentile of their milliseconds."""
    loop, count, seconds = asyncio.get_running_loop(), len(requests), list[float]()
    start = time.perf_counter()
    made = [
        await loop.create_connection(lambda: Connection(requests, seconds), "127.0.0.1", port) for _ in range(in_flight)
    ]
    await asyncio.gather(*(connection.done for _, connection in made))
    spent = time.perf_counter() - start
    seconds.sort()
    return count / spent, seconds[count // 2] * 1e3, seconds[count * 99 // 100] * 1e3


@contextmanager
def server(command: Sequence[str], port: int) -> Iterator[None]:
    """Run a server process that accepts connections, and stop it at the end."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def bodies(settings: Settings, payments: int, packets: int) -> list[bytes]:
    """Store new payments without a limit. Return Prepares of one unit each, to these payments in turn."""
    now = datetime.now(UTC)
    with SqliteStore(settings.database) as store:
        created = [a_creation(limit=None, now=now) for _ in range(payments)]
        for creation in created:
            store.insert(creation)
    return prepares(settings.methods, [creation.answer.id for creation in created], packets, amount=1, now=now)


def measure(folder: Path, packets: int) -> Measured:
    """Return the results of `drive`, by the name of the row and the number in flight."""
    port, bare_port = free_port(), free_port()
    init = ["-m", "incoming_payments.server.command", "init", str(folder), "--port", str(port)]
    subprocess.run([sys.executable, *init], check=True, stdout=subprocess.DEVNULL)
    settings = load_settings(folder / CONFIGURATION)
    token = (folder / PEER_TOKEN).read_text("ascii").strip()
    serve = ["-m", "incoming_payments.server.command", "serve", "--config", str(folder / CONFIGURATION)]
    measured = {}
    with server(serve, port), server([__file__, "--bare", str(bare_port)], bare_port):
        for in_flight in IN_FLIGHT:
            for payments in PAYMENTS:
                requests = [post(port, token, body) for body in bodies(settings, payments, packets)]
                name = f"{payments} payment{'s' if payments > 1 else ''}"
                measured[name, in_flight] = asyncio.run(drive(port, requests, in_flight))
            requests = [post(bare_port, token, bytes(300)) for _ in range(packets)]
            measured["bare server", in_flight] = asyncio.run(drive(bare_port, requests, in_flight))
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
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        import uvicorn

        uvicorn.run(
            bare, port=options.bare, log_level="error", http="httptools", ws="none", lifespan="off", access_log=False
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), options.packets)
    show(measured)
    figures = figures_of(measured)
    table("Ratios", ["", "figure"], [[name, str(value)] for name, value in figures.items() if name.startswith("vs_")])
    finish(figures, as_json=options.json)


if __name__ == "__main__":
    main()

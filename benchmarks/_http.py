"""The benchmark `http`: its measurements, its tables, and its figures. `_http_servers` has the processes."""

import argparse
import asyncio
import json
import secrets
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from _http_servers import (
    ALICE,
    ANSWER,
    BASE_URL,
    CLIENT,
    DATABASE,
    KEY_FILE,
    PARTS_FILE,
    authorize,
    serve,
)
from _load import drive, free_port, run_bare, server
from _report import finish, table
from incoming_payments import IncomingPayment
from incoming_payments.domain import lifecycle
from incoming_payments.domain.payment import PAYMENT_ID_RANDOM_BYTES, PaymentId, client_id, new_payment_id
from incoming_payments.httpsig import PrivateKey, RequestMessage, sign
from incoming_payments.stores.sqlite import SqliteStore

CONNECTIONS: Final = (1, 16, 64)
PAYMENTS: Final = 200
SCRIPT: Final = str(Path(__file__).with_name("http.py"))
Row = tuple[float, float, float]  # requests a second, and the median and the 99th percentile of their milliseconds
Measured = dict[tuple[str, int], Row]  # by the name of the row and the connections
PARTS: Final = ("parsing", "store", "thread hand-over", "introspection", "verification", "response")
NODE: Final = {"create": 1_999, "get": 2_315, "public_get": 24_501}  # a Node server in memory, on a similar machine


def signed(method: str, path: str, token: str, key: PrivateKey, body: bytes = b"") -> bytes:
    """Return the bytes of a signed request, with the headers of the usual Node client."""
    headers = [("authorization", f"GNAP {token}")]
    if body:
        headers += [("content-type", "application/json"), ("content-length", str(len(body)))]
    request = sign(RequestMessage(method, f"{BASE_URL}{path}", headers, body), key, created=datetime.now(UTC))
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: bank.example",
        *(f"{name}: {value}" for name, value in request.headers),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def requests(kind: str, count: int, connections: int, ids: Sequence[PaymentId], key: PrivateKey) -> list[list[bytes]]:
    """Return `count` requests of `kind` in one list for each connection."""
    made: list[list[bytes]] = [[] for _ in range(connections)]
    for number in range(count):
        path = f"/incoming-payments/{ids[number % len(ids)]}"
        place = number % connections
        if kind == "create":
            metadata = {"externalRef": f"INV-2026-{number:06}"}
            amount = {"value": "2500", "assetCode": "USD", "assetScale": 2}
            body = json.dumps({"walletAddress": ALICE.url, "incomingAmount": amount, "metadata": metadata}).encode()
            request = signed("POST", "/incoming-payments", f"token-{place}", key, body)
        elif kind == "get":
            request = signed("GET", path, f"token-{place}", key)
        else:
            request = f"GET {path} HTTP/1.1\r\nHost: bank.example\r\nAccept: application/json\r\n\r\n".encode()
        made[place].append(request)
    return made


def measure_row(kind: str, port: int, count: int, connections: int, ids: Sequence[PaymentId], key: PrivateKey) -> Row:
    """Send `count` requests of `kind` to the server at `port`."""
    start = b"HTTP/1.1 201" if kind == "create" else b"HTTP/1.1 200"
    queues = requests(kind, count, connections, ids, key)
    return asyncio.run(drive(port, queues, lambda head, _: head.startswith(start)))


def payments(folder: Path) -> list[PaymentId]:
    """Store payments of the client in a new database, and return their ids."""
    now = datetime.now(UTC)
    with SqliteStore(folder / DATABASE) as store:
        made = [_payment(now) for _ in range(PAYMENTS)]
        for decision in made:
            store.insert(decision)
    return [decision.answer.id for decision in made]


def _payment(now: datetime) -> lifecycle.Decision[IncomingPayment]:
    return lifecycle.create(
        id=new_payment_id(now, secrets.token_bytes(PAYMENT_ID_RANDOM_BYTES)),
        wallet_address=ALICE,
        client=client_id(CLIENT),
        limit=None,
        expires_at=None,
        metadata=None,
        now=now,
    )


def peak_mb(pid: int) -> float:
    """Return the largest resident memory that the process has had, in MB."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def measure(folder: Path, count: int) -> tuple[Measured, float]:
    """Return the rows, and the peak memory of the service in MB."""
    key = PrivateKey.generate_ed25519("key-1")
    (folder / KEY_FILE).write_text(json.dumps(key.public_jwk()))
    ids = payments(folder)
    asked, ports = free_port(), {"bare": free_port(), "uncached": free_port(), "cached": free_port()}
    measured: Measured = {}
    with ExitStack() as running:
        running.enter_context(server([SCRIPT, "--authorize", str(folder), str(asked)], asked))
        running.enter_context(server([SCRIPT, "--bare", str(folder), str(ports["bare"])], ports["bare"]))
        pids = [
            running.enter_context(server([SCRIPT, f"--{name}", str(folder), str(ports[name]), str(asked)], ports[name]))
            for name in ("uncached", "cached")
        ]
        for connections in CONNECTIONS:
            for kind in ("create", "get"):
                for name in ("uncached", "cached"):
                    row = measure_row(kind, ports[name], count, connections, ids, key)
                    measured[f"{kind}, {name}", connections] = row
            measured["public get", connections] = measure_row(
                "public", ports["uncached"], 2 * count, connections, ids, key
            )
            measured["bare server", connections] = measure_row(
                "public", ports["bare"], 2 * count, connections, ids, key
            )
        memory_mb = max(map(peak_mb, pids))
    return measured, memory_mb


def measure_parts(folder: Path, count: int) -> dict[str, float]:
    """Return the median microseconds of each part of a signed get on one connection, and of the whole."""
    key = PrivateKey.generate_ed25519("key-1")
    (folder / KEY_FILE).write_text(json.dumps(key.public_jwk()))
    ids = payments(folder)
    asked, port = free_port(), free_port()
    with (
        server([SCRIPT, "--authorize", str(folder), str(asked)], asked),
        server([SCRIPT, "--parts", str(folder), str(port), str(asked)], port),
    ):
        _, median_ms, _ = measure_row("get", port, count, 1, ids, key)
    stamps = json.loads((folder / PARTS_FILE).read_text())
    parts = {name: statistics.median(values) * 1e6 for name, values in stamps.items()}
    parts["thread hand-over"] = max(0.0, parts.pop("load") - parts["store"])
    return (
        {"server": median_ms * 1e3 - parts.pop("application")}
        | {name: parts[name] for name in PARTS}
        | {"all, as the client sees it": median_ms * 1e3}
    )


def show(measured: Measured, memory_mb: float, parts: Mapping[str, float]) -> None:
    """Print the tables."""
    rows = [
        [f"{name}, {connections} connections", f"{rate:,.0f}", f"{median:.2f}", f"{late:.2f}"]
        for (name, connections), (rate, median, late) in measured.items()
    ]
    table("Requests over HTTP, on SQLite", ["", "per second", "p50 ms", "p99 ms"], rows)
    print(f"\nPeak memory of the service: {memory_mb:.0f} MB")
    table(
        "One signed get, uncached, on one connection", ["", "us"], [[name, f"{us:.0f}"] for name, us in parts.items()]
    )


def figures_of(measured: Measured, memory_mb: float, parts: Mapping[str, float]) -> dict[str, object]:
    """Return the figures for programs. Each row has requests a second, and the milliseconds p50 and p99."""

    def row(name: str) -> dict[str, dict[str, float]]:
        return {
            str(connections): {
                "per_s": round(measured[name, connections][0]),
                "p50_ms": round(measured[name, connections][1], 2),
                "p99_ms": round(measured[name, connections][2], 2),
            }
            for connections in CONNECTIONS
        }

    return {
        "create": {name: row(f"create, {name}") for name in ("uncached", "cached")},
        "get": {name: row(f"get, {name}") for name in ("uncached", "cached")},
        "public_get": row("public get"),
        "bare": row("bare server"),
        "rss_mb": round(memory_mb, 1),
        "get_us": {name: round(us, 1) for name, us in parts.items()},
    }


def main() -> None:
    """Measure and report. With a hidden option, run one of the servers instead."""
    parser = argparse.ArgumentParser(description="Measure creates and gets over HTTP.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on the last line")
    parser.add_argument("--requests", type=int, default=4000, help="the number of requests for each row (4000)")
    for name in ("authorize", "bare", "uncached", "cached", "parts"):
        parser.add_argument(f"--{name}", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.authorize:
        asyncio.run(authorize(Path(options.authorize[0]), int(options.authorize[1])))
    elif options.bare:
        run_bare(int(options.bare[1]), ANSWER)
    elif arguments := options.uncached or options.cached or options.parts:
        folder, port, asked = Path(arguments[0]), int(arguments[1]), int(arguments[2])
        serve(folder, port, asked, cache_s=60.0 if options.cached else 0.0, is_timed=bool(options.parts))
    else:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            measured, memory_mb = measure(Path(first), options.requests)
            parts = measure_parts(Path(second), options.requests)
        show(measured, memory_mb, parts)
        finish(figures_of(measured, memory_mb, parts), as_json=options.json)

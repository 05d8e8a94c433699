"""The benchmark `http`: its measurements, its tables, and its figures. `_http_servers` has the processes."""

import argparse
import json
import os
import secrets
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from _http_servers import (
    ALICE,
    ANSWER,
    BASE_URL,
    CLIENT,
    DATABASE,
    GRANTS,
    KEY_FILE,
    PARTS_FILE,
    authorize,
    serve,
)
from _load import drive, free_port, run_bare, run_fast, server
from _npm import node
from _report import finish, table
from incoming_payments import IncomingPayment
from incoming_payments.domain import lifecycle
from incoming_payments.domain.payment import PAYMENT_ID_RANDOM_BYTES, PaymentId, client_id, new_payment_id
from incoming_payments.httpsig import PrivateKey, RequestMessage, sign
from incoming_payments.stores.sqlite import SqliteStore

CONNECTIONS: Final = (1, 16, 64)
PAYMENTS: Final = 200
SCRIPT: Final = str(Path(__file__).with_name("http.py"))
# Requests a second, the median and the 99th percentile of their milliseconds, and microseconds of processor for each.
Row = tuple[float, float, float, float]
Measured = dict[tuple[str, int], Row]  # by the name of the row and the connections
TOKENS: Final = ("uncached", "cached")  # how the service introspects them
PACKAGES: Final = {"@interledger/http-signature-utils": "2.0.3"}
NODE: Final = {"create": "node: create", "get": "node: get", "public": "node: public get"}  # its rows, by kind
PARTS: Final = ("parsing", "store", "thread hand-over", "introspection", "verification", "response")


def signed(method: str, path: str, token: str, key: PrivateKey, body: bytes = b"") -> bytes:
    """Return the bytes of a signed request, with the headers of the usual Node client."""
    headers = [("authorization", f"GNAP {token}")]
    if body:
        headers += [("content-type", "application/json"), ("content-length", str(len(body)))]
    request = sign(RequestMessage(method, f"{BASE_URL}{path}", tuple(headers), body), key, created=datetime.now(UTC))
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
            document = {"walletAddress": ALICE.url, "incomingAmount": amount, "metadata": metadata}
            body = json.dumps(document, separators=(",", ":")).encode()  # the form that the Node peer digests
            request = signed("POST", "/incoming-payments", f"token-{place}", key, body)
        elif kind == "get":
            request = signed("GET", path, f"token-{place}", key)
        else:
            request = f"GET {path} HTTP/1.1\r\nHost: bank.example\r\nAccept: application/json\r\n\r\n".encode()
        made[place].append(request)
    return made


class Target(NamedTuple):
    """A server process."""

    port: int
    pid: int


def measure_row(
    kind: str, target: Target, count: int, connections: int, ids: Sequence[PaymentId], key: PrivateKey
) -> Row:
    """Send `count` requests of `kind` to `target`."""
    start = b"HTTP/1.1 201" if kind == "create" else b"HTTP/1.1 200"
    queues = requests(kind, count, connections, ids, key)
    before_s = processor_s(target.pid)
    rate, median_ms, late_ms = run_fast(drive(target.port, queues, lambda head, _: head.startswith(start)))
    return rate, median_ms, late_ms, (processor_s(target.pid) - before_s) / count * 1e6


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


def processor_s(pid: int) -> float:
    """Return the seconds of processor that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, count: int) -> tuple[Measured, float]:
    """Return the rows, and the peak memory of the service in MB."""
    key = PrivateKey.generate_ed25519("key-1")
    (folder / KEY_FILE).write_text(json.dumps(key.public_jwk()))
    ids = payments(folder)
    asked = free_port()
    measured: Measured = {}
    with ExitStack() as running:
        running.enter_context(server([SCRIPT, "--authorize", str(folder), str(asked)], asked))
        targets = {}
        for name in ("bare", *TOKENS):
            port = free_port()
            arguments = [SCRIPT, f"--{name}", str(folder), str(port), str(asked)]
            targets[name] = Target(port, running.enter_context(server(arguments, port)))
        peer = running.enter_context(node(Path(__file__).with_name("_http_node.mjs"), PACKAGES))
        if isinstance(peer, str):
            print(f"Without the Node peer: {peer}")
        else:
            port = free_port()
            targets["node"] = Target(port, peer(_node_settings(port, asked, ids))["pid"])
        for connections in CONNECTIONS:
            for kind in ("create", "get"):
                for name in TOKENS:
                    row = measure_row(kind, targets[name], count, connections, ids, key)
                    measured[f"{kind}, {name}", connections] = row
            for title, name in (("public get", "uncached"), ("bare server", "bare")):
                measured[title, connections] = measure_row("public", targets[name], 2 * count, connections, ids, key)
            for kind, title in NODE.items() if "node" in targets else ():
                measured[title, connections] = measure_row(kind, targets["node"], count, connections, ids, key)
        memory_mb = max(peak_mb(targets[name].pid) for name in TOKENS)
    return measured, memory_mb


def _node_settings(port: int, asked: int, ids: Sequence[PaymentId]) -> dict[str, object]:
    urls = {"baseUrl": BASE_URL, "authServer": GRANTS, "walletAddress": ALICE.url}
    return {"port": port, "asked": asked, "ids": list(ids), **urls}


def measure_parts(folder: Path, count: int) -> dict[str, float]:
    """Return the median microseconds of each part of a signed get on one connection, and of the whole."""
    key = PrivateKey.generate_ed25519("key-1")
    (folder / KEY_FILE).write_text(json.dumps(key.public_jwk()))
    ids = payments(folder)
    asked, port = free_port(), free_port()
    with (
        server([SCRIPT, "--authorize", str(folder), str(asked)], asked),
        server([SCRIPT, "--parts", str(folder), str(port), str(asked)], port) as pid,
    ):
        _, median_ms, *_ = measure_row("get", Target(port, pid), count, 1, ids, key)
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
        [f"{name}, {connections}", f"{rate:,.0f}", f"{median:.2f}", f"{late:.2f}", f"{processor:.0f}"]
        for (name, connections), (rate, median, late, processor) in measured.items()
    ]
    table("Requests over HTTP, on SQLite", ["connections", "per second", "p50 ms", "p99 ms", "processor us"], rows)
    print(f"\nPeak memory of the service: {memory_mb:.0f} MB")
    table(
        "One signed get, uncached, on one connection", ["", "us"], [[name, f"{us:.0f}"] for name, us in parts.items()]
    )


def figures_of(measured: Measured, memory_mb: float, parts: Mapping[str, float]) -> dict[str, object]:
    """Return the requests a second, and in the same form their milliseconds and their microseconds of processor."""

    def each(place: int) -> dict[str, object]:
        def row(name: str) -> dict[str, float]:
            return {str(count): round(measured[name, count][place], 2 if place else None) for count in CONNECTIONS}

        signed = {kind: {name: row(f"{kind}, {name}") for name in TOKENS} for kind in ("create", "get")}
        peer = {kind: row(title) for kind, title in NODE.items() if (title, 1) in measured}
        return {**signed, "public_get": row("public get"), "bare": row("bare server"), "node": peer}

    return each(0) | {
        "rss_mb": round(memory_mb, 1),
        "get_us": {name: round(us, 1) for name, us in parts.items()},
        "p50_ms": each(1),
        "p99_ms": each(2),
        "processor_us": each(3),
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
        run_fast(authorize(Path(options.authorize[0]), int(options.authorize[1])))
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

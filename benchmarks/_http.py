"""The benchmark `http`: its measurements, its tables, and its figures. `_http_servers` has the processes."""

import argparse
import json
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
    KNOWN_TOKENS,
    PARTS_FILE,
    authorize,
    serve,
)
from _load import WORKERS, drive, free_port, run_bare, run_fast, server
from _npm import node
from _processes import processor_s, resident_mb
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
ALONE: Final = "one worker"  # the service with one worker, uncached
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


def requests(kind: str, count: int, ids: Sequence[PaymentId], key: PrivateKey) -> list[bytes]:
    """Return `count` requests of `kind`."""
    made = []
    for number in range(count):
        path = f"/incoming-payments/{ids[number % len(ids)]}"
        token = f"token-{number % KNOWN_TOKENS}"
        if kind == "create":
            metadata = {"externalRef": f"INV-2026-{number:06}"}
            amount = {"value": "2500", "assetCode": "USD", "assetScale": 2}
            document = {"walletAddress": ALICE.url, "incomingAmount": amount, "metadata": metadata}
            body = json.dumps(document, separators=(",", ":")).encode()  # the form that the Node peer digests
            request = signed("POST", "/incoming-payments", token, key, body)
        elif kind == "get":
            request = signed("GET", path, token, key)
        else:
            request = f"GET {path} HTTP/1.1\r\nHost: bank.example\r\nAccept: application/json\r\n\r\n".encode()
        made.append(request)
    return made


class Target(NamedTuple):
    """A server: one process, or a supervisor and its workers."""

    port: int
    pid: int


def measure_row(
    kind: str, target: Target, count: int, connections: int, ids: Sequence[PaymentId], key: PrivateKey
) -> Row:
    """Send `count` requests of `kind` to `target`."""
    start = b"HTTP/1.1 201" if kind == "create" else b"HTTP/1.1 200"
    queue = requests(kind, count, ids, key)  # of all connections
    before_s = processor_s(target.pid)
    rate, median_ms, late_ms = run_fast(
        drive(target.port, [queue] * connections, lambda head, _: head.startswith(start))
    )
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


def measure(folder: Path, count: int, workers: int) -> tuple[Measured, dict[str, float]]:
    """Return the rows, and the largest memory of each target in MB."""
    key = PrivateKey.generate_ed25519("key-1")
    (folder / KEY_FILE).write_text(json.dumps(key.public_jwk()))
    ids = payments(folder)
    asked = free_port()
    measured: Measured = {}
    memory_mb: dict[str, float] = {}
    with ExitStack() as running:
        running.enter_context(server([SCRIPT, "--authorize", str(folder), str(asked)], asked))
        targets = {}
        for name in ("bare", *TOKENS, ALONE):
            port = free_port()
            arguments = [str(folder), str(port), str(asked), str(1 if name == ALONE else workers)]
            option = "--uncached" if name == ALONE else f"--{name}"
            targets[name] = Target(port, running.enter_context(server([SCRIPT, option, *arguments], port)))
        peer = running.enter_context(node(Path(__file__).with_name("_http_node.mjs"), PACKAGES))
        if isinstance(peer, str):
            print(f"Without the Node peer: {peer}")
        else:
            port = free_port()
            targets["node"] = Target(port, peer(_node_settings(port, asked, ids))["pid"])

        def row(title: str, kind: str, name: str, connections: int) -> None:
            """Measure the row `title`, if the target `name` runs."""
            if name in targets:
                many = 2 * count if kind == "public" else count
                measured[title, connections] = measure_row(kind, targets[name], many, connections, ids, key)
                memory_mb[name] = max(memory_mb.get(name, 0.0), resident_mb(targets[name].pid))

        for connections in CONNECTIONS:
            for kind in ("create", "get"):
                for name in (*TOKENS, ALONE):
                    row(f"{kind}, {name}", kind, name, connections)
            row("public get", "public", "uncached", connections)
            row(f"public get, {ALONE}", "public", ALONE, connections)
            row("bare server", "public", "bare", connections)
            for kind, title in NODE.items():
                row(title, kind, "node", connections)
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
        server([SCRIPT, "--parts", str(folder), str(port), str(asked), "1"], port) as pid,
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


def show(measured: Measured, memory_mb: Mapping[str, float], parts: Mapping[str, float]) -> None:
    """Print the tables."""
    rows = [
        [f"{name}, {connections}", f"{rate:,.0f}", f"{median:.2f}", f"{late:.2f}", f"{processor:.0f}"]
        for (name, connections), (rate, median, late, processor) in measured.items()
    ]
    table("Requests over HTTP, on SQLite", ["connections", "per second", "p50 ms", "p99 ms", "processor us"], rows)
    table("Largest memory", ["", "MB"], [[name, f"{size:.0f}"] for name, size in memory_mb.items()])
    table(
        "One signed get, uncached, on one connection", ["", "us"], [[name, f"{us:.0f}"] for name, us in parts.items()]
    )


def figures_of(
    measured: Measured, memory_mb: Mapping[str, float], parts: Mapping[str, float], workers: int
) -> dict[str, object]:
    """Return the requests a second, and in the same form their milliseconds and their microseconds of processor."""

    def each(place: int) -> dict[str, object]:
        def row(name: str) -> dict[str, float]:
            return {str(count): round(measured[name, count][place], 2 if place else None) for count in CONNECTIONS}

        signed = {kind: {name: row(f"{kind}, {name}") for name in TOKENS} for kind in ("create", "get")}
        alone = {kind: row(f"{kind.replace('_', ' ')}, {ALONE}") for kind in ("create", "get", "public_get")}
        peer = {kind: row(title) for kind, title in NODE.items() if (title, 1) in measured}
        return {
            **signed,
            "public_get": row("public get"),
            "bare": row("bare server"),
            "one_worker": alone,
            "node": peer,
        }

    return each(0) | {
        "workers": workers,
        "rss_mb": round(max(memory_mb[name] for name in TOKENS), 1),
        "one_worker_rss_mb": round(memory_mb[ALONE], 1),
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
    parser.add_argument("--workers", type=int, default=WORKERS, help="worker processes (one for each processor)")
    for name in ("authorize", "bare", "uncached", "cached", "parts"):
        parser.add_argument(f"--{name}", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.authorize:
        run_fast(authorize(Path(options.authorize[0]), int(options.authorize[1])))
    elif options.bare:
        run_bare(int(options.bare[1]), ANSWER)
    elif arguments := options.uncached or options.cached or options.parts:
        folder, (port, asked, workers) = Path(arguments[0]), map(int, arguments[1:])
        cache_s, is_timed = 60.0 if options.cached else 0.0, bool(options.parts)
        serve(folder, port, asked, workers=workers, cache_s=cache_s, is_timed=is_timed)
    else:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            measured, memory_mb = measure(Path(first), options.requests, options.workers)
            parts = measure_parts(Path(second), options.requests)
        show(measured, memory_mb, parts)
        finish(figures_of(measured, memory_mb, parts, options.workers), as_json=options.json)

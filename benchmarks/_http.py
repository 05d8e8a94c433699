"""The benchmark `http`: its measurements, its tables, and its figures. `_http_servers` has the processes."""

import argparse
import json
import secrets
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

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
    PEER_TOKEN,
    SECRET,
    authorize,
    serve,
)
from _load import WORKERS, Accepts, drive, free_port, run_bare, run_fast, server
from _npm import node
from _postgres import Server as Postgres
from _postgres import own_server
from _prepares import prepares
from _processes import processor_s, resident_mb
from _report import finish, table
from incoming_payments import DerivedMethods, IncomingPayment
from incoming_payments.domain import lifecycle
from incoming_payments.domain.payment import PAYMENT_ID_RANDOM_BYTES, PaymentId, client_id, new_payment_id
from incoming_payments.httpsig import PrivateKey, RequestMessage, sign
from incoming_payments.ilp.packet import PacketType
from incoming_payments.stores.postgres import PostgresStore, migrate
from incoming_payments.stores.sqlite import SqliteStore

CONNECTIONS: Final = (1, 16, 64)
PAYMENTS: Final = 200
SCRIPT: Final = str(Path(__file__).with_name("http.py"))
# Requests a second, the median and the 99th percentile of their milliseconds, and for each request the microseconds of
# processor of the server, and of PostgreSQL.
Row = tuple[float, float, float, float, float]
Measured = dict[tuple[str, int], Row]  # by the name of the row and the connections
TOKENS: Final = ("uncached", "cached")  # how the service introspects them
ALONE: Final = "one worker"  # the service with one worker, uncached
PACKAGES: Final = {"@interledger/http-signature-utils": "2.0.3"}
NODE: Final = {"create": "node: create", "get": "node: get", "public": "node: public get"}  # its rows, by kind
PACKETS: Final = {"packets to 1 payment": 1, "packets to 200 payments": PAYMENTS}  # the number of payments in each row
# Requests a second of a Rafiki backend with PostgreSQL at 16 connections, and the milliseconds of processor of both for
# each. A token is introspected over HTTP for each request.
RAFIKI: Final = {"create": (301, 6.7), "get": (397, 4.6), "public get": (695, 3.9), "packets to 1 payment": (79, 20.7)}
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
    postgres: Postgres | None = None  # the PostgreSQL server, if the service uses one


def measure_row(target: Target, queue: list[bytes], connections: int, accepts: Accepts) -> Row:
    """Send the requests in `queue` to `target`."""
    count, before_s, before_database_s = len(queue), processor_s(target.pid), _database_s(target)
    rate, median_ms, late_ms = run_fast(drive(target.port, [queue] * connections, accepts))
    own_s, database_s = processor_s(target.pid) - before_s, _database_s(target) - before_database_s
    return rate, median_ms, late_ms, own_s / count * 1e6, database_s / count * 1e6


def _database_s(target: Target) -> float:
    return 0.0 if target.postgres is None else target.postgres.processor_s()


def _is_created(head: bytes, _: bytes) -> bool:
    return head.startswith(b"HTTP/1.1 201")


def _is_ok(head: bytes, _: bytes) -> bool:
    return head.startswith(b"HTTP/1.1 200")


def _is_fulfilled(_: bytes, body: bytes) -> bool:
    return body[0] == PacketType.FULFILL


class Database(NamedTuple):
    """Where the payments are: in PostgreSQL, or in a SQLite file if `conninfo` is empty."""

    conninfo: str = ""
    postgres: Postgres | None = None


@contextmanager
def own_database(name: str) -> Iterator[Database]:
    """Yield a new database, of a PostgreSQL server that runs until the end if `name` is `postgres`."""
    if name == "sqlite":
        yield Database()
        return
    with own_server() as postgres:
        postgres.start({})
        migrate(conninfo := postgres.conninfo("postgres"))
        yield Database(conninfo, postgres)


def payments(folder: Path, database: Database) -> list[PaymentId]:
    """Store payments of the client, and return their ids."""
    now = datetime.now(UTC)
    with PostgresStore(database.conninfo) if database.conninfo else SqliteStore(folder / DATABASE) as store:
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


def measure(folder: Path, count: int, workers: int, database: Database) -> tuple[Measured, dict[str, float]]:
    """Return the rows, and the largest memory of each target in MB."""
    key = PrivateKey.generate_ed25519("key-1")
    (folder / KEY_FILE).write_text(json.dumps(key.public_jwk()))
    ids = payments(folder, database)
    measured: Measured = {}
    memory_mb: dict[str, float] = {}
    with targets(folder, workers, database, ids) as found:

        def row(title: str, kind: str, name: str, connections: int) -> None:
            """Measure the row `title`, if the target `name` runs."""
            if name in found:
                queue = requests(kind, 2 * count if kind == "public" else count, ids, key)
                accepts = _is_created if kind == "create" else _is_ok
                measured[title, connections] = measure_row(found[name], queue, connections, accepts)
                memory_mb[name] = max(memory_mb.get(name, 0.0), resident_mb(found[name].pid))

        for connections in CONNECTIONS:
            for kind in ("create", "get"):
                for name in (*TOKENS, ALONE):
                    row(f"{kind}, {name}", kind, name, connections)
            row("public get", "public", "uncached", connections)
            row(f"public get, {ALONE}", "public", ALONE, connections)
            row("bare server", "public", "bare", connections)
            for kind, title in NODE.items():
                row(title, kind, "node", connections)
        if database.postgres is not None:
            measured |= measure_packets(folder, count, found["uncached"], database)
            memory_mb["uncached, after packets"] = resident_mb(found["uncached"].pid)
            memory_mb["PostgreSQL"] = database.postgres.memory_mb()
    return measured, memory_mb


@contextmanager
def targets(folder: Path, workers: int, database: Database, ids: Sequence[PaymentId]) -> Iterator[dict[str, Target]]:
    """Start the authorization server and all servers to measure, and yield these by their names."""
    asked, found = free_port(), {}
    with ExitStack() as running:
        running.enter_context(server([SCRIPT, "--authorize", str(folder), str(asked)], asked))
        for name in ("bare", *TOKENS, ALONE):
            port = free_port()
            arguments = [str(folder), str(port), str(asked), str(1 if name == ALONE else workers), database.conninfo]
            option = "--uncached" if name == ALONE else f"--{name}"
            pid = running.enter_context(server([SCRIPT, option, *arguments], port))
            found[name] = Target(port, pid, None if name == "bare" else database.postgres)
        peer = running.enter_context(node(Path(__file__).with_name("_http_node.mjs"), PACKAGES))
        if isinstance(peer, str):
            print(f"Without the Node peer: {peer}")
        else:
            port = free_port()
            found["node"] = Target(port, peer(_node_settings(port, asked, ids))["pid"])
        yield found


def measure_packets(folder: Path, count: int, target: Target, database: Database) -> Measured:
    """Return the rows of packets. Each row has payments of its own."""
    measured: Measured = {}
    for connections in CONNECTIONS:
        for title, into in PACKETS.items():
            queue = packets(count, payments(folder, database)[:into])
            measured[title, connections] = measure_row(target, queue, connections, _is_fulfilled)
    return measured


def _node_settings(port: int, asked: int, ids: Sequence[PaymentId]) -> dict[str, object]:
    urls = {"baseUrl": BASE_URL, "authServer": GRANTS, "walletAddress": ALICE.url}
    return {"port": port, "asked": asked, "ids": list(ids), **urls}


def packets(count: int, ids: Sequence[PaymentId]) -> list[bytes]:
    """Return requests with Prepares of one unit each, to these new payments in turn."""
    bodies = prepares(DerivedMethods("g.bank", [SECRET]), ids, count, amount=1, now=datetime.now(UTC))
    head = f"POST /ilp HTTP/1.1\r\nHost: bank.example\r\nAuthorization: Bearer {PEER_TOKEN}\r\n"
    head += "Content-Type: application/octet-stream\r\nContent-Length: "
    return [f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies]


def measure_parts(folder: Path, count: int, database: Database) -> dict[str, float]:
    """Return the median microseconds of each part of a signed get on one connection, and of the whole."""
    key = PrivateKey.generate_ed25519("key-1")
    (folder / KEY_FILE).write_text(json.dumps(key.public_jwk()))
    ids = payments(folder, database)
    asked, port = free_port(), free_port()
    with (
        server([SCRIPT, "--authorize", str(folder), str(asked)], asked),
        server([SCRIPT, "--parts", str(folder), str(port), str(asked), "1", database.conninfo], port) as pid,
    ):
        _, median_ms, *_ = measure_row(Target(port, pid), requests("get", count, ids, key), 1, _is_ok)
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
        [f"{name}, {connections}", f"{rate:,.0f}", f"{median:.2f}", f"{late:.2f}", f"{own:.0f}", f"{database:.0f}"]
        for (name, connections), (rate, median, late, own, database) in measured.items()
    ]
    heads = ["connections", "per second", "p50 ms", "p99 ms", "processor us", "of PostgreSQL us"]
    table("Requests over HTTP", heads, rows)
    table("Largest memory", ["", "MB"], [[name, f"{size:.0f}"] for name, size in memory_mb.items()])
    table(
        "One signed get, uncached, on one connection", ["", "us"], [[name, f"{us:.0f}"] for name, us in parts.items()]
    )


def figures_of(
    measured: Measured, memory_mb: Mapping[str, float], parts: Mapping[str, float], workers: int
) -> dict[str, object]:
    """Return the requests a second, and in the same form their milliseconds and their microseconds of processor."""

    def each(place: int) -> dict[str, Any]:
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

    return (
        each(0)
        | _postgres_figures(measured, memory_mb)
        | {
            "workers": workers,
            "rss_mb": round(max(memory_mb[name] for name in TOKENS), 1),
            "one_worker_rss_mb": round(memory_mb[ALONE], 1),
            "get_us": {name: round(us, 1) for name, us in parts.items()},
            "p50_ms": each(1),
            "p99_ms": each(2),
            "processor_us": each(3),
        }
    )


def _postgres_figures(measured: Measured, memory_mb: Mapping[str, float]) -> dict[str, object]:
    """Return the figures that only PostgreSQL has, and the ratios to Rafiki at 16 connections."""
    if "PostgreSQL" not in memory_mb:
        return {}
    signed = ("create", "get")
    rows = {kind: measured[f"{kind}, uncached" if kind in signed else kind, 16] for kind in RAFIKI}
    return {
        "packets_per_s": {
            title: {str(count): round(measured[title, count][0]) for count in CONNECTIONS} for title in PACKETS
        },
        "packets_processor_us": {title: round(measured[title, 16][3]) for title in PACKETS},
        "database_us": {kind: round(row[4]) for kind, row in rows.items()},
        "database_mb": round(memory_mb["PostgreSQL"], 1),
        "vs_rafiki": {kind: round(rows[kind][0] / rate, 1) for kind, (rate, _) in RAFIKI.items()},
        "processor_of_rafiki": {
            kind: round((rows[kind][3] + rows[kind][4]) / 1e3 / ms, 3) for kind, (_, ms) in RAFIKI.items()
        },
    }


def main() -> None:
    """Measure and report. With a hidden option, run one of the servers instead."""
    parser = argparse.ArgumentParser(description="Measure creates and gets over HTTP.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on the last line")
    parser.add_argument("--requests", type=int, default=4000, help="the number of requests for each row (4000)")
    parser.add_argument("--workers", type=int, default=WORKERS, help="worker processes (one for each processor)")
    parser.add_argument(
        "--database", choices=["sqlite", "postgres"], default="sqlite", help="where payments are stored"
    )
    for name in ("authorize", "bare", "uncached", "cached", "parts"):
        parser.add_argument(f"--{name}", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.authorize:
        run_fast(authorize(Path(options.authorize[0]), int(options.authorize[1])))
    elif options.bare:
        run_bare(int(options.bare[1]), ANSWER)
    elif arguments := options.uncached or options.cached or options.parts:
        folder, conninfo, (port, asked, workers) = Path(arguments[0]), arguments[4], map(int, arguments[1:4])
        cache_s, is_timed = 60.0 if options.cached else 0.0, bool(options.parts)
        serve(folder, port, asked, conninfo, workers=workers, cache_s=cache_s, is_timed=is_timed)
    else:
        with (
            tempfile.TemporaryDirectory() as first,
            tempfile.TemporaryDirectory() as second,
            own_database(options.database) as database,
        ):
            measured, memory_mb = measure(Path(first), options.requests, options.workers, database)
            parts = measure_parts(Path(second), options.requests, database)
        show(measured, memory_mb, parts)
        finish(figures_of(measured, memory_mb, parts, options.workers), as_json=options.json)

"""The processes of the benchmark `http`: an authorization server, and the service, which can time its parts."""

import asyncio
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from incoming_payments import (
    AccessToken,
    Asset,
    AsyncIncomingPayments,
    AsyncPorts,
    DerivedMethods,
    HttpPeer,
    IncomingPayment,
    PacketPolicy,
    Peer,
    ServicePolicy,
    WalletAddress,
    wallet_address_url,
)
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import PaymentId, WalletAddressUrl
from incoming_payments.gnap import AccessTokenInfo, TokenQuery
from incoming_payments.hosts.asgi import AsgiApplication
from incoming_payments.outbound.introspection import AsyncHttpIntrospector
from incoming_payments.server.background import beating, with_tasks
from incoming_payments.server.listeners import Listeners, open_listeners
from incoming_payments.server.serve import http_config
from incoming_payments.server.workers import run_workers
from incoming_payments.stores.postgres import AsyncPostgresStore
from incoming_payments.stores.sqlite import AsyncSqliteStore

BASE_URL: Final = "https://bank.example"
GRANTS: Final = "https://auth.bank.example"
CLIENT: Final = "https://shop.example"
ALICE: Final = WalletAddress(wallet_address_url(f"{BASE_URL}/alice"), Asset("USD", 2), GRANTS)
KNOWN_TOKENS: Final = 128  # twice as many as connections, so that no two requests in flight share an introspection
KEY_FILE: Final = "key.jwk"
DATABASE: Final = "payments.db"
PARTS_FILE: Final = "parts.json"
ANSWER: Final = bytes(560)  # of the bare server: as long as the whole resource
SECRET: Final = bytes(range(32))  # the secret of the ILP addresses
PEER_TOKEN: Final = "the-token-of-the-connector"  # noqa: S105 - of this benchmark


async def authorize(folder: Path, port: int) -> None:
    """Run an authorization server that knows `KNOWN_TOKENS` tokens, from `token-0`. RFC 9767 §3.3."""
    jwk = json.loads((folder / KEY_FILE).read_text())
    access = [{"type": "incoming-payment", "actions": ["create", "read"], "identifier": ALICE.url}]
    active = {
        "active": True,
        "iss": GRANTS,
        "key": {"proof": "httpsig", "jwk": jwk},
        "client": CLIENT,
        "access": access,
    }
    bodies = {True: json.dumps(active).encode(), False: b'{"active": false}'}
    known = {f"token-{number}" for number in range(KNOWN_TOKENS)}

    class Introspection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport
            self.received = b""

        def data_received(self, data: bytes) -> None:
            self.received += data
            head, _, body = self.received.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            if length and len(body) >= int(length):
                self.received = b""
                answer = bodies[json.loads(body)["access_token"] in known]
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)
                self.transport.write(head + answer)

    listening = await asyncio.get_running_loop().create_server(Introspection, "127.0.0.1", port)
    await listening.serve_forever()


class Bank:
    """A `WalletAddresses` port with one wallet address."""

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """Return the wallet address of Alice, or `None`."""
        return ALICE if url == ALICE.url else None


def serve(folder: Path, port: int, asked: int, conninfo: str, *, workers: int, cache_s: float, is_timed: bool) -> None:
    """Run the service in `workers` processes, as `serve` does. It introspects tokens at the port `asked`.

    The store is on the PostgreSQL database `conninfo`, or on SQLite if that is empty.
    """
    import uvicorn

    store: AsyncSqliteStore | AsyncPostgresStore  # on PostgreSQL, each worker connects at its first call
    if conninfo:
        store = (TimedPostgresStore if is_timed else AsyncPostgresStore)(conninfo)
    else:
        store = (TimedStore if is_timed else AsyncSqliteStore)(folder / DATABASE)
    introspector = (TimedIntrospector if is_timed else AsyncHttpIntrospector)(
        f"http://127.0.0.1:{asked}/introspect",
        dialect="rfc9767",
        issuer=GRANTS,
        resource_server="bank",
        allow_http=True,
        cache_s=cache_s,
        connections=64,
    )
    methods = (TimedMethods if is_timed else DerivedMethods)("g.bank", [SECRET])
    service = AsyncIncomingPayments(
        policy=ServicePolicy(base_url=BASE_URL, auth_server=GRANTS),
        ports=AsyncPorts(wallet_addresses=Bank(), store=store, introspector=introspector, methods=methods),
        packets=PacketPolicy(peers=[HttpPeer(Peer("g.connector", ALICE.asset), tokens=[AccessToken(PEER_TOKEN)])]),
    )

    async def on_shutdown() -> None:
        await introspector.aclose()
        await store.close()
        if is_timed:  # here, because uvicorn ends the process by the signal that stopped it
            write_parts(folder)

    application: Any = AsgiApplication(service, on_shutdown=on_shutdown)
    served = timed(application) if is_timed else application
    server = uvicorn.Server(http_config(served))
    gc.freeze()
    with open_listeners("127.0.0.1", port, workers) as listeners:

        def work(_: int, own: Listeners, beat: Callable[[], None]) -> int:
            server.config.app = with_tasks(served, beating(beat))
            server.run(sockets=list(own))
            return 0

        run_workers(listeners, work, on_hangup=lambda: None)


# --- the parts of a signed get: one connection, so the marks of a request follow one another ---

_marks: list[float] = []
_requests: list[list[float]] = []
_reads: list[float] = []  # the seconds of each read, in the thread that reads


def _mark() -> None:
    _marks.append(time.perf_counter())


class TimedStore(AsyncSqliteStore):
    """Marks the begin and the end of a load, and times its read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        engine: Any = self._engine
        read = engine._read

        def timed_read(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return read(*arguments, **options)
            finally:
                _reads.append(time.perf_counter() - begin)

        engine._read = timed_read

    async def load(self, id: PaymentId) -> IncomingPayment:
        """Load."""
        _mark()
        payment = await super().load(id)
        _mark()
        return payment


class TimedPostgresStore(AsyncPostgresStore):
    """Mark the start and the end of a load."""

    async def load(self, id: PaymentId) -> IncomingPayment:
        """Load."""
        _mark()
        payment = await super().load(id)
        _mark()
        _reads.append(_marks[-1] - _marks[-2])
        return payment


class TimedIntrospector(AsyncHttpIntrospector):
    """Marks the begin and the end of an introspection."""

    async def introspect(self, query: TokenQuery) -> AccessTokenInfo | None:
        """Introspect."""
        _mark()
        info = await super().introspect(query)
        _mark()
        return info


class TimedMethods(DerivedMethods):
    """Marks the end of the verification: the next step is the response."""

    def allocate(self, payment: IncomingPayment) -> tuple[IlpPaymentMethod, ...]:
        """Allocate."""
        _mark()
        return super().allocate(payment)


def timed(application: Any) -> Any:
    """Return `application` with marks where a request begins and where its response begins."""

    async def marked(scope: Any, receive: Any, send: Any) -> None:
        async def mark_and_send(message: Any) -> None:
            if message["type"] == "http.response.start":
                _mark()
                _requests.append(_marks.copy())
            await send(message)

        _marks.clear()
        _mark()
        await application(scope, receive, mark_and_send)

    return marked


def write_parts(folder: Path) -> None:
    """Write the seconds of each part of each request."""
    parts: dict[str, list[float]] = {
        "parsing": [(begin_load - begin) + (ask - loaded) for begin, begin_load, loaded, ask, *_ in _requests],
        "load": [loaded - begin_load for _, begin_load, loaded, *_ in _requests],
        "introspection": [answered - ask for *_, ask, answered, _, _ in _requests],
        "verification": [verified - answered for *_, answered, verified, _ in _requests],
        "response": [end - verified for *_, verified, end in _requests],
        "application": [marks[-1] - marks[0] for marks in _requests],
        "store": _reads,
    }
    (folder / PARTS_FILE).write_text(json.dumps(parts))

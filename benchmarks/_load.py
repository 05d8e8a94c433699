"""HTTP servers as processes, and a client that keeps a number of requests in flight."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")

WORKERS: Final = os.cpu_count() or 1  # worker processes of a measured service, unless `--workers` gives another number

Accepts = Callable[[bytes, bytes], bool]  # decides about the head and the body of a response


def bare(answer: bytes) -> Any:
    """Return an ASGI application that answers each request with `answer`, and does no other work."""
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", str(len(answer)).encode())]

    async def application(_scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return application


def run_bare(port: int, answer: bytes) -> None:
    """Serve `bare` until the process is terminated."""
    run_application(port, bare(answer))


def run_application(port: int, application: Any) -> None:
    """Serve an ASGI application on uvicorn, with the parser that `serve` uses, until the process is terminated."""
    import uvicorn

    uvicorn.run(
        application, port=port, log_level="error", http="httptools", ws="none", lifespan="off", access_log=False
    )


def run_fast(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on uvloop if it is installed, so that the load takes less of the processors from the service."""
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(main)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Connection(asyncio.Protocol):
    """A connection that sends requests, each when the request before it has its response."""

    def __init__(self, requests: list[bytes], seconds: list[float], accepts: Accepts) -> None:
        self.requests, self.seconds, self.accepts = requests, seconds, accepts
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
        if not self.accepts(head, body):
            self.done.set_exception(RuntimeError(f"an unexpected response: {self.answer!r}"))
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


async def drive(port: int, queues: Sequence[list[bytes]], accepts: Accepts) -> tuple[float, float, float]:
    """Send each of `queues` on a connection of its own; they may be the same list.

    Return the requests a second, and the median and the 99th percentile of their milliseconds.
    """
    loop, seconds = asyncio.get_running_loop(), list[float]()
    start = time.perf_counter()
    made = [
        await loop.create_connection(lambda queue=queue: Connection(queue, seconds, accepts), "127.0.0.1", port)  # type: ignore[misc]
        for queue in queues
    ]
    await asyncio.gather(*(connection.done for _, connection in made))
    spent = time.perf_counter() - start
    seconds.sort()
    count = len(seconds)
    return count / spent, seconds[count // 2] * 1e3, seconds[count * 99 // 100] * 1e3


@contextmanager
def server(command: Sequence[str], port: int) -> Iterator[int]:
    """Run a server process that accepts connections, yield its process id, and stop it at the end."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])

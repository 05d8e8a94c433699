"""Sync and async ports over HTTP behind one set of calls, for tests that run with both."""

import asyncio
import gc
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import pytest

from kits.https_server import Peer, contexts

Resolve = Callable[[str], list[str]]


class Clock:
    """A clock in seconds that stands still."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


@cache
def freeze() -> None:
    """Let `gc.collect` skip the objects of now: there are so many of them that it would take 80 ms."""
    gc.collect()
    gc.freeze()


class Lookups:
    """Calls `find` of a sync or an async port."""

    def __init__(self, port: Any, *, is_async: bool) -> None:
        self.port = port
        self._runner = asyncio.Runner() if is_async else None

    def find(self, *arguments: Any) -> Any:
        """Return the answer of `find`."""
        return self.find_all([arguments])[0]

    def find_all(self, calls: Iterable[tuple[Any, ...]], *, catch: type[Exception] | tuple[()] = ()) -> list[Any]:
        """Return the answers of concurrent calls of `find`, and the exceptions of the type `catch`."""
        if self._runner is None:

            def find(arguments: tuple[Any, ...]) -> Any:
                try:
                    return self.port.find(*arguments)
                except catch as error:
                    return error

            with ThreadPoolExecutor(400) as pool:
                return list(pool.map(find, calls))

        async def afind(arguments: tuple[Any, ...]) -> Any:
            try:
                return await self.port.find(*arguments)
            except catch as error:
                return error

        async def gather() -> list[Any]:
            return await asyncio.gather(*map(afind, calls))

        return self._runner.run(gather())

    def close(self) -> None:
        """Close the port."""
        if self._runner is None:
            self.port.close()
        else:
            self._runner.run(self.port.aclose())
            self._runner.close()
            self.port = self._runner = None
            with warnings.catch_warnings():
                # asyncio waits 30 s until a peer that hangs closes its side of TLS, and the loop ends before that.
                warnings.simplefilter("ignore", ResourceWarning)
                freeze()
                gc.collect()


@contextmanager
def looking_up(cls: type, *arguments: Any, **options: Any) -> Iterator[Lookups]:
    """Yield a new port that trusts the test CA. By default it may connect to loopback."""
    options = {"tls": contexts()[1], "allow_private": True, **options}
    lookups = Lookups(cls(*arguments, **options), is_async=cls.__name__.startswith("Async"))
    try:
        yield lookups
    finally:
        lookups.close()


def inject_resolver(monkeypatch: pytest.MonkeyPatch, resolve: Resolve) -> list[str]:
    """Let `resolve` answer all look-ups of names in this process. Return the list of the names looked up."""
    names: list[str] = []

    def getaddrinfo(host: Any, port: Any, *_: Any, **_options: Any) -> list[Any]:
        names.append(host if isinstance(host, str) else host.decode())
        return [
            (
                socket.AF_INET6 if ":" in address else socket.AF_INET,
                socket.SOCK_STREAM,
                6,
                "",
                (address, int(port), 0, 0) if ":" in address else (address, int(port)),
            )
            for address in resolve(names[-1])
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return names


def redirect(peer: Peer) -> None:
    """Answer with a redirect to a good document of the same server."""
    peer.status, peer.headers = 302, {"Location": "/other/jwks.json"}


def send_5_mb(peer: Peer) -> None:
    """Answer with 5 MB of JSON."""
    peer.body = b'{"keys": [' + b" " * 5_000_000 + b"]}"


def say(body: bytes) -> Callable[[Peer], None]:
    """Return a fault: the server answers with this body."""

    def answer(peer: Peer) -> None:
        peer.body = body

    return answer


def hang_up(peer: Peer) -> None:
    """Close the connection without an answer."""
    peer.answer = lambda _: None


def cut_off(peer: Peer) -> None:
    """Close the connection within the body."""
    peer.headers = {"Content-Length": str(len(peer.body) + 10), "Connection": "close"}


FAULTS: Final[dict[str, Callable[[Peer], None]]] = {
    "500": Peer.fail,
    "a redirect": redirect,
    "a hang": Peer.hang,
    "5 MB": send_5_mb,
    "not JSON": say(b"<html>"),
    "deep JSON": say(b"[" * 60_000),
    "NUL": say(b"\0"),
    "an array": say(b"[]"),
    "UTF-16": say('{"keys": []}'.encode("utf-16")),
    "NaN": say(b'{"keys": [], "id": NaN}'),
    "a member twice": say(b'{"keys": [], "keys": []}'),
    "no answer": hang_up,
    "a cut-off body": cut_off,
}

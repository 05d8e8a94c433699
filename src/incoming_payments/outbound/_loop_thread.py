"""An event loop in a thread of its own, in which the sync ports run the same code as the async ports."""

import asyncio
import selectors
import threading
import time
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Final, Protocol, TypeVar

from incoming_payments.outbound._http import HttpFailed

T = TypeVar("T")

_RESTS: Final = 2  # seconds to rest for each second of work
_REST_S_MAX: Final = 0.1  # in one turn of the event loop; the next turns make up for the rest
_OWED_S_MAX: Final = 1.0  # the rest that is left for later turns, so that the thread is soon fast again after an attack


class Client(Protocol):
    """A client whose connections belong to an event loop."""

    async def aclose(self) -> None:
        """Close the connections."""


class LoopThread:
    """A thread that runs coroutines for other threads. It starts with the first coroutine.

    The thread ends after `close`, or when nothing refers to this object. Then it cancels its coroutines and closes
    `clients`. A coroutine after `close` starts another thread.

    With `rests`, the thread rests twice as long as it works. Python runs one thread at a time, so otherwise servers
    that cause much work could slow all threads of the process.
    """

    def __init__(self, *clients: Client, rests: bool = False) -> None:
        self._clients = clients
        self._rests = rests
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start `coroutine`. Raise `HttpFailed` if the thread cannot be started."""
        with self._lock:
            try:
                self._loop = self._loop or self._start()
            except (RuntimeError, OSError) as error:  # too few threads or descriptors
                coroutine.close()
                raise HttpFailed(f"the thread for requests cannot be started ({error}): try again") from error
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of `coroutine`, and cancel it if this thread is interrupted. Raise `HttpFailed` as
        `submit` does, and when another thread calls `close`.
        """
        future = self.submit(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise HttpFailed("the client was closed during the request: try again") from None
        finally:
            future.cancel()

    def close(self) -> None:
        """Close the clients, and end the thread."""
        with self._lock:
            if self._loop is not None:
                self._loop = None
                self._stop()
                self._thread.join()

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(_RestingSelector() if self._rests else None)
        self._thread = threading.Thread(target=_work, args=(loop, self._clients), name="incoming-payments-requests")
        self._thread.daemon = True
        try:
            self._thread.start()
        except RuntimeError:
            loop.close()
            raise
        self._stop = weakref.finalize(self, loop.call_soon_threadsafe, loop.stop)
        return loop


class _RestingSelector(selectors.DefaultSelector):
    """A selector that rests after the work of each turn of the event loop. Meanwhile, small pieces of data add up."""

    _begun_s: float | None = None
    _rests_until_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._begun_s is not None:
            now = time.monotonic()
            rest_s = max(self._rests_until_s - now, 0) + _RESTS * (time.thread_time() - self._begun_s)
            self._rests_until_s = now + min(rest_s, _OWED_S_MAX)
            time.sleep(min(rest_s, _REST_S_MAX))
        ready = super().select(timeout)
        self._begun_s = time.thread_time()
        return ready


def _work(loop: asyncio.AbstractEventLoop, clients: tuple[Client, ...]) -> None:
    loop.run_forever()
    loop.run_until_complete(_end(clients))
    loop.close()


async def _end(clients: tuple[Client, ...]) -> None:
    unfinished = asyncio.all_tasks() - {asyncio.current_task()}
    for task in unfinished:
        task.cancel()
    await asyncio.gather(*unfinished, return_exceptions=True)
    for client in clients:
        await client.aclose()

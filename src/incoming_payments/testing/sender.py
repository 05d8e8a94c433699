"""A STREAM sender, which pays an incoming payment in packets, for tests and demonstrations.

`StreamSender` contains the rules (Interledger RFC 29) and does no I/O. `pay` and `quote` run it in threads, and
`over_http` sends packets over HTTP (RFC 35). The sender needs no optional dependency.

**The sender must be a direct peer of the service.** The account of the sender is in the asset of the payment, and there
is no connector between the sender and the service. The sender repeats a packet until it gets an answer. The service
fulfils each repeat and credits the packet once, so that both sides end with the same total. A connector between the
sender and the service would have to be paid for each repeat.
"""

import http.client
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from incoming_payments.errors import InvalidValue
from incoming_payments.limits import SENDER_PATIENCE_S_DEFAULT, UINT64_MAX
from incoming_payments.testing._stream_sender import (
    IN_FLIGHT,
    LIFETIME_S,
    Ending,
    Packet,
    Payee,
    Quote,
    SenderTotals,
    StreamSender,
)

__all__ = [
    "Ending",
    "Link",
    "NotTaken",
    "Packet",
    "Payee",
    "Post",
    "Quote",
    "SenderTotals",
    "StreamSender",
    "over_http",
    "pay",
    "quote",
]

_ERROR_BODY_BYTES_MAX: Final = 500  # the number of bytes of an HTTP error body that the exception quotes

Post = Callable[[bytes], bytes]
"""A function that sends a packet and returns the reply, or raises `OSError` or `NotTaken` (a final error).
"""

Link = Callable[[], AbstractContextManager[Post]]
"""A function that opens a connection to the service. Each thread opens its own connection."""


class NotTaken(Exception):
    """The service refuses this sender, or the payment accepts no money. The text contains the reason."""


# --- threads ---------------------------------------------------------------------------------------------


def quote(link: Link, payee: Payee, amount: int) -> Quote:
    """Return how much of `amount` would arrive and how much the payment accepts.

    Raise `NotTaken` if the payment is closed. This function sends a probe and moves no money. Raise `InvalidValue` if
    `link` is not a link.
    """
    sender = StreamSender(payee, 0, probe=amount, now=_now(), in_flight_max=1)
    _ThreadedSender(sender, None).run(link, 1)
    if sender.quote is None:
        raise NotTaken(sender.totals.reason or f"there is no quote: the sender ended with {sender.totals.ending}")
    return sender.quote


def pay(
    link: Link,
    payee: Payee,
    amount: int,
    *,
    packet_max: int = UINT64_MAX,
    in_flight: int = IN_FLIGHT,
    patience_s: float = SENDER_PATIENCE_S_DEFAULT,
    progress: Callable[[SenderTotals], object] | None = None,
) -> SenderTotals:
    """Send `amount` minor units to `payee` in packets, with `in_flight` threads. Return the final totals.

    One thread at a time calls `progress` with the totals after each answer. An exception of `progress` stops the sender
    and is raised. Raise `NotTaken` if the service refuses this sender, and `InvalidValue` if `link` is not a link. The
    totals report every other ending.

    ```python
    totals = pay(over_http("https://bank.example/ilp", token), Payee.of(resource), 2500, packet_max=100)
    ```
    """
    sender = StreamSender(
        payee, amount, now=_now(), packet_max=packet_max, in_flight_max=in_flight, patience_s=patience_s
    )
    _ThreadedSender(sender, progress).run(link, in_flight)
    return sender.totals


class _ThreadedSender:
    """A sender that several threads share. Each thread takes and sends a packet, and processes the reply."""

    def __init__(self, sender: StreamSender, progress: Callable[[SenderTotals], object] | None) -> None:
        self._sender = sender
        self._progress = progress
        self._changed = threading.Condition()

    def run(self, link: Link, threads: int) -> None:
        """Run until the sender has ended. If a thread raises an exception, stop the threads and raise the exception."""
        with ThreadPoolExecutor(threads) as pool:
            try:
                for future in [pool.submit(self._work, link) for _ in range(threads)]:
                    future.result()
            except BaseException:
                self._stop("the sender was interrupted")
                raise

    def _work(self, link: Link) -> None:
        try:
            with _opened(link) as post:
                while (packet := self._take()) is not None:
                    self._process(packet, self._reply(post, packet))
        except BaseException as error:
            self._stop(str(error))
            raise

    def _take(self) -> Packet | None:
        """Wait for the next packet and return it, or return `None` when the sender has ended."""
        with self._changed:
            while not self._sender.has_ended:
                packet = self._sender.next(now=_now(), nonce=os.urandom(12))
                if packet is not None:
                    return packet
                resumes_at = self._sender.resumes_at
                self._changed.wait(None if resumes_at is None else (resumes_at - _now()).total_seconds())
            return None

    @staticmethod
    def _reply(post: Post, packet: Packet) -> bytes | OSError:
        try:
            return post(packet.octets)
        except OSError as error:
            return error

    def _process(self, packet: Packet, reply: bytes | OSError) -> None:
        with self._changed:
            if isinstance(reply, OSError):
                self._sender.lost(packet, now=_now(), reason=str(reply))
            else:
                self._sender.answered(packet, reply, now=_now())
            self._changed.notify_all()
            if self._progress is not None:
                self._progress(self._sender.totals)

    def _stop(self, reason: str) -> None:
        with self._changed:
            self._sender.stop(reason)
            self._changed.notify_all()


@contextmanager
def _opened(link: Link) -> Iterator[Post]:
    """Open `link`. Raise `InvalidValue` if `link` is not a link, such as `over_http` itself."""
    connection: object = link() if _takes(link) else None
    if isinstance(connection, AbstractContextManager):
        with connection as post:
            if not _takes(post, b""):
                raise _no_link()
            yield post
    else:
        raise _no_link()


def _takes(function: object, *arguments: object) -> bool:
    """Return whether `function` can be called with these arguments."""
    try:
        inspect.signature(function).bind(*arguments)  # type: ignore[arg-type] # a TypeError is the answer
    except TypeError:
        return False
    except ValueError:
        return True  # the function is a builtin that has no signature
    return True


def _no_link() -> InvalidValue:
    text = (
        "link cannot be opened: pass the result of over_http(url, token), or lambda: nullcontext(post) with your "
        "post(packet)"
    )
    return InvalidValue(text, member="link")


def _now() -> datetime:
    return datetime.now(UTC)


# --- HTTP ------------------------------------------------------------------------------------------------


def over_http(url: str, token: str, *, timeout_s: float = LIFETIME_S) -> Link:
    """Return a link (RFC 35) to the packet endpoint `url` of a service, for the peer with the bearer `token`.

    A timeout, a connection error and the status codes 429 and 5xx count as a lost packet. Every other status code
    except 200 raises `NotTaken`.
    """
    address = urlsplit(url)
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    headers = {"Content-Type": "application/octet-stream", "Authorization": f"Bearer {token}"}

    @contextmanager
    def link() -> Iterator[Post]:
        connection = kind(str(address.hostname), address.port, timeout=timeout_s)

        def post(packet: bytes) -> bytes:
            try:
                connection.request("POST", address.path or "/", packet, headers)
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()  # the next request opens a new connection
                raise ConnectionError(f"{url} gave no answer: {error!r}") from error
            if response.status == http.client.OK:
                return body
            if response.status >= http.client.INTERNAL_SERVER_ERROR or response.status == http.client.TOO_MANY_REQUESTS:
                raise ConnectionError(f"{url} answered with status {response.status}")
            text = body[:_ERROR_BODY_BYTES_MAX].decode("utf-8", "replace")
            raise NotTaken(f"{url} refuses packets from this sender: status {response.status}: {text}")

        try:
            yield post
        finally:
            connection.close()

    return link

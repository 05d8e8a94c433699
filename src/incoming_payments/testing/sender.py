"""A STREAM sender: pays an incoming payment in packets, by the address and the secret that its client was told.

For tests and demonstrations, and small enough to be read. `StreamSender` holds all the rules, and neither waits nor
sends: what is next, and what does a reply mean? RFC 29 of the Interledger RFCs. `pay` and `quote` drive it from
threads, and `over_http` carries packets as RFC 35 has it. Nothing is needed but the library.

**It stands next to the service it pays**: as a peer of it, whose account is in the asset of the payment, with no
connector between. So a packet that was not answered is sent again as it is, until it is answered: the service fulfils
it each time and credits it once, and in the end both have the same in their books. With connectors between, each
of them would have to be paid again for that.
"""

import http.client
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from incoming_payments.limits import SENDER_PATIENCE_S_MAX, UINT64_MAX
from incoming_payments.testing._stream_sender import (
    IN_FLIGHT,
    LIFETIME_S,
    Books,
    Ending,
    Packet,
    Payee,
    Quote,
    StreamSender,
)

__all__ = [
    "IN_FLIGHT",
    "LIFETIME_S",
    "Books",
    "Ending",
    "Link",
    "NotTaken",
    "Packet",
    "Payee",
    "Post",
    "Quote",
    "StreamSender",
    "over_http",
    "pay",
    "quote",
]

_SAID_BYTES: Final = 500  # of what the service says to a sender that it does not want

Post = Callable[[bytes], bytes]
"""Hands over a packet and brings back the reply. Raises `OSError` when there is none, and `NotTaken` for good."""

Link = Callable[[], AbstractContextManager[Post]]
"""A way to the service: each thread opens one of its own."""


class NotTaken(Exception):
    """The service does not take packets from this sender, or the payment does not take money: the text says why."""


# --- threads ---------------------------------------------------------------------------------------------


def quote(link: Link, payee: Payee, amount: int) -> Quote:
    """Ask what would arrive of `amount`, and what the payment takes, without sending money. Raises `NotTaken`."""
    sender = StreamSender(payee, 0, probe=amount, now=_now(), in_flight_max=1)
    _Desk(sender, None).run(link, 1)
    if sender.quote is None:
        raise NotTaken(sender.books.reason or f"it ended with {sender.books.ending}")
    return sender.quote


def pay(
    link: Link,
    payee: Payee,
    amount: int,
    *,
    packet_max: int = UINT64_MAX,
    in_flight: int = IN_FLIGHT,
    patience_s: float = SENDER_PATIENCE_S_MAX,
    progress: Callable[[Books], object] | None = None,
) -> Books:
    """Send `amount` minor units to `payee`, in packets, with `in_flight` threads; the books at the end.

    `progress` is called with the books after each answer, from one thread at a time, which waits for it. The books say
    how it ended; `NotTaken` is raised when the service does not take packets from this sender at all. What is raised by
    `progress` ends the payment as well.

    ```python
    books = pay(over_http("https://bank.example/ilp", token), Payee.of(resource), 2500, packet_max=100)
    ```
    """
    sender = StreamSender(
        payee, amount, now=_now(), packet_max=packet_max, in_flight_max=in_flight, patience_s=patience_s
    )
    _Desk(sender, progress).run(link, in_flight)
    return sender.books


class _Desk:
    """A sender that several threads share: each takes a packet, posts it, and brings back the reply."""

    def __init__(self, sender: StreamSender, progress: Callable[[Books], object] | None) -> None:
        self._sender = sender
        self._progress = progress
        self._changed = threading.Condition()

    def run(self, link: Link, threads: int) -> None:
        """Work until it is over. Raises what a thread has raised first."""
        with ThreadPoolExecutor(threads) as pool:
            done = [pool.submit(self._work, link) for _ in range(threads)]
            try:
                for future in done:
                    future.result()
            except BaseException:
                self._stop("the sender was interrupted")
                raise

    def _work(self, link: Link) -> None:
        try:
            with link() as post:
                while (packet := self._take()) is not None:
                    self._bring(packet, self._reply(post, packet))
        except BaseException as error:
            self._stop(str(error))
            raise

    def _take(self) -> Packet | None:
        """The next packet, once there is one; `None` when it is over."""
        with self._changed:
            while not self._sender.is_over:
                packet = self._sender.next(now=_now(), nonce=os.urandom(12))
                if packet is not None:
                    return packet
                resumes_at = self._sender.resumes_at
                self._changed.wait(None if resumes_at is None else (resumes_at - _now()).total_seconds())
            return None

    @staticmethod
    def _reply(post: Post, packet: Packet) -> bytes | None:
        try:
            return post(packet.octets)
        except OSError:
            return None

    def _bring(self, packet: Packet, reply: bytes | None) -> None:
        with self._changed:
            if reply is None:
                self._sender.lost(packet, now=_now())
            else:
                self._sender.answered(packet, reply, now=_now())
            self._changed.notify_all()
            if self._progress is not None:
                self._progress(self._sender.books)

    def _stop(self, reason: str) -> None:
        with self._changed:
            self._sender.stop(reason)
            self._changed.notify_all()


def _now() -> datetime:
    return datetime.now(UTC)


# --- HTTP ------------------------------------------------------------------------------------------------


def over_http(url: str, token: str, *, timeout_s: float = LIFETIME_S) -> Link:
    """The way to a service that takes packets at `url` from the peer with the bearer `token`: RFC 35, as deployed.

    An answer that is none in time, or says that the service has trouble, counts as lost; any
    other than 200 is `NotTaken`.
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
                connection.close()  # it connects anew with the next request
                raise ConnectionError("no answer") from error
            if response.status == http.client.OK:
                return body
            if response.status >= http.client.INTERNAL_SERVER_ERROR or response.status == http.client.TOO_MANY_REQUESTS:
                raise ConnectionError(f"status {response.status}")
            said = body[:_SAID_BYTES].decode("utf-8", "replace")
            raise NotTaken(f"{url} takes no packets from this sender: status {response.status}: {said}")

        try:
            yield post
        finally:
            connection.close()

    return link

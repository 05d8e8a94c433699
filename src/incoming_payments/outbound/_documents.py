"""A bounded cache of JSON documents of other services, which fetches the documents over HTTP, sync and async.

The cache makes all decisions, and `Fetcher` only fetches and waits. For each URL, at most one fetch is in flight,
and at most one fetch starts in `limits.DOCUMENT_COOL_DOWN_S_MIN` seconds. The cache limits the number of fetches in
flight for unknown documents, and the number of fetches from one parent domain. After a failed fetch, the cached
document stays in use.
"""

import asyncio
import logging
import math
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from attrs import Factory, define, evolve, field, frozen

from incoming_payments.errors import PortUnavailable
from incoming_payments.httpsig import RequestMessage
from incoming_payments.limits import (
    DOCUMENT_BYTES_MAX,
    DOCUMENT_COOL_DOWN_S_MIN,
    DOCUMENT_STALE_S_MAX,
    DOCUMENTS_MAX,
    INTROSPECTION_S_MAX,
    MISSING_DOCUMENTS_MAX,
)
from incoming_payments.observers.log import LineLimit, LogEvent, log_event
from incoming_payments.outbound import _forks
from incoming_payments.outbound._http import HttpAnswer, HttpFailed, any_address, exceeds_share, parent_domain
from incoming_payments.outbound._loop_thread import LoopThread
from incoming_payments.outbound._settings import check_number, check_types, open_http
from incoming_payments.wire import strict

T = TypeVar("T")

logger: Final = logging.getLogger("incoming_payments.outbound")

_HEADERS: Final = (("Accept", "application/json"),)
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")  # the global unicast addresses (RFC 4291 §2.4)
# special-purpose addresses (IANA) for which `is_global` is true in some supported versions of Python
_SPECIAL: Final = tuple(
    map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "2001:db8::/32", "3fff::/20"))
)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether `address` is an ordinary address of the public internet.

    Private, loopback, link-local, multicast and reserved addresses are not ordinary. IPv6 addresses that contain an
    IPv4 address (mapped, 6to4, Teredo and NAT64) are not ordinary either.

    >>> from ipaddress import ip_address
    >>> [is_public(ip_address(text)) for text in ("9.9.9.9", "2620:fe::9", "10.0.0.1", "::ffff:9.9.9.9")]
    [True, True, False, False]
    """
    if not address.is_global or address.is_multicast:
        return False
    if any(address in network for network in _SPECIAL):
        return False
    return address.version == 4 or address in _GLOBAL_UNICAST


def read_object(answer: HttpAnswer) -> dict[str, Any]:
    """Return the JSON object in `answer`. Raises `HttpFailed` for a status other than 200 or another body."""
    if answer.status != 200:
        raise HttpFailed(f"the server answered with status {answer.status} instead of 200")
    try:
        return strict.read_object(answer.body)
    except ValueError as error:
        raise HttpFailed(f"the body {error}") from None


@define(eq=False)
class Entry(Generic[T]):
    """A URL in the cache, with its last document, the last attempt to fetch the document, and the fetch in flight."""

    url: str
    document: T | None = None
    fetched_at: float = -math.inf
    tried_at: float = -math.inf
    failure: str | None = None
    flight: "Future[None] | None" = None


@frozen(eq=False)
class Documents(Generic[T]):
    """The cache. Threads may share a cache.

    `read(url, answer, known)` returns the document in the answer of `url`, or `None` if there is no document. `known`
    is the cached document. `read` raises `HttpFailed` for an invalid answer. `unavailable` is the error for a document
    that is not available now. A document is fetched again after `max_age_s` seconds of `clock`. At most `fetches`
    fetches of unknown documents are in flight, and at most `fetches` fetches of cached documents. `of_domain_max` is
    the share of each parent domain in both numbers (see `exceeds_share`).
    """

    read: Callable[[str, HttpAnswer, T | None], T | None]
    unavailable: type[PortUnavailable]
    max_age_s: float
    clock: Callable[[], float]
    fetches: int
    of_domain_max: int
    _entries: dict[str, Entry[T]] = field(init=False, factory=dict)
    # the fetches in flight of unknown and of known documents, with their parent domains
    _first: "dict[Future[None], str]" = field(init=False, factory=dict)
    _again: "dict[Future[None], str]" = field(init=False, factory=dict)
    _lock: Any = field(init=False, factory=threading.Lock)
    _lines: LineLimit = field(init=False, default=Factory(lambda self: LineLimit(clock=self.clock), takes_self=True))

    def begin(self, url: str, suffices: Callable[[T], bool]) -> tuple[Entry[T], "Future[None] | None", bool]:
        """Return the entry of `url`, the fetch to wait for or `None`, and whether the caller has to do that fetch.

        A fetch is due when the document is unknown, too old or not sufficient, unless the last fetch was a short time
        ago. While too many other fetches are in flight, a cached document stays in use, and a later call may begin the
        fetch. Raises `unavailable` if there is no usable document in the cache. In that case, the cache does not
        change.
        """
        with self._lock:
            now = self.clock()
            entry = self._entries.get(url) or Entry[T](url)
            rests = now - entry.tried_at < DOCUMENT_COOL_DOWN_S_MIN
            is_young = now - entry.fetched_at <= self.max_age_s
            is_enough = is_young and entry.document is not None and suffices(entry.document)
            begins = entry.flight is None and not rests and not is_enough
            refusal = self._refusal(entry) if begins else None
            if refusal is not None and not self._is_of_use(entry, suffices):
                raise self.unavailable(refusal)
            self._keep(entry)
            if refusal is not None or not begins:
                return entry, entry.flight, False
            entry.flight = Future()
            self._in_flight(entry)[entry.flight] = _domain(url)
            entry.flight.set_running_or_notify_cancel()  # a caller that stops waiting does not cancel the fetch
            return entry, entry.flight, True

    def end(self, entry: Entry[T], flight: "Future[None]", outcome: HttpAnswer | HttpFailed) -> None:
        """Record the outcome of the fetch `flight`, and wake the callers that wait for it."""
        try:
            if isinstance(outcome, HttpFailed):
                raise outcome
            document, failure = self.read(entry.url, outcome, entry.document), None
        except HttpFailed as error:
            document, failure = entry.document, f"{entry.url} cannot be used: {error.description}"
        with self._lock:
            now = self.clock()
            if failure is None:
                entry.fetched_at = now
            age_s = now - entry.fetched_at
            entry.document, entry.failure, entry.tried_at = document, failure, now
            entry.flight = None
            self._first.pop(flight, None)
            self._again.pop(flight, None)
        if failure is not None and document is not None and self._lines.admits(logger, "failed refreshes of documents"):
            text = (
                "a document could not be fetched again, so the cached document, which is %.0f s old, stays in use: %s"
            )
            log_event(logger, logging.WARNING, LogEvent.DOCUMENT_REFRESH_FAILED, text, age_s, failure)
        flight.set_result(None)

    def result(self, entry: Entry[T], suffices: Callable[[T], bool]) -> T | None:
        """Return the document, or `None` if it does not exist. Raises `unavailable` when it is not available now."""
        with self._lock:
            if entry.failure is None or self._is_of_use(entry, suffices):
                return entry.document
        raise self.unavailable(entry.failure)

    def cached(self, entry: Entry[T], suffices: Callable[[T], bool]) -> T | None:
        """Return the cached document, for a caller that may not wait for the fetch. Raises `unavailable`."""
        with self._lock:
            if self._is_of_use(entry, suffices):
                return entry.document
        raise self.unavailable(f"too many other threads wait for the fetch of {entry.url} or of other documents")

    def late(self, url: str) -> PortUnavailable:
        """Return the error to raise when a fetch by another thread or event loop does not end."""
        return self.unavailable(f"another thread or event loop is still fetching {url}: repeat the request later")

    def _is_of_use(self, entry: Entry[T], suffices: Callable[[T], bool]) -> bool:
        """Return whether the cached document may stay in use when no fetch succeeds."""
        age_s = self.clock() - entry.fetched_at
        is_of_use = age_s <= self.max_age_s + DOCUMENT_STALE_S_MAX
        return is_of_use and entry.document is not None and suffices(entry.document)

    def _in_flight(self, entry: Entry[T]) -> "dict[Future[None], str]":
        return self._first if entry.document is None else self._again

    def _refusal(self, entry: Entry[T]) -> str | None:
        """Return the reason why no fetch of `entry` may begin now, or `None` if it may begin."""
        others, domain = self._in_flight(entry).values(), _domain(entry.url)
        text = f"{entry.url} is not fetched now, because too many other documents"
        if len(others) >= self.fetches:
            return f"{text} are being fetched"
        if exceeds_share(domain, others, most=self.fetches, of_domain=self.of_domain_max):
            return f"{text} of {domain} are being fetched"
        return None

    def _keep(self, entry: Entry[T]) -> None:
        """Make `entry` the most recently used entry. A new entry may take the place of another one.

        Entries without a document have places of their own. Otherwise a cache full of documents would forget a failed
        fetch at once, and the next request would begin another fetch.
        """
        if self._entries.pop(entry.url, None) is None:
            self._drop_oldest(DOCUMENTS_MAX, [other for other in self._entries.values() if other.document is not None])
            self._drop_oldest(
                MISSING_DOCUMENTS_MAX, [other for other in self._entries.values() if other.document is None]
            )
        self._entries[entry.url] = entry

    def _drop_oldest(self, most: int, kept: Sequence[Entry[T]]) -> None:
        """If `kept` has `most` entries or more, drop the least recently used one that has no fetch in flight."""
        if len(kept) >= most:
            idle = next(entry for entry in kept if entry.flight is None)
            del self._entries[idle.url]


def _domain(url: str) -> str:
    return parent_domain(urlsplit(url).hostname or "")


_INTERRUPTED: Final = HttpFailed("the fetch was interrupted: try again")
# Seconds to wait after the timeout of a fetch. If the fetch has not ended by then, its thread has stopped.
_SLACK_S: Final = 1.0


class Fetcher(Generic[T]):
    """Fetch documents, in a thread of its own. A hostile server cannot occupy the event loop of a caller.

    At most `fetches` threads wait for the fetches of other threads, because one slow server could occupy all threads of
    a WSGI server.
    """

    def __init__(
        self, documents: Documents[T], *, timeout_s: float, allow_private: bool, tls: ssl.SSLContext | None
    ) -> None:
        """Raise `ConfigurationError` for a wrong setting."""
        check_number("timeout_s", timeout_s, 0.01, INTROSPECTION_S_MAX)
        check_number("max_age_s", documents.max_age_s, DOCUMENT_COOL_DOWN_S_MIN, DOCUMENT_STALE_S_MAX)
        check_types(bool, {"allow_private": allow_private})
        check_types(ssl.SSLContext, {"tls": tls})
        self._empty = documents
        self._timeout_s = timeout_s
        self._tls = tls
        self._may_connect = any_address if allow_private else is_public
        _forks.begin(self)

    def begin(self) -> None:
        """Start with no document, no connection and no thread."""
        self._documents = evolve(self._empty)
        # Clients choose the hosts, so idle connections could use up the file descriptors of the process.
        self._http = open_http(bytes_max=DOCUMENT_BYTES_MAX, tls=self._tls, may_connect=self._may_connect, keeps=False)
        self._thread = LoopThread(self._http, rests=True)
        self._waits = threading.Semaphore(self._documents.fetches)

    def look_up(self, url: str, suffices: Callable[[T], bool]) -> T | None:
        """Return the document at `url`, or `None` if it does not exist. See `Documents.result`."""
        entry, flight, is_mine = self._begin_fetch(url, suffices)
        if flight is not None:
            if is_mine:
                self._wait(url, flight)
            elif self._waits.acquire(blocking=False):
                try:
                    self._wait(url, flight)
                finally:
                    self._waits.release()
            else:
                return self._documents.cached(entry, suffices)
        return self._documents.result(entry, suffices)

    def _wait(self, url: str, flight: "Future[None]") -> None:
        try:
            flight.result(self._timeout_s + _SLACK_S)
        except TimeoutError:
            raise self._documents.late(url) from None

    async def look_up_async(self, url: str, suffices: Callable[[T], bool]) -> T | None:
        """Return the same as `look_up`."""
        entry, flight, _ = self._begin_fetch(url, suffices)
        if flight is not None:
            try:
                async with asyncio.timeout(self._timeout_s + _SLACK_S):
                    await asyncio.wrap_future(flight)
            except TimeoutError:
                raise self._documents.late(url) from None
        return self._documents.result(entry, suffices)

    def _begin_fetch(self, url: str, suffices: Callable[[T], bool]) -> tuple[Entry[T], "Future[None] | None", bool]:
        """Return the same as `Documents.begin`, and begin the fetch if it belongs to this caller."""
        entry, flight, is_mine = self._documents.begin(url, suffices)
        if flight is not None and is_mine:
            try:
                work = self._thread.submit(self._fetch(entry, flight))
            except HttpFailed as error:
                self._documents.end(entry, flight, error)
            else:
                work.add_done_callback(lambda _: self._end(entry, flight))
        return entry, flight, is_mine

    async def _fetch(self, entry: Entry[T], flight: "Future[None]") -> None:
        outcome: HttpAnswer | HttpFailed
        try:
            outcome = await self._http.send(RequestMessage("GET", entry.url, _HEADERS), timeout_s=self._timeout_s)
        except HttpFailed as error:
            outcome = error
        self._documents.end(entry, flight, outcome)

    def _end(self, entry: Entry[T], flight: "Future[None]") -> None:
        """Wake the callers of a fetch that was interrupted."""
        if not flight.done():
            self._documents.end(entry, flight, _INTERRUPTED)

    def close(self) -> None:
        """Close the connections."""
        self._thread.close()

"""An HTTP exchange with a limit on its time and its size. `_aiohttp` implements such exchanges.

```
client = AsyncHttpClient(bytes_max=65_536)
answer = await client.send(RequestMessage("GET", url, ()), timeout_s=3)
```

The client follows no redirect, keeps no cookie, decodes no content coding and uses no proxy of the environment. It does
not repeat a request. The sync ports run the client in a `LoopThread`.

HTTP/1.1 matches answers to requests only by their order on a connection. So a connection carries another request only
if exactly one final, well-formed answer has arrived for each earlier request. `Received` compares all bytes with the
grammar of RFC 9112, because aiohttp also accepts malformed answers. An interim response, a byte after
the answer, or a byte while the connection is idle also closes the connection. The client checks for such a byte
directly before it writes the request. A server may send an unsolicited answer in the short time between this check and
the arrival of the request. The client cannot distinguish this answer from a fast one.
"""

import errno
import re
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

from attrs import field, frozen

from incoming_payments.errors import PortUnavailable
from incoming_payments.limits import (
    ANSWER_LINES_MAX,
    ANSWER_OVERHEAD_BYTES_MAX,
    ANSWER_PIECES_MAX,
    INTERIM_RESPONSES_MAX,
    LOOK_UP_ADDRESSES_MAX,
    LOOK_UPS_MAX,
    LOOK_UPS_OF_DOMAIN_MAX,
)

CONNECTIONS_DEFAULT: Final = 32  # the number of connections of one client to one host, in use or idle
_ERROR_CHARS_MAX: Final = 500  # a limit for error texts, because an error may repeat a line of 64 KB from the server

# RFC 9112 §4 and §5: a final status line and the fields. Some servers leave out the space before an empty reason.
_TEXT: Final = rb"[^\x00-\x08\x0a-\x1f\x7f]*+"
_HEAD: Final = re.compile(
    rb"HTTP/1\.1 ([2-5][0-9]{2})(?: " + _TEXT + rb")?\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]++:" + _TEXT + rb"\r\n)*+)\r\n"
)
# RFC 9112 §6.3: responses with these statuses have no body, even if their header fields announce one.
_NO_BODY: Final = (b"204", b"304")
_FRAMING: Final = re.compile(rb"(?im)^(content-length|transfer-encoding):(.*)\r$")
# the end of response headers, and the beginning of a final response, in all spellings that the HTTP libraries accept
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_FINAL: Final = re.compile(rb"\s*HTTP/[0-9]\.[0-9][ \t]+[2-9][0-9]{2}")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")

MayConnect = Callable[[IPv4Address | IPv6Address], bool]


@frozen
class HttpAnswer:
    """The answer of a server: its status, its header fields and its whole body. `headers` ignores case."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


class HttpFailed(PortUnavailable):
    """The connection to a server failed, or its answer was too late, too large or not HTTP.

    If `is_connection` is true, the connection failed before any byte of an answer arrived, and a retry may help.
    """

    def __init__(self, description: str, *, is_connection: bool = False) -> None:
        super().__init__(description)
        self.is_connection = is_connection


class AnswerTooLarge(HttpFailed):
    """The server sent more bytes than the limit."""


class AddressRefused(OSError):
    """The client may not connect to this IP address."""


def any_address(_: IPv4Address | IPv6Address) -> bool:
    """Return `True`, because a client may connect to any address of a server that the operator names."""
    return True


def check_address(may_connect: MayConnect, address: str) -> None:
    """Raise `AddressRefused` unless `may_connect` allows the IP address. The address must be that of the socket."""
    if not may_connect(ip_address(address)):
        text = f"this client may not connect to the address {address}, which is not public (see allow_private)"
        raise AddressRefused(errno.EACCES, text)


def new_tls() -> ssl.SSLContext:
    """Return a TLS context that verifies certificates, and offers only the key exchange ECDHE on the curve P-256.

    The server chooses among the offers of the client. A finite-field exchange (`DHE`, `ffdhe8192`) with a long prime
    would stop an event loop for seconds. All servers of TLS 1.3 support P-256 (RFC 8446 §9.1).
    """
    tls = ssl.create_default_context()
    # the ciphers of TLS 1.2 only, because the cipher names of TLS 1.3 include no key exchange
    tls.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    tls.set_ecdh_curve("prime256v1")
    tls.options |= ssl.OP_NO_RENEGOTIATION
    tls.set_alpn_protocols(["http/1.1"])
    return tls


# shared by all clients, because loading the certificate authorities of the system takes 20 ms
default_tls = cache(new_tls)


class Received:
    """The received bytes of one exchange: interim responses, the header fields, and the body with its framing."""

    def __init__(self, body_bytes_max: int) -> None:
        self._bytes_max = body_bytes_max + ANSWER_OVERHEAD_BYTES_MAX
        self._bytes = bytearray()
        self._head_at = 0
        self._pieces = self._lines = 0
        self._interim = 0
        self._is_final = False

    def add(self, data: memoryview) -> None:
        """Add received `data`. Raise `ValueError` for more bytes, pieces, lines or interim responses than allowed."""
        if len(self._bytes) + len(data) > self._bytes_max:
            raise ValueError(f"the server sent more than {self._bytes_max} bytes")
        self._pieces += 1
        if self._pieces > ANSWER_PIECES_MAX:
            raise ValueError(f"the answer arrived in more than {ANSWER_PIECES_MAX} pieces")
        before = len(self._bytes)
        self._bytes += data
        self._lines += self._bytes.count(b"\n", before)
        if self._lines > ANSWER_LINES_MAX:
            raise ValueError(f"the server sent more than {ANSWER_LINES_MAX} lines")
        begin = max(self._head_at, before - 2)  # a blank line may have begun in these bytes
        while not self._is_final and (blank := _BLANK_LINE.search(self._bytes, begin)):
            self._is_final = _FINAL.match(self._bytes, self._head_at) is not None
            self._interim += not self._is_final  # this also counts malformed interim responses
            self._head_at = begin = blank.end()
            # Check this in the loop: the server may send thousands of blank lines, and `_FINAL` skips all of them.
            if self._interim > INTERIM_RESPONSES_MAX:
                raise ValueError(f"the server sent more than {INTERIM_RESPONSES_MAX} interim responses")

    def is_one_answer(self) -> bool:
        """Return whether the bytes are exactly one final, well-formed answer with an unambiguous end.

        RFC 9112 §6: the answer gives its length, is chunked, or has a status without a body. Chunk extensions and
        trailers are legal, but rare, and readers interpret them in different ways. So the result is false for an answer
        that has them.
        """
        head = _HEAD.match(self._bytes)
        if head is None:
            return False
        framing = _FRAMING.findall(head[2])
        if head[1] in _NO_BODY and not framing:
            return len(self._bytes) == head.end()
        if len(framing) != 1 or (head[1] in _NO_BODY and len(self._bytes) > head.end()):
            return False
        name, value = framing[0][0].lower(), framing[0][1].strip(b" \t").lower()
        if name == b"content-length":
            return bool(value == b"%d" % (len(self._bytes) - head.end()))
        return value == b"chunked" and _are_chunks(self._bytes, head.end())


def _are_chunks(data: bytearray, at: int) -> bool:
    """Return whether `data` from the index `at` is a whole body in chunks. RFC 9112 §7.1."""
    while size := _CHUNK_SIZE.match(data, at):
        count = int(size[1], 16)
        at = size.end() + count + 2
        if data[at - 2 : at] != b"\r\n":
            return False
        if not count:
            return at == len(data)
    return False


def parent_domain(host: str) -> str:
    """Return the last two labels of `host`, because the owner of a domain can make any number of names below it.

    All names below a public suffix of two labels, such as `co.uk`, count as one domain. So no list of public suffixes
    is needed. All IP addresses count as one domain too, because anyone can name any number of addresses that do not
    answer. The last label of a domain name never begins with a digit (RFC 3696 §2).

    >>> parent_domain("a.b.wallet.example."), parent_domain("shop.co.uk"), parent_domain("localhost")
    ('wallet.example', 'co.uk', 'localhost')
    >>> parent_domain("9.9.9.9"), parent_domain("2620:fe::9"), parent_domain("0x7f.1")
    ('IP addresses', 'IP addresses', 'IP addresses')
    """
    labels = host.rstrip(".").lower().split(".")
    return "IP addresses" if ":" in host or labels[-1][:1].isdigit() else ".".join(labels[-2:])


def exceeds_share(domain: str, in_progress: Collection[str], *, most: int, of_domain: int) -> bool:
    """Return whether `domain` already uses its share of the `most` tasks.

    `in_progress` has the domain of each task in progress. Tasks for one domain may fill the first half of `most`.
    Honest clients share a domain too, for example at a wallet provider or below `co.uk`, and a new process meets many
    of these clients at once. In the second half, each domain has at most `of_domain` tasks. So if `most` is 128 and
    `of_domain` is 2, an attacker with slow servers needs 33 domains to keep others out.

    >>> exceeds_share("a.example", ["a.example"] * 3, most=8, of_domain=1)
    False
    >>> [exceeds_share(name, ["a.example"] * 4, most=8, of_domain=1) for name in ("a.example", "b.example")]
    [True, False]
    """
    return len(in_progress) >= most // 2 and list(in_progress).count(domain) >= of_domain


class LookUps:
    """Look up the addresses of host names, each in its own thread, because the system's look-up has no timeout.

    `limits.LOOK_UPS_MAX` and `limits.LOOK_UPS_OF_DOMAIN_MAX` limit the number of threads (see `exceeds_share`). A
    look-up counts until its thread ends, which may take half a minute if no name server answers. Callers that look up
    the same host name at the same time share a thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_progress: dict[tuple[str, int], Future[list[Any]]] = {}

    def start(self, host: str, port: int) -> "Future[list[Any]]":
        """Return a future for the addresses of `host`, in the form of `socket.getaddrinfo`. Raises `OSError`."""
        key = host.strip("[]"), port
        with self._lock:
            if known := self._in_progress.get(key):
                return known
            self._check_limits(parent_domain(key[0]))
            started = self._in_progress[key] = Future()
            started.set_running_or_notify_cancel()  # a caller that stops waiting does not cancel the look-up
        try:
            threading.Thread(target=self._look_up, args=key, daemon=True, name=f"look up {host}").start()
        except RuntimeError as error:  # the system cannot start another thread
            self._end(key)
            raise OSError(errno.EAGAIN, str(error)) from error
        return started

    def _check_limits(self, domain: str) -> None:
        others = [parent_domain(host) for host, _ in self._in_progress]
        if len(others) >= LOOK_UPS_MAX:
            raise OSError(errno.EAGAIN, f"{LOOK_UPS_MAX} other names are being looked up, which is the limit")
        if exceeds_share(domain, others, most=LOOK_UPS_MAX, of_domain=LOOK_UPS_OF_DOMAIN_MAX):
            raise OSError(errno.EAGAIN, f"too many other names of {domain} are being looked up at the same time")

    def _look_up(self, host: str, port: int) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:  # a ValueError means that the name cannot be in the DNS
            self._end((host, port)).set_exception(error)
        else:
            self._end((host, port)).set_result(found[:LOOK_UP_ADDRESSES_MAX])

    def _end(self, key: tuple[str, int]) -> "Future[list[Any]]":
        with self._lock:
            return self._in_progress.pop(key)


def too_late(url: str, timeout_s: float) -> HttpFailed:
    """Return the failure of an exchange that did not end in time."""
    return HttpFailed(f"{url} did not answer within {timeout_s:.3g} s")


def too_large(url: str, bytes_max: int) -> HttpFailed:
    """Return the failure of an answer that is larger than the limit."""
    return AnswerTooLarge(f"the answer of {url} is larger than {bytes_max} bytes")


def failed(url: str, error: BaseException, *, is_connection: bool) -> HttpFailed:
    """Turn `error` of the HTTP library into an `HttpFailed`."""
    why = "cannot be reached" if is_connection else "gave no valid TLS or HTTP answer"
    # the text must fit on one log line
    text = "".join(char if char.isprintable() else " " for char in str(error)[:_ERROR_CHARS_MAX])
    return HttpFailed(f"{url} {why}: {type(error).__name__}: {text}", is_connection=is_connection)

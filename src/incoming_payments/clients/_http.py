"""One HTTP exchange with a limit on its time and its size. `_urllib3` and `_aiohttp` are its two implementations.

```
client = HttpClient(bytes_max=65_536)                   # or AsyncHttpClient, with `await` and `aclose`
answer = client.send(RequestMessage("GET", url, ()), timeout_s=3)
```

Both follow no redirect, keep no cookie, decode no content coding and use no proxy of the environment. Neither repeats a
request.
"""

import errno
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

from attrs import field, frozen

from incoming_payments.errors import PortUnavailable
from incoming_payments.limits import LOOK_UPS_MAX

CONNECTIONS_MAX: Final = 32  # the default for one client: the connections to one host, in use or kept
_ERROR_CHARS_MAX: Final = 500  # the error may repeat a line of 64 KB from the server
HOSTS_MAX: Final = 64  # hosts to which a sync client keeps connections

MayConnect = Callable[[IPv4Address | IPv6Address], bool]


@frozen
class HttpAnswer:
    """The answer of a server: its status, its header fields and its whole body. `headers` ignores case."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


class HttpFailed(PortUnavailable):
    """A server gave no usable answer: no connection, too late, too large, or no HTTP.

    `is_connection` is true when the connection failed before any byte of an answer, so that a retry may help.
    """

    def __init__(self, description: str, *, is_connection: bool = False) -> None:
        super().__init__(description)
        self.is_connection = is_connection


class AnswerTooLarge(HttpFailed):
    """The server answered with more bytes than the limit."""


class AddressRefused(OSError):
    """The client may not connect to this IP address."""


def any_address(_: IPv4Address | IPv6Address) -> bool:
    """Return `True`: connect to any address, for servers that the operator names."""
    return True


def check_address(may_connect: MayConnect, address: str) -> None:
    """Raise `AddressRefused` unless `may_connect` allows the IP address. Call this with the address of the socket."""
    if not may_connect(ip_address(address)):
        raise AddressRefused(errno.EACCES, f"this client may not connect to the address {address}")


class LookUps:
    """Looks up the addresses of names, each in a thread, because the look-up of the system has no timeout.

    At most `limits.LOOK_UPS_MAX` are in progress, so names with a slow resolver cannot use up all threads. Callers that
    look up the same name at the same time share a thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_progress: dict[tuple[str, int], Future[list[Any]]] = {}

    def start(self, host: str, port: int) -> "Future[list[Any]]":
        """Return the future addresses of `host`, as `socket.getaddrinfo` gives them. Raises `OSError`."""
        key = host.strip("[]"), port
        with self._lock:
            if answer := self._in_progress.get(key):
                return answer
            if len(self._in_progress) >= LOOK_UPS_MAX:
                raise OSError(errno.EAGAIN, f"{LOOK_UPS_MAX} other names are being looked up")
            answer = self._in_progress[key] = Future()
            answer.set_running_or_notify_cancel()  # a caller that stops waiting does not cancel the look-up
        try:
            threading.Thread(target=self._look_up, args=key, daemon=True, name=f"look up {host}").start()
        except RuntimeError as error:  # the system has no more threads
            self._end(key)
            raise OSError(errno.EAGAIN, str(error)) from error
        return answer

    def _look_up(self, host: str, port: int) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:  # ValueError: the name cannot be in the DNS
            self._end((host, port)).set_exception(error)
        else:
            self._end((host, port)).set_result(found)

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
    """Return the failure that `error` of the HTTP library stands for."""
    why = "cannot be reached" if is_connection else "gave no valid HTTP answer"
    text = "".join(char if char.isprintable() else " " for char in str(error)[:_ERROR_CHARS_MAX])  # one line of a log
    return HttpFailed(f"{url} {why}: {type(error).__name__}: {text}", is_connection=is_connection)

"""The sockets on which `serve` accepts connections."""

import errno
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from incoming_payments.errors import ConfigurationError
from incoming_payments.limits import BACKLOG_CONNECTIONS_MAX

Listeners = tuple[socket.socket, ...]  # the sockets of one process

_HOST_ERROR: Final = ("listen.host", "give an address of this machine, such as 127.0.0.1")
_PORT_ERRORS: Final = {
    errno.EADDRINUSE: (
        "stop the program that listens there, or give another port; if base_url contains the port, change it too"
    ),
    errno.EACCES: "give a port above 1023, because lower ports need privileges",
}


@contextmanager
def open_listeners(
    host: str, port: int, count: int = 1, *, setting: str = "listen.port"
) -> Iterator[Sequence[Listeners]]:
    """Listen on `host` and `port` with a socket for each of `count` processes, and close the sockets at the end.

    `setting` is the name of the port in errors.

    Open the sockets before the database, so that a wrong address creates no file. The sockets stay open when a process
    is killed. So connections that the process has not accepted wait for its successor.

    Linux gives all sockets about the same number of connections. If all processes shared one socket, the first process
    to wake up would accept most of a burst. Other systems do not share connections between sockets, so all processes
    share one socket.

    Raises `ConfigurationError` when the service cannot listen on `host` and `port`.
    """
    with ExitStack() as opened:
        first = opened.enter_context(_listener(host, port, setting))
        if count == 1 or sys.platform != "linux":
            yield [(first,)] * count
            return
        # Set SO_REUSEPORT only now. With this option, `bind` succeeds even if another program of the user has the port.
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        more = [opened.enter_context(_listener(host, port, setting, is_shared=True)) for _ in range(count - 1)]
        yield [(first,), *[(one,) for one in more]]


def _listener(host: str, port: int, setting: str, *, is_shared: bool = False) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server(
            (host, port), family=family, backlog=BACKLOG_CONNECTIONS_MAX, reuse_port=is_shared
        )
    except (OSError, UnicodeError) as error:  # a UnicodeError means an invalid host name
        # The rest of the text repeats the address.
        why = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        advice = _PORT_ERRORS.get(getattr(error, "errno", None) or 0)
        name, how = _HOST_ERROR if advice is None else (setting, advice)
        text = f"{name}: cannot listen on {host} port {port}: {why}; {how}"
        raise ConfigurationError(text, setting=name) from None
    # Accepted sockets inherit TCP_NODELAY. If it is off, a response can wait 40 ms for the client's acknowledgement,
    # because uvicorn writes headers and body separately. asyncio sets the option only for sockets that were made with a
    # protocol number.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener

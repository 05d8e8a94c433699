"""HTTP as bytes on a socket, so that what is sent arrives as it is meant, and what comes back is seen as it came."""

import itertools
import json
import re
import socket
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from campaigns.attacks.rows import Answer
from incoming_payments.httpsig import RequestMessage

_DEADLINE_S: Final = 30.0  # ends a test that would hang
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def as_bytes(request: RequestMessage, base_url: str) -> bytes:
    """`request` as a client sends it to the service at `base_url`, on a connection that is closed afterwards.

    A target that is not at the service goes in absolute form. `Host` and, with a body, `Content-Length` are added where
    they are missing, as there is no HTTP without.
    """
    target = request.target_uri.removeprefix(origin_of(base_url)) or "/"
    lines = [f"{request.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in request.headers)]
    if not request.values("host"):
        lines.append(f"Host: {urlsplit(base_url).netloc}")
    if request.body and not request.values("content-length"):
        lines.append(f"Content-Length: {len(request.body)}")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + request.body


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL."""
    return "/".join(url.split("/", 3)[:3])


def exchange(port: int, data: bytes, *, ends_early: bool = False) -> bytes:
    """All that comes back for `data`; `ends_early` when the client has nothing more to send, though it said so."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=_DEADLINE_S) as connection:
        with suppress(ConnectionError):  # it does not want to hear all of it, and has said why
            connection.sendall(data)
            if ends_early:
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while piece := connection.recv(65536):
                received += piece
    return bytes(received)


def answers(data: bytes) -> list[Answer]:
    """The final answers in what came back, in order; interim ones are passed over. RFC 9110 §15.2."""
    found: list[Answer] = []
    starts = [*(match.start() for match in _STATUS.finditer(data)), len(data)]
    for start, end in itertools.pairwise(starts):
        head, _, body = data[start:end].partition(b"\r\n\r\n")
        status = int(head[9:12])
        if status >= 200:
            found.append((status, _code(body)))
    return found


def _code(body: bytes) -> str | None:
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError):
        return None

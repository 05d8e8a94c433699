"""HTTP as bytes on a socket, so that no HTTP library changes a request or a response."""

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
    """Return the bytes of `request` for the service at `base_url`, with `Connection: close`.

    A target outside the service is in absolute form. A missing `Host` is added, and a missing `Content-Length` if there
    is a body.
    """
    target = request.target_uri.removeprefix(origin_of(base_url)) or "/"
    lines = [f"{request.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in request.headers)]
    if not request.values("host"):
        lines.append(f"Host: {urlsplit(base_url).netloc}")
    if request.body and not request.values("content-length"):
        lines.append(f"Content-Length: {len(request.body)}")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + request.body


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL."""
    return "/".join(url.split("/", 3)[:3])


def exchange(port: int, data: bytes, *, ends_early: bool = False) -> bytes:
    """Send `data`, and return all received bytes. With `ends_early`, end the stream after `data`."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=_DEADLINE_S) as connection:
        with suppress(ConnectionError):  # the server may refuse the request before its end
            connection.sendall(data)
            if ends_early:
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while piece := connection.recv(65536):
                received += piece
    return bytes(received)


def answers(data: bytes) -> list[Answer]:
    """Return the final responses in `data`, in order, without interim ones. RFC 9110 §15.2."""
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

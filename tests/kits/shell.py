"""A shell, the real `curl`, and a server that records its requests, for tests of printed commands."""

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import pytest
from attrs import field, frozen

from incoming_payments.httpsig import RequestMessage

needs_curl: Final = pytest.mark.skipif(
    os.name != "posix" or shutil.which("curl") is None, reason="the command needs a POSIX system with curl"
)
_DEADLINE_S: Final = 60.0
_ANSWER: Final = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


def sh(command: str | bytes, folder: Path | None = None) -> "subprocess.CompletedProcess[bytes]":
    """Run a command line by `sh -c`, without the user's settings, and wait for its end."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        timeout=_DEADLINE_S,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env={**environment, "HOME": os.devnull, "CURL_HOME": os.devnull},
    )


@frozen
class Recorder:
    """A server on loopback that records each request byte for byte."""

    port: int
    _requests: list[RequestMessage] = field(factory=list)

    @property
    def base_url(self) -> str:
        """Return the URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    def taken(self) -> RequestMessage:
        """Return the only recorded request, and remove it."""
        [request] = self._requests
        self._requests.clear()
        return request

    def serve(self, listener: socket.socket) -> None:
        """Accept one request for each connection, until the listener is closed."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as file:
                if line := file.readline():
                    self._requests.append(_request(line, iter(file.readline, b"\r\n"), file))
                    connection.sendall(_ANSWER)


def _request(line: bytes, lines: Iterator[bytes], file: BinaryIO) -> RequestMessage:
    method, target, _ = line.decode("latin-1").split(" ")
    pairs = [field_line.decode("latin-1").rstrip("\r\n").split(":", 1) for field_line in lines]
    headers = tuple((name, value.strip(" ")) for name, value in pairs)
    lengths = [int(value) for name, value in headers if name.lower() == "content-length"]
    host = next(value for name, value in headers if name.lower() == "host")
    return RequestMessage(method, f"http://{host}{target}", headers, file.read(sum(lengths)))


@contextmanager
def recording() -> Iterator[Recorder]:
    """Run a server that accepts every request."""
    listener = socket.create_server(("127.0.0.1", 0))
    recorder = Recorder(listener.getsockname()[1])
    thread = threading.Thread(target=recorder.serve, args=(listener,))
    thread.start()
    try:
        yield recorder
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        listener.close()
        thread.join(_DEADLINE_S)

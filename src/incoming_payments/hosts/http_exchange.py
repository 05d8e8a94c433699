"""One request on a connection of `serve`, and its answer: what ASGI calls `scope`, `receive` and `send`. ASGI 3.0.

The connection feeds the request in and carries the answer out; in between the application runs, in a task of its own.
The head of an answer waits for the first of its content, so that an answer is written, and goes its way, in one piece.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import Final, Protocol

from incoming_payments.hosts.asgi import Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Field = tuple[bytes, bytes]  # the name of a header field in lower case, and its value

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n"
_STATUS_LINES: Final = {status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_FIELD: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+: [\t\x20-\x7e\x80-\xff]*\r\n")  # RFC 9110 §5.1 and §5.5


class Carrier(Protocol):
    """The connection, as an exchange knows it."""

    def default_fields(self) -> Iterable[Field]:
        """The header fields of every answer."""

    def write(self, data: bytes) -> None:
        """Send `data`."""

    async def drain(self) -> None:
        """Return when the client has taken enough of what was sent."""

    def taken(self) -> None:
        """The application has taken what there was of the body."""

    def answered(self) -> None:
        """The exchange that the application is at has its whole answer."""

    def abort(self) -> None:
        """End at once: nobody could tell any more what belongs to which answer."""


class Exchange:
    """A request whose header has arrived, as `scope` says it, and what becomes of it.

    `keeps` says whether another request may follow on `carrier`; `awaits_continue` that the client sends the body when
    it hears that it is wanted.
    """

    def __init__(self, carrier: Carrier, scope: Scope, *, keeps: bool, awaits_continue: bool) -> None:
        self.keeps = keeps
        self.is_whole = False  # all of the request has arrived
        self.is_begun = False  # some of the answer has been sent
        self.body = bytearray()  # what has arrived of it, and was not taken
        self._carrier = carrier
        self._scope = scope
        self._awaits_continue = awaits_continue
        self._is_over = False  # it is answered, or nobody waits for an answer
        self._is_taken = False  # the application has all of the body
        self._head = b""  # of the answer, until it is sent
        self._left: int | None = None  # bytes of content still to come, where the head says how many
        self._news = asyncio.Event()

    def feed(self, data: bytes) -> None:
        """More of the body has arrived."""
        self.body += data
        self._news.set()

    def end(self) -> None:
        """The request has arrived as a whole."""
        self.is_whole = True
        self._news.set()

    def lose(self) -> None:
        """Nobody waits for the answer any more: the application hears that the client is gone."""
        self._is_over = True
        self._news.set()

    async def run(self, application: Application) -> None:
        """Have it answered. An application that fails, or ends without an answer, ends the connection."""
        try:
            await application(self._scope, self._receive, self._send)
        except Exception:
            logger.exception("incoming payments: the application failed")
        finally:
            if not self._is_over:
                self._carrier.abort()

    async def _receive(self) -> Message:
        if self._awaits_continue:
            self._awaits_continue = False
            if not (self.body or self.is_whole or self._is_over):
                self._carrier.write(_CONTINUE)
        while not (self._is_over or self.body or (self.is_whole and not self._is_taken)):
            self._news.clear()
            await self._news.wait()
        if self._is_over:
            return {"type": "http.disconnect"}
        body, self.body, self._is_taken = bytes(self.body), bytearray(), self.is_whole
        self._carrier.taken()
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begin(message["status"], message["headers"])
            return
        await self._carrier.drain()
        if self._is_over:
            return
        content, ends = message.get("body", b""), not message.get("more_body", False)
        if self._left is not None:
            self._left -= len(content)
            if self._left < 0 or (ends and self._left):
                raise ValueError("the content of the answer is not as long as its Content-Length says")
        self.is_begun = True
        self._carrier.write(self._head + content)
        self._head = b""
        if ends:
            self.lose()
            self._carrier.answered()

    def _begin(self, status: int, fields: Iterable[Field]) -> None:
        if not self.is_whole:  # RFC 9112 §9.6: who is answered before the end of a request is told to end here
            self.keeps = False
        fields = [*self._carrier.default_fields(), *fields]
        length = dict(fields).get(b"content-length")
        if length is None:  # RFC 9112 §6.3: then the end of the connection is the end of the answer
            self.keeps = False
        elif self._scope["method"] != "HEAD":
            self._left = int(length)
        self._head = head_of(status, fields, keeps=self.keeps)


def head_of(status: int, fields: Iterable[Field], *, keeps: bool) -> bytes:
    """The head of an answer. RFC 9112 §4 and §5.

    Raises `ValueError` for fields that would not stay in their lines, and `KeyError` for a status that there is not.
    """
    lines = [_STATUS_LINES[status], *(_line(name, value) for name, value in fields), b"" if keeps else _CLOSE, b"\r\n"]
    return b"".join(lines)


@lru_cache(maxsize=256)
def _line(name: bytes, value: bytes) -> bytes:
    line = b"%s: %s\r\n" % (name, value)
    if not _FIELD.fullmatch(line):
        raise ValueError(f"no header field can be {name!r} with the value {value!r}")
    return line

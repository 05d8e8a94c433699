"""One request and its answer: applications that do well and badly, over real sockets on loopback."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import pytest

from connection_kit import GET, LAST, POST, Application, Bank, Patient, Receive, Scope, Send, a_bank, play, settle
from incoming_payments.hosts.http_exchange import head_of

HEAD: Final = GET.replace(b"GET", b"HEAD")
EARLY: Final = POST + b"12"  # and no more


class Writing(Patient):
    """The protocol, counting in how many pieces it writes."""

    pieces = 0

    def write(self, data: bytes) -> None:
        """Count."""
        Writing.pieces += 1
        super().write(data)


def saying(*parts: bytes, fields: Sequence[tuple[bytes, bytes]], status: int = 200) -> Application:
    """An application that answers so, without reading."""

    async def application(_bank: Bank, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": fields})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    return application


def exchanged(application: Application, sent: bytes = GET, protocol: type[Patient] = Patient) -> bytes:
    """All that comes back."""
    received = bytearray()

    async def story() -> None:
        async with a_bank(protocol, application) as bank:
            client = await bank.connect()
            await client.send(sent)
            await bank.until(lambda: not bank.state.tasks)
            await settle()
            client.writer.write_eof()
            received.extend(await client.rest())

    play(story)
    return bytes(received)


def length(count: int) -> list[tuple[bytes, bytes]]:
    """The field that tells it."""
    return [(b"content-length", b"%d" % count)]


ANSWERS: Final[dict[str, tuple[Application, bytes, bytes]]] = {
    "content": (saying(b"ab", b"cd", fields=length(4)), GET,
                b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabcd"),
    "none": (saying(fields=length(0), status=404), GET, b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"),
    "to HEAD": (saying(fields=length(4)), HEAD, b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"),
    "to the last request": (saying(fields=length(0)), LAST,
                            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
    "before the end of the request": (saying(fields=length(0)), EARLY,
                                      b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
    "of a length that is not told": (saying(b"ab", fields=[(b"a", b"b")]), GET + GET,
                                     b"HTTP/1.1 200 OK\r\na: b\r\nconnection: close\r\n\r\nab"),
}  # fmt: skip


@pytest.mark.parametrize(("application", "sent", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_answers(application: Application, sent: bytes, expected: bytes) -> None:
    """An answer says how long it is, and whether it is the last. RFC 9112 §6.3 and §9.6."""
    assert expected == exchanged(application, sent)


def test_the_fields_of_every_answer() -> None:
    """The date that the server keeps is in each."""
    dated: list[bytes] = []

    async def story() -> None:
        async with a_bank(Patient) as bank:
            bank.state.default_headers = [(b"date", b"today")]
            client = await bank.connect()
            await client.send(GET + b"\0\r\n\r\n")
            dated.append(await client.rest())

    play(story)
    assert dated[0].count(b"\r\ndate: today\r\n") == 2


def test_an_answer_is_written_in_one_piece() -> None:
    """Head and content go their way together."""
    Writing.pieces = 0
    assert exchanged(saying(fields=length(0)), protocol=Writing).startswith(b"HTTP/1.1 200 ")
    assert Writing.pieces == 1


async def failing(_bank: Bank, _scope: Scope, _receive: Receive, _send: Send) -> None:
    """Raises."""
    raise RuntimeError("it cannot")


async def silent(_bank: Bank, _scope: Scope, _receive: Receive, _send: Send) -> None:
    """Ends without an answer."""


LENGTH: Final = "the content of the answer is not as long as its Content-Length says"

# what it does, what the client sees of it, and why that was all
BAD: Final[dict[str, tuple[Application, bytes, list[str]]]] = {
    "raises": (failing, b"", ["it cannot"]),
    "says nothing": (silent, b"", []),
    "says too much": (saying(b"abc", fields=length(2)), b"", [LENGTH]),
    "says too little": (saying(b"a", fields=length(2)), b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na", [LENGTH]),
    "a line in a value": (saying(fields=[(b"a", b"b\r\nc: d")]), b"",
                          ["no header field can be b'a' with the value b'b\\r\\nc: d'"]),
    "a line in a name": (saying(fields=[(b"a\r\nb", b"c")]), b"",
                         ["no header field can be b'a\\r\\nb' with the value b'c'"]),
}  # fmt: skip


@pytest.mark.parametrize(("application", "expected", "said"), BAD.values(), ids=BAD)
def test_applications_that_do_not_answer(
    caplog: pytest.LogCaptureFixture, application: Application, expected: bytes, said: list[str]
) -> None:
    """The connection is cut before anything could be taken for an answer, and the log says why."""
    received: list[bytes] = []

    async def story() -> None:
        async with a_bank(Patient, application) as bank:
            client = await bank.connect()
            await client.send(GET + GET)
            await bank.until_open(0)
            received.append(await client.rest())

    play(story)
    assert received == [expected]
    assert said == [str(record.exc_info[1]) for record in caplog.records if record.exc_info]


def test_an_application_that_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """A server that stops may cancel what takes too long: the connection ends, and that is no failure."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(GET.replace(b"/small", b"/slow"))
            for task in bank.state.tasks:
                task.cancel()
            await bank.until_open(0)

    play(story)
    assert caplog.records == []


def test_what_the_application_hears() -> None:
    """The body as it comes, its end, and then nothing until the client is gone."""
    heard: list[dict[str, Any]] = []

    async def application(_bank: Bank, _scope: Scope, receive: Receive, send: Send) -> None:
        while not heard or heard[-1]["type"] != "http.disconnect":
            heard.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"for nobody"})

    async def story() -> None:
        async with a_bank(Patient, application) as bank:
            client = await bank.connect()
            await client.send(POST)
            await client.send(b"12")
            await client.send(b"34")
            assert len(heard) == 2
            await client.reset()
            await bank.until(lambda: not bank.state.tasks)

    play(story)
    assert heard == [
        {"type": "http.request", "body": b"12", "more_body": True},
        {"type": "http.request", "body": b"34", "more_body": False},
        {"type": "http.disconnect"},
    ]


def test_the_client_is_told_to_go_on_only_when_it_waits() -> None:
    """Not when the application never asks for the body."""
    sent = POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    assert exchanged(saying(fields=length(0)), sent).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("status", HTTPStatus)
def test_the_head_of_an_answer(status: HTTPStatus) -> None:
    """It names each status with its phrase, and says when it is the last."""
    line = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    assert head_of(status.value, [], keeps=True) == line + b"\r\n"
    assert head_of(status.value, [(b"a", b"b")], keeps=False) == line + b"a: b\r\nconnection: close\r\n\r\n"

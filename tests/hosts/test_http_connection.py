"""The bounds on connections: real sockets on loopback, and a loop whose clock is put forward instead of waiting."""

import asyncio
import errno
import gc
import json
import logging
import socket
import weakref
from typing import Final

import pytest

from connection_kit import (
    GET,
    LARGE,
    LAST,
    LIMIT_S,
    POST,
    Bank,
    Client,
    Patient,
    Receive,
    Scope,
    Send,
    Slots,
    a_bank,
    play,
    put_forward,
    settle,
    various,
)
from incoming_payments.hosts.http_connection import HttpConnection, bounded
from incoming_payments.limits import (
    BODY_BYTES_MAX,
    BODY_PIECES_MAX,
    CONNECTIONS_MAX,
    DROPPED_BYTES_MAX,
    HEAD_BYTES_MAX,
    HEAD_LINES_MAX,
    READ_BYTES_MAX,
    REQUEST_S_MAX,
)


class Counting(Patient):
    """The same, counting what it takes in, how much at most in one turn, and the pieces that the parser makes of it."""

    count = most = pieces = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count from nothing."""
        super().connection_made(transport)
        Counting.count = Counting.most = Counting.pieces = 0

    def buffer_updated(self, nbytes: int) -> None:
        """Count what comes."""
        Counting.count += nbytes
        Counting.most = max(Counting.most, nbytes)
        super().buffer_updated(nbytes)

    def on_body(self, body: bytes) -> None:
        """Count what is parsed."""
        Counting.pieces += 1
        super().on_body(body)


# --- without waiting -----------------------------------------------------------------------------


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """TCP_NODELAY is set on each connection, also where asyncio leaves it: on those of `serve`'s own listener."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                server = await asyncio.get_running_loop().create_server(bank.factory, sock=listener)
                client = Client(*await asyncio.open_connection(*listener.getsockname()))
                bank.clients.append(client)
                await client.send(GET)
                assert await client.answer() == b"done"
                kept = bank.protocol._transport.get_extra_info("socket")
                assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
                server.close()

    play(story)


# --- two lengths ---------------------------------------------------------------------------------

TWICE: Final = (
    b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n12\r\n0\r\n\r\n"
)
SWAPPED: Final = (
    b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n2\r\n12\r\n0\r\n\r\n"
)


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "pipelined"])
@pytest.mark.parametrize("sent", [TWICE, SWAPPED], ids=["length first", "chunks first"])
def test_a_request_with_two_lengths(before: bytes, sent: bytes) -> None:
    """It is refused, and whatever is behind it may be another client's, and is not looked at."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(before + sent + GET)
            if before:
                assert await client.answer() == b"done"
            assert (await client.head()).startswith(REFUSED)
            assert json.loads(await client.rest())["error"]["code"] == "invalid_http"

    play(story)


@pytest.mark.parametrize("name", [b"Content-Length", b"Transfer-Encoding"])
def test_others_may_follow_a_request_with_one_length(name: bytes) -> None:
    """A length or chunks alone leave the connection open."""
    lines = [line for line in TWICE.partition(b"\r\n\r\n")[0].split(b"\r\n") if not line.startswith(name)]
    body = b"2\r\n12\r\n0\r\n\r\n" if name == b"Content-Length" else b"1234"

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(b"\r\n".join([*lines, b"", body]) + GET)
            assert await client.answer() in (b"12", b"1234")
            assert await client.answer() == b"done"

    play(story)


# --- too slow ------------------------------------------------------------------------------------

# what was sent when the client fell silent
SILENT: Final = {
    "nothing": b"",
    "half a request line": b"GET / HT",
    "half of the header": b"GET / HTTP/1.1\r\nHost: x\r\n",
    "a header whose body never comes": POST,
    "half of a body": POST + b"12",
    "half of the second request": GET + b"GET / HTTP/1.1\r\n",
    "half of a body that was answered already": POST.replace(b"/echo", b"/early") + b"12",
}


@pytest.mark.parametrize("sent", SILENT.values(), ids=SILENT)
def test_who_falls_silent_is_cut(sent: bytes) -> None:
    """Whatever part of a request has arrived: when the rest is not there in time, the connection is closed."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(sent)
            await put_forward(LIMIT_S - 100)
            assert len(bank.state.connections) == 1
            await put_forward(200)
            await bank.until_open(0)

    play(story)


def test_a_trickle_does_not_extend_the_time() -> None:
    """A byte now and then is no request: the time for the whole of it runs from its beginning."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            for byte in (b"G", b"E", b"T"):
                await client.send(byte)
                await put_forward(LIMIT_S / 4)
            assert len(bank.state.connections) == 1
            await client.send(b" ")
            await put_forward(LIMIT_S / 2)
            assert await client.is_cut()

    play(story)


def test_each_request_has_all_of_the_time() -> None:
    """A client that is slow, but in time, goes on for as long as it likes on one connection."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            for _ in range(4):
                await client.send(POST + b"12")
                await put_forward(LIMIT_S - 100)
                await client.send(b"34")
                assert await client.answer() == b"1234"
                await settle()

    play(story)


def test_silence_before_a_request_is_not_its_time() -> None:
    """The time of a request on an open connection begins with its first byte; more bytes do not prolong it."""

    async def story() -> None:
        async with a_bank(Patient, timeout_keep_alive=10 * LIMIT_S) as bank:
            client = await bank.connect()
            await client.send(GET)
            assert await client.answer() == b"done"
            await settle()
            await put_forward(LIMIT_S - 100)
            await client.send(POST + b"12")
            await put_forward(LIMIT_S - 100)
            await client.send(b"3")
            await put_forward(200)
            assert await client.is_cut()
            client = await bank.connect()
            await client.send(GET)
            assert await client.answer() == b"done"
            await settle()
            await put_forward(LIMIT_S - 100)
            await client.send(POST + b"12")
            await put_forward(LIMIT_S - 100)
            await client.send(b"34")
            assert await client.answer() == b"1234"

    play(story)


def test_the_time_does_not_run_while_the_application_works() -> None:
    """An answer that takes long is not the client's fault."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(GET.replace(b"small", b"slow"))
            await put_forward(10 * LIMIT_S)
            bank.released.set()
            assert await client.answer() == b"done"

    play(story)


def test_silence_between_requests() -> None:
    """After an answer, a connection without a sign of another request is closed earlier, in good order."""

    async def story() -> None:
        async with a_bank(Patient, timeout_keep_alive=100) as bank:
            client = await bank.connect()
            await client.send(GET)
            assert await client.answer() == b"done"
            await settle()
            await put_forward(200)
            assert await client.is_cut()

    play(story)


def test_who_takes_no_answers_and_falls_silent_is_cut() -> None:
    """Also where they are so small that the application never waits: a silent connection is not closed for ever."""
    echo = POST.replace(b"Length: 4", b"Length: 60000") + bytes(60_000)

    async def story() -> None:
        async with a_bank(Patient, timeout_keep_alive=100) as bank:
            client = await bank.connect()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed has it on the transport read from
            while not bank.protocol._transport.get_write_buffer_size():
                await client.send(echo)
            assert bank.protocol._writable.is_set()
            await put_forward(200)
            assert len(bank.state.connections) == 1
            await put_forward(LIMIT_S)
            await bank.until_open(0)

    play(story)


@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"])
def test_who_takes_no_answer_is_cut(header: bytes) -> None:
    """An answer that is not taken in time is thrown away, also when the connection was to end with it."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed has it on the transport read from
            await client.send(b"GET /large HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n")
            await bank.until(lambda: not bank.protocol._writable.is_set())
            await put_forward(LIMIT_S - 100)
            assert len(bank.state.connections) == 1
            await put_forward(200)
            await bank.until_open(0)

    play(story)


def test_a_large_answer_that_is_taken_in_time() -> None:
    """Who takes an answer late, but in time, gets the whole of it, and can go on."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed has it on the transport read from
            await client.send(GET.replace(b"small", b"large"))
            await bank.until(lambda: not bank.protocol._writable.is_set())
            await put_forward(LIMIT_S - 100)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len(await client.answer()) == LARGE
            await client.send(GET)
            assert await client.answer() == b"done"

    play(story)


# --- too far ahead -------------------------------------------------------------------------------


def test_requests_ahead_of_their_answers() -> None:
    """A client may send some requests at once, and gets all the answers."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(100 * GET)
            assert [await client.answer() for _ in range(100)] == [b"done"] * 100

    play(story)


@pytest.mark.parametrize("path", [b"slow", b"large"])
def test_too_many_requests_ahead_of_their_answers(path: bytes) -> None:
    """While an answer is made, or not taken, little is read of what is behind it; others are served meanwhile."""

    async def story() -> None:
        async with a_bank(Counting) as bank:
            client, other = await bank.connect(), await bank.connect()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed has it on the transport read from
            await client.send(GET.replace(b"small", path) + 100_000 * GET)  # 3 MB
            await other.send(GET)
            assert await other.answer() == b"done"
            assert Counting.count <= 2 * READ_BYTES_MAX + len(GET)
            bank.released.set()
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len(await client.answer()) == (LARGE if path == b"large" else 4)
            assert [await client.answer() for _ in range(2000)] == [b"done"] * 2000

    play(story)


# --- too much in one turn ------------------------------------------------------------------------

CHUNKED: Final = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
EARLY: Final = CHUNKED.replace(b"/echo", b"/early")
ONE: Final = b"1\r\na\r\n"
CLOSE: Final = b"connection: close"


def test_others_have_their_turn() -> None:
    """However much has come on one connection, so much of it is taken before the event loop goes on."""

    async def story() -> None:
        async with a_bank(Counting) as bank:
            client = await bank.connect()
            await client.send(POST.replace(b"Length: 4", b"Length: 65536") + bytes(BODY_BYTES_MAX))
            assert await client.answer() == bytes(BODY_BYTES_MAX)
            assert Counting.most == READ_BYTES_MAX

    play(story)


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
def test_a_body_in_as_many_pieces_as_there_may_be(at_once: bool) -> None:
    """It is answered, and so is the next: each request has its own count."""

    async def story() -> None:
        async with a_bank(Counting) as bank:
            client = await bank.connect()
            for _ in range(2):
                client.writer.write(CHUNKED)
                for piece in [BODY_PIECES_MAX * ONE] if at_once else BODY_PIECES_MAX * [ONE]:
                    client.writer.write(piece)
                    await asyncio.sleep(0)
                await client.send(b"0\r\n\r\n")
                assert await client.answer() == BODY_PIECES_MAX * b"a"

    play(story)


@pytest.mark.parametrize("pieces", [BODY_PIECES_MAX + 1, 100_000])
@pytest.mark.parametrize("start", [CHUNKED, EARLY], ids=["to be read", "answered early"])
def test_a_body_in_too_many_pieces(start: bytes, pieces: int) -> None:
    """The client is told once, and no more of its pieces are looked at, however many it goes on to send."""

    async def story() -> None:
        async with a_bank(Counting) as bank:
            client = await bank.connect()
            await client.send(start + pieces * ONE)
            head = await client.head()
            assert (head[:13], head.lower().count(CLOSE)) == (b"HTTP/1.1 413 ", 1)
            assert Counting.pieces == BODY_PIECES_MAX + 1
            assert b"HTTP/1.1" not in await client.rest()

    play(story)


def test_a_head_as_large_as_it_may_be() -> None:
    """So many bytes without their end are held, and those of the first read, and not one more."""
    head = GET.removesuffix(b"\r\n") + b"A: "

    async def story() -> None:
        async with a_bank(Counting) as bank:
            client = await bank.connect()
            await client.send(head.ljust(HEAD_BYTES_MAX, b"a"))
            await client.send(b"\r\n\r\n")
            assert await client.answer() == b"done"
            await client.send(head.ljust(READ_BYTES_MAX + HEAD_BYTES_MAX + 1, b"a"))
            assert (await client.head()).startswith(b"HTTP/1.1 431 ")

    play(story)


FIELD: Final = b"a:\r\n"
HEAD: Final = GET.removesuffix(b"\r\n")
BEHIND: Final = CHUNKED + ONE + b"0\r\n"


@pytest.mark.parametrize(
    ("start", "before", "expected"),
    [(HEAD, 1, [b"done", b"done"]), (BEHIND, 2, [b"a", b"done"])],
    ids=["head", "behind a body"],
)
def test_as_many_lines_as_there_may_be(start: bytes, before: int, expected: list[bytes]) -> None:
    """So many lines wait for an end that comes later, whichever fields they are."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(start + (HEAD_LINES_MAX - before) * FIELD)
            await client.send(b"\r\n" + GET)
            assert expected == [await client.answer() for _ in expected]

    play(story)


@pytest.mark.parametrize(("start", "before"), [(HEAD, 1), (BEHIND, 2)], ids=["head", "behind a body"])
@pytest.mark.parametrize("end", [b"\r\n" + GET, FIELD[:1]], ids=["complete", "without end"])
def test_too_many_lines(start: bytes, before: int, end: bytes) -> None:
    """They are refused as soon as there is one too many."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(start + (HEAD_LINES_MAX - before + 1) * FIELD + end)
            assert (await client.head()).startswith(b"HTTP/1.1 431 ")

    play(story)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (POST.replace(b"Length: 4", b"Length: 5000") + 5000 * b"\n" + GET, [5000 * b"\n", b"done"]),
        (CHUNKED + b"1000\r\n" + 4096 * b"\n" + b"\r\n0\r\n\r\n" + GET, [4096 * b"\n", b"done"]),
        (HEAD_LINES_MAX * GET, HEAD_LINES_MAX * [b"done"]),
    ],
    ids=["body", "chunks", "requests"],
)
def test_other_lines_are_not_counted(sent: bytes, expected: list[bytes]) -> None:
    """Newlines in bodies, and lines of other requests, are no fields."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(sent)
            assert expected == [await client.answer() for _ in expected]

    play(story)


# --- answered before its end ---------------------------------------------------------------------


def test_who_is_answered_early_is_told_to_end() -> None:
    """The answer says that it is the last, and so does the end of what is sent; nothing more is looked at."""

    async def story() -> None:
        async with a_bank(Counting) as bank:
            client = await bank.connect()
            await client.send(EARLY + ONE)
            assert (await client.head()).lower().count(CLOSE) == 1
            assert await client.rest() == b"done"
            before = Counting.pieces
            await client.send(100 * ONE + b"0\r\n\r\n" + GET + b"\0\r\n\r\n")
            assert (Counting.pieces, len(bank.state.connections)) == (before, 1)
            await client.close()
            await bank.until_open(0)

    play(story)


@pytest.mark.parametrize("body", [b"1234", b""], ids=["whole", "none"])
def test_who_is_answered_at_the_end_may_go_on(body: bytes) -> None:
    """An answer to all of a request leaves the connection open, also if the application did not want its body."""
    start = POST.replace(b"/echo", b"/early") if body else GET.replace(b"/small", b"/early")

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            for _ in range(2):
                await client.send(start + body)
                assert await client.answer() == b"done"

    play(story)


@pytest.mark.parametrize("start", [EARLY, b"GET /\0 HTTP/1.1\r\n\r\n"], ids=["refused", "not HTTP"])
def test_a_client_that_reads_late_has_its_answer(start: bytes) -> None:
    """What it has still sent does not reset the connection under an answer that it has not read."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            loop = asyncio.get_running_loop()
            with socket.create_connection(("127.0.0.1", bank.port)) as client:
                client.setblocking(False)
                await loop.sock_sendall(client, start)
                await settle()
                for _ in range(16):
                    await loop.sock_sendall(client, bytes(DROPPED_BYTES_MAX // 16))
                    await settle()
                assert (await loop.sock_recv(client, 65536)).startswith(b"HTTP/1.1 ")
            await bank.until_open(0)

    play(story)


def test_a_client_that_is_far_ahead_can_end() -> None:
    """What it has sent behind its last request is taken off its hands, so that its own end is seen."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(LAST.replace(b"/small", b"/slow") + 2000 * GET)
            bank.released.set()
            assert await client.answer() == b"done"
            await client.close()
            await bank.until_open(0)

    play(story)


def test_who_does_not_stop_is_cut() -> None:
    """So many bytes behind the last answer are dropped, and no more."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(EARLY)
            assert await client.answer() == b"done"
            await client.send(bytes(DROPPED_BYTES_MAX))
            assert len(bank.state.connections) == 1
            await client.send(b"1")
            await bank.until_open(0)

    play(story)


def test_a_server_that_stops_does_not_linger() -> None:
    """It closes connections whose last answer was sent, whatever their clients do."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(EARLY)
            assert await client.answer() == b"done"
            bank.protocol.shutdown()
            await bank.until_open(0)

    play(story)


def test_a_server_that_stops_does_not_wait_for_half_a_request() -> None:
    """One slow stranger does not hold up a restart."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(GET[:10])
            bank.protocol.shutdown()
            await bank.until_open(0)

    play(story)


def test_a_server_that_stops_answers_who_waits() -> None:
    """A request that is being answered is, and its connection ends behind the answer."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(LAST.replace(b"/small", b"/slow"))
            bank.protocol.shutdown()
            bank.released.set()
            assert await client.answer() == b"done"
            assert await client.is_cut()

    play(story)


def test_a_client_that_is_done_sending_has_its_answer() -> None:
    """Who closes its half behind a request, as `nc -N` does, is answered; who does so before its end is let go."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(LAST.replace(b"/small", b"/slow"))
            client.writer.write_eof()
            await settle()
            bank.released.set()
            assert await client.answer() == b"done"
            await bank.until_open(0)
            for sent in (b"", GET[:10], CHUNKED):
                silent = await bank.connect()
                await silent.send(sent)
                silent.writer.write_eof()
                await bank.until_open(0)

    play(story)


def test_a_client_that_resets_while_it_is_answered_early() -> None:
    """The reset may come between the answer and the end of our half: that is no error of anybody's."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(CHUNKED)

            def reset() -> None:
                raise OSError(errno.ENOTCONN, "it is gone")

            bank.protocol._transport.write_eof = reset
            await client.send(BAD_CHUNK)
            await bank.until_open(0)

    play(story)


# --- not HTTP ------------------------------------------------------------------------------------

BAD_CHUNK: Final = b"zz\r\n\r\n"
CHUNK: Final = b"ffff\r\n" + bytes(65535) + b"\r\n"
UPGRADE: Final = b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
REFUSED: Final = b"HTTP/1.1 400 "
OK: Final = b"HTTP/1.1 200 "
NO_METHOD: Final = "incoming payments: a connection was refused: this is not HTTP/1.1: Invalid method encountered"
NO_CHUNK: Final = "incoming payments: a connection was refused: this is not HTTP/1.1: Invalid character in chunk size"

# what is sent, and behind it once that has had its effect; what is answered first; what is said of it in the log
NONSENSE: Final[dict[str, tuple[bytes, bytes, bytes, list[str]]]] = {
    "no request line": (b"\0" * 70_000 + b"\r\n\r\n", b"", REFUSED, [NO_METHOD]),
    "a bad chunk": (CHUNKED, BAD_CHUNK, REFUSED, [NO_CHUNK]),
    "a bad chunk behind another, at once": (CHUNKED + CHUNK + BAD_CHUNK, b"", REFUSED, [NO_CHUNK]),
    "a bad chunk in what is answered early, at once": (EARLY + ONE + BAD_CHUNK, b"", REFUSED, [NO_CHUNK]),
    "a bad chunk in an answered request": (EARLY + CHUNK, BAD_CHUNK, OK, []),
    "a bad chunk of HEAD": (CHUNKED.replace(b"POST", b"HEAD") + BAD_CHUNK, b"", REFUSED, [NO_CHUNK]),
    "a bad chunk while one waits": (
        CHUNKED.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"), BAD_CHUNK, b"HTTP/1.1 100 ",
        [NO_CHUNK],
    ),
    "another protocol": (GET.removesuffix(b"\r\n") + UPGRADE, b"\0\1\2\r\n\r\n", OK, []),
    "another protocol, not followed": (GET.removesuffix(b"\r\n") + UPGRADE, GET, OK, []),
    "another protocol, twice at once": (2 * (GET.removesuffix(b"\r\n") + UPGRADE), b"", OK, []),
}  # fmt: skip


@pytest.mark.parametrize(("first", "second", "answered", "logged"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense(
    caplog: pytest.LogCaptureFixture, first: bytes, second: bytes, answered: bytes, logged: list[str]
) -> None:
    """It is answered once, in good order, and the log has a line at most: there is nothing to be found in a trace."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(first)
            await client.send(second)
            assert (await client.head()).startswith(answered)
            await bank.until(lambda: not bank.state.tasks)
            await client.close()
            await bank.until_open(0)

    play(story)
    assert logged == [record.getMessage() for record in caplog.records]


def test_nonsense_while_an_answer_is_under_way(caplog: pytest.LogCaptureFixture) -> None:
    """There cannot be a second answer within the first: the connection is cut."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed has it on the transport read from
            await client.send(EARLY.replace(b"/early", b"/early/large") + ONE)
            await bank.until(lambda: not bank.protocol._writable.is_set())
            await client.send(BAD_CHUNK)
            await bank.until_open(0)

    play(story)
    assert [record.getMessage() for record in caplog.records] == [NO_CHUNK]


def test_who_is_refused_late_has_the_time_to_take_it() -> None:
    """The time for that begins with the answer, however long the request took."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(CHUNKED)
            await put_forward(LIMIT_S - 100)
            await client.send(BAD_CHUNK)
            await put_forward(LIMIT_S - 100)
            assert len(bank.state.connections) == 1
            assert (await client.head()).startswith(REFUSED)
            await put_forward(200)
            await bank.until_open(0)

    play(story)


# what a connection was about when its client went away
LEFT: Final = {
    "nothing": b"",
    "an answered request": GET,
    "half of a body": POST + b"12",
    "requests that wait": GET.replace(b"/small", b"/slow") + 3 * GET + POST,
    "nonsense": b"\0\r\n\r\n",
    "a refusal of ours": GET.replace(b"Host", b"Guest"),
    "another protocol, and half of a body": POST.removesuffix(b"\r\n") + UPGRADE + b"12",
}


@pytest.mark.parametrize("sent", LEFT.values(), ids=LEFT)
def test_nothing_is_kept_of_a_connection_that_is_gone(caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    """Not even until Python looks for what nobody refers to: a stranger could make that much."""
    caplog.set_level(logging.CRITICAL)  # what is logged, pytest keeps

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(sent)
            gone = weakref.ref(bank.protocol)
            bank.released.set()
            gc.disable()
            try:
                await client.reset()
                await bank.until_open(0)
                await bank.until(lambda: not bank.state.tasks)
                await settle()
                assert gone() is None
            finally:
                gc.enable()

    play(story)


# --- what is HTTP/1.1 ----------------------------------------------------------------------------


def lines(*fields: bytes, start: bytes = b"POST /echo HTTP/1.1", host: bytes = b"Host: x") -> bytes:
    """The head of a request."""
    return b"\r\n".join([start, *([host] if host else []), *fields, b"", b""])


CODED: Final = b"Transfer-Encoding: chunked"
CHUNKS: Final = b"2\r\n12\r\n0\r\n\r\n"
TRAILED: Final = b"2\r\n12\r\n0\r\nHost: evil\r\nX: y\r\n\r\n"

# what is sent, and what is answered, the connection being kept or not
TAKEN: Final[dict[str, tuple[bytes, bytes, bool]]] = {
    "HTTP/1.0": (lines(start=b"GET / HTTP/1.0", host=b""), b"done", False),
    "HTTP/1.0, with a host, to be kept": (lines(b"Connection: keep-alive", start=b"GET / HTTP/1.0"), b"done", False),
    "a connection that is to be closed": (LAST, b"done", False),
    "the same, with a tab behind it": (lines(b"Connection: close\t"), b"done", False),
    "empty lines before it": (b"\r\n\r\n" + GET, b"done", True),
    "no length": (lines(), b"done", True),
    "a coding in capitals, with spaces round it": (lines(b"Transfer-Encoding:  Chunked ") + CHUNKS, b"12", True),
    "fields behind the body": (lines(CODED) + TRAILED, b"12", True),
    "an extension of a chunk": (lines(CODED) + b"2;a=b\r\n12\r\n0\r\n\r\n", b"12", True),
    "another protocol, with a length": (lines(b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2") + b"12",
                                        b"12", False),
    "another protocol, with chunks": (lines(b"Connection: upgrade\r\nUpgrade: h2c", CODED) + CHUNKS, b"12", False),
    "another protocol, which begins": (lines(b"Connection: upgrade\r\nUpgrade: h2c") + b"\0\1\2", b"done", False),
    "another protocol, behind chunks": (lines(b"Connection: upgrade\r\nUpgrade: h2c", CODED) + CHUNKS + b"\0", b"12",
                                        False),
    "a wish for another protocol that is not the connection's": (lines(b"Upgrade: h2c"), b"done", True),
    "RTSP, which ends where HTTP does": (lines(CODED, start=b"POST /echo RTSP/1.1") + CHUNKS, b"12", True),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "expected", "keeps"), TAKEN.values(), ids=TAKEN)
def test_what_is_taken_byte_by_byte(sent: bytes, expected: bytes, keeps: bool) -> None:
    """It is answered; and so is the next, where that may follow."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            for place in range(len(sent)):
                client.writer.write(sent[place : place + 1])
                await asyncio.sleep(0)
            assert await client.answer() == expected
            await settle()
            if not keeps:
                assert await client.is_cut()
                return
            await client.send(GET)
            assert await client.answer() == b"done"

    play(story)


@pytest.mark.parametrize(("sent", "expected", "keeps"), TAKEN.values(), ids=TAKEN)
def test_what_is_taken_at_once(sent: bytes, expected: bytes, keeps: bool) -> None:
    """With others behind it, which are answered where they may follow, and dropped where they may not."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(sent + POST + b"1234" + LAST)
            found = [await client.answer() for _ in range(3 if keeps else 1)]
            assert found == [expected, b"1234", b"done"][: len(found)]
            assert await client.rest() == b""

    play(story)


def test_what_follows_the_last_request_is_dropped() -> None:
    """Also while that is being answered, which nothing changes."""

    async def story() -> None:
        async with a_bank(Counting) as bank:
            client = await bank.connect()
            await client.send(LAST.replace(b"/small", b"/slow"))
            await client.send(100_000 * GET)
            assert Counting.count <= len(LAST) + READ_BYTES_MAX
            bank.released.set()
            assert await client.answer() == b"done"
            assert await client.rest() == b""

    play(story)


# what is sent, and why it is refused
TAKEN_BY_THE_PARSER: Final[dict[str, tuple[bytes, str]]] = {
    "HTTP/0.9": (b"GET /\r\n\r\n", "speak HTTP/1.1, without CONNECT"),
    "HTTP/2.0": (lines(start=b"GET / HTTP/2.0"), "speak HTTP/1.1, without CONNECT"),
    "CONNECT": (lines(start=b"CONNECT evil:443 HTTP/1.1"), "speak HTTP/1.1, without CONNECT"),
    "no host": (lines(host=b""), "send one Host field"),
    "two hosts": (lines(b"host: y"), "send one Host field"),
    "two hosts in HTTP/1.0": (lines(b"host: y", start=b"GET / HTTP/1.0"), "send one Host field"),
    "another coding before the chunks": (lines(b"Transfer-Encoding: gzip, chunked") + CHUNKS,
                                         "send no Transfer-Encoding but chunked"),
    "another coding in a line of its own": (lines(b"Transfer-Encoding: identity", CODED) + CHUNKS,
                                            "send no Transfer-Encoding but chunked"),
    "no coding before the chunks": (lines(b"Transfer-Encoding: ,chunked") + CHUNKS,
                                    "send no Transfer-Encoding but chunked"),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "why"), TAKEN_BY_THE_PARSER.values(), ids=TAKEN_BY_THE_PARSER)
def test_what_is_refused_though_the_parser_takes_it(sent: bytes, why: str) -> None:
    """RFC 9112 §3.2, §6.1 and §6.3: what somebody else might read in another way is not answered."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(sent)
            assert (await client.head()).startswith(REFUSED)
            assert json.loads(await client.rest())["error"] == {"code": "invalid_http", "description": why}

    play(story)


def test_fields_as_they_are_meant() -> None:
    """RFC 9110 §5.5: what is around a value is none of it. Names are in lower case, and targets as they came."""
    seen: list[Scope] = []

    async def application(bank: Bank, scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await various(bank, scope, receive, send)

    async def story() -> None:
        async with a_bank(Patient, application) as bank:
            client = await bank.connect()
            fields = (b"A: \t b  c \t", b"a:", b"B:\xff")
            await client.send(lines(*fields, start=b"GET /a%2Fb?c=%20&d?e HTTP/1.1"))
            assert await client.answer() == b"done"

    play(story)
    [scope] = seen
    assert scope["headers"] == [(b"host", b"x"), (b"a", b"b  c"), (b"a", b""), (b"b", b"\xff")]
    assert (scope["raw_path"], scope["path"], scope["query_string"]) == (b"/a%2Fb", "/a/b", b"c=%20&d?e")
    assert (scope["method"], scope["http_version"], scope["scheme"]) == ("GET", "1.1", "http")


@pytest.mark.parametrize(
    ("start", "expected"),
    [(b"POST /echo HTTP/1.1", [b"HTTP/1.1 100 Continue\r\n\r\n"]), (b"POST /echo HTTP/1.0", [])],
)
def test_who_waits_to_be_told_to_go_on(start: bytes, expected: list[bytes]) -> None:
    """RFC 9110 §10.1.1: it is told when the body is wanted; of HTTP/1.0 that means nothing."""
    head = lines(b"Content-Length: 2", b"Expect: 100-Continue", start=start)

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(head)
            assert expected == [await client.head() for _ in expected]
            await client.send(b"12")
            assert await client.answer() == b"12"
            impatient = await bank.connect()
            await impatient.send(head + b"12")
            assert (await impatient.head()).startswith(OK)

    play(story)


SLOW: Final = GET.replace(b"/small", b"/slow")

# what comes behind a request that is being answered, and the status of its own answer
BEHIND_ONE: Final = {
    "no request": (b"\0\r\n\r\n", [b"400"]),
    "a body that is none": (CHUNKED + BAD_CHUNK, [b"400"]),
    "two, and a body that is none": (2 * GET + CHUNKED + ONE + BAD_CHUNK, [b"200", b"200", b"400"]),
    "too many fields": (HEAD + (HEAD_LINES_MAX + 1) * FIELD, [b"431"]),
}


@pytest.mark.parametrize(("behind", "expected"), BEHIND_ONE.values(), ids=BEHIND_ONE)
def test_a_refusal_waits_for_its_turn(behind: bytes, expected: list[bytes]) -> None:
    """What comes behind a request is not taken for its answer."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(SLOW + behind)
            bank.released.set()
            found = await client.rest()
            assert [part[:3] for part in found.split(b"HTTP/1.1 ") if part[:1].isdigit()] == [b"200", *expected]

    play(story)


def test_who_ends_within_a_request_has_the_answers_before_it() -> None:
    """Half a request behind a whole one is let go."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            for half in (GET[:10], POST, POST + b"1"):
                bank.released.clear()
                client = await bank.connect()
                await client.send(SLOW + half)
                client.writer.write_eof()
                await settle()
                bank.released.set()
                assert await client.answer() == b"done"
                await bank.until_open(0)

    play(story)


def test_a_server_that_stops_lets_go_whose_body_does_not_come() -> None:
    """A request that is half there is not waited for, though the application has begun with it."""

    async def story() -> None:
        async with a_bank(Patient) as bank:
            client = await bank.connect()
            await client.send(POST + b"12")
            bank.protocol.shutdown()
            await bank.until_open(0)

    play(story)


# --- too many ------------------------------------------------------------------------------------


def test_connections_that_are_too_many_are_refused() -> None:
    """Past the bound a connection is closed at once; those that are open are served, and a place can be taken again."""

    async def story() -> None:
        async with a_bank(Slots) as bank:
            one, two = await bank.connect(), await bank.connect()
            for _ in range(3):
                refused = await bank.connect()
                assert await refused.is_cut()
            for client in (one, two):
                await client.send(GET)
                assert await client.answer() == b"done"
            await two.close()
            await bank.until_open(1)
            three = await bank.connect()
            await three.send(GET)
            assert await three.answer() == b"done"

    play(story)


def test_the_bounds_of_serve() -> None:
    """The protocol of `serve` has the documented bounds, and as many connections as there is room for."""
    protocol = bounded(7)
    assert (protocol.connections_max, HttpConnection.connections_max) == (7, CONNECTIONS_MAX)
    assert protocol.request_s_max == REQUEST_S_MAX

"""`pay` and `quote` send packets from several threads, and `over_http` sends them to a server."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from incoming_payments.domain.amount import Asset
from incoming_payments.errors import InvalidValue
from incoming_payments.testing.sender import Ending, Link, NotTaken, Post, Quote, SenderTotals, over_http, pay, quote
from kits.processes import free_port
from kits.scripted_server import Exchange, scripted_server
from kits.sender_kit import PAYEE, payee_of
from kits.stream_kit import Service


@pytest.mark.parametrize(
    "link",
    [
        over_http,
        lambda: over_http("http://127.0.0.1:9/ilp", "TOKEN"),
        lambda: nullcontext(over_http("http://127.0.0.1:9/ilp", "TOKEN")),
        lambda packet: packet,
        "http://127.0.0.1:9/ilp",
    ],
    ids=["over_http", "its link", "its link in a context", "post", "url"],
)
def test_another_object_than_a_link_is_refused(link: Any) -> None:
    """The error says what to pass."""
    with pytest.raises(
        InvalidValue, match=r"link cannot be opened: pass the result of over_http\(url, token\),"
    ) as caught:
        pay(link, PAYEE, 100)
    assert caught.value.details == {"member": "link"}
    with pytest.raises(InvalidValue, match="link cannot be opened:"):
        quote(link, PAYEE, 100)


def test_post_may_be_a_builtin() -> None:
    """Python cannot show the arguments of a builtin, so the builtin is called."""
    assert pay(lambda: nullcontext(bytes), PAYEE, 1, in_flight=1, patience_s=0.1).ending is Ending.TIMEOUT


# --- threads -----------------------------------------------------------------------------------------


def linked(post: Post) -> Link:
    """Return a link that calls `post`."""

    @contextmanager
    def link() -> Iterator[Post]:
        yield post

    return link


class DirectLink:
    """A link to a service in this process, for several threads."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.link = linked(self.post)
        self.drop: Sequence[int] = ()  # the packets that get no answer, counted from 1
        self._lock = threading.Lock()
        self._count = 0

    def post(self, packet: bytes) -> bytes:
        """Return the reply to a packet, or lose it."""
        with self._lock:
            self._count += 1
            reply = self.service.answer(packet)
            if self._count in self.drop:
                raise TimeoutError("timed out")
            return reply


def test_several_threads_pay_one_payment() -> None:
    """The amount is credited once although answers are lost. `progress` is called after each answer."""
    service = Service(limit=2500)
    direct = DirectLink(service)
    direct.drop = (1, 5, 9)
    seen: list[SenderTotals] = []

    totals = pay(direct.link, payee_of(service), 2500, packet_max=100, in_flight=4, progress=seen.append)

    assert totals == SenderTotals(2500, sent=2500, delivered=2500, packets=25, repeats=3, ending=Ending.DONE)
    assert service.received == 2500
    assert (seen[-1], len(seen)) == (totals, 1 + 25 + 3)


def test_a_quote_moves_no_money() -> None:
    """The quote contains the amount that the payment has received before."""
    service = Service(limit=2500)
    pay(DirectLink(service).link, payee_of(service), 1000)

    assert quote(DirectLink(service).link, payee_of(service), 700) == Quote(700, 700, 2500, 1000, Asset("USD", 2))
    assert service.received == 1000


def test_a_completed_payment_gives_no_quote() -> None:
    """The exception contains the reason."""
    service = Service(limit=2500)
    pay(DirectLink(service).link, payee_of(service), 2500)

    with pytest.raises(NotTaken, match="the payment is completed"):
        quote(DirectLink(service).link, payee_of(service), 1)


def test_an_exception_in_a_thread_stops_the_sender() -> None:
    """`pay` raises the exception of the link or of `progress` after all threads have ended."""
    service = Service(limit=2500)

    def refuse(_: bytes) -> bytes:
        raise NotTaken("status 401")

    with pytest.raises(NotTaken, match="status 401"):
        pay(linked(refuse), payee_of(service), 2500)

    def interrupt(totals: SenderTotals) -> None:
        if totals.delivered >= 500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pay(DirectLink(service).link, payee_of(service), 2500, packet_max=100, in_flight=3, progress=interrupt)
    assert 500 <= service.received <= 800


# --- HTTP --------------------------------------------------------------------------------------------


def echo(exchange: Exchange, _number: int) -> None:
    """Answer with the target, two header fields and the body of the request."""
    fields = {name.lower(): value for name, value in (line.split(": ") for line in exchange.head.splitlines()[1:])}
    line = f"{exchange.head.split()[1]} {fields['content-type']} {fields['authorization']} "
    exchange.answer(line.encode() + exchange.body)


def test_over_http_posts_the_packet() -> None:
    """The packet is the body of a POST with the peer's token, and the body of the 200 answer is the reply."""
    with scripted_server(echo) as server, over_http(server.url, "TOKEN")() as post:
        for packet in (b"packet", b"other"):
            assert post(packet) == b"/introspect application/octet-stream Bearer TOKEN " + packet


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_over_http_a_temporary_error_is_no_answer(status: int) -> None:
    """A closed connection, 429 and 5xx raise `ConnectionError`, and the next packet is answered."""

    def script(exchange: Exchange, number: int) -> None:
        if number == 0 and status == 0:
            raise OSError("closes the connection")
        exchange.answer(b"reply" if number else b"later", 200 if number else status)

    with scripted_server(script) as server, over_http(server.url, "TOKEN")() as post:
        with pytest.raises(ConnectionError):
            post(b"packet")
        assert post(b"packet") == b"reply"


def test_over_http_without_a_server_ends_with_a_timeout() -> None:
    """A refused connection is no answer, so the sender retries until `patience_s` has passed, and says why."""
    url = f"http://127.0.0.1:{free_port()}"

    totals = pay(over_http(url, "TOKEN"), PAYEE, 100, in_flight=2, patience_s=0.2)
    assert (totals.ending, totals.unknown, totals.sent) == (Ending.TIMEOUT, 0, 0)
    assert totals.reason.startswith(f"{url} gave no answer: ConnectionRefusedError")


@pytest.mark.parametrize("status", [401, 404, 415])
def test_over_http_other_statuses_raise_not_taken(status: int) -> None:
    """The exception contains the status and the body."""
    with (
        scripted_server(lambda exchange, _: exchange.answer({"error": {"code": "invalid_token"}}, status)) as server,
        pytest.raises(NotTaken, match=f'status {status}: {{"error": {{"code": "invalid_token"}}}}'),
    ):
        quote(over_http(server.url, "TOKEN"), PAYEE, 100)

"""`pay` and `quote` send packets from several threads, and `over_http` sends them to a server."""

import http.server
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from incoming_payments.domain.amount import Asset
from incoming_payments.errors import InvalidValue
from incoming_payments.testing.sender import Ending, Link, NotTaken, Post, Quote, SenderTotals, over_http, pay, quote
from kits.processes import free_port
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
    with pytest.raises(InvalidValue, match=r"link must be a link: pass over_http\(url, token\) itself") as caught:
        pay(link, PAYEE, 100)
    assert caught.value.details == {"member": "link"}
    with pytest.raises(InvalidValue, match="link must be a link"):
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

Answering = Callable[[list[tuple[int, bytes]]], str]


@pytest.fixture
def answering() -> Iterator[Answering]:
    """Return a function that starts an HTTP server and returns its URL.

    The server gives the answers in order and repeats the last one. Status 0 closes the connection without an answer.
    """
    servers: list[http.server.HTTPServer] = []

    def start(answers: list[tuple[int, bytes]]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                packet = self.rfile.read(int(self.headers["content-length"]))
                status, content = answers.pop(0) if len(answers) > 1 else answers[0]
                if not status:
                    self.close_connection = True
                    return
                echo = f"{self.path} {self.headers['content-type']} {self.headers['authorization']} ".encode()
                body = content or echo + packet
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/ilp"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_over_http_posts_the_packet(answering: Answering) -> None:
    """The packet is the body of a POST with the peer's token, and the body of the 200 answer is the reply."""
    with over_http(answering([(200, b"")]), "TOKEN")() as post:
        assert post(b"packet") == b"/ilp application/octet-stream Bearer TOKEN packet"
        assert post(b"other") == b"/ilp application/octet-stream Bearer TOKEN other"


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_over_http_a_temporary_error_is_no_answer(answering: Answering, status: int) -> None:
    """A closed connection, 429 and 5xx raise `ConnectionError`, and the next packet is answered."""
    with over_http(answering([(status, b"later"), (200, b"reply")]), "TOKEN")() as post:
        with pytest.raises(ConnectionError):
            post(b"packet")
        assert post(b"packet") == b"reply"


def test_over_http_without_a_server_ends_with_a_timeout() -> None:
    """A refused connection is no answer, so the sender retries until `patience_s` has passed."""
    url = f"http://127.0.0.1:{free_port()}"

    totals = pay(over_http(url, "TOKEN"), PAYEE, 100, in_flight=2, patience_s=0.2)
    assert (totals.ending, totals.unknown, totals.sent) == (Ending.TIMEOUT, 0, 0)


@pytest.mark.parametrize("status", [401, 404, 415])
def test_over_http_other_statuses_raise_not_taken(answering: Answering, status: int) -> None:
    """The exception contains the status and the body."""
    url = answering([(status, b'{"error": {"code": "invalid_token"}}')])

    with pytest.raises(NotTaken, match=f'status {status}: {{"error": {{"code": "invalid_token"}}}}'):
        quote(over_http(url, "TOKEN"), PAYEE, 100)

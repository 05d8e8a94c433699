"""The sender: what it sends, what each reply means to it, and that its books are those of the payment."""

import http.server
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import pytest

from incoming_payments.domain.amount import Asset
from incoming_payments.errors import InvalidValue
from incoming_payments.ilp.packet import Fulfill, PacketType, Reject, encode, write_amounts
from incoming_payments.ilp.stream import ConnectionClose, Frame, StreamClose, StreamKeys, StreamPacket, condition_of
from incoming_payments.limits import SENDER_PATIENCE_S_MAX, UINT64_MAX
from incoming_payments.testing import NOW
from incoming_payments.testing.sender import (
    Books,
    Ending,
    Link,
    NotTaken,
    Packet,
    Payee,
    Post,
    Quote,
    StreamSender,
    over_http,
    pay,
    quote,
)
from processes import free_port
from stream_kit import Service

SECRET: Final = bytes(range(32))
PAYEE: Final = Payee("test.bank.abc", SECRET)
KEYS: Final = StreamKeys(SECRET)
PATIENCE: Final = timedelta(seconds=SENDER_PATIENCE_S_MAX)


def payee_of(service: Service) -> Payee:
    """Whom the service's payment is for."""
    return Payee(service.sender.credentials.ilp_address, service.sender.credentials.shared_secret)


class Nonces:
    """Different ones, in the same order each time."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(12)


class Hand:
    """A sender that is stepped by hand, with a clock of its own."""

    def __init__(self, amount: int, payee: Payee = PAYEE, **options: Any) -> None:
        self.now = NOW
        self.sender = StreamSender(payee, amount, now=NOW, **options)
        self._nonces = Nonces()

    @property
    def books(self) -> Books:
        """The sender's books."""
        return self.sender.books

    def next(self) -> Packet:
        """The next packet, which has to be there."""
        packet = self.sender.next(now=self.now, nonce=self._nonces())
        assert packet is not None
        return packet

    def has_next(self) -> bool:
        """Whether there is a packet to send, which is lost then."""
        return self.sender.next(now=self.now, nonce=self._nonces()) is not None

    def take(self, packet: Packet, reply: Fulfill | Reject | bytes) -> None:
        """Bring the reply to a packet."""
        octets = reply if isinstance(reply, bytes) else encode(reply)
        self.sender.answered(packet, octets, now=self.now)

    def quoted(self) -> "Hand":
        """Bring the answer to the probe."""
        probe = self.next()
        self.take(probe, rejection("F99", said(probe, PacketType.REJECT)))
        return self

    def run(self, service: Service) -> None:
        """Send to the service whatever there is to be sent."""
        while packet := self.sender.next(now=self.now, nonce=self._nonces()):
            self.take(packet, service.answer(packet.octets))


def said(
    packet: Packet, kind: PacketType, *frames: Frame, amount: int | None = None, sequence: int | None = None
) -> bytes:
    """What a receiver says to the sender alone of a packet, encrypted."""
    arrived = packet.prepare.amount if amount is None else amount
    answer = StreamPacket(kind, packet.sequence if sequence is None else sequence, arrived, frames)
    return KEYS.seal(answer, nonce=packet.sequence.to_bytes(12))


def fulfillment(packet: Packet, data: bytes | None = None) -> Fulfill:
    """The Fulfill of a packet."""
    proof = KEYS.fulfillment(packet.prepare.data)
    return Fulfill(proof, said(packet, PacketType.FULFILL) if data is None else data)


def rejection(code: str, data: bytes = b"", message: str = "") -> Reject:
    """A Reject."""
    return Reject(code, "test.bank", message, data)


# --- whom, and how much ------------------------------------------------------------------------------


def test_a_payee_is_read_from_the_resource() -> None:
    """The ilp method names it; other methods are passed over, and the secret does not show."""
    ilp = {"type": "ilp", "ilpAddress": "test.bank.abc", "sharedSecret": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"}
    payee = Payee.of({"methods": [{"type": "other"}, ilp]})

    assert payee == PAYEE
    assert "secret" not in repr(payee)


@pytest.mark.parametrize("resource", [{}, {"methods": []}, {"methods": [{"type": "other"}]}])
def test_a_payment_that_takes_nothing_more_names_none(resource: dict[str, Any]) -> None:
    """A resource without an ilp method cannot be paid by STREAM."""
    with pytest.raises(InvalidValue, match="completed, or has expired"):
        Payee.of(resource)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amount": -1}, "amount must be an integer from 0 to 18446744073709551615"),
        ({"amount": True}, "amount must be"),
        ({"amount": UINT64_MAX + 1}, "amount must be"),
        ({"amount": 1, "probe": -1}, "probe must be an integer from 0"),
        ({"amount": 1, "packet_max": 0}, "packet_max must be an integer from 1"),
        ({"amount": 1, "in_flight_max": 0}, "in_flight_max must be an integer from 1 to 64"),
        ({"amount": 1, "in_flight_max": 65}, "in_flight_max must be an integer from 1 to 64"),
    ],
)
def test_what_cannot_be_sent(options: dict[str, Any], message: str) -> None:
    """Amounts and sizes are checked before anything is sent."""
    with pytest.raises(InvalidValue, match=message):
        Hand(**options)


# --- sending -----------------------------------------------------------------------------------------


def test_it_asks_first() -> None:
    """The first packet is one that nobody can fulfil, and nothing follows before it is answered."""
    service = Service(limit=2500)
    hand = Hand(3000, payee_of(service))
    probe = hand.next()
    assert (probe.probe, probe.prepare.amount, hand.has_next()) == (True, 3000, False)
    assert condition_of(service.sender.keys.fulfillment(probe.prepare.data)) != probe.prepare.condition

    hand.take(probe, service.answer(probe.octets))
    assert hand.sender.quote == Quote(3000, 3000, 2500, 0, Asset("USD", 2))
    assert service.received == 0


def test_a_quote_of_one_who_says_little() -> None:
    """Where the receiver tells neither what it takes nor its asset, the quote has all that 64 bits hold, and none."""
    assert Hand(3000).quoted().sender.quote == Quote(3000, 3000, UINT64_MAX, 0, None)


def test_it_pays_in_packets() -> None:
    """All is sent, in packets of the largest size and one of what is left, and both books say so."""
    service = Service(limit=2500)
    hand = Hand(2500, payee_of(service), packet_max=1000)
    hand.run(service)

    assert hand.books == Books(2500, sent=2500, delivered=2500, packets=3, ending=Ending.DONE)
    assert hand.sender.is_over
    assert (service.received, len(service.store.events(service.id))) == (2500, 1 + 3 + 1)


def test_no_more_packets_are_under_way_than_may_be() -> None:
    """The window counts what was not answered; nothing is sent beyond the amount."""
    hand = Hand(100, packet_max=40, in_flight_max=2).quoted()
    first, second = hand.next(), hand.next()
    assert not hand.has_next()
    hand.take(second, fulfillment(second))
    third = hand.next()
    assert [packet.prepare.amount for packet in (first, second, third)] == [40, 40, 20]
    hand.take(third, fulfillment(third))
    assert (hand.has_next(), hand.books.ending, hand.sender.is_over) == (False, None, False)
    hand.take(first, fulfillment(first))
    assert (hand.has_next(), hand.books.ending, hand.sender.is_over) == (False, Ending.DONE, True)


@pytest.mark.parametrize("packet_max", [UINT64_MAX, 1000, 7])
def test_what_is_too_much_is_not_delivered(packet_max: int) -> None:
    """Of more than the payment takes exactly the remainder is delivered, and then the payment is closed."""
    service = Service(limit=2500)
    hand = Hand(10_000, payee_of(service), packet_max=packet_max)
    hand.run(service)

    assert (hand.books.ending, hand.books.reason) == (Ending.CLOSED, "the payment is completed")
    assert hand.books.delivered == hand.books.sent == service.received
    assert 2500 <= service.received <= 2525  # the tolerance of one packet


# --- replies -----------------------------------------------------------------------------------------

REFUSALS: Final[dict[str, tuple[Callable[[Packet], Reject], Ending, str]]] = {
    "unreachable": (lambda _: rejection("F02", message="no route"), Ending.REFUSED, "F02 no route"),
    "a later version's": (lambda _: rejection("F42"), Ending.REFUSED, "F42"),
    "nothing said": (lambda _: rejection("F99"), Ending.REFUSED, "F99"),
    "said to another packet": (
        lambda packet: rejection("F99", said(packet, PacketType.REJECT, sequence=99)),
        Ending.REFUSED,
        "F99",
    ),
    "said on another kind of packet": (
        lambda packet: rejection("F99", said(packet, PacketType.FULFILL)),
        Ending.REFUSED,
        "F99",
    ),
    "less arrived": (
        lambda packet: rejection("F99", said(packet, PacketType.REJECT, amount=9)),
        Ending.REFUSED,
        "9 arrive of a packet of 10",
    ),
    "stream closed": (
        lambda packet: rejection("F99", said(packet, PacketType.REJECT, StreamClose(1, 1, "")), "over"),
        Ending.CLOSED,
        "over",
    ),
    "connection closed": (
        lambda packet: rejection("F99", said(packet, PacketType.REJECT, ConnectionClose(1, ""))),
        Ending.CLOSED,
        "",
    ),
    "no room": (lambda _: rejection("F08", write_amounts(10, 0), "full"), Ending.REFUSED, "F08 full"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_ends_it(case: str) -> None:
    """A final refusal ends the payment, with its reason; what else was under way is still waited for."""
    reply, ending, reason = REFUSALS[case]
    hand = Hand(100, packet_max=10).quoted()
    refused, other = hand.next(), hand.next()
    hand.take(refused, reply(refused))

    assert (hand.books.ending, hand.books.reason) == (ending, reason)
    assert (hand.has_next(), hand.sender.is_over) == (False, False)
    hand.take(other, fulfillment(other))
    assert (hand.books.delivered, hand.sender.is_over, hand.books.ending) == (10, True, ending)


@pytest.mark.parametrize(
    ("data", "amounts"),
    [
        (write_amounts(100, 30), [30, 30, 30, 10]),
        (write_amounts(1000, 300), [30, 30, 30, 10]),  # in the units of an account further on
        (b"", [50, 50]),  # who does not say how much it may be gets half
        (write_amounts(0, 5), [50, 50]),  # nor who says that more would do
        (write_amounts(1, 5), [50, 50]),
        (write_amounts(5, 5), [50, 50]),
    ],
)
@pytest.mark.parametrize("asks", [True, False])
def test_it_shrinks(data: bytes, amounts: list[int], asks: bool) -> None:
    """Packets become as small as F08 says, always smaller than what was refused, whichever packet it refuses."""
    hand = Hand(100) if asks else Hand(100).quoted()
    large = hand.next()
    hand.take(large, rejection("F08", data))
    if asks:
        assert hand.quoted().sender.quote == Quote(amounts[0], amounts[0], UINT64_MAX, 0, None)
    packets = []
    while hand.books.ending is None:
        packets.append(hand.next())
        hand.take(packets[-1], fulfillment(packets[-1]))
    assert [packet.prepare.amount for packet in packets] == amounts


REPEATED: Final[dict[str, Callable[[Packet], bytes]]] = {
    "trouble": lambda _: encode(rejection("T00", message="try again later")),
    "too late": lambda _: encode(rejection("R00")),
    "no packet": lambda _: b"<html>",
    "no proof": lambda packet: encode(Fulfill(bytes(32), said(packet, PacketType.FULFILL))),
}


@pytest.mark.parametrize("case", REPEATED)
@pytest.mark.parametrize("asks", [True, False])
def test_what_is_sent_again(case: str, asks: bool) -> None:
    """What may have arrived is sent again as it was, with more time to do so, after pauses that grow up to a second."""
    hand = Hand(100) if asks else Hand(100).quoted()
    first = hand.next()
    pauses = []
    for _ in range(7):
        hand.take(first, REPEATED[case](first))
        assert not hand.has_next()
        resumes_at = hand.sender.resumes_at
        assert resumes_at is not None
        pauses.append((resumes_at - hand.now).total_seconds())
        hand.now = resumes_at
        again = hand.next()
        assert (again.prepare.data, again.prepare.condition) == (first.prepare.data, first.prepare.condition)
        assert again.prepare.expires_at - first.prepare.expires_at == timedelta(seconds=pauses[-1])
        first = again
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert (hand.books.repeats, hand.sender.resumes_at) == (7, None)


def test_what_is_repeated_is_credited_once() -> None:
    """When an answer is lost, the same packet brings it, and the money has arrived once, also once it is completed."""
    service = Service(limit=100)
    hand = Hand(150, payee_of(service), packet_max=50, in_flight_max=3)
    probe = hand.next()
    hand.take(probe, service.answer(probe.octets))
    packets = [hand.next() for _ in range(3)]
    replies = [service.answer(packet.octets) for packet in packets]
    assert service.received == 100
    for packet in packets[:2]:
        hand.sender.lost(packet, now=hand.now)
    hand.take(packets[2], replies[2])
    assert (hand.books.ending, hand.sender.is_over) == (Ending.CLOSED, False)
    hand.now += timedelta(seconds=1)
    hand.run(service)

    assert service.received == 100
    over: Any = {"ending": Ending.CLOSED, "reason": "the payment is completed"}
    assert hand.books == Books(150, sent=100, delivered=100, packets=2, repeats=2, **over)
    assert hand.sender.is_over


def test_an_answer_counts_once() -> None:
    """A second answer to a packet changes nothing, whatever it is."""
    hand = Hand(100, packet_max=50).quoted()
    packet = hand.next()
    hand.take(packet, fulfillment(packet))
    books = hand.books
    for reply in (fulfillment(packet), rejection("F02"), rejection("T00")):
        hand.take(packet, reply)
        assert (hand.books, hand.sender.resumes_at) == (books, None)


def test_an_answer_that_was_given_up() -> None:
    """What was called lost, even twice, and is answered after all, is not sent again."""
    hand = Hand(100, packet_max=50).quoted()
    packet = hand.next()
    hand.sender.lost(packet, now=hand.now)
    hand.sender.lost(packet, now=hand.now)
    hand.take(packet, fulfillment(packet))
    hand.now += timedelta(seconds=1)
    assert (hand.books.sent, hand.sender.resumes_at, hand.next().sequence) == (50, None, packet.sequence + 1)


def test_a_fulfillment_with_no_word_of_what_arrived() -> None:
    """The money is gone, and no more of it is sent to a receiver that does not keep to STREAM."""
    hand = Hand(100, packet_max=50).quoted()
    packet = hand.next()
    hand.take(packet, fulfillment(packet, b""))

    assert (hand.books.sent, hand.books.delivered, hand.books.ending) == (50, 0, Ending.REFUSED)
    assert hand.books.reason == "a packet was fulfilled with no word of what arrived"


# --- giving up ---------------------------------------------------------------------------------------


def test_patience_ends() -> None:
    """When nothing was fulfilled for too long, it ends; what was not answered is unknown, and can still be answered."""
    hand = Hand(100, packet_max=10, in_flight_max=3).quoted()
    first, second, third = hand.next(), hand.next(), hand.next()
    hand.sender.lost(first, now=NOW)
    hand.now += PATIENCE
    hand.take(second, rejection("T00", message="try again later"))
    expected = Books(100, unknown=10, ending=Ending.SILENCE, reason="T00 try again later")
    assert (expected, hand.sender.is_over) == (hand.books, False)
    hand.sender.lost(hand.next(), now=hand.now)
    assert (hand.books.unknown, hand.sender.is_over) == (20, False)
    hand.take(third, fulfillment(third))
    assert (hand.books.unknown, hand.books.delivered, hand.sender.is_over) == (20, 10, True)


def test_patience_begins_anew() -> None:
    """With each packet that is fulfilled."""
    hand = Hand(100, packet_max=10).quoted()
    first, second = hand.next(), hand.next()
    hand.now += PATIENCE - timedelta(seconds=1)
    hand.take(first, fulfillment(first))
    hand.now += timedelta(seconds=2)
    hand.sender.lost(second, now=hand.now)
    assert (hand.books.ending, hand.books.unknown) == (None, 0)


def test_patience_ends_with_packets_that_are_always_too_large() -> None:
    """Who is asked for less again and again gives up as well."""
    hand = Hand(UINT64_MAX).quoted()
    hand.now += PATIENCE - timedelta(seconds=1)
    hand.take(hand.next(), rejection("F08"))
    assert hand.has_next()
    hand.now += timedelta(seconds=1)
    hand.take(hand.next(), rejection("F08", message="still too much"))
    assert (hand.books.ending, hand.books.reason) == (Ending.SILENCE, "F08 still too much")


def test_a_probe_that_is_never_answered() -> None:
    """Ends it as well, and no money is unknown."""
    hand = Hand(100)
    probe = hand.next()
    hand.now += PATIENCE
    hand.sender.lost(probe, now=hand.now)
    assert (hand.books, hand.sender.is_over) == (Books(100, ending=Ending.SILENCE), True)


def test_it_can_be_stopped() -> None:
    """Nothing more is sent, and what was under way is unknown, whatever becomes of it."""
    hand = Hand(100, packet_max=10).quoted()
    first, second = hand.next(), hand.next()
    hand.sender.lost(first, now=hand.now)
    hand.sender.stop("enough")
    hand.now += timedelta(seconds=1)
    hand.sender.lost(first, now=hand.now)
    hand.take(second, fulfillment(second))
    assert not hand.has_next()
    assert hand.books == Books(100, unknown=20, ending=Ending.REFUSED, reason="enough")
    assert (hand.sender.is_over, hand.sender.resumes_at) == (True, None)


# --- threads -----------------------------------------------------------------------------------------


def linked(post: Post) -> Link:
    """A way to the service that is a call."""

    @contextmanager
    def link() -> Iterator[Post]:
        yield post

    return link


class Directly:
    """The way to a service in this process, for several threads."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.link = linked(self.post)
        self.drop: Sequence[int] = ()  # the numbers of the packets whose answers are lost
        self._turn = threading.Lock()
        self._count = 0

    def post(self, packet: bytes) -> bytes:
        """The answer to a packet, unless it is to be lost."""
        with self._turn:
            self._count += 1
            reply = self.service.answer(packet)
            if self._count in self.drop:
                raise TimeoutError("timed out")
            return reply


def test_threads_pay_together() -> None:
    """With answers that are lost, all arrives once, and progress is told after each answer."""
    service = Service(limit=2500)
    way = Directly(service)
    way.drop = (1, 5, 9)
    seen: list[Books] = []

    books = pay(way.link, payee_of(service), 2500, packet_max=100, in_flight=4, progress=seen.append)

    assert books == Books(2500, sent=2500, delivered=2500, packets=25, repeats=3, ending=Ending.DONE)
    assert service.received == 2500
    assert (seen[-1], len(seen)) == (books, 1 + 25 + 3)


def test_a_quote_moves_no_money() -> None:
    """A quote asks one question, also of a payment that has something."""
    service = Service(limit=2500)
    pay(Directly(service).link, payee_of(service), 1000)

    assert quote(Directly(service).link, payee_of(service), 700) == Quote(700, 700, 2500, 1000, Asset("USD", 2))
    assert service.received == 1000


def test_no_quote_of_a_payment_that_is_closed() -> None:
    """Why there is none is said."""
    service = Service(limit=2500)
    pay(Directly(service).link, payee_of(service), 2500)

    with pytest.raises(NotTaken, match="the payment is completed"):
        quote(Directly(service).link, payee_of(service), 1)


def test_what_a_thread_raises_ends_it() -> None:
    """When a way is shut for good, or progress raises, all threads end, and it is raised."""
    service = Service(limit=2500)

    def shut(_: bytes) -> bytes:
        raise NotTaken("status 401")

    with pytest.raises(NotTaken, match="status 401"):
        pay(linked(shut), payee_of(service), 2500)

    def enough(books: Books) -> None:
        if books.delivered >= 500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pay(Directly(service).link, payee_of(service), 2500, packet_max=100, in_flight=3, progress=enough)
    assert 500 <= service.received <= 800


# --- HTTP --------------------------------------------------------------------------------------------

Answering = Callable[[list[tuple[int, bytes]]], str]


@pytest.fixture
def answering() -> Iterator[Answering]:
    """Starts a service that gives one answer after the other, the last again and again; it gives its URL."""
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
                asked = f"{self.path} {self.headers['content-type']} {self.headers['authorization']} ".encode()
                body = content or asked + packet
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: the tests' output is not for this."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/ilp"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_over_http_a_packet_is_posted(answering: Answering) -> None:
    """A packet is the body of a POST with the token of the peer, and what comes back with 200 is the reply."""
    with over_http(answering([(200, b"")]), "TOKEN")() as post:
        assert post(b"packet") == b"/ilp application/octet-stream Bearer TOKEN packet"
        assert post(b"other") == b"/ilp application/octet-stream Bearer TOKEN other"


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_over_http_what_is_no_answer(answering: Answering, status: int) -> None:
    """A connection that ends, and a service in trouble, are no answer; the next packet gets one."""
    with over_http(answering([(status, b"later"), (200, b"reply")]), "TOKEN")() as post:
        with pytest.raises(ConnectionError):
            post(b"packet")
        assert post(b"packet") == b"reply"


def test_over_http_nobody_there() -> None:
    """Nobody listening is no answer either, and ends in silence once patience does."""
    url = f"http://127.0.0.1:{free_port()}"

    books = pay(over_http(url, "TOKEN"), PAYEE, 100, in_flight=2, patience_s=0.2)
    assert (books.ending, books.unknown, books.sent) == (Ending.SILENCE, 0, 0)


@pytest.mark.parametrize("status", [401, 404, 415])
def test_over_http_who_is_not_wanted(answering: Answering, status: int) -> None:
    """Any other status is said, with what came with it, and ends the payment."""
    url = answering([(status, b'{"error": {"code": "invalid_token"}}')])

    with pytest.raises(NotTaken, match=f'status {status}: {{"error": {{"code": "invalid_token"}}}}'):
        quote(over_http(url, "TOKEN"), PAYEE, 100)

"""The sender splits an amount into packets, reacts to each reply, and ends with the same total as the payment."""

import http.server
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Asset
from incoming_payments.errors import InvalidValue
from incoming_payments.ilp.packet import Fulfill, PacketType, Reject, encode, write_amounts
from incoming_payments.ilp.stream import ConnectionClose, Frame, StreamClose, StreamKeys, StreamPacket, condition_of
from incoming_payments.limits import SENDER_PATIENCE_S_MAX, UINT64_MAX
from incoming_payments.testing import NOW
from incoming_payments.testing.sender import (
    Ending,
    Link,
    NotTaken,
    Packet,
    Payee,
    Post,
    Quote,
    SenderTotals,
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
TIMEOUT: Final = timedelta(seconds=SENDER_PATIENCE_S_MAX)


def payee_of(service: Service) -> Payee:
    """Return the payee for the payment of `service`."""
    return Payee(service.sender.credentials.ilp_address, service.sender.credentials.shared_secret)


class Nonces:
    """Returns a new nonce at each call, in a fixed order."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(12)


class ManualSender:
    """A sender that a test advances packet by packet, with a clock of its own."""

    def __init__(self, amount: int, payee: Payee = PAYEE, **options: Any) -> None:
        self.now = NOW
        self.sender = StreamSender(payee, amount, now=NOW, **options)
        self._nonces = Nonces()

    @property
    def totals(self) -> SenderTotals:
        """Return the sender's totals."""
        return self.sender.totals

    def next(self) -> Packet:
        """Return the next packet, and fail if there is none."""
        packet = self.sender.next(now=self.now, nonce=self._nonces())
        assert packet is not None
        return packet

    def has_next(self) -> bool:
        """Return whether there is a packet to send. The packet is discarded."""
        return self.sender.next(now=self.now, nonce=self._nonces()) is not None

    def answer(self, packet: Packet, reply: Fulfill | Reject | bytes) -> None:
        """Give the reply to `packet` to the sender."""
        octets = reply if isinstance(reply, bytes) else encode(reply)
        self.sender.answered(packet, octets, now=self.now)

    def quoted(self) -> "ManualSender":
        """Answer the probe, and return `self`."""
        probe = self.next()
        self.answer(probe, rejection("F99", sealed(probe, PacketType.REJECT)))
        return self

    def run(self, service: Service) -> None:
        """Send all packets to `service`, and give the replies to the sender."""
        while packet := self.sender.next(now=self.now, nonce=self._nonces()):
            self.answer(packet, service.answer(packet.octets))


def sealed(
    packet: Packet, kind: PacketType, *frames: Frame, amount: int | None = None, sequence: int | None = None
) -> bytes:
    """Return the encrypted part of a reply to `packet`."""
    arrived = packet.prepare.amount if amount is None else amount
    stream_packet = StreamPacket(kind, packet.sequence if sequence is None else sequence, arrived, frames)
    return KEYS.seal(stream_packet, nonce=packet.sequence.to_bytes(12))


def fulfillment(packet: Packet, data: bytes | None = None) -> Fulfill:
    """Return the Fulfill for `packet`."""
    proof = KEYS.fulfillment(packet.prepare.data)
    return Fulfill(proof, sealed(packet, PacketType.FULFILL) if data is None else data)


def rejection(code: str, data: bytes = b"", message: str = "") -> Reject:
    """Return a Reject."""
    return Reject(code, "test.bank", message, data)


# --- the payee and the amounts ------------------------------------------------------------------------------


def test_a_payee_is_read_from_the_resource() -> None:
    """The ilp method is used, other methods are ignored, and `repr` does not contain the secret."""
    ilp = {"type": "ilp", "ilpAddress": "test.bank.abc", "sharedSecret": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"}
    payee = Payee.of({"methods": [{"type": "other"}, ilp]})

    assert payee == PAYEE
    assert "secret" not in repr(payee)


@pytest.mark.parametrize("resource", [{}, {"methods": []}, {"methods": [{"type": "other"}]}])
def test_a_resource_without_an_ilp_method_has_no_payee(resource: dict[str, Any]) -> None:
    """Such a payment is completed or expired, and the error says so."""
    with pytest.raises(InvalidValue, match="methods contains no ilp method: the payment is completed or expired"):
        Payee.of(resource)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amount": -1}, "amount must be an integer from 0 to 18446744073709551615, not -1"),
        ({"amount": True}, "amount must be"),
        ({"amount": UINT64_MAX + 1}, "amount must be"),
        ({"amount": 1, "probe": -1}, "probe must be an integer from 0"),
        ({"amount": 1, "packet_max": 0}, "packet_max must be an integer from 1"),
        ({"amount": 1, "in_flight_max": 0}, "in_flight_max must be an integer from 1 to 64"),
        ({"amount": 1, "in_flight_max": 65}, "in_flight_max must be an integer from 1 to 64"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    """Amounts and limits are checked before the first packet."""
    with pytest.raises(InvalidValue, match=message):
        ManualSender(**options)


# --- sending -----------------------------------------------------------------------------------------


def test_the_first_packet_is_a_probe() -> None:
    """No receiver can fulfil the probe, and no other packet is sent before the answer to it."""
    service = Service(limit=2500)
    manual = ManualSender(3000, payee_of(service))
    probe = manual.next()
    assert (probe.probe, probe.prepare.amount, manual.has_next()) == (True, 3000, False)
    assert condition_of(service.sender.keys.fulfillment(probe.prepare.data)) != probe.prepare.condition

    manual.answer(probe, service.answer(probe.octets))
    assert manual.sender.quote == Quote(3000, 3000, 2500, 0, Asset("USD", 2))
    assert service.received == 0


def test_a_quote_without_frames_has_defaults() -> None:
    """If the receiver reports no limit and no asset, the quote has the largest amount and `None`."""
    assert ManualSender(3000).quoted().sender.quote == Quote(3000, 3000, UINT64_MAX, 0, None)


def test_the_amount_is_split_into_packets() -> None:
    """All packets but the last have the largest size, and both totals are equal."""
    service = Service(limit=2500)
    manual = ManualSender(2500, payee_of(service), packet_max=1000)
    manual.run(service)

    assert manual.totals == SenderTotals(2500, sent=2500, delivered=2500, packets=3, ending=Ending.DONE)
    assert manual.sender.has_ended
    assert (service.received, len(service.store.events(service.id))) == (2500, 1 + 3 + 1)


def test_packets_in_flight_are_limited() -> None:
    """Unanswered packets count, and the sum of all packets is the amount."""
    manual = ManualSender(100, packet_max=40, in_flight_max=2).quoted()
    first, second = manual.next(), manual.next()
    assert not manual.has_next()
    manual.answer(second, fulfillment(second))
    third = manual.next()
    assert [packet.prepare.amount for packet in (first, second, third)] == [40, 40, 20]
    manual.answer(third, fulfillment(third))
    assert (manual.has_next(), manual.totals.ending, manual.sender.has_ended) == (False, None, False)
    manual.answer(first, fulfillment(first))
    assert (manual.has_next(), manual.totals.ending, manual.sender.has_ended) == (False, Ending.DONE, True)


@pytest.mark.parametrize("packet_max", [UINT64_MAX, 1000, 7])
def test_an_amount_above_the_limit_is_not_delivered(packet_max: int) -> None:
    """The sender delivers the remainder, within the tolerance, and ends when the payment is closed."""
    service = Service(limit=2500)
    manual = ManualSender(10_000, payee_of(service), packet_max=packet_max)
    manual.run(service)

    assert (manual.totals.ending, manual.totals.reason) == (Ending.CLOSED, "the payment is completed")
    assert manual.totals.delivered == manual.totals.sent == service.received
    assert 2500 <= service.received <= 2525  # the tolerance of one packet


# --- replies -----------------------------------------------------------------------------------------

REFUSALS: Final[dict[str, tuple[Callable[[Packet], Reject], Ending, str]]] = {
    "unreachable": (lambda _: rejection("F02", message="no route"), Ending.REFUSED, "F02 no route"),
    "unknown code": (lambda _: rejection("F42"), Ending.REFUSED, "F42"),
    "no STREAM packet": (lambda _: rejection("F99"), Ending.REFUSED, "F99"),
    "answer to another packet": (
        lambda packet: rejection("F99", sealed(packet, PacketType.REJECT, sequence=99)),
        Ending.REFUSED,
        "F99",
    ),
    "wrong packet type": (
        lambda packet: rejection("F99", sealed(packet, PacketType.FULFILL)),
        Ending.REFUSED,
        "F99",
    ),
    "less arrived": (
        lambda packet: rejection("F99", sealed(packet, PacketType.REJECT, amount=9)),
        Ending.REFUSED,
        "of a packet of 10, only 9 arrive",
    ),
    "stream closed": (
        lambda packet: rejection("F99", sealed(packet, PacketType.REJECT, StreamClose(1, 1, "")), "closed"),
        Ending.CLOSED,
        "closed",
    ),
    "connection closed": (
        lambda packet: rejection("F99", sealed(packet, PacketType.REJECT, ConnectionClose(1, ""))),
        Ending.CLOSED,
        "",
    ),
    "no capacity": (lambda _: rejection("F08", write_amounts(10, 0), "full"), Ending.REFUSED, "F08 full"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_final_refusal_ends_the_sender(case: str) -> None:
    """The totals contain the reason. The other packets in flight still count when they are answered."""
    reply, ending, reason = REFUSALS[case]
    manual = ManualSender(100, packet_max=10).quoted()
    refused, other = manual.next(), manual.next()
    manual.answer(refused, reply(refused))

    assert (manual.totals.ending, manual.totals.reason) == (ending, reason)
    assert (manual.has_next(), manual.sender.has_ended) == (False, False)
    manual.answer(other, fulfillment(other))
    assert (manual.totals.delivered, manual.sender.has_ended, manual.totals.ending) == (10, True, ending)


@pytest.mark.parametrize(
    ("data", "amounts"),
    [
        (write_amounts(100, 30), [30, 30, 30, 10]),
        (write_amounts(1000, 300), [30, 30, 30, 10]),  # in the units of another asset
        (b"", [50, 50]),  # without amounts: half
        (write_amounts(0, 5), [50, 50]),  # the maximum is not smaller: half
        (write_amounts(1, 5), [50, 50]),
        (write_amounts(5, 5), [50, 50]),
    ],
)
@pytest.mark.parametrize("probing", [True, False])
def test_f08_reduces_the_packet_size(data: bytes, amounts: list[int], probing: bool) -> None:
    """The new size is always smaller than the refused packet, for the probe and for packets with money."""
    manual = ManualSender(100) if probing else ManualSender(100).quoted()
    large = manual.next()
    manual.answer(large, rejection("F08", data))
    if probing:
        assert manual.quoted().sender.quote == Quote(amounts[0], amounts[0], UINT64_MAX, 0, None)
    packets = []
    while manual.totals.ending is None:
        packets.append(manual.next())
        manual.answer(packets[-1], fulfillment(packets[-1]))
    assert [packet.prepare.amount for packet in packets] == amounts


REPEATED: Final[dict[str, Callable[[Packet], bytes]]] = {
    "temporary error": lambda _: encode(rejection("T00", message="try again later")),
    "timed out": lambda _: encode(rejection("R00")),
    "not an ILP packet": lambda _: b"<html>",
    "wrong fulfillment": lambda packet: encode(Fulfill(bytes(32), sealed(packet, PacketType.FULFILL))),
}


@pytest.mark.parametrize("case", REPEATED)
@pytest.mark.parametrize("probing", [True, False])
def test_an_unanswered_packet_is_repeated(case: str, probing: bool) -> None:
    """Only the expiry changes. The pauses between repeats double, up to one second."""
    manual = ManualSender(100) if probing else ManualSender(100).quoted()
    first = manual.next()
    pauses = []
    for _ in range(7):
        manual.answer(first, REPEATED[case](first))
        assert not manual.has_next()
        resumes_at = manual.sender.resumes_at
        assert resumes_at is not None
        pauses.append((resumes_at - manual.now).total_seconds())
        manual.now = resumes_at
        again = manual.next()
        assert (again.prepare.data, again.prepare.condition) == (first.prepare.data, first.prepare.condition)
        assert again.prepare.expires_at - first.prepare.expires_at == timedelta(seconds=pauses[-1])
        first = again
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert (manual.totals.repeats, manual.sender.resumes_at) == (7, None)


def test_a_repeated_packet_is_credited_once() -> None:
    """A repeat gets the lost answer, even after the payment is completed."""
    service = Service(limit=100)
    manual = ManualSender(150, payee_of(service), packet_max=50, in_flight_max=3)
    probe = manual.next()
    manual.answer(probe, service.answer(probe.octets))
    packets = [manual.next() for _ in range(3)]
    replies = [service.answer(packet.octets) for packet in packets]
    assert service.received == 100
    for packet in packets[:2]:
        manual.sender.lost(packet, now=manual.now)
    manual.answer(packets[2], replies[2])
    assert (manual.totals.ending, manual.sender.has_ended) == (Ending.CLOSED, False)
    manual.now += timedelta(seconds=1)
    manual.run(service)

    assert service.received == 100
    expected = SenderTotals(150, sent=100, delivered=100, packets=2, repeats=2, ending=Ending.CLOSED)
    assert manual.totals == evolve(expected, reason="the payment is completed")
    assert manual.sender.has_ended


def test_a_second_answer_is_ignored() -> None:
    """The totals do not change, for each kind of answer."""
    manual = ManualSender(100, packet_max=50).quoted()
    packet = manual.next()
    manual.answer(packet, fulfillment(packet))
    totals = manual.totals
    for reply in (fulfillment(packet), rejection("F02"), rejection("T00")):
        manual.answer(packet, reply)
        assert (manual.totals, manual.sender.resumes_at) == (totals, None)


def test_a_packet_answered_late_is_not_repeated() -> None:
    """The answer cancels the repeat of a packet that was reported lost."""
    manual = ManualSender(100, packet_max=50).quoted()
    packet = manual.next()
    manual.sender.lost(packet, now=manual.now)
    manual.sender.lost(packet, now=manual.now)
    manual.answer(packet, fulfillment(packet))
    manual.now += timedelta(seconds=1)
    assert (manual.totals.sent, manual.sender.resumes_at, manual.next().sequence) == (50, None, packet.sequence + 1)


def test_a_fulfill_without_a_stream_packet_ends_the_sender() -> None:
    """The receiver does not follow STREAM, so the sender sends no more money to it."""
    manual = ManualSender(100, packet_max=50).quoted()
    packet = manual.next()
    manual.answer(packet, fulfillment(packet, b""))

    assert (manual.totals.sent, manual.totals.delivered, manual.totals.ending) == (50, 0, Ending.REFUSED)
    assert manual.totals.reason == "the Fulfill does not contain the STREAM packet that reports the received amount"


# --- the timeout ---------------------------------------------------------------------------------------


def test_the_sender_ends_after_the_timeout() -> None:
    """A lost packet becomes `unknown`. A packet that is still in flight counts when it is answered."""
    manual = ManualSender(100, packet_max=10, in_flight_max=3).quoted()
    first, second, third = manual.next(), manual.next(), manual.next()
    manual.sender.lost(first, now=NOW)
    manual.now += TIMEOUT
    manual.answer(second, rejection("T00", message="try again later"))
    expected = SenderTotals(100, unknown=10, ending=Ending.TIMEOUT, reason="T00 try again later")
    assert (expected, manual.sender.has_ended) == (manual.totals, False)
    manual.sender.lost(manual.next(), now=manual.now)
    assert (manual.totals.unknown, manual.sender.has_ended) == (20, False)
    manual.answer(third, fulfillment(third))
    assert (manual.totals.unknown, manual.totals.delivered, manual.sender.has_ended) == (20, 10, True)


def test_each_fulfilled_packet_restarts_the_timeout() -> None:
    """A packet that is lost after a fulfilled packet is repeated."""
    manual = ManualSender(100, packet_max=10).quoted()
    first, second = manual.next(), manual.next()
    manual.now += TIMEOUT - timedelta(seconds=1)
    manual.answer(first, fulfillment(first))
    manual.now += timedelta(seconds=2)
    manual.sender.lost(second, now=manual.now)
    assert (manual.totals.ending, manual.totals.unknown) == (None, 0)


def test_repeated_f08_leads_to_the_timeout() -> None:
    """The timeout ends the sender if the receiver refuses each packet as too large."""
    manual = ManualSender(UINT64_MAX).quoted()
    manual.now += TIMEOUT - timedelta(seconds=1)
    manual.answer(manual.next(), rejection("F08"))
    assert manual.has_next()
    manual.now += timedelta(seconds=1)
    manual.answer(manual.next(), rejection("F08", message="still too much"))
    assert (manual.totals.ending, manual.totals.reason) == (Ending.TIMEOUT, "F08 still too much")


def test_an_unanswered_probe_leads_to_the_timeout() -> None:
    """No amount is `unknown`, because a probe moves no money."""
    manual = ManualSender(100)
    probe = manual.next()
    manual.now += TIMEOUT
    manual.sender.lost(probe, now=manual.now)
    assert (manual.totals, manual.sender.has_ended) == (SenderTotals(100, ending=Ending.TIMEOUT), True)


def test_stop_ends_the_sender_at_once() -> None:
    """The packets in flight become `unknown`, and later answers to them are ignored."""
    manual = ManualSender(100, packet_max=10).quoted()
    first, second = manual.next(), manual.next()
    manual.sender.lost(first, now=manual.now)
    manual.sender.stop("enough")
    manual.now += timedelta(seconds=1)
    manual.sender.lost(first, now=manual.now)
    manual.answer(second, fulfillment(second))
    assert not manual.has_next()
    assert manual.totals == SenderTotals(100, unknown=20, ending=Ending.REFUSED, reason="enough")
    assert (manual.sender.has_ended, manual.sender.resumes_at) == (True, None)


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

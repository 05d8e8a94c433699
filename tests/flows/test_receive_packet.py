"""`flows.receive_packet`: what becomes of each packet, what is booked, and what the sender is told."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.lifecycle import Tolerance, complete
from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.errors import (
    IncomingPaymentsError,
    InvalidValue,
    PolicyRefused,
    PortMissing,
    StoreUnavailable,
    StoreUnusable,
)
from incoming_payments.flows.effects import DrawRandomness, Effect, LoadPayment, UpdatePayment
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import answer_packet, receive_packet
from incoming_payments.flows.run import arun, run
from incoming_payments.ilp import DerivedMethods
from incoming_payments.ilp.ildcp import Peer, ildcp_request, read_ildcp_response
from incoming_payments.ilp.packet import Fulfill, PacketType, Prepare, Reject, decode_reply, encode, read_amounts
from incoming_payments.ilp.receive import Receiver
from incoming_payments.ilp.stream import (
    ConnectionAssetDetails,
    ConnectionClose,
    ConnectionMaxData,
    ConnectionMaxStreamId,
    ConnectionNewAddress,
    StreamClose,
    StreamError,
    StreamMaxMoney,
    StreamMoney,
    StreamMoneyBlocked,
    condition_of,
)
from incoming_payments.limits import UINT64_MAX
from incoming_payments.ports import AsyncPorts, Ports
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing import NOW, a_creation, a_wallet_address
from service_kit import Crash, watched
from stream_kit import METHODS, PEER, SECRET, USD, Sender, Service

CLOSE: Final = (StreamClose(1, StreamError.NO_ERROR, ""),)
GOODBYE: Final = (ConnectionClose(StreamError.NO_ERROR, ""),)


def max_money(received: int, receive_max: int = 1000, stream: int = 1) -> StreamMaxMoney:
    return StreamMaxMoney(stream, receive_max, received)


# --- money comes -------------------------------------------------------------------------------------


def test_money_is_booked_and_fulfilled() -> None:
    """A packet is credited, and its sender told what the payment has received and can take."""
    service = Service(limit=1000)
    answer = service.send(service.sender.prepare(400))
    assert answer.code == "fulfilled"
    assert answer.frames == (max_money(400),)
    assert service.received == 400
    assert [event.kind for event in service.store.events(service.id)] == [EventKind.CREATED, EventKind.CREDITED]


def test_payment_is_filled_by_packets() -> None:
    """Packets add up, and the one that reaches `incomingAmount` completes the payment."""
    service = Service(limit=1000)
    for total in (400, 800, 1000):
        answer = service.send(service.sender.prepare(min(400, total - service.received)))
        assert answer.frames == (max_money(total),)
    assert service.store.events(service.id)[-1].kind is EventKind.COMPLETED


def test_payment_without_an_amount_takes_all_that_64_bits_hold() -> None:
    """Without `incomingAmount` there is no end but the largest total."""
    service = Service()
    assert service.send(service.sender.prepare(400)).frames == (max_money(400, UINT64_MAX),)
    too_much = service.send(service.sender.prepare(UINT64_MAX))
    assert too_much.code == "F08"
    assert read_amounts(too_much.reply.data) == (UINT64_MAX, UINT64_MAX - 400)
    assert service.send(service.sender.prepare(UINT64_MAX - 400)).code == "fulfilled"
    assert service.received == UINT64_MAX


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        pytest.param((), (max_money(400),), id="no stream: the first one"),
        pytest.param((StreamMoney(5, 1),), (max_money(400, stream=5),), id="another stream"),
        pytest.param(
            (StreamMoneyBlocked(7, 9, 0), StreamMoney(5, 1), StreamMaxMoney(5, 0, 0), StreamClose(9, 1, "")),
            (max_money(400, stream=5), max_money(400, stream=7)),
            id="streams without money: after those with it, and not those that are closed",
        ),
        pytest.param(
            (StreamMoney(1, 9), StreamMoney(3, 0), StreamMoney(1, 1)),
            (max_money(400), max_money(400, stream=3)),
            id="several streams: the whole amount is the payment's, and each is told the same",
        ),
        pytest.param(
            tuple(StreamMoney(stream, 1) for stream in range(1, 201)),
            tuple(max_money(400, stream=stream) for stream in range(1, 11)),
            id="very many streams: ten are answered",
        ),
        pytest.param(
            (ConnectionNewAddress(""), StreamMoney(1, 1)),
            (max_money(400), ConnectionAssetDetails("USD", 2)),
            id="an address: our asset as well",
        ),
    ],
)
def test_what_a_sender_is_told(frames: Any, expected: Any) -> None:
    """The payment takes the whole packet whatever streams it names, and tells each of them what it is open for."""
    service = Service(limit=1000)
    answer = service.send(service.sender.prepare(400, frames=frames))
    assert (answer.code, answer.frames) == ("fulfilled", expected)
    assert service.received == 400


@pytest.mark.parametrize(("least", "code"), [(399, "fulfilled"), (400, "fulfilled"), (401, "F99")])
def test_the_least_that_the_sender_wants_to_arrive(least: int, code: str) -> None:
    """RFC 29 §3.4: less than the minimum in the packet is not fulfilled; the sender learns what arrived."""
    service = Service(limit=1000)
    answer = service.send(service.sender.prepare(400, least=least))
    assert answer.code == code
    assert answer.said is not None
    assert answer.said.amount == 400
    assert service.received == (400 if code == "fulfilled" else 0)


# --- exactly once ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(lambda _: None, id="at once"),
        pytest.param(lambda service: service.send(service.sender.prepare(600)), id="completed by now"),
        pytest.param(lambda service: setattr(service, "now", NOW + timedelta(seconds=20)), id="expired by now"),
        pytest.param(lambda service: setattr(service, "receiver", Receiver(METHODS)), id="after a restart"),
    ],
)
def test_same_packet_again(then: Callable[[Service], object]) -> None:
    """It is fulfilled again, booked once, and the sender is told how things stand by now."""
    service = Service(limit=1000, expires_in_s=10)
    prepare = service.sender.prepare(400)
    first = service.send(prepare)
    then(service)
    before = service.payment
    again = service.send(prepare)
    assert first.reply.fulfillment == again.reply.fulfillment  # type: ignore[union-attr] # or there is none
    assert again.frames == (max_money(before.received.value),)
    assert service.payment == before


def test_same_packet_after_a_rotation() -> None:
    """A new server secret in front changes nothing for packets to an address made under an old one."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(400)
    service.send(prepare)
    service.receiver = Receiver(DerivedMethods("test.bank", [b"another server secret, 32 bytes.", SECRET]))
    assert service.send(prepare).code == "fulfilled"
    assert service.received == 400


def test_same_packet_with_another_expiry_or_by_another_peer() -> None:
    """What nobody authenticates does not make it another packet."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(400)
    service.send(prepare)
    later = evolve(prepare, expires_at=prepare.expires_at + timedelta(seconds=1))
    assert service.send(later).code == "fulfilled"
    assert service.send(prepare, Peer("test.bank.other", USD)).code == "fulfilled"
    assert service.received == 400


@pytest.mark.parametrize("amount", [0, 1, 399, 401, 1000])
@pytest.mark.parametrize("full", [False, True])
def test_same_packet_with_another_amount(amount: int, full: bool) -> None:
    """No fulfillment leaves but for exactly what is booked: a copy with another amount is refused for good."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(400)
    service.send(prepare)
    if full:
        service.send(service.sender.prepare(600))
    before = service.payment
    answer = service.send(evolve(prepare, amount=amount))
    assert (answer.code, answer.reply.data) == ("F03", b"")
    assert service.payment == before


def test_two_packets_are_two() -> None:
    """Packets with the same sequence and amount, as two senders send them, are both booked."""
    service = Service(limit=1000)
    service.send(service.sender.prepare(400, sequence=1))
    service.send(service.sender.prepare(400, sequence=1, frames=[StreamMoney(3, 1)]))  # the nonce is the same
    assert service.received == 800


def test_ids_of_one_sender_lie_side_by_side() -> None:
    """Credits are named after the packet: by its sequence, so that an index grows at its end, and by its condition."""
    service = Service(limit=1000)
    prepares = [service.sender.prepare(1, sequence=sequence) for sequence in (1, 2, 15, 16, 255, 256, UINT64_MAX)]
    for prepare in prepares:
        service.send(prepare)
    ids = [event.credit_id for event in service.store.events(service.id)[1:]]
    assert ids == sorted(str(id) for id in ids)
    assert str(ids[0]).startswith("stream:0000000000000001:")
    assert str(ids[-1]).startswith("stream:ffffffffffffffff:")


def test_credits_of_other_rails_cannot_be_met() -> None:
    """Nobody else books under an id of a packet, so none can be taken for booked that was not."""
    service = Service(limit=1000)
    with pytest.raises(InvalidValue) as caught:
        run(receive(service.id, credit="stream:1", amount=service.payment.received, now=NOW), service.ports)
    assert caught.value.details == {"member": "creditId"}


# --- what is refused ---------------------------------------------------------------------------------

OTHER: Final = Sender(METHODS.derive(a_creation().answer.id))  # a payment that no store has
FOREIGN: Final = Sender(
    DerivedMethods("test.bank", [b"another server secret, 32 bytes."]).derive(OTHER.credentials.payment_id)
)


def completed(service: Service) -> None:
    service.store.update(service.id, lambda payment, _: complete(payment, now=NOW))


def expired(service: Service) -> None:
    service.now = NOW + timedelta(seconds=10, microseconds=1)


def half(service: Service) -> None:
    service.send(service.sender.prepare(500))


def nothing(_: Service) -> None:
    pass


Make = Callable[[Sender], Prepare]
ROWS: Final[list[tuple[str, Callable[[Service], None], Make, str, Any]]] = [
    # what happened before, the packet, the code, and the frames or the data of the reply
    ("expired Prepare", nothing, lambda s: s.prepare(1, expires_at=NOW), "R00", b""),
    ("about to expire", nothing, lambda s: s.prepare(1, expires_at=NOW + timedelta(milliseconds=1000)), "R00", b""),
    ("just in time", nothing, lambda s: s.prepare(1, expires_at=NOW + timedelta(milliseconds=1001)), "fulfilled", None),
    ("another service", nothing, lambda s: evolve(s.prepare(1), destination="test.other.x"), "F02", b""),
    ("the service itself", nothing, lambda s: evolve(s.prepare(1), destination="test.bank"), "F02", b""),
    ("made up address", nothing, lambda s: evolve(s.prepare(1), destination="test.bank." + "A" * 43), "F02", b""),
    ("address of another secret", nothing, lambda _: FOREIGN.prepare(1), "F02", b""),
    ("a peer's own protocol", nothing, lambda s: evolve(s.prepare(1), destination="peer.route.control"), "F02", b""),
    ("payment that is not there", nothing, lambda _: OTHER.prepare(1), "F02", b""),
    ("probe of one that is not there", nothing, lambda _: OTHER.probe(1), "F02", b""),
    ("no data", nothing, lambda s: evolve(s.prepare(1), data=b""), "F06", b""),
    ("data of another payment", nothing, lambda s: evolve(s.prepare(1), data=OTHER.prepare(1).data), "F06", b""),
    ("data of a Fulfill", nothing, lambda s: s.prepare(1, kind=PacketType.FULFILL), "F06", b""),
    ("data of a Reject", nothing, lambda s: s.prepare(1, kind=PacketType.REJECT), "F06", b""),
    ("goodbye", nothing, lambda s: s.probe(0, frames=GOODBYE), "F99", GOODBYE),
    ("goodbye with money", nothing, lambda s: s.prepare(1, frames=GOODBYE), "F99", GOODBYE),
    ("goodbye to a full one", completed, lambda s: s.probe(0, frames=GOODBYE), "F99", GOODBYE),
    ("probe", nothing, lambda s: s.probe(10**12), "F99", (max_money(0),)),
    ("probe of nothing", nothing, lambda s: s.probe(0), "F99", (max_money(0),)),
    ("probe with a minimum", nothing, lambda s: s.probe(1, least=2), "F99", (max_money(0),)),
    ("probe when some has come", half, lambda s: s.probe(1), "F99", (max_money(500),)),
    (
        "probe that asks for the asset",
        nothing,
        lambda s: s.probe(1, frames=[ConnectionNewAddress(""), ConnectionMaxData(0), ConnectionMaxStreamId(1)]),
        "F99",
        (max_money(0), ConnectionAssetDetails("USD", 2)),
    ),
    ("under the minimum", nothing, lambda s: s.prepare(5, least=6), "F99", (max_money(0),)),
    ("nothing", nothing, lambda s: s.prepare(0), "fulfilled", (max_money(0),)),
    ("nothing, and less than the minimum", nothing, lambda s: s.prepare(0, least=1), "F99", (max_money(0),)),
    ("too much", nothing, lambda s: s.prepare(1011), "F08", (1011, 1000)),
    ("too much when some has come", half, lambda s: s.prepare(511), "F08", (511, 500)),
    ("as much too much as is tolerated", half, lambda s: s.prepare(510), "fulfilled", (max_money(1010, 1010),)),
    ("completed", completed, lambda s: s.prepare(1), "F99", CLOSE),
    ("completed, other stream", completed, lambda s: s.prepare(1, frames=[StreamMoney(7, 1)]), "F99", None),
    ("completed, too much", completed, lambda s: s.prepare(5000), "F99", CLOSE),
    ("completed, probed", completed, lambda s: s.probe(1), "F99", CLOSE),
    ("completed, under the minimum", completed, lambda s: s.prepare(1, least=2), "F99", CLOSE),
    ("completed, nothing", completed, lambda s: s.prepare(0), "fulfilled", CLOSE),
    (
        "completed, and a sender that is blocked on another stream",
        completed,
        lambda s: s.prepare(0, frames=[StreamMaxMoney(3, 0, 0), StreamMoneyBlocked(3, 600, 200)]),
        "fulfilled",
        (StreamClose(3, StreamError.NO_ERROR, ""),),
    ),
    ("expired", expired, lambda s: s.prepare(1), "F99", CLOSE),
    ("expired, probed", expired, lambda s: s.probe(1), "F99", CLOSE),
    ("expired, nothing", expired, lambda s: s.prepare(0), "fulfilled", CLOSE),
]


@pytest.mark.parametrize(
    ("before", "make", "code", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_answers(before: Callable[[Service], None], make: Make, code: str, expected: Any) -> None:
    """Each packet has the answer that senders need; what is not fulfilled with an amount is not booked."""
    service = Service(limit=1000, expires_in_s=10)
    before(service)
    earlier = service.payment
    prepare = make(service.sender)
    answer = service.send(prepare)
    assert answer.code == code
    if isinstance(expected, bytes):
        assert answer.reply.data == expected
    elif code == "F08":
        assert read_amounts(answer.reply.data) == expected
    elif expected is not None:
        assert answer.frames == expected
    if code == "fulfilled" and prepare.amount:
        assert service.received == earlier.received.value + prepare.amount
    else:
        assert service.payment == earlier


def test_closing_names_the_streams_of_the_packet() -> None:
    """Who sends on several streams learns that each of them is over."""
    service = Service(limit=1000)
    completed(service)
    answer = service.send(service.sender.prepare(1, frames=[StreamMoney(7, 1), StreamMoney(9, 1)]))
    assert answer.frames == (StreamClose(7, 1, ""), StreamClose(9, 1, ""))


@pytest.mark.parametrize("asset", [Asset("EUR", 2), Asset("USD", 3)])
@pytest.mark.parametrize("make", [lambda s: s.prepare(1), lambda s: s.probe(1), lambda s: s.prepare(0)])
@pytest.mark.parametrize("before", [nothing, completed])
def test_peer_that_counts_in_another_asset(asset: Asset, make: Make, before: Callable[[Service], None]) -> None:
    """It is refused for good, probes as well: no amount would mean what its sender is told."""
    service = Service(limit=1000)
    before(service)
    answer = service.send(make(service.sender), Peer("test.bank.other", asset))
    assert (answer.code, answer.reply.data) == ("F07", b"")
    assert service.received == 0


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\x0c",
        b"GET / HTTP/1.1",
        encode(decode_reply(bytes.fromhex("0e06463432000000"))),
        bytes(40_000),
    ],
)
def test_bytes_that_are_no_prepare(packet: bytes) -> None:
    """They are answered as well: `F01`."""
    reply = decode_reply(Service().answer(packet))
    assert isinstance(reply, Reject)
    assert reply == Reject("F01", "test.bank", reply.message)


# --- the tolerance -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "tolerance", "excess_max"),
    [
        (1000, Tolerance(), 10),
        (50, Tolerance(), 1),
        (199, Tolerance(), 1),
        (200, Tolerance(), 2),
        (1000, Tolerance(units=0, basis_points=0), 0),
        (1000, Tolerance(units=25), 25),
        (1000, Tolerance(basis_points=1), 1),
        (UINT64_MAX, Tolerance(), 0),
        (UINT64_MAX - 1, Tolerance(), 1),
    ],
)
def test_rule_for_too_much(limit: int, tolerance: Tolerance, excess_max: int) -> None:
    """The larger of units and basis points may be too much; one more is refused, and the remainder is named."""
    service = Service(limit=limit)
    service.receiver = Receiver(METHODS, tolerance)
    if limit + excess_max < UINT64_MAX:
        answer = service.send(service.sender.prepare(limit + excess_max + 1))
        assert answer.code == "F08"
        assert read_amounts(answer.reply.data) == (limit + excess_max + 1, limit)
    assert service.send(service.sender.prepare(limit + excess_max)).code == "fulfilled"
    assert service.received == limit + excess_max


def test_sender_that_shrinks_delivers_the_remainder() -> None:
    """F08 names what remains, and a packet of that much completes the payment to the unit."""
    service = Service(limit=1000)
    service.send(service.sender.prepare(700))
    came, remains = read_amounts(service.send(service.sender.prepare(700)).reply.data)
    assert (came, remains) == (700, 300)
    assert service.send(service.sender.prepare(remains)).code == "fulfilled"
    assert service.received == 1000


# --- trouble -----------------------------------------------------------------------------------------


class Broken:
    """A store that cannot."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def load(self, *_: object) -> None:
        """Raises."""
        raise self.error

    update = load


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("the disk is full"), "T00"),
        (StoreUnusable("the store is closed"), "T00"),
        (PolicyRefused("this account is frozen"), "F07"),
    ],
)
@pytest.mark.parametrize("make", [lambda s: s.prepare(1), lambda s: s.probe(1)])
def test_trouble_of_the_store(error: IncomingPaymentsError, code: str, make: Make) -> None:
    """It passes, and the sender is to try again; what the host's rules say is final. Neither is said in its words."""
    service = Service(limit=1000)
    prepare = make(service.sender)
    whole = service.store
    service.replace(store=Broken(error))
    answer = service.send(prepare)
    assert (answer.code, answer.reply.data) == (code, b"")
    assert error.description not in str(answer.reply)
    service.replace(store=whole)
    assert service.send(service.sender.prepare(1)).code == "fulfilled"


@pytest.mark.parametrize("make", [lambda s: s.prepare(1), lambda s: s.probe(1)])
def test_what_the_store_said_is_for_the_host(make: Make) -> None:
    """`answer_packet` gives the host the reason of a refusal, in the words that no sender gets to see."""
    service = Service(limit=1000)
    packet = encode(make(service.sender))
    full, frozen = StoreUnavailable("the disk is full"), PolicyRefused("frozen")
    for store, cause in ((service.store, None), (Broken(frozen), frozen), (Broken(full), full)):
        service.replace(store=store)
        answer = run(answer_packet(packet, peer=PEER, receiver=service.receiver, clock=lambda: NOW), service.ports)
        assert answer.cause is cause


def test_credit_whose_answer_was_lost() -> None:
    """Booked, but the store's answer did not come: the packet again is fulfilled, and booked once."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(400)
    seen: list[Effect[Any]] = []
    flow = receive_packet(encode(prepare), peer=PEER, receiver=service.receiver, clock=lambda: NOW)
    with pytest.raises(Crash):
        run(watched(flow, seen, crash_after=2), service.ports)
    assert service.received == 400
    assert service.send(prepare).frames == (max_money(400),)
    assert service.received == 400


def test_what_is_asked_of_the_world() -> None:
    """Randomness first, and then one question to the store: an offer is one update, a probe does not write."""
    service = Service(limit=1000)
    for prepare, question in (
        (service.sender.prepare(1), UpdatePayment),
        (service.sender.prepare(0), UpdatePayment),
        (service.sender.probe(1), LoadPayment),
        (evolve(service.sender.prepare(1), destination="test.other.x"), None),
    ):
        seen: list[Effect[Any]] = []
        flow = receive_packet(encode(prepare), peer=PEER, receiver=service.receiver, clock=lambda: NOW)
        run(watched(flow, seen), service.ports)
        assert [type(effect) for effect in seen] == [DrawRandomness, *([question] if question else [])]


def test_the_fulfillment_waits_for_the_store() -> None:
    """Until the store has answered there is no reply, and none when it refuses."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(400)
    flow = receive_packet(encode(prepare), peer=PEER, receiver=service.receiver, clock=lambda: NOW)
    assert next(flow) == DrawRandomness(12)
    question = flow.send(bytes(12))
    assert isinstance(question, UpdatePayment)
    with pytest.raises(StopIteration) as stop:
        flow.throw(StoreUnavailable("not now"))
    assert decode_reply(stop.value.value).code == "T00"  # type: ignore[union-attr] # or it is a Fulfill


@pytest.mark.parametrize("now", [None, NOW.replace(tzinfo=None)])
def test_no_moment(now: Any) -> None:
    """A host that passes no moment in UTC is told at once."""
    with pytest.raises(InvalidValue) as caught:
        run(receive_packet(b"", peer=PEER, receiver=Receiver(METHODS), clock=lambda: now), Ports())
    assert caught.value.details == {"member": "now"}


def test_without_a_store() -> None:
    """A host that has no store for packets is told so; it is nothing that a sender could change."""
    service = Service()
    service.replace(store=None)
    with pytest.raises(PortMissing):
        service.send(service.sender.prepare(1))


# --- a store that lets it wait -----------------------------------------------------------------------


class Slow:
    """A store that has to wait before it can decide."""

    def __init__(self, service: Service, seconds: float) -> None:
        self.service, self.store, self.seconds = service, service.store, seconds

    def update(self, id: PaymentId, decide: Any, credit_id: CreditId | None = None) -> Any:
        """As the store, but later."""
        self.service.now += timedelta(seconds=self.seconds)
        return self.store.update(id, decide, credit_id)


@pytest.mark.parametrize(
    ("waits_s", "code"), [(0, "fulfilled"), (28.9, "fulfilled"), (29.001, "R00"), (30, "R00"), (3600, "R00")]
)
@pytest.mark.parametrize("amount", [0, 400])
def test_packet_that_waits_until_it_is_too_late(amount: int, waits_s: float, code: str) -> None:
    """Nobody pays for a Fulfill that comes after the Prepare has expired: so nothing is booked, and none leaves."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(amount, expires_at=NOW + timedelta(seconds=30))
    service.replace(store=Slow(service, waits_s))
    assert service.send(prepare).code == code
    assert service.received == (amount if code == "fulfilled" else 0)


def test_packet_that_waits_until_its_payment_has_expired() -> None:
    """Contract section 3, row 2: it is the moment of booking that counts, not that of arrival."""
    service = Service(limit=1000, expires_in_s=10)
    prepare = service.sender.prepare(400)
    service.replace(store=Slow(service, 10))
    assert service.send(prepare).code == "fulfilled"
    assert service.payment.updated_at == NOW + timedelta(seconds=10)
    service.replace(store=Slow(service, 0.001))
    answer = service.send(service.sender.prepare(400))
    assert (answer.code, answer.frames) == ("F99", CLOSE)
    assert service.received == 400


@pytest.mark.parametrize("amount", [0, 400])
@pytest.mark.parametrize("later", [NOW.replace(tzinfo=None), NOW.astimezone(timezone(timedelta(hours=1))), None])
def test_clock_that_says_no_moment_later(amount: int, later: Any) -> None:
    """It is asked for a moment in UTC each time, and nothing is booked by any other."""
    service = Service(limit=1000)
    says = iter([NOW, later])
    packet = encode(service.sender.prepare(amount))
    with pytest.raises(InvalidValue) as caught:
        run(receive_packet(packet, peer=PEER, receiver=service.receiver, clock=lambda: next(says)), service.ports)
    assert (caught.value.details, service.received) == ({"member": "now"}, 0)


def test_packet_that_was_booked_and_waits() -> None:
    """What is booked is fulfilled again, however long the store lets it wait."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(400, expires_at=NOW + timedelta(seconds=30))
    service.send(prepare)
    service.replace(store=Slow(service, 3600))
    assert service.send(prepare).code == "fulfilled"
    assert service.received == 400


@pytest.mark.parametrize("later_s", [29.5, 30, 31, 86400])
def test_repeated_packet_is_fulfilled_whatever_the_time_is(later_s: float) -> None:
    """A credited packet that is repeated too late is fulfilled: if it were refused, the peer would owe nothing."""
    service = Service(limit=1000, expires_in_s=20)
    prepare = service.sender.prepare(400, expires_at=NOW + timedelta(seconds=30))
    other = service.sender.prepare(400, expires_at=NOW + timedelta(seconds=30))
    assert service.send(prepare).code == "fulfilled"
    service.now += timedelta(seconds=later_s)
    assert [service.send(prepare).code for _ in range(2)] == ["fulfilled"] * 2
    assert service.send(other).code == "R00"
    assert service.received == 400


@pytest.mark.parametrize("amount", [1, 400])
def test_late_packet_that_must_not_be_fulfilled_needs_no_store(amount: int) -> None:
    """A packet with another condition cannot have been credited, so a late one is refused without a look-up."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(amount, expires_at=NOW)
    service.replace(store=None)
    assert service.send(evolve(prepare, condition=bytes(32))).code == "R00"


def test_packet_that_waits_for_another_process(tmp_path: Path) -> None:
    """While another process holds the file, time passes: with a real file and a real clock nothing is booked late."""
    path = tmp_path / "payments.sqlite3"
    created = a_creation(limit=1000, now=datetime.now(UTC))
    sender = Sender(METHODS.derive(created.answer.id))
    with SqliteStore(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        store.insert(created)
        ports = Ports(store=store)
        clocks = iter([datetime.now(UTC)])  # the first look; every later one is at the real clock, once it is too late
        expires_at = datetime.now(UTC) + timedelta(milliseconds=300)

        def clock() -> datetime:
            return next(clocks, None) or datetime.now(UTC)

        other.execute("BEGIN IMMEDIATE")
        replies: list[bytes] = []
        flow = receive_packet(
            encode(sender.prepare(400, expires_at=expires_at)), peer=PEER, receiver=Receiver(METHODS), clock=clock
        )
        waiting = threading.Thread(target=lambda: replies.append(run(flow, ports)))
        waiting.start()
        while datetime.now(UTC) <= expires_at:
            time.sleep(0.01)
        other.execute("ROLLBACK")
        waiting.join()
        assert decode_reply(replies[0]).code == "R00"  # type: ignore[union-attr] # or it is a Fulfill
        assert store.load(created.answer.id).received.value == 0


# --- many at once ------------------------------------------------------------------------------------


@pytest.mark.parametrize("payments", [1, 8])
def test_packets_in_flight_together(payments: int, tmp_path: Path) -> None:
    """Packets and copies of them, all at once, into a store on disk: each is fulfilled, and booked once."""
    created = [a_creation(limit=1000) for _ in range(payments)]
    senders = [Sender(METHODS.derive(one.answer.id)) for one in created]
    packets = [encode(sender.prepare(1)) for sender in senders for _ in range(64 // payments)] * 2

    async def deliver() -> tuple[list[bytes], list[int]]:
        store = AsyncSqliteStore(tmp_path / "payments.sqlite3")
        ports, receiver = AsyncPorts(store=store), Receiver(METHODS)
        for one in created:
            await store.insert(one)
        flows = (receive_packet(packet, peer=PEER, receiver=receiver, clock=lambda: NOW) for packet in packets)
        replies = await asyncio.gather(*(arun(flow, ports) for flow in flows))
        totals = [(await store.load(one.answer.id)).received.value for one in created]
        await store.close()
        return replies, totals

    replies, totals = asyncio.run(deliver())
    assert {type(decode_reply(reply)) for reply in replies} == {Fulfill}
    assert totals == [64 // payments] * payments


# --- what a peer asks --------------------------------------------------------------------------------


def test_rfc_31_a_peer_is_told_its_address_and_asset() -> None:
    """A question for `peer.config` is answered without any payment."""
    answer = Service().send(ildcp_request(NOW + timedelta(seconds=30)))
    assert answer.code == "fulfilled"
    assert read_ildcp_response(answer.reply.data) == PEER


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"amount": 1}, "F03"),
        ({"condition": condition_of(b"x" * 32)}, "F05"),
        ({"expires_at": NOW - timedelta(days=1)}, "fulfilled"),  # "arbitrary", says the RFC
    ],
)
def test_rfc_31_other_questions(change: dict[str, Any], code: str) -> None:
    """Nothing is sold there, and nothing else is fulfilled; the expiry does not matter."""
    assert Service().send(evolve(ildcp_request(NOW + timedelta(seconds=30)), **change)).code == code


# --- a wallet address in another asset ---------------------------------------------------------------


def test_payment_in_another_asset() -> None:
    """The asset is the payment's, whatever it is, as long as the peer counts in it."""
    yen = Asset("JPY", 0)
    service = Service(a_creation(limit=1000, wallet_address=a_wallet_address(asset=yen)))
    frames = (ConnectionNewAddress("test.sender"), StreamMoney(1, 1))
    answer = service.send(service.sender.prepare(1000, frames=frames), Peer("test.bank.yen", yen))
    assert answer.frames == (max_money(1000), ConnectionAssetDetails("JPY", 0))

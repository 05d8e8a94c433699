"""Tests of `receive_packet`: the reply to each packet, and the credit."""

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

from incoming_payments.domain.amount import Asset, Tolerance
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.lifecycle import complete
from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.errors import (
    IncomingPaymentsError,
    InvalidValue,
    PolicyRefused,
    PortMissing,
    PortUnavailable,
    StoreUnavailable,
    StoreUnusable,
)
from incoming_payments.flows.machinery.effects import DrawRandomness, UpdatePayment
from incoming_payments.flows.machinery.ports import AsyncPorts, Ports
from incoming_payments.flows.machinery.run import arun, run
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import receive_packet, receive_packet_with_cause
from incoming_payments.ilp import DerivedMethods
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Fulfill, PacketType, Prepare, Reject, encode
from incoming_payments.ilp.receive import Receiver
from incoming_payments.ilp.stream import (
    ConnectionAssetDetails,
    ConnectionClose,
    ConnectionMaxData,
    ConnectionMaxStreamId,
    ConnectionNewAddress,
    StreamClose,
    StreamData,
    StreamError,
    StreamMaxMoney,
    StreamMoney,
    StreamMoneyBlocked,
    condition_of,
)
from incoming_payments.limits import REFUSAL_CHARS_MAX, UINT64_MAX
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing import NOW, a_creation, a_wallet_address
from incoming_payments.testing.replies import decode_reply, ildcp_request, read_amounts, read_ildcp_response
from kits.fake_ports import Raising
from kits.stream_kit import METHODS, PEER, SECRET, USD, Sender, Service

ROTATED: Final = Receiver(DerivedMethods("test.bank", [b"another server secret, 32 bytes.", SECRET]))
CLOSE: Final = (StreamClose(1, StreamError.NO_ERROR, ""),)
CLOSE_CONNECTION: Final = (ConnectionClose(StreamError.NO_ERROR, ""),)


def max_money(received: int, receive_max: int = 1000, stream: int = 1) -> StreamMaxMoney:
    return StreamMaxMoney(stream, receive_max, received)


# --- accepted packets --------------------------------------------------------------------------------


def test_packet_is_credited_and_fulfilled() -> None:
    """A packet is credited, and its reply has the totals of the payment."""
    service = Service(limit=1000)
    answer = service.send(service.sender.prepare(400))
    assert answer.code == "fulfilled"
    assert answer.frames == (max_money(400),)
    assert service.received == 400
    assert [event.kind for event in service.store.events(service.id)] == [EventKind.CREATED, EventKind.CREDITED]


def test_payment_without_an_amount_accepts_64_bits() -> None:
    """Without `incomingAmount` the payment accepts packets up to a total of 2**64 - 1."""
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
        pytest.param((), (max_money(400),), id="no stream"),
        pytest.param((StreamMoney(5, 1),), (max_money(400, stream=5),), id="another stream"),
        pytest.param(
            (StreamMoneyBlocked(7, 9, 0), StreamMoney(5, 1), StreamMaxMoney(5, 0, 0), StreamClose(9, 1, "")),
            (max_money(400, stream=5), max_money(400, stream=7)),
            id="streams without money come last, closed streams are left out",
        ),
        pytest.param(
            (StreamMoney(1, 9), StreamMoney(3, 0), StreamMoney(1, 1)),
            (max_money(400), max_money(400, stream=3)),
            id="several streams have the same totals",
        ),
        pytest.param(
            tuple(StreamMoney(stream, 1) for stream in range(1, 201)),
            tuple(max_money(400, stream=stream) for stream in range(1, 11)),
            id="200 streams: ten are answered",
        ),
        pytest.param(
            (ConnectionNewAddress(""), StreamMoney(1, 1)),
            (max_money(400), ConnectionAssetDetails("USD", 2)),
            id="an address: the reply has our asset",
        ),
    ],
)
def test_reply_to_each_stream(frames: Any, expected: Any) -> None:
    """The payment accepts the whole amount for any streams, and the reply has the totals for each stream."""
    service = Service(limit=1000)
    answer = service.send(service.sender.prepare(400, frames=frames))
    assert (answer.code, answer.frames) == ("fulfilled", expected)
    assert service.received == 400


@pytest.mark.parametrize(("least", "code"), [(399, "fulfilled"), (400, "fulfilled"), (401, "F99")])
def test_minimum_of_the_sender(least: int, code: str) -> None:
    """A packet below its own minimum is not fulfilled, and the reply has the amount that arrived. RFC 29 §3.4."""
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
        pytest.param(lambda _: None, id="immediately"),
        pytest.param(lambda service: service.send(service.sender.prepare(600)), id="after completion"),
        pytest.param(lambda service: setattr(service, "now", NOW + timedelta(seconds=20)), id="after expiry"),
        pytest.param(lambda service: setattr(service, "receiver", Receiver(METHODS)), id="after a restart"),
        pytest.param(lambda service: setattr(service, "receiver", ROTATED), id="after a rotation of the secret"),
    ],
)
def test_repeated_packet_is_credited_once(then: Callable[[Service], object]) -> None:
    """A repeated packet is fulfilled again and credited once, and its reply has the current totals."""
    service = Service(limit=1000, expires_in_s=10)
    prepare = service.sender.prepare(400)
    first = service.send(prepare)
    then(service)
    before = service.payment
    again = service.send(prepare)
    assert first.reply.fulfillment == again.reply.fulfillment  # type: ignore[union-attr] # or there is none
    assert again.frames == (max_money(before.received.value),)
    assert service.payment == before


def test_repeated_packet_with_another_expiry_or_peer() -> None:
    """A copy with another expiry or from another peer is the same packet."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(400)
    service.send(prepare)
    later = evolve(prepare, expires_at=prepare.expires_at + timedelta(seconds=1))
    assert service.send(later).code == "fulfilled"
    assert service.send(prepare, Peer("test.bank.other", USD)).code == "fulfilled"
    assert service.received == 400


@pytest.mark.parametrize("amount", [0, 1, 399, 401, 1000])
@pytest.mark.parametrize("full", [False, True])
def test_repeated_packet_with_another_amount_is_refused(amount: int, full: bool) -> None:
    """A copy with another amount is refused, so each fulfillment is for exactly the credited amount."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(400)
    service.send(prepare)
    if full:
        service.send(service.sender.prepare(600))
    before = service.payment
    answer = service.send(evolve(prepare, amount=amount))
    assert (answer.code, answer.reply.data) == ("F03", b"")
    assert service.payment == before


def test_different_packets_are_both_credited() -> None:
    """Two packets with the same sequence and amount, as from two senders, are both credited."""
    service = Service(limit=1000)
    service.send(service.sender.prepare(400, sequence=1))
    service.send(service.sender.prepare(400, sequence=1, frames=[StreamMoney(3, 1)]))  # with the same nonce
    assert service.received == 800


def test_credit_ids_are_ordered_by_sequence() -> None:
    """A credit id begins with the sequence of the packet, so that an index grows at its end."""
    service = Service(limit=1000)
    prepares = [service.sender.prepare(1, sequence=sequence) for sequence in (1, 2, 15, 16, 255, 256, UINT64_MAX)]
    for prepare in prepares:
        service.send(prepare)
    ids = [event.credit_id for event in service.store.events(service.id)[1:]]
    assert ids == sorted(str(id) for id in ids)
    assert str(ids[0]).startswith("stream:0000000000000001:")
    assert str(ids[-1]).startswith("stream:ffffffffffffffff:")


def test_host_cannot_use_credit_ids_of_packets() -> None:
    """`receive` refuses ids that begin with `stream:`, so a host credit never looks like a packet."""
    service = Service(limit=1000)
    with pytest.raises(InvalidValue) as caught:
        run(
            receive(service.id, credit_id="stream:1", amount=service.payment.received, clock=lambda: NOW), service.ports
        )
    assert caught.value.details == {"member": "creditId"}


# --- refused packets ---------------------------------------------------------------------------------

OTHER: Final = Sender(METHODS.derive(a_creation().answer.id))  # an unknown payment
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
    # name, state before, packet, expected code, and expected frames or data of the reply
    ("expired Prepare", nothing, lambda s: s.prepare(1, expires_at=NOW), "R00", b""),
    ("about to expire", nothing, lambda s: s.prepare(1, expires_at=NOW + timedelta(milliseconds=1000)), "R00", b""),
    (
        "exactly in time",
        nothing,
        lambda s: s.prepare(1, expires_at=NOW + timedelta(milliseconds=1001)),
        "fulfilled",
        None,
    ),
    ("another service", nothing, lambda s: evolve(s.prepare(1), destination="test.other.x"), "F02", b""),
    ("address of the service", nothing, lambda s: evolve(s.prepare(1), destination="test.bank"), "F02", b""),
    (
        "address that was not issued",
        nothing,
        lambda s: evolve(s.prepare(1), destination="test.bank." + "A" * 43),
        "F02",
        b"",
    ),
    ("address from another secret", nothing, lambda _: FOREIGN.prepare(1), "F02", b""),
    ("protocol of the peer", nothing, lambda s: evolve(s.prepare(1), destination="peer.route.control"), "F02", b""),
    ("unknown payment", nothing, lambda _: OTHER.prepare(1), "F02", b""),
    ("probe of an unknown payment", nothing, lambda _: OTHER.probe(1), "F02", b""),
    ("no data", nothing, lambda s: evolve(s.prepare(1), data=b""), "F06", b""),
    ("data of another payment", nothing, lambda s: evolve(s.prepare(1), data=OTHER.prepare(1).data), "F06", b""),
    ("data of a Fulfill", nothing, lambda s: s.prepare(1, kind=PacketType.FULFILL), "F06", b""),
    ("data of a Reject", nothing, lambda s: s.prepare(1, kind=PacketType.REJECT), "F06", b""),
    ("closing the connection", nothing, lambda s: s.probe(0, frames=CLOSE_CONNECTION), "F99", CLOSE_CONNECTION),
    (
        "closing the connection with money",
        nothing,
        lambda s: s.prepare(1, frames=CLOSE_CONNECTION),
        "F99",
        CLOSE_CONNECTION,
    ),
    (
        "closing the connection of a completed payment",
        completed,
        lambda s: s.probe(0, frames=CLOSE_CONNECTION),
        "F99",
        CLOSE_CONNECTION,
    ),
    ("probe", nothing, lambda s: s.probe(10**12), "F99", (max_money(0),)),
    ("probe of amount 0", nothing, lambda s: s.probe(0), "F99", (max_money(0),)),
    ("probe with a minimum", nothing, lambda s: s.probe(1, least=2), "F99", (max_money(0),)),
    ("probe after a credit", half, lambda s: s.probe(1), "F99", (max_money(500),)),
    (
        "probe that requests the asset",
        nothing,
        lambda s: s.probe(1, frames=[ConnectionNewAddress(""), ConnectionMaxData(0), ConnectionMaxStreamId(1)]),
        "F99",
        (max_money(0), ConnectionAssetDetails("USD", 2)),
    ),
    ("below the minimum", nothing, lambda s: s.prepare(5, least=6), "F99", (max_money(0),)),
    ("amount 0", nothing, lambda s: s.prepare(0), "fulfilled", (max_money(0),)),
    ("amount 0, below the minimum", nothing, lambda s: s.prepare(0, least=1), "F99", (max_money(0),)),
    ("too large", nothing, lambda s: s.prepare(1011), "F08", (1011, 1000)),
    ("too large after a credit", half, lambda s: s.prepare(511), "F08", (511, 500)),
    ("largest amount within the tolerance", half, lambda s: s.prepare(510), "fulfilled", (max_money(1010, 1010),)),
    ("completed", completed, lambda s: s.prepare(1), "F07", CLOSE),
    ("completed, other stream", completed, lambda s: s.prepare(1, frames=[StreamMoney(7, 1)]), "F07", None),
    ("completed, too large", completed, lambda s: s.prepare(5000), "F07", CLOSE),
    ("completed, probed", completed, lambda s: s.probe(1), "F07", CLOSE),
    ("completed, below the minimum", completed, lambda s: s.prepare(1, least=2), "F07", CLOSE),
    ("completed, amount 0", completed, lambda s: s.prepare(0), "fulfilled", CLOSE),
    (
        "completed, and a sender that is blocked on another stream",
        completed,
        lambda s: s.prepare(0, frames=[StreamMaxMoney(3, 0, 0), StreamMoneyBlocked(3, 600, 200)]),
        "fulfilled",
        (StreamClose(3, StreamError.NO_ERROR, ""),),
    ),
    ("expired", expired, lambda s: s.prepare(1), "F07", CLOSE),
    ("expired, probed", expired, lambda s: s.probe(1), "F07", CLOSE),
    ("expired, amount 0", expired, lambda s: s.prepare(0), "fulfilled", CLOSE),
]


@pytest.mark.parametrize(
    ("before", "make", "code", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_reply_by_packet_and_state(before: Callable[[Service], None], make: Make, code: str, expected: Any) -> None:
    """Each packet gets the reply that senders need. Only a fulfilled packet with an amount is credited."""
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


@pytest.mark.parametrize("asset", [Asset("EUR", 2), Asset("USD", 3)])
@pytest.mark.parametrize("make", [lambda s: s.prepare(1), lambda s: s.probe(1), lambda s: s.prepare(0)])
@pytest.mark.parametrize("before", [nothing, completed])
def test_peer_with_another_asset_is_refused(asset: Asset, make: Make, before: Callable[[Service], None]) -> None:
    """A packet or probe from a peer with another asset is refused with F07, a final error."""
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
def test_malformed_packet_is_answered(packet: bytes) -> None:
    """Bytes that are not a Prepare are answered with F01."""
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
def test_tolerance_for_excess(limit: int, tolerance: Tolerance, excess_max: int) -> None:
    """The excess may be the larger of units and basis points. One unit more is refused with the remaining amount."""
    service = Service(limit=limit)
    service.receiver = Receiver(METHODS, tolerance)
    if limit + excess_max < UINT64_MAX:
        answer = service.send(service.sender.prepare(limit + excess_max + 1))
        assert answer.code == "F08"
        assert read_amounts(answer.reply.data) == (limit + excess_max + 1, limit)
    assert service.send(service.sender.prepare(limit + excess_max)).code == "fulfilled"
    assert service.received == limit + excess_max


# --- failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("the disk is full"),
        StoreUnusable("the store is closed"),
        PortUnavailable("the ledger behind the store is down"),
    ],
)
@pytest.mark.parametrize("make", [lambda s: s.prepare(1), lambda s: s.probe(1)])
def test_failure_of_the_store(error: IncomingPaymentsError, make: Make) -> None:
    """A store failure is T00, and the message of the exception is not sent."""
    service = Service(limit=1000)
    prepare = make(service.sender)
    working = service.store
    service.replace(store=Raising(error))
    answer = service.send(prepare)
    assert (answer.code, answer.reply.data) == ("T00", b"")
    assert error.description not in str(answer.reply)
    service.replace(store=working)
    assert service.send(service.sender.prepare(1)).code == "fulfilled"


@pytest.mark.parametrize("make", [lambda s: s.prepare(1), lambda s: s.probe(1)])
@pytest.mark.parametrize(
    ("words", "sent"),
    [
        ("this account is frozen", "this account is frozen"),
        ("Konto gesperrt \N{SNOWMAN}", "Konto gesperrt \N{SNOWMAN}"),
        ("a lone surrogate \ud800", "a lone surrogate ?"),
        ("\U0001f6ab" * 9000, "\U0001f6ab" * REFUSAL_CHARS_MAX),
        ("", ""),
    ],
)
def test_policy_of_the_host_ends_the_connection(words: str, sent: str, make: Make) -> None:
    """A refusal by policy is F99. Its words are for the sender alone, encrypted, in the frames that Rafiki sends."""
    service = Service(limit=1000)
    prepare = make(service.sender)
    service.replace(store=Raising(PolicyRefused(words)))
    answer = service.send(prepare)
    assert (answer.code, answer.reply.message) == ("F99", "the receiver refuses this packet")  # type: ignore[union-attr]
    expected = (ConnectionClose(StreamError.APPLICATION_ERROR, sent), StreamData(1, 0, sent.encode()))
    assert answer.frames == expected


@pytest.mark.parametrize("make", [lambda s: s.prepare(1), lambda s: s.probe(1)])
def test_cause_of_a_refusal_is_for_the_host(make: Make) -> None:
    """`receive_packet_with_cause` returns the exception that caused a refusal."""
    service = Service(limit=1000)
    packet = encode(make(service.sender))
    full, frozen = StoreUnavailable("the disk is full"), PolicyRefused("frozen")
    for store, cause in ((service.store, None), (Raising(frozen), frozen), (Raising(full), full)):
        service.replace(store=store)
        answer = run(
            receive_packet_with_cause(packet, peer=PEER, receiver=service.receiver, clock=lambda: NOW), service.ports
        )
        assert answer.cause is cause


def test_fulfillment_waits_for_the_store() -> None:
    """There is no reply before the store answers, and no Fulfill when the store fails."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(400)
    flow = receive_packet(encode(prepare), peer=PEER, receiver=service.receiver, clock=lambda: NOW)
    assert next(flow) == DrawRandomness(12)
    effect = flow.send(bytes(12))
    assert isinstance(effect, UpdatePayment)
    with pytest.raises(StopIteration) as stop:
        flow.throw(StoreUnavailable("not now"))
    assert decode_reply(stop.value.value).code == "T00"  # type: ignore[union-attr] # or it is a Fulfill


@pytest.mark.parametrize("now", [None, NOW.replace(tzinfo=None)])
def test_clock_that_is_not_in_utc_is_refused(now: Any) -> None:
    """A clock must return a time in UTC."""
    with pytest.raises(InvalidValue) as caught:
        run(receive_packet(b"", peer=PEER, receiver=Receiver(METHODS), clock=lambda: now), Ports())
    assert caught.value.details == {"member": "now"}


def test_missing_store_raises() -> None:
    """A missing store is a mistake of the host, so it raises `PortMissing` and is not answered."""
    service = Service()
    service.replace(store=None)
    with pytest.raises(PortMissing):
        service.send(service.sender.prepare(1))


# --- packets that wait -------------------------------------------------------------------------------


class Slow(MemoryStore):
    """A store that waits before it runs a decision."""

    def __init__(self, service: Service, seconds: float) -> None:
        super().__init__()
        self.service, self.store, self.seconds = service, service.store, seconds

    def update(self, id: PaymentId, decide: Any, credit_id: CreditId | None = None) -> Any:
        """Update the payment after the wait."""
        self.service.now += timedelta(seconds=self.seconds)
        return self.store.update(id, decide, credit_id)


@pytest.mark.parametrize(
    ("waits_s", "code"), [(0, "fulfilled"), (28.9, "fulfilled"), (29.001, "R00"), (30, "R00"), (3600, "R00")]
)
@pytest.mark.parametrize("amount", [0, 400])
def test_packet_that_expires_while_it_waits(amount: int, waits_s: float, code: str) -> None:
    """A packet that expires while it waits for the store is refused with R00 and not credited."""
    service = Service(limit=1000)
    prepare = service.sender.prepare(amount, expires_at=NOW + timedelta(seconds=30))
    service.replace(store=Slow(service, waits_s))
    assert service.send(prepare).code == code
    assert service.received == (amount if code == "fulfilled" else 0)


def test_payment_that_expires_while_the_packet_waits() -> None:
    """The time of the decision counts, not the time of arrival. Spec section 3, row 2."""
    service = Service(limit=1000, expires_in_s=10)
    prepare = service.sender.prepare(400)
    service.replace(store=Slow(service, 10))
    assert service.send(prepare).code == "fulfilled"
    assert service.payment.updated_at == NOW + timedelta(seconds=10)
    service.replace(store=Slow(service, 0.001))
    answer = service.send(service.sender.prepare(400))
    assert (answer.code, answer.frames) == ("F07", CLOSE)
    assert service.received == 400


@pytest.mark.parametrize("amount", [0, 400])
@pytest.mark.parametrize("later", [NOW.replace(tzinfo=None), NOW.astimezone(timezone(timedelta(hours=1))), None])
def test_clock_is_checked_at_each_reading(amount: int, later: Any) -> None:
    """A second reading that is not in UTC raises `InvalidValue`, and nothing is credited."""
    service = Service(limit=1000)
    times = iter([NOW, later])
    packet = encode(service.sender.prepare(amount))
    with pytest.raises(InvalidValue) as caught:
        run(receive_packet(packet, peer=PEER, receiver=service.receiver, clock=lambda: next(times)), service.ports)
    assert (caught.value.details, service.received) == ({"member": "now"}, 0)


def test_credited_packet_that_waits_is_fulfilled() -> None:
    """A repeated packet that is already credited is fulfilled, even when it expires while it waits."""
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
    """With a real file, lock and clock, a packet that expires while another process holds the lock is not credited."""
    path = tmp_path / "payments.sqlite3"
    created = a_creation(limit=1000, now=datetime.now(UTC))
    sender = Sender(METHODS.derive(created.answer.id))
    with SqliteStore(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        store.insert(created)
        ports = Ports(store=store)
        clocks = iter([datetime.now(UTC)])  # the first reading; later ones use the real clock
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


# --- concurrency -------------------------------------------------------------------------------------


@pytest.mark.parametrize("payments", [1, 8])
def test_concurrent_packets(payments: int, tmp_path: Path) -> None:
    """Concurrent packets and their copies, with a store on disk, are all fulfilled and credited once."""
    created = [a_creation(limit=1000) for _ in range(payments)]
    senders = [Sender(METHODS.derive(creation.answer.id)) for creation in created]
    packets = [encode(sender.prepare(1)) for sender in senders for _ in range(64 // payments)] * 2

    async def deliver() -> tuple[list[bytes], list[int]]:
        store = AsyncSqliteStore(tmp_path / "payments.sqlite3")
        ports, receiver = AsyncPorts(store=store), Receiver(METHODS)
        for creation in created:
            await store.insert(creation)
        flows = (receive_packet(packet, peer=PEER, receiver=receiver, clock=lambda: NOW) for packet in packets)
        replies = await asyncio.gather(*(arun(flow, ports) for flow in flows))
        totals = [(await store.load(creation.answer.id)).received.value for creation in created]
        await store.close()
        return replies, totals

    replies, totals = asyncio.run(deliver())
    assert {type(decode_reply(reply)) for reply in replies} == {Fulfill}
    assert totals == [64 // payments] * payments


# --- ILDCP requests ----------------------------------------------------------------------------------


def test_rfc_31_request_is_answered() -> None:
    """A request for `peer.config` is answered with the address and asset of the peer."""
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
def test_rfc_31_other_requests(change: dict[str, Any], code: str) -> None:
    """A request with an amount or another condition is refused. Any expiry is accepted."""
    assert Service().send(evolve(ildcp_request(NOW + timedelta(seconds=30)), **change)).code == code


# --- payments in another asset -----------------------------------------------------------------------


def test_payment_in_another_asset() -> None:
    """A payment in JPY accepts packets from a peer with a JPY account."""
    yen = Asset("JPY", 0)
    service = Service(a_creation(limit=1000, wallet_address=a_wallet_address(asset=yen)))
    frames = (ConnectionNewAddress("test.sender"), StreamMoney(1, 1))
    answer = service.send(service.sender.prepare(1000, frames=frames), Peer("test.bank.yen", yen))
    assert answer.frames == (max_money(1000), ConnectionAssetDetails("JPY", 0))

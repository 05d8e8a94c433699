"""Property tests of `ilp`: credentials, packets of all values, and decoding of any bytes."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs import evolve, fields
from hypothesis import assume, example, given
from hypothesis import strategies as st

from incoming_payments.domain.events import EventKind
from incoming_payments.domain.lifecycle import state_of
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import PaymentId, new_payment_id
from incoming_payments.domain.transitions import State
from incoming_payments.errors import MalformedAddress, MalformedPacket
from incoming_payments.ilp import DerivedMethods, ilp_address
from incoming_payments.ilp.oer import (
    read_octets,
    read_saturated_uint,
    read_text,
    read_var_uint,
    write_octets,
    write_text,
    write_var_uint,
)
from incoming_payments.ilp.packet import ErrorCode, Fulfill, PacketType, Prepare, Reject, decode_prepare, encode
from incoming_payments.ilp.receive import Arrival, open_packet
from incoming_payments.ilp.stream import FRAMES, StreamKeys, StreamPacket, decode_stream, encode_stream
from incoming_payments.limits import UINT64_MAX
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing.replies import decode_reply, read_amounts, read_ildcp_response
from kits.stream_kit import PEER, Service

SECRETS = [bytes([number]) * 32 for number in range(8)]
METHODS = DerivedMethods("test.bank", SECRETS[:2])
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

ids = st.builds(new_payment_id, st.just(NOW), st.binary(min_size=10, max_size=10))
prefixes = st.from_regex(r"(g|test[1-3]?|private)(\.[a-zA-Z0-9_~-]{1,9}){1,3}", fullmatch=True)
secrets = st.binary(min_size=32, max_size=48)


@given(ids, prefixes, secrets)
def test_issued_address_is_read(id: PaymentId, prefix: str, secret: bytes) -> None:
    """The address of every payment is valid, yields the payment, and makes a valid payment method."""
    methods = DerivedMethods(prefix, [secret])
    credentials = methods.derive(id)
    assert credentials.payment_id == id
    assert methods.read(credentials.ilp_address) == credentials
    assert ilp_address(credentials.ilp_address) == credentials.ilp_address
    [method] = methods.allocate(a_creation(id=id).answer)
    assert type(method) is IlpPaymentMethod
    assert method.ilp_address == credentials.ilp_address


@given(ids, ids)
def test_payments_have_different_addresses_and_secrets(one: PaymentId, other: PaymentId) -> None:
    """No two payments share an address or a secret."""
    assume(one != other)
    assert METHODS.derive(one).ilp_address != METHODS.derive(other).ilp_address
    assert METHODS.derive(one).shared_secret != METHODS.derive(other).shared_secret


@given(
    st.text(max_size=60)
    | st.builds("test.bank.{}".format, st.text(max_size=50))
    | st.builds("test.bank.{}".format, st.text(st.sampled_from(ALPHABET), min_size=42, max_size=44))
    | st.builds("test.bank.{}".format, st.text(st.sampled_from(ALPHABET + "=+/\u00e9 \n"), min_size=43, max_size=43))
)
@example("test.bank." + "A" * 43)
def test_address_that_was_not_issued_is_refused(address: str) -> None:
    """An address that was not issued raises `MalformedAddress`, and no other exception."""
    with pytest.raises(MalformedAddress):
        METHODS.read(address)


@given(ids, st.data())
def test_changed_address_is_refused(id: PaymentId, data: st.DataObject) -> None:
    """An address with one changed character is refused, in the prefix, the segment or its last bits."""
    address = METHODS.derive(id).ilp_address
    at = data.draw(st.integers(0, len(address) - 1))
    other = data.draw(st.sampled_from(ALPHABET + ".~=\u00e9"))
    assume(other != address[at])
    with pytest.raises(MalformedAddress):
        METHODS.read(address[:at] + other + address[at + 1 :])


@given(ids, st.lists(st.sampled_from(SECRETS), min_size=1, max_size=8, unique=True), st.sampled_from(SECRETS))
def test_secret_rotation(id: PaymentId, listed: list[bytes], used: bytes) -> None:
    """An address is read if its secret is in the list, at any position, and refused otherwise."""
    issued = DerivedMethods("test.bank", [used]).derive(id)
    methods = DerivedMethods("test.bank", listed)
    if used in listed:
        assert methods.read(issued.ilp_address) == issued
    else:
        with pytest.raises(MalformedAddress):
            methods.read(issued.ilp_address)
    assert methods.derive(id) == DerivedMethods("test.bank", listed[:1]).derive(id)


@given(ids, prefixes, prefixes)
def test_address_belongs_to_its_prefix(id: PaymentId, prefix: str, other: str) -> None:
    """The prefix is authenticated, so a segment with another prefix is refused."""
    assume(prefix != other)
    segment = DerivedMethods(prefix, SECRETS[:1]).derive(id).ilp_address.rpartition(".")[2]
    with pytest.raises(MalformedAddress):
        DerivedMethods(other, SECRETS[:1]).read(f"{other}.{segment}")


# --- packets -----------------------------------------------------------------------------------------

uint64 = st.integers(0, UINT64_MAX)
octets = st.binary(max_size=300)
addresses = st.from_regex(r"(g|test[1-3]?|private|peer)(\.[a-zA-Z0-9_~-]{1,40}){1,4}", fullmatch=True)
codes = st.sampled_from(list(ErrorCode)) | st.from_regex(r"[FTR][0-9]{2}", fullmatch=True)
times = st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
prepares = st.builds(Prepare, uint64, times, st.binary(min_size=32, max_size=32), addresses, octets)
fulfills = st.builds(Fulfill, st.binary(min_size=32, max_size=32), octets)
rejects = st.builds(Reject, codes, st.just("") | addresses, st.text(max_size=100), octets)
members = {int: uint64, str: st.text(max_size=50), bytes: octets}


def of_frame(frame: type[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for all frames of one type."""
    small = {"code", "asset_scale"}
    return st.builds(
        frame, *(st.integers(0, 255) if member.name in small else members[member.type] for member in fields(frame))
    )


frames = st.one_of([of_frame(frame) for frame in FRAMES.values()])
stream_packets = st.builds(
    StreamPacket, st.sampled_from(list(PacketType)), uint64, uint64, st.lists(frames, max_size=8)
)
KEYS = StreamKeys(bytes(32))


@given(prepares)
def test_prepares_round_trip(prepare: Prepare) -> None:
    """Every Prepare is decoded as it was encoded, with milliseconds, and has one encoding."""
    packet = encode(prepare)
    milliseconds = prepare.expires_at.microsecond // 1000 * 1000
    assert decode_prepare(packet) == evolve(prepare, expires_at=prepare.expires_at.replace(microsecond=milliseconds))
    assert encode(decode_prepare(packet)) == packet


@given(fulfills | rejects)
def test_replies_round_trip(reply: Fulfill | Reject) -> None:
    """Every Fulfill and Reject is decoded as it was encoded."""
    assert decode_reply(encode(reply)) == reply


@given(stream_packets, st.binary(min_size=12, max_size=12))
def test_stream_packets_round_trip(packet: StreamPacket, nonce: bytes) -> None:
    """Every STREAM packet is decoded as it was encoded, and decrypted as it was encrypted."""
    assert decode_stream(encode_stream(packet)) == packet
    assert KEYS.open(KEYS.seal(packet, nonce=nonce)) == packet


@given(st.one_of(prepares.map(encode), (fulfills | rejects).map(encode)), st.data())
def test_truncated_packet_is_refused(packet: bytes, data: st.DataObject) -> None:
    """A truncated packet is refused, with a position inside the data."""
    at = data.draw(st.integers(0, len(packet) - 1))
    decode = decode_prepare if packet[0] == PacketType.PREPARE else decode_reply
    with pytest.raises(MalformedPacket) as caught:
        decode(packet[:at])
    assert 0 <= caught.value.position <= at


@given(stream_packets, st.data())
def test_truncated_stream_packet_is_refused(packet: StreamPacket, data: st.DataObject) -> None:
    """A truncated STREAM packet is refused, with a position inside the data."""
    plaintext = encode_stream(packet)
    at = data.draw(st.integers(0, len(plaintext) - 1))
    with pytest.raises(MalformedPacket) as caught:
        decode_stream(plaintext[:at])
    assert 0 <= caught.value.position <= at


READERS: list[Callable[[bytes], object]] = [
    decode_prepare,
    decode_reply,
    decode_stream,
    read_ildcp_response,
    read_amounts,
    KEYS.open,
    *(
        lambda data, read=read: read(data, 0, len(data))
        for read in (read_octets, read_text, read_var_uint, read_saturated_uint)
    ),
]
near_packets = (prepares | fulfills | rejects).map(encode) | stream_packets.map(encode_stream)


@st.composite
def changed_packets(draw: st.DrawFn) -> bytes:
    """Return a packet with one changed byte."""
    packet = bytearray(draw(near_packets))
    packet[draw(st.integers(0, len(packet) - 1))] = draw(st.integers(0, 255))
    return bytes(packet)


@pytest.mark.parametrize("read", READERS)
@given(data=st.binary(max_size=200) | changed_packets())
def test_any_bytes(read: Callable[[bytes], object], data: bytes) -> None:
    """Any bytes are decoded, or raise `MalformedPacket`, and no other exception."""
    try:
        read(data)
    except MalformedPacket as error:
        position = error.position
    else:
        position = 0
    assert 0 <= position <= len(data)


@given(st.binary(max_size=40))
def test_encoding_is_canonical(data: bytes) -> None:
    """An integer, an octet string or a string that is decoded is encoded as the same bytes."""
    codecs: list[tuple[Callable[[bytes, int, int], tuple[Any, int]], Callable[[Any], bytes]]] = [
        (read_var_uint, write_var_uint),
        (read_octets, write_octets),
        (read_text, write_text),
    ]
    for read, write in codecs:
        try:
            value, stop = read(data, 0, len(data))
        except MalformedPacket:
            continue
        assert write(value) == data[:stop]


# --- the receiver ------------------------------------------------------------------------------------


@given(st.binary(max_size=300) | changed_packets())
def test_any_bytes_get_a_reply(packet: bytes) -> None:
    """Any bytes get a reply, and credit no money."""
    service = Service(limit=1000)
    opened = open_packet(packet, peer=PEER, receiver=service.receiver, nonce=bytes(12), now=NOW)
    assert not isinstance(opened, Arrival)
    decode_reply(service.answer(packet))
    assert service.received == 0


deliveries = st.lists(
    st.tuples(
        st.integers(0, 5),  # the index of the packet
        st.none() | st.integers(0, 2000),  # the amount, if a connector changed it
    ),
    max_size=20,
)
sent = st.lists(st.tuples(st.integers(0, 700), st.integers(0, 100), st.booleans()), min_size=6, max_size=6)


@given(sent, deliveries, st.integers(0, 40))
def test_each_packet_is_credited_once_and_fulfilled_for_what_is_credited(
    sent: list[tuple[int, int, bool]], deliveries: list[tuple[int, int | None]], expires_in_s: int
) -> None:
    """With copies and changed amounts in any order, each fulfilled packet is credited once, with its amount."""
    service = Service(limit=1000, expires_in_s=1 + expires_in_s)
    packets = [
        service.sender.probe(amount) if probe else service.sender.prepare(amount, least=least)
        for amount, least, probe in sent
    ]
    fulfilled: dict[int, int] = {}
    for index, amount in deliveries:
        service.now += timedelta(seconds=1)
        before = service.payment
        prepare = packets[index] if amount is None else evolve(packets[index], amount=amount)
        answer = service.send(prepare)
        if answer.code == "fulfilled" and not prepare.amount:
            assert index not in fulfilled, "a packet that was credited with an amount was fulfilled with amount 0"
        elif answer.code == "fulfilled":
            assert fulfilled.setdefault(index, prepare.amount) == prepare.amount
            assert prepare.amount >= sent[index][1]
            assert not sent[index][2]
        elif service.payment != before:
            pytest.fail("money was credited without a fulfillment")
        if state_of(before, service.now) in {State.COMPLETED, State.EXPIRED}:
            assert service.payment == before
        assert service.received == sum(fulfilled.values()) <= 1010
    credits = [event for event in service.store.events(service.id) if event.kind is EventKind.CREDITED]
    assert len({event.credit_id for event in credits}) == len(credits) == len(fulfilled)

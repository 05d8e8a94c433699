"""Tests of `ilp.packet`: Interledger RFC 27, and the timestamps of RFC 30."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from attrs import evolve

from incoming_payments.errors import InvalidValue, MalformedPacket
from incoming_payments.ilp.oer import write_octets
from incoming_payments.ilp.packet import ErrorCode, Fulfill, Prepare, Reject, decode_prepare, encode, write_amounts
from incoming_payments.limits import ILP_PREPARE_BYTES_MAX, UINT64_MAX
from incoming_payments.testing.replies import decode_reply

EXPIRY = datetime(2017, 12, 24, 16, 14, 32, 279_000, UTC)
CONDITION = bytes(range(32))
PREPARE = Prepare(107, EXPIRY, CONDITION, "example.alice", b"alice's data")

# The packets that npm ilp-packet 3.1.3 makes for the same values.
PREPARE_HEX = (
    "0c54000000000000006b3230313731323234313631343332323739000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d"
    "1e1f0d6578616d706c652e616c6963650c616c69636527732064617461"
)
FULFILL_HEX = "0d25000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f0474686973"
REJECT_HEX = "0e2b4630380d6578616d706c652e616c69636508746f6f206d75636810000000000000006b0000000000000064"
FULFILL = Fulfill(CONDITION, b"this")
REJECT = Reject(ErrorCode.AMOUNT_TOO_LARGE, "example.alice", "too much", write_amounts(107, 100))


# --- known answers -----------------------------------------------------------------------------------


def test_prepare_equals_that_of_the_node_library() -> None:
    """A Prepare is encoded as npm `ilp-packet` encodes it, and can be decoded."""
    assert encode(PREPARE).hex() == PREPARE_HEX
    assert decode_prepare(bytes.fromhex(PREPARE_HEX)) == PREPARE


@pytest.mark.parametrize(("reply", "octets"), [(FULFILL, FULFILL_HEX), (REJECT, REJECT_HEX)])
def test_reply_equals_that_of_the_node_library(reply: Fulfill | Reject, octets: str) -> None:
    """A Fulfill and a Reject are encoded as npm `ilp-packet` encodes them, and can be decoded."""
    assert encode(reply).hex() == octets
    assert decode_reply(bytes.fromhex(octets)) == reply


def test_reject_with_empty_fields() -> None:
    """A Reject may have an unknown code, an empty address, an empty message and no data."""
    reject = Reject("F42", "")
    assert encode(reject).hex() == "0e06463432000000"
    assert decode_reply(encode(reject)) == reject


def test_largest_packets() -> None:
    """Packets with the largest fields round-trip, and the largest Prepare is within `ILP_PREPARE_BYTES_MAX`."""
    address = "g." + "a" * 1021
    prepare = Prepare(UINT64_MAX, EXPIRY, CONDITION, address, bytes(32_767))
    reject = Reject("T00", address, "\u20ac" * 8191, bytes(32_767))
    assert decode_prepare(encode(prepare)) == prepare
    assert decode_reply(encode(reject)) == reject
    assert len(encode(prepare)) == 33_857 <= ILP_PREPARE_BYTES_MAX


def test_trailing_bytes_are_ignored() -> None:
    """Bytes after the last field and after the packet are ignored. RFC 30, "Extensibility"."""
    contents = bytes.fromhex(PREPARE_HEX)[2:]
    assert decode_prepare(b"\x0c" + write_octets(contents + b"more") + b"and more") == PREPARE


# --- timestamps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time", "written"),
    [
        (datetime(2017, 12, 24, 16, 14, 32, 279_112, UTC), "20171224161432279"),
        (datetime(2017, 12, 24, 16, 14, 32, 200_000, UTC), "20171224161432200"),
        (datetime(2017, 12, 24, 16, 14, 32, tzinfo=UTC), "20171224161432000"),
        (datetime(2017, 12, 25, tzinfo=UTC), "20171225000000000"),
        (datetime(9999, 12, 24, 16, 14, 32, 279_000, UTC), "99991224161432279"),
        (datetime(7, 1, 2, 3, 4, 5, 999_999, UTC), "00070102030405999"),
        (datetime(2017, 12, 25, tzinfo=timezone(timedelta(0), "GMT")), "20171225000000000"),
    ],
)
def test_rfc_30_timestamps(time: datetime, written: str) -> None:
    """The examples in RFC 30. Microseconds are cut off and not rounded up, so an expiry never gets later."""
    packet = encode(evolve(PREPARE, expires_at=time))
    assert packet[10:27] == written.encode()
    milliseconds = time.microsecond // 1000 * 1000
    assert decode_prepare(packet).expires_at == time.replace(microsecond=milliseconds)


@pytest.mark.parametrize(
    "timestamp",
    [
        "20171324161432200",  # month out of range
        "20171224240000000",  # hour 24
        "20161231235960852",  # a leap second
        "00001224161432279",
        "20171224235312.43",
        "2017122423531243 ",
        "+0171224235312431",
        "2017122423531243\xb2",
    ],
)
def test_rfc_30_invalid_timestamp_is_refused(timestamp: str) -> None:
    """The invalid examples in RFC 30 are refused."""
    packet = bytearray(encode(PREPARE))
    packet[10:27] = timestamp.encode("latin-1")
    with pytest.raises(MalformedPacket) as caught:
        decode_prepare(bytes(packet))
    assert str(caught.value) == "the timestamp is not a valid YYYYMMDDHHmmSSfff, at byte 10"


# --- malformed packets -------------------------------------------------------------------------------


def a_packet(kind: int, *parts: bytes) -> bytes:
    return bytes((kind,)) + write_octets(b"".join(parts))


FIXED = bytes.fromhex(PREPARE_HEX)[2 : 2 + 57]
TRUNCATED = "the amount, expiry and condition of the Prepare are truncated"
INVALID_ADDRESS = "the ILP address is invalid (Interledger RFC 15)"
INVALID_CODE = "an error code must be F, T or R and two digits"


@pytest.mark.parametrize(
    ("packet", "message", "position"),
    [
        pytest.param(b"", "a byte is missing", 0, id="empty"),
        pytest.param(b"\x0c", "a length is missing", 1, id="only a type"),
        pytest.param(bytes.fromhex(FULFILL_HEX), "a packet of type 13 is not a Prepare", 0, id="Fulfill"),
        pytest.param(b"\x0c\x00", TRUNCATED, 2, id="empty contents"),
        pytest.param(
            a_packet(12, FIXED[:-1]),
            TRUNCATED,
            2,
            id="condition of 31 bytes",
        ),
        pytest.param(a_packet(12, FIXED), "a length is missing", 59, id="no destination"),
        pytest.param(a_packet(12, FIXED, b"\x00\x00"), INVALID_ADDRESS, 59, id="empty address"),
        pytest.param(a_packet(12, FIXED, b"\x03g.\xe9\x00"), INVALID_ADDRESS, 59, id="not ASCII"),
        pytest.param(a_packet(12, FIXED, b"\x03g.a"), "a length is missing", 63, id="no data"),
        pytest.param(
            a_packet(12, FIXED, b"\x03g.a", write_octets(bytes(32_768))),
            "the data has more than 32767 bytes",
            65,
            id="too much data",
        ),
    ],
)
def test_malformed_prepare_is_refused(packet: bytes, message: str, position: int) -> None:
    """A malformed Prepare is refused, with the reason and the position."""
    with pytest.raises(MalformedPacket) as caught:
        decode_prepare(packet)
    assert str(caught.value) == f"{message}, at byte {position}"


# --- values ------------------------------------------------------------------------------------------


INVALID_MEMBERS = {
    "amount": "amount must be an integer from 0 to 18446744073709551615",
    "now": "a time must be a datetime in UTC",
    "condition": "condition must be 32 bytes",
    "fulfillment": "fulfillment must be 32 bytes",
    "ilpAddress": "must be an ILP address of at most 1023 characters, such as g.bank.alice",
    "data": "data must be at most 32767 bytes",
    "code": INVALID_CODE,
    "message": "message must be a string of at most 8191 characters",
}


@pytest.mark.parametrize(
    ("make", "member"),
    [
        (lambda: evolve(PREPARE, amount=-1), "amount"),
        (lambda: evolve(PREPARE, amount=UINT64_MAX + 1), "amount"),
        (lambda: evolve(PREPARE, amount=True), "amount"),
        (lambda: evolve(PREPARE, expires_at=EXPIRY.replace(tzinfo=None)), "now"),
        (lambda: evolve(PREPARE, condition=bytes(31)), "condition"),
        (lambda: evolve(PREPARE, condition=bytearray(32)), "condition"),  # type: ignore[arg-type] # on purpose
        (lambda: evolve(PREPARE, destination="example"), "ilpAddress"),
        (lambda: evolve(PREPARE, data=bytes(32_768)), "data"),
        (lambda: evolve(PREPARE, data="text"), "data"),  # type: ignore[arg-type] # on purpose
        (lambda: Fulfill(bytes(33)), "fulfillment"),
        (lambda: Fulfill(None), "fulfillment"),  # type: ignore[arg-type] # on purpose
        (lambda: Fulfill(CONDITION, bytes(32_768)), "data"),
        (lambda: Fulfill(CONDITION, None), "data"),  # type: ignore[arg-type] # on purpose
        (lambda: evolve(REJECT, code="F0"), "code"),
        (lambda: evolve(REJECT, code="F000"), "code"),
        (lambda: evolve(REJECT, code=8), "code"),  # type: ignore[arg-type] # on purpose
        (lambda: evolve(REJECT, triggered_by="alice"), "ilpAddress"),
        (lambda: evolve(REJECT, message="x" * 8192), "message"),
        (lambda: evolve(REJECT, message=b"x"), "message"),  # type: ignore[arg-type] # on purpose
        (lambda: evolve(REJECT, data=bytes(32_768)), "data"),
        (lambda: evolve(REJECT, data="text"), "data"),  # type: ignore[arg-type] # on purpose
    ],
)
def test_invalid_packet_cannot_be_built(make: Any, member: str) -> None:
    """A packet that cannot be encoded cannot be constructed."""
    with pytest.raises(InvalidValue) as caught:
        make()
    assert INVALID_MEMBERS[member] in str(caught.value)
    assert str(caught.value)[0].islower()
    assert caught.value.details == {"member": member}


def test_repr_does_not_contain_data() -> None:
    """The `repr` of a packet leaves out its data, which may be secret."""
    assert "alice's data" not in repr(PREPARE)
    assert "this" not in repr(FULFILL)
    assert "data" not in repr(REJECT)

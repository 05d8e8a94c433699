"""Tests of `ilp.stream`: Interledger RFC 29. The known answers come from npm ilp-protocol-stream 2.7.1."""

from typing import Any

import pytest
from attrs import evolve, fields

from incoming_payments.errors import InvalidValue, MalformedPacket
from incoming_payments.ilp.oer import write_var_uint
from incoming_payments.ilp.packet import PacketType
from incoming_payments.ilp.stream import (
    FRAMES,
    ConnectionAssetDetails,
    ConnectionClose,
    ConnectionDataBlocked,
    ConnectionMaxData,
    ConnectionMaxStreamId,
    ConnectionNewAddress,
    ConnectionStreamIdBlocked,
    Frame,
    StreamClose,
    StreamData,
    StreamDataBlocked,
    StreamError,
    StreamKeys,
    StreamMaxData,
    StreamMaxMoney,
    StreamMoney,
    StreamMoneyBlocked,
    StreamPacket,
    condition_of,
    decode_stream,
    encode_stream,
)
from incoming_payments.limits import UINT64_MAX

KEYS = StreamKeys(bytes(range(32)))
PACKET = StreamPacket(PacketType.PREPARE, sequence=1, amount=500, frames=[StreamMoney(1, 1)])
SEALED = bytes.fromhex("070707070707070707070707ab1aa33d28814b2691289142034ce6d311c938bf303702a54c1e293c6ff5f7")
FULFILLMENT = "c998002bbe0246b2d745071099e41f4ff161948e0c7191f4151ec94cab37966b"
CONDITION = "e9647e904a7d0db01f2df0b40dbbaa2051ef70071fed9ab4cf0d7b2601b32ff2"
HEAD = "010c010001000101"  # version, Prepare, sequence 0, amount 0, one frame

KNOWN: list[tuple[Frame, str]] = [
    (ConnectionClose(StreamError.NO_ERROR, "fin"), "0105010366696e"),
    (ConnectionNewAddress("example.alice"), "020e0d6578616d706c652e616c696365"),
    (ConnectionMaxData(1000), "03030203e8"),
    (ConnectionDataBlocked(2000), "04030207d0"),
    (ConnectionMaxStreamId(0), "05020100"),
    (ConnectionStreamIdBlocked(21), "06020115"),
    (ConnectionAssetDetails("USD", 9), "07050355534409"),
    (StreamClose(1, StreamError.APPLICATION_ERROR, "é"), "100601010902c3a9"),
    (StreamMoney(1, 1), "110401010101"),
    (StreamMaxMoney(1, UINT64_MAX, 256), "120e010108ffffffffffffffff020100"),
    (StreamMoneyBlocked(3, 500, UINT64_MAX), "130e01030201f408ffffffffffffffff"),
    (StreamData(1, 65536, b"hello"), "140c0101030100000568656c6c6f"),
    (StreamMaxData(1, 4660), "15050101021234"),
    (StreamDataBlocked(1, 255), "1604010101ff"),
]


@pytest.mark.parametrize(("frame", "octets"), KNOWN, ids=lambda part: type(part).__name__)
def test_frame_equals_that_of_the_node_library(frame: Frame, octets: str) -> None:
    """Each frame is encoded as npm `ilp-protocol-stream` encodes it, and can be decoded."""
    packet = StreamPacket(PacketType.PREPARE, 0, 0, [frame])
    assert encode_stream(packet).hex() == HEAD + octets
    assert decode_stream(bytes.fromhex(HEAD + octets)) == packet


def test_every_frame_has_a_known_answer() -> None:
    """The table `KNOWN` is complete, and the types are those of RFC 29 §5.3 without `StreamReceipt`."""
    assert [type(frame) for frame, _ in KNOWN] == list(FRAMES.values())
    assert list(FRAMES) == [*range(0x01, 0x08), *range(0x10, 0x17)]


def test_packet_equals_that_of_the_node_library() -> None:
    """A packet with all frames and the largest sequence is encoded as in the Node library, and can be decoded."""
    packet = StreamPacket(PacketType.REJECT, UINT64_MAX, 300, [frame for frame, _ in KNOWN])
    octets = "010e08ffffffffffffffff02012c010e" + "".join(octets for _, octets in KNOWN)
    assert encode_stream(packet).hex() == octets
    assert decode_stream(bytes.fromhex(octets)) == packet


@pytest.mark.parametrize(
    "octets",
    [
        pytest.param("010c01000100" + "0102" + "1704deadbeef" + "110401010101", id="receipt"),
        pytest.param("010c01000100" + "0102" + "ff00" + "110401010101", id="unknown type"),
        pytest.param("010c01000100" + "0101" + "11060101010100ff", id="bytes after the last field"),
        pytest.param("010c01000100" + "0101" + "110401010101" + "0000", id="padding"),
        pytest.param("010c01000100" + "0101" + "110401010101" + "11", id="more frames than counted"),
    ],
)
def test_unknown_parts_are_ignored(octets: str) -> None:
    """Frames of unknown types and bytes after the known parts are ignored. RFC 29 §5.2 and §5.3."""
    assert decode_stream(bytes.fromhex(octets)).frames == (StreamMoney(1, 1),)


@pytest.mark.parametrize(
    ("octets", "frame"),
    [
        ("120e0101" + "09010000000000000000" + "0105", StreamMaxMoney(1, UINT64_MAX, 5)),
        ("130e0101" + "09010000000000000000" + "0105", StreamMoneyBlocked(1, UINT64_MAX, 5)),
    ],
)
def test_rfc_29_large_maximum_saturates(octets: str, frame: Frame) -> None:
    """`receiveMax` and `sendMax` above 64 bits become 2**64 - 1. RFC 29 §5.1.4."""
    assert decode_stream(bytes.fromhex(HEAD + octets)).frames == (frame,)


@pytest.mark.parametrize(
    ("octets", "message"),
    [
        pytest.param("", "a byte is missing, at byte 0", id="empty"),
        pytest.param("020c010001000100", "STREAM version 2 is not supported: use version 1, at byte 0", id="version"),
        pytest.param("01", "a byte is missing, at byte 1", id="no type"),
        pytest.param(
            "010b010001000100", "11 is not the type of an ILP packet that carries STREAM, at byte 1", id="type"
        ),
        pytest.param("010c0000", "an integer is not in its shortest form, at byte 2", id="sequence"),
        pytest.param("010c010009" + "01" * 9, "an integer has more than 64 bits, at byte 4", id="amount"),
        pytest.param("010c01000100", "a length is missing, at byte 6", id="no count"),
        pytest.param("010c01000100020101", "a STREAM packet has more than 256 frames, at byte 6", id="257 frames"),
        pytest.param("010c010001000101", "a byte is missing, at byte 8", id="no frame"),
        pytest.param("010c01000100010111", "a length is missing, at byte 9", id="no contents"),
        pytest.param(HEAD + "1102010101", "a length is missing, at byte 12", id="truncated frame"),
        pytest.param(HEAD + "110201010101", "a length is missing, at byte 12", id="frame completed by the next bytes"),
        pytest.param(HEAD + "01030101ff", "a string is not UTF-8, at byte 11", id="message"),
        pytest.param(HEAD + "11050101020001", "an integer is not in its shortest form, at byte 12", id="shares"),
    ],
)
def test_malformed_packet_is_refused(octets: str, message: str) -> None:
    """A malformed STREAM packet is refused, with the position of the error."""
    with pytest.raises(MalformedPacket) as caught:
        decode_stream(bytes.fromhex(octets))
    assert str(caught.value) == message


def test_largest_number_of_frames_is_accepted() -> None:
    """A packet with 256 frames is decoded."""
    octets = bytes.fromhex("010c01000100") + write_var_uint(256) + bytes.fromhex("110401010101") * 256
    assert len(decode_stream(octets).frames) == 256


# --- keys --------------------------------------------------------------------------------------------


def test_encryption_equals_that_of_the_node_library() -> None:
    """Nonce, tag and ciphertext equal those of the Node library, and can be decrypted."""
    assert KEYS.seal(PACKET, nonce=bytes([7] * 12)) == SEALED
    assert KEYS.open(SEALED) == PACKET


def test_fulfillment_and_condition() -> None:
    """Fulfillment and condition equal those of the Node library."""
    assert KEYS.fulfillment(SEALED).hex() == FULFILLMENT
    assert condition_of(bytes.fromhex(FULFILLMENT)).hex() == CONDITION


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(SEALED[:7], id="shorter than a nonce"),
        pytest.param(SEALED[:28], id="no ciphertext"),
        pytest.param(SEALED[:-1], id="truncated"),
        pytest.param(SEALED[:12] + SEALED[28:] + SEALED[12:28], id="tag at the end"),
        pytest.param(StreamKeys(bytes(32)).seal(PACKET, nonce=bytes(12)), id="another secret"),
        *(
            pytest.param(SEALED[:at] + bytes((SEALED[at] ^ 1,)) + SEALED[at + 1 :], id=f"changed at {at}")
            for at in (0, 11, 12, 27, 28, len(SEALED) - 1)
        ),
    ],
)
def test_data_that_is_not_authentic_is_refused(data: bytes) -> None:
    """Data that was encrypted for another payment, or changed in transit, is refused."""
    with pytest.raises(MalformedPacket) as caught:
        KEYS.open(data)
    assert str(caught.value) == "the data was not encrypted for this payment, or was changed in transit, at byte 0"


def test_repr_contains_no_keys() -> None:
    """The `repr` of `StreamKeys` contains no key."""
    assert repr(KEYS) == "StreamKeys()"


# --- values ------------------------------------------------------------------------------------------

MEMBERS = [(frame, member.name) for frame, _ in KNOWN for member in fields(type(frame))]


@pytest.mark.parametrize(("frame", "member"), MEMBERS, ids=lambda part: getattr(part, "__name__", str(part)))
def test_fields_of_frames_are_checked(frame: Any, member: str) -> None:
    """A field accepts the smallest and largest value, and refuses values out of range or of another type."""
    kind = type(getattr(frame, member))
    most = 255 if member in {"code", "asset_scale"} else UINT64_MAX
    good, bad = ([0, most], [-1, most + 1, "1", None]) if issubclass(kind, int) else ([kind()], [0, None])
    for value in good:
        packet = StreamPacket(PacketType.PREPARE, 0, 0, [evolve(frame, **{member: value})])
        assert decode_stream(encode_stream(packet)) == packet
    for value in bad:
        with pytest.raises(InvalidValue) as caught:
            evolve(frame, **{member: value})
        is_integer = issubclass(kind, int)
        expected = (
            f"an integer from 0 to {most}" if is_integer else f"of type {kind.__name__}, not {type(value).__name__}"
        )
        assert str(caught.value) == f"{member} must be {expected}"
        assert caught.value.details == {"member": member}


@pytest.mark.parametrize(
    ("make", "member"),
    [
        (lambda: StreamMoney(-1, 1), "stream_id"),
        (lambda: StreamMoney(1, UINT64_MAX + 1), "shares"),
        (lambda: StreamMoney(1, "1"), "shares"),  # type: ignore[arg-type] # on purpose
        (lambda: ConnectionClose(256, ""), "code"),
        (lambda: ConnectionClose(1, b""), "message"),  # type: ignore[arg-type] # on purpose
        (lambda: StreamData(1, 0, "text"), "data"),  # type: ignore[arg-type] # on purpose
        (lambda: StreamMaxMoney(1, UINT64_MAX + 1, 0), "receive_max"),
        (lambda: StreamPacket(PacketType.PREPARE, -1, 0), "sequence"),
        (lambda: StreamPacket(PacketType.PREPARE, 0, UINT64_MAX + 1), "amount"),
    ],
)
def test_invalid_packet_cannot_be_built(make: Any, member: str) -> None:
    """A packet that cannot be encoded cannot be constructed."""
    with pytest.raises(InvalidValue) as caught:
        make()
    assert caught.value.details == {"member": member}

"""Tests of `ilp.oer`: Interledger RFC 30 with its examples, and malformed input."""

from collections.abc import Callable
from typing import Any

import pytest

from incoming_payments.errors import MalformedPacket
from incoming_payments.ilp.oer import (
    read_octets,
    read_saturated_uint,
    read_text,
    read_uint8,
    read_var_uint,
    write_length,
    write_text,
    write_uint8,
    write_var_uint,
)
from incoming_payments.limits import UINT64_MAX

Read = Callable[[bytes, int, int], tuple[Any, int]]


@pytest.mark.parametrize(("octets", "value"), [("00", 0), ("7B", 123), ("FF", 255)])
def test_uint8(octets: str, value: int) -> None:
    """A UInt8 is read and written."""
    assert read_uint8(bytes.fromhex(octets), 0, 1) == (value, 1)
    assert write_uint8(value) == bytes.fromhex(octets)


@pytest.mark.parametrize(
    ("octets", "length"),
    [("07", 7), ("7F", 127), ("8180", 128), ("8182", 130), ("821234", 4660), ("83ABCDEF", 11259375)],
)
def test_rfc_30_length_determinants(octets: str, length: int) -> None:
    """The examples in RFC 30 and the lengths around 127 and 128 are written and read."""
    data = bytes.fromhex(octets)
    assert write_length(length) == data
    assert read_octets(data + bytes(length), 0, len(data) + length) == (bytes(length), len(data) + length)


def test_rfc_30_length_of_64_bits() -> None:
    """The last example in RFC 30 is read and written, and refused because so many bytes do not follow."""
    data = bytes.fromhex("88AC01055A1DEBAC1E")
    assert write_length(12394193534107495454) == data
    with pytest.raises(MalformedPacket) as caught:
        read_octets(data, 0, len(data))
    assert str(caught.value) == "expected 12394193534107495454 bytes, but found 0, at byte 0"


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (0, "0100"),
        (1, "0101"),
        (255, "01ff"),
        (256, "020100"),
        (4660, "021234"),
        (2**63, "088000000000000000"),
        (UINT64_MAX, "08ffffffffffffffff"),
    ],
)
def test_var_uint_is_canonical(value: int, octets: str) -> None:
    """An integer has one encoding, the shortest. Zero takes one byte."""
    data = bytes.fromhex(octets)
    assert write_var_uint(value) == data
    assert read_var_uint(data, 0, len(data)) == (value, len(data))
    assert read_saturated_uint(data, 0, len(data)) == (value, len(data))


def test_rfc_29_large_integer_saturates() -> None:
    """`read_saturated_uint` reads a larger integer as 2**64 - 1, and returns the position behind it."""
    data = bytes.fromhex("09010000000000000000") + b"!"
    assert read_saturated_uint(data, 0, len(data)) == (UINT64_MAX, 10)


def test_text_is_utf_8() -> None:
    """A string is encoded as UTF-8."""
    assert read_text(write_text("né"), 0, 4) == ("né", 4)
    assert write_text("né") == b"\x03n\xc3\xa9"


SHORTEST = "a length is not in its shortest form"
INTEGER = "an integer is not in its shortest form"


@pytest.mark.parametrize(
    ("read", "octets", "message"),
    [
        pytest.param(read_uint8, "", "a byte is missing", id="missing byte"),
        pytest.param(read_octets, "", "a length is missing", id="missing length"),
        pytest.param(read_octets, "0200", "expected 2 bytes, but found 1", id="too few bytes"),
        pytest.param(read_octets, "82ff", "a length is truncated", id="truncated length"),
        pytest.param(read_octets, "80", SHORTEST, id="length without bytes"),
        pytest.param(read_octets, "817f" + "00" * 127, SHORTEST, id="127 in the long form"),
        pytest.param(read_octets, "820080" + "00" * 128, SHORTEST, id="length with a leading zero"),
        pytest.param(read_text, "01ff", "a string is not UTF-8", id="not UTF-8"),
        pytest.param(read_var_uint, "", "a length is missing", id="missing integer"),
        pytest.param(read_var_uint, "00", INTEGER, id="integer without bytes"),
        pytest.param(read_var_uint, "0005", INTEGER, id="integer without bytes, before another byte"),
        pytest.param(read_var_uint, "020001", INTEGER, id="integer with a leading zero"),
        pytest.param(read_var_uint, "0201", "expected 2 bytes, but found 1", id="truncated integer"),
        pytest.param(read_var_uint, "09" + "01" * 9, "an integer has more than 64 bits", id="more than 64 bits"),
        pytest.param(read_var_uint, "810101", SHORTEST, id="integer with a long length"),
        pytest.param(
            read_saturated_uint,
            "0900" + "01" * 8,
            "an integer has more than 64 bits",
            id="saturated, nine bytes with a leading zero",
        ),
        pytest.param(read_saturated_uint, "020001", INTEGER, id="saturated, leading zero"),
        pytest.param(read_saturated_uint, "00", INTEGER, id="saturated, without bytes"),
    ],
)
def test_malformed_input_is_refused(read: Read, octets: str, message: str) -> None:
    """Truncated or non-canonical input is refused, with the position of the value."""
    data = bytes.fromhex(octets)
    for before in (b"", b"???"):
        with pytest.raises(MalformedPacket) as caught:
            read(before + data, len(before), len(before) + len(data))
        assert str(caught.value) == f"{message}, at byte {len(before)}"
        assert caught.value.details == {"position": len(before)}


@pytest.mark.parametrize("read", [read_octets, read_text, read_var_uint, read_saturated_uint])
def test_reader_stops_at_the_end(read: Read) -> None:
    """A reader does not use bytes after `end`."""
    data = b"\x04abcd0123456789"
    with pytest.raises(MalformedPacket):
        read(data, 0, 4)

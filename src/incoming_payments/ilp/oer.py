"""Octet Encoding Rules, as far as ILP uses them. RFC 30 of the Interledger RFCs.

A reader takes the bytes, where to begin, and where the enclosing value ends; it answers with the value and where the
next one begins. What a writer makes is canonical, and what a reader takes is canonical: a length has one spelling, and
so has an integer. RFC 27 allows to be laxer; then one packet would have many spellings, and no sender needs them.
Bytes after the last value are for whoever reads that value to ignore (RFC 30, "Extensibility").

Everything that cannot be read raises `MalformedPacket`, which says at which byte, and nothing else is raised.
"""

from typing import Final

from incoming_payments.errors import MalformedPacket
from incoming_payments.limits import UINT64_MAX

_UINT64_BYTES: Final = 8


# --- reading ---------------------------------------------------------------------------------------


def read_uint8(data: bytes, at: int, end: int) -> tuple[int, int]:
    """An unsigned integer of one byte."""
    if at >= end:
        raise MalformedPacket("a byte is missing", at)
    return data[at], at + 1


def read_span(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Where a variable-length octet string begins and stops: a length, and so many bytes.

    >>> read_span(b"\\x03abc...", 0, 7)
    (1, 4)
    """
    if at >= end:
        raise MalformedPacket("a length is missing", at)
    length, start = data[at], at + 1
    if length > 127:
        length, start = _read_long_length(data, at, end)
    stop = start + length
    if stop > end:
        raise MalformedPacket(f"{length} bytes were announced, but only {end - start} are there", at)
    return start, stop


def read_octets(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """A variable-length octet string, and where the next value begins.

    >>> read_octets(b"\\x03abc...", 0, 7)
    (b'abc', 4)
    """
    start, stop = read_span(data, at, end)
    return data[start:stop], stop


def read_var_uint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A variable-length unsigned integer, of at most 64 bits. RFC 29 §5.1.4 lets an implementation refuse longer ones.

    >>> read_var_uint(bytes.fromhex("021234"), 0, 3)
    (4660, 3)
    """
    if at < end and 0 < (size := data[at]) <= _UINT64_BYTES:
        start, stop = at + 1, at + 1 + size
        if stop <= end:
            first = data[start]
            if size == 1:
                return first, stop
            if first:  # only zero itself, which is one byte, begins with a byte of zeros
                return int.from_bytes(data[start:stop]), stop
    octets, _ = read_octets(data, at, end)
    why = "is not in its shortest form" if len(octets) <= _UINT64_BYTES else "has more than 64 bits"
    raise MalformedPacket(f"an integer {why}", at)


def read_saturated_uint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """As `read_var_uint`, but an integer that does not fit 64 bits reads as the largest that does. RFC 29 §5.1.4."""
    octets, stop = read_octets(data, at, end)
    if len(octets) > _UINT64_BYTES and octets[0]:
        return UINT64_MAX, stop
    return read_var_uint(data, at, end)


def read_text(data: bytes, at: int, end: int) -> tuple[str, int]:
    """A variable-length string in UTF-8."""
    octets, stop = read_octets(data, at, end)
    try:
        return octets.decode(), stop
    except UnicodeDecodeError:
        raise MalformedPacket("a text is not UTF-8", at) from None


def _read_long_length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A length above 127: how many bytes it has, with the highest bit set, and those bytes."""
    stop = at + 1 + (data[at] & 0x7F)
    if stop > end:
        raise MalformedPacket("a length is cut short", at)
    octets = data[at + 1 : stop]
    length = int.from_bytes(octets)
    # RFC 30: no leading zeros; the short form for what it can hold.
    if length < 128 or octets[0] == 0:
        raise MalformedPacket("a length is not in its shortest form", at)
    return length, stop


# --- writing ---------------------------------------------------------------------------------------


def write_length(length: int) -> bytes:
    """A length determinant, in its shortest form.

    >>> write_length(130).hex()
    '8182'
    """
    if length < 128:
        return length.to_bytes(1)
    size = (length.bit_length() + 7) // 8
    return bytes((0x80 | size,)) + length.to_bytes(size)


def write_octets(octets: bytes) -> bytes:
    """A variable-length octet string."""
    length = len(octets)
    return (length.to_bytes(1) if length < 128 else write_length(length)) + octets


def write_var_uints(*values: int) -> bytes:
    """Variable-length unsigned integers of at most 64 bits, each in its shortest form, one after the other.

    >>> write_var_uints(0, 4660).hex()
    '0100021234'
    """
    octets = b""
    for value in values:
        size = (value.bit_length() + 7) // 8 or 1
        octets += (size << 8 * size | value).to_bytes(size + 1)  # the length, and so many bytes, as one integer
    return octets


def write_uint8(value: int) -> bytes:
    """An unsigned integer of one byte."""
    return value.to_bytes(1)


def write_text(text: str) -> bytes:
    """A variable-length string in UTF-8."""
    return write_octets(text.encode())

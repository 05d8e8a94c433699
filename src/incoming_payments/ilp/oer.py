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


def read_uint(data: bytes, at: int, end: int, size: int) -> tuple[int, int]:
    """An unsigned integer of exactly `size` bytes: 1, 2, 4 or 8.

    >>> read_uint(bytes.fromhex("1234"), 0, 2, 2)
    (4660, 2)
    """
    stop = at + size
    if stop > end:
        raise MalformedPacket(f"an integer of {size} bytes is cut short", at)
    return int.from_bytes(data[at:stop]), stop


def read_octets(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """A variable-length octet string: a length, and so many bytes.

    >>> read_octets(b"\\x03abc...", 0, 7)
    (b'abc', 4)
    """
    if at >= end:
        raise MalformedPacket("a length is missing", at)
    length, start = data[at], at + 1
    if length > 127:
        length, start = _read_long_length(data, at, end)
    stop = start + length
    if stop > end:
        raise MalformedPacket(f"{length} bytes were announced, but only {end - start} are there", at)
    return data[start:stop], stop


def read_var_uint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A variable-length unsigned integer, of at most 64 bits. RFC 29 §5.1.4 lets an implementation refuse longer ones.

    >>> read_var_uint(bytes.fromhex("021234"), 0, 3)
    (4660, 3)
    """
    # Zero is one byte; no other integer begins with a byte of zeros.
    if at < end and 0 < (size := data[at]) <= _UINT64_BYTES:
        start, stop = at + 1, at + 1 + size
        if stop <= end and (size == 1 or data[start]):
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
    return write_length(len(octets)) + octets


def write_var_uint(value: int) -> bytes:
    """A variable-length unsigned integer of at most 64 bits, in its shortest form.

    >>> write_var_uint(0).hex(), write_var_uint(4660).hex()
    ('0100', '021234')
    """
    size = (value.bit_length() + 7) // 8 or 1
    return (size << 8 * size | value).to_bytes(size + 1)  # the length, and so many bytes, written as one integer


def write_uint8(value: int) -> bytes:
    """An unsigned integer of one byte."""
    return value.to_bytes(1)


def write_text(text: str) -> bytes:
    """A variable-length string in UTF-8."""
    return write_octets(text.encode())

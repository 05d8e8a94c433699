"""The Octet Encoding Rules (OER) of ILP, which Interledger RFC 30 defines.

Each reader takes the data, a position and the end of the enclosing value, and returns a value and the next position.

Each length and each integer has one canonical encoding. Writers produce only the canonical encoding, and readers accept
only this encoding. Interledger RFC 27 also allows readers that accept more, but then one packet would have many
encodings.

A reader raises `MalformedPacket` with the position of the error, and no other exception.
"""

from typing import Final

from incoming_payments.errors import MalformedPacket
from incoming_payments.limits import UINT64_MAX

_UINT64_BYTES: Final = 8


def read_uint8(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read an unsigned integer of one byte."""
    if at >= end:
        raise MalformedPacket("a byte is missing", at)
    return data[at], at + 1


def read_span(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read the length of a variable-length octet string, and return the start and end of its bytes.

    >>> read_span(b"\\x03abc...", 0, 7)
    (1, 4)
    """
    if at >= end:
        raise MalformedPacket("a length is missing", at)
    length, start = data[at], at + 1
    if length > 127:  # the other bits of this byte are the number of length bytes, which follow
        start += length & 0x7F
        if start > end:
            raise MalformedPacket("a length is truncated", at)
        length = int.from_bytes(data[at + 1 : start])
        # A length has no leading zeros, and has the short form up to 127 (RFC 30).
        if length < 128 or data[at + 1] == 0:
            raise MalformedPacket("a length is not in its shortest form", at)
    stop = start + length
    if stop > end:
        raise MalformedPacket(f"expected {length} bytes, but found {end - start}", at)
    return start, stop


def read_octets(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Read a variable-length octet string."""
    start, stop = read_span(data, at, end)
    return data[start:stop], stop


def read_var_uint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a variable-length unsigned integer of at most 64 bits. Interledger RFC 29 §5.1.4 allows this limit."""
    start, stop = read_span(data, at, end)
    size = stop - start
    if size > _UINT64_BYTES:
        raise MalformedPacket("an integer has more than 64 bits", at)
    if size == 0 or (size > 1 and data[start] == 0):
        raise MalformedPacket("an integer is not in its shortest form", at)
    return int.from_bytes(data[start:stop]), stop


def read_saturated_uint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read an integer like `read_var_uint`, but return 2**64 - 1 for a larger integer (Interledger RFC 29 §5.1.4)."""
    octets, stop = read_octets(data, at, end)
    if len(octets) > _UINT64_BYTES and octets[0]:
        return UINT64_MAX, stop
    return read_var_uint(data, at, end)


def read_text(data: bytes, at: int, end: int) -> tuple[str, int]:
    """Read a variable-length UTF-8 string."""
    octets, stop = read_octets(data, at, end)
    try:
        return octets.decode(), stop
    except UnicodeDecodeError:
        raise MalformedPacket("a string is not UTF-8", at) from None


def write_length(length: int) -> bytes:
    """Write a length determinant in its shortest form.

    >>> write_length(130).hex()
    '8182'
    """
    if length < 128:
        return length.to_bytes(1)
    size = (length.bit_length() + 7) // 8
    return bytes((0x80 | size,)) + length.to_bytes(size)


def write_octets(octets: bytes) -> bytes:
    """Write a variable-length octet string."""
    return write_length(len(octets)) + octets


def write_var_uint(value: int) -> bytes:
    """Write a variable-length unsigned integer of at most 64 bits in its shortest form."""
    return write_octets(value.to_bytes(max(1, (value.bit_length() + 7) // 8)))


def write_uint8(value: int) -> bytes:
    """Write an unsigned integer of one byte."""
    return value.to_bytes(1)


def write_text(text: str) -> bytes:
    """Write a variable-length UTF-8 string."""
    return write_octets(text.encode())
